"""Measure a trained model on held-out utterances: metrics.json, utt.tsv, report.md, plots."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from audiovae.analysis import figures, held_out, listening, plots, quality, report, usage
from audiovae.analysis.held_out import HeldOut
from audiovae.analysis.voices import VoiceClassifier
from audiovae.data.archive import FeatureArchive
from audiovae.data.atomic import atomic_path, write_text
from audiovae.models.vae import AudioVAE
from audiovae.vocoder import Vocoder

SAMPLES = 160  # draws of each prior
TRAIN_UTTERANCES = 2000  # at most; for the voice classifier and the training patches
EXAMPLES = 4  # utterances plotted

_log = logging.getLogger(__name__)


@torch.no_grad()
def evaluate(
    model: AudioVAE,
    archive_test: FeatureArchive,
    archive_train: FeatureArchive,
    out_dir: Path,
    *,
    vocoder: Vocoder | None,
    data_dir: Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    assume_english: bool = False,
) -> dict[str, Any]:
    """Measure everything and write metrics.json, utt.tsv, report.md and plots/ into out_dir.

    Args:
        archive_test: held-out features; its folder also is the data dir of their audio.
        archive_train: training features, for the voice classifier and the patch distances.
        vocoder: None leaves out what needs audio.
        data_dir: where `utt2lang` stands, if not beside the features.
        seed: of every draw; the same seed gives the same figures on the CPU.
        limit: use this many utterances of the test set, drawn by the seed.
        assume_english: without `utt2lang`, take all text as English.

    Returns:
        What metrics.json holds; `report.DEFINITIONS` says what the names mean.

    Raises:
        FeatureMismatchError: model, features and vocoder do not share one mel contract.
    """
    for archive in (archive_test, archive_train):
        model.feature.require_same(archive.feature, "the model", str(archive.path))
    if vocoder is not None:
        model.feature.require_same(vocoder.feature, "the model", f"vocoder {vocoder.name}")
    model.eval()
    clock = _Clock()
    with clock("encode"):
        test = held_out.load(model, archive_test, limit, seed)
        train = held_out.subset(archive_train, TRAIN_UTTERANCES, seed)
    measured = _measure(model, test, train, archive_train.utt2spk, seed, clock)
    if vocoder is not None:
        with clock("listen"):
            prompts = listening.choose_prompts(
                archive_test, list(test.mels), data_dir, assume_english=assume_english, seed=seed
            )
            mels = {u: r.mel for u, r in measured.rebuilt.items()}
            measured.heard = listening.listen(
                vocoder, archive_test, prompts, mels, device=model.device
            )
    with clock("plots"):
        _write_plots(out_dir / "plots", model, test, measured)
    values = figures.jsonable(
        {
            **measured.figures,
            **figures.listening_figures(measured.heard),
            "parameters": sum(p.numel() for p in model.parameters()),
            "seed": seed,
            "seconds": clock.seconds,
            "units": report.DEFINITIONS,
        }
    )
    write_text(out_dir / "utt.tsv", _utterance_table(test, measured))
    write_text(out_dir / "report.md", report.markdown(values))
    write_text(out_dir / "metrics.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return values


@dataclass
class _Clock:
    """Wall time of each part, logged as it ends."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - start, 2)
        _log.info("evaluate: %s, %.1f s", part, self.seconds[part])


@dataclass
class _Measured:
    """Figures so far, and what tables and plots are made of."""

    bounds: dict[str, quality.Bound]
    used: usage.LatentUsage
    rebuilt: dict[str, quality.Reconstruction]
    drawn: dict[str, quality.Samples]
    figures: dict[str, Any]
    heard: listening.Listening | None = None


