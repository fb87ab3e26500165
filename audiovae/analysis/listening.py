"""Natural speech, copy synthesis and the model side by side, as audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from audiovae import synthesis
from audiovae.analysis import metrics
from audiovae.analysis.recognition import (
    Recogniser,
    RecognitionMissing,
    error_rates,
    normalise_text,
)
from audiovae.data.archive import FeatureArchive
from audiovae.data.kaldi_dir import DataDir, read_table
from audiovae.features import log_mel
from audiovae.vocoder import Vocoder

PROMPTS = 32  # utterances rendered and listened to
MIN_WORDS = 3  # a shorter prompt gives a recogniser no context
SOURCES = ("natural", "copy", "model")


@dataclass(frozen=True)
class Prompts:
    """Utterances to render; `references` is empty where no English text is known."""

    utt_ids: list[str]
    references: list[str]  # normalised text
    message: str | None = None  # why there is no text to compare with


def choose_prompts(
    archive: FeatureArchive,
    utt_ids: Sequence[str],
    data_dir: Path | None,
    *,
    assume_english: bool = False,
    seed: int = 0,
) -> Prompts:
    """English utterances of three words or more, at most 32; any utterances if there are none.

    English is what `utt2lang` in the dump dir or in the data dir says is en or en-*; without that
    file all utterances with text, if `assume_english`.
    """
    words = {
        utt_id: normalise_text(text) for utt_id, text in archive.text.items() if utt_id in utt_ids
    }
    english = _english(archive, data_dir)
    if english is None and assume_english:
        english = set(words)
    known = sorted(u for u in english or () if len(words.get(u, "").split()) >= MIN_WORDS)
    order = np.random.default_rng(seed).permutation(len(known or utt_ids))[:PROMPTS]
    chosen = sorted((known or list(utt_ids))[n] for n in order)
    if known:
        return Prompts(chosen, [words[u] for u in chosen])
    reason = "no utt2lang beside the features" if english is None else "none of English"
    return Prompts(chosen, [], f"no prompts of {MIN_WORDS} words or more for WER: {reason}")


def _english(archive: FeatureArchive, data_dir: Path | None) -> set[str] | None:
    for folder in (archive.path, data_dir):
        if folder is not None and (folder / "utt2lang").is_file():
            table = read_table(folder / "utt2lang", [])
            return {u for u, entry in table.items() if entry.value.lower().split("-")[0] == "en"}
    return None


@dataclass
class Row:
    """One of natural, copy, model: means over the prompts."""

    logmel_l1: float | None = None  # nats, after DTW, of the audio analysed again
    mcd: float | None = None  # dB
    flux_ratio: float | None = None  # of the natural mel's
    wer: float | None = None
    cer: float | None = None


@dataclass
class Listening:
    """The table, and what it was made of."""

    rows: dict[str, Row]
    copy_l1: float  # nats, frame by frame without DTW
    texts: dict[str, dict[str, str]] = field(default_factory=dict)  # utt_id -> source -> text
    message: str | None = None  # why there are no error rates


def listen(
    vocoder: Vocoder,
    archive: FeatureArchive,
    prompts: Prompts,
    reconstructed: Mapping[str, np.ndarray],
    *,
    device: torch.device | str = "cpu",
) -> Listening:
    """Render the prompts' mels and the reconstructed ones, analyse and transcribe all three."""
    feature = archive.feature
    data = DataDir.read(archive.path)
    waves: dict[str, list[np.ndarray]] = {source: [] for source in SOURCES}
    for utt_id in prompts.utt_ids:
        mel = archive[utt_id]
        natural = data.wave(utt_id, feature.sample_rate)[: len(mel) * feature.hop_length]
        waves["natural"].append(natural)
        waves["copy"].append(_render(vocoder, mel, device))
        waves["model"].append(_render(vocoder, reconstructed[utt_id], device))
    real = [archive[utt_id] for utt_id in prompts.utt_ids]
    heard = {s: [log_mel(wave, feature) for wave in waves[s]] for s in SOURCES}
    rows = {source: _row(real, heard[source], feature.power) for source in SOURCES}
    copy_l1 = np.mean([np.abs(a - b).mean() for a, b in zip(real, heard["copy"], strict=True)])
    result = Listening(rows, float(copy_l1), message=prompts.message)
    if prompts.references:
        _transcribe(result, waves, prompts, feature.sample_rate)
    return result


def _render(vocoder: Vocoder, mel: np.ndarray, device: torch.device | str) -> np.ndarray:
    lengths = torch.tensor([len(mel)], device=device)
    return synthesis.vocode(vocoder, torch.from_numpy(mel).to(device)[None], lengths)[0]


def _row(real: Sequence[np.ndarray], heard: Sequence[np.ndarray], power: float) -> Row:
    distances = [metrics.mel_distance(a, b, power=power) for a, b in zip(real, heard, strict=True)]
    return Row(
        logmel_l1=float(np.mean([d.l1 for d in distances])),
        mcd=float(np.mean([d.mcd for d in distances])),
        flux_ratio=float(np.mean([metrics.flux(m) for m in heard]))
        / max(float(np.mean([metrics.flux(m) for m in real])), 1e-9),
    )


def _transcribe(
    result: Listening, waves: Mapping[str, Sequence[np.ndarray]], prompts: Prompts, rate: int
) -> None:
    """Fill in error rates and texts; a message instead where the extra `eval` is missing."""
    try:
        recogniser = Recogniser(threads=torch.get_num_threads())
    except RecognitionMissing as missing:
        result.message = str(missing)
        return
    result.texts = {
        u: {"reference": text} for u, text in zip(prompts.utt_ids, prompts.references, strict=True)
    }
    for source in SOURCES:
        texts = [recogniser.transcribe(wave, rate) for wave in waves[source]]
        rates = error_rates(prompts.references, texts)
        result.rows[source].wer, result.rows[source].cer = rates.wer, rates.cer
        for utt_id, text in zip(prompts.utt_ids, texts, strict=True):
            result.texts[utt_id][source] = text