def _measure(
    model: AudioVAE,
    test: HeldOut,
    train: dict[str, np.ndarray],
    train_speakers: dict[str, str],
    seed: int,
    clock: _Clock,
) -> _Measured:
    """All that needs no audio."""
    with clock("bound"):
        bounds = quality.bounds(model, test.batches, seed=seed)
    with clock("usage"):
        used = usage.latent_usage(test.latents)
        costs = usage.shuffle_costs(model, test.batches, test.latents, seed=seed)
    with clock("reconstruct"):
        rebuilt = quality.reconstructions(model, test.codes, test.mels)
    with clock("transfer"):
        classifier = VoiceClassifier.fit(
            list(train.values()), [train_speakers[utt_id] for utt_id in train]
        )
        moved = figures.transfer_figures(model, test, classifier, seed)
    with clock("sample"):
        drawn = {"normal": quality.prior_samples(model, SAMPLES, "normal", seed=seed)}
        if bool(model.fitted_std.any()):
            drawn["fitted"] = quality.prior_samples(model, SAMPLES, "fitted", seed=seed)
    with clock("compare"):
        likeness = quality.SpeechLikeness(list(train.values()), test.real, seed=seed)
        train_seconds = [len(mel) / test.frame_rate for mel in train.values()]
        values = {
            **figures.bound_figures(test, bounds),
            **figures.usage_figures(used, costs),
            **figures.reconstruction_figures(test, rebuilt, classifier, likeness),
            **moved,
            **figures.sample_figures(test, drawn, likeness, train_seconds),
            "by_length": figures.by_length(test, bounds, rebuilt),
            "counts": {
                "test_utterances": len(test.mels),
                "test_frames": sum(map(len, test.real)),
                "train_utterances": len(train),
                "speakers": len(classifier.voices),
            },
        }
    return _Measured(bounds, used, rebuilt, drawn, values)


def _utterance_table(test: HeldOut, measured: _Measured) -> str:
    """One line an utterance, tab separated; texts where it was transcribed."""
    texts = measured.heard.texts if measured.heard else {}
    lines = []
    for utt_id in test.mels:
        bound, made = measured.bounds[utt_id], measured.rebuilt[utt_id]
        text = texts.get(utt_id, {})
        lines.append(
            {
                "utt_id": utt_id,
                "speaker": test.speakers[utt_id],
                "frames": bound.frames,
                "neg_elbo_nats_per_frame": f"{bound.total / bound.frames:.4f}",
                "reconstruction_nats": f"{bound.reconstruction:.2f}",
                "kl_z_nats": f"{bound.kl_z:.3f}",
                "kl_u_nats": f"{bound.kl_u:.2f}",
                "recon_logmel_l1": f"{made.distance.l1:.4f}",
                "recon_mcd_db": f"{made.distance.mcd:.3f}",
                "alignment_error_seconds": f"{made.alignment_error:.4f}",
                "flux_ratio": f"{made.flux_ratio:.3f}",
                **{f"text_{s}": text.get(s, "") for s in ("reference", *listening.SOURCES)},
            }
        )
    rows = [list(lines[0]), *([str(value) for value in line.values()] for line in lines)]
    return "".join("\t".join(row) + "\n" for row in rows)


def _write_plots(folder: Path, model: AudioVAE, test: HeldOut, measured: _Measured) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    used = measured.used
    z = np.concatenate([codes.z.float().cpu().numpy() for codes in test.codes.values()])
    made: dict[str, Figure] = {
        "z": plots.latent_scatter(z, test.voices),
        "kl": plots.kl_per_dim(used.kl_z_per_dim, used.u_nats_per_dim),
        "durations": plots.durations(test.seconds, measured.drawn["normal"].seconds),
    }
    order = test.by_length
    picked = np.linspace(0, len(order) - 1, min(EXAMPLES, len(order))).round().astype(int)
    for n, index in enumerate(picked, 1):
        utt_id = order[index]
        rebuilt = measured.rebuilt[utt_id]
        titles = (utt_id, "reconstruction from posterior means")
        made[f"mel_{n}"] = plots.mel_pair(test.mels[utt_id], rebuilt.mel, model.feature, titles)
        made[f"alignment_{n}"] = plots.alignment(
            rebuilt.alignment, model.config.slots_per_step, utt_id
        )
    for name, figure in made.items():
        with atomic_path(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=110)
