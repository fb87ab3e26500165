"""The numbers of metrics.json, under the names that `report.DEFINITIONS` explains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audiovae.analysis import listening, metrics, quality, usage
from audiovae.analysis.held_out import HeldOut
from audiovae.analysis.voices import VoiceClassifier
from audiovae.models.vae import AudioVAE

PAIRS = 130  # voice transfers
REFERENCES = 8  # utterances whose mean z is the voice, in the secondary figure
ASTRAY = 0.25  # seconds off the diagonal from which an alignment counts as astray


def bound_figures(held_out: HeldOut, bounds: Mapping[str, quality.Bound]) -> dict[str, Any]:
    """-ELBO, its parts, and what z and u cost."""
    rows = list(bounds.values())
    frames = sum(b.frames for b in rows)
    slots = sum(len(codes.u[0]) for codes in held_out.codes.values())
    kl_u = sum(b.kl_u for b in rows)
    parts = ("reconstruction", "end", "kl_z", "kl_u", "length")
    return {
        "neg_elbo_nats_per_frame": quality.per_frame(rows),
        "neg_elbo_parts_nats_per_frame": {p: quality.per_frame(rows, p) for p in parts},
        "kl_z_nats": sum(b.kl_z for b in rows) / len(rows),
        "kl_u_nats": kl_u / len(rows),
        "kl_u_nats_per_second": kl_u / frames * held_out.frame_rate,
        "kl_u_nats_per_slot": kl_u / slots,
    }


def usage_figures(used: usage.LatentUsage, costs: usage.ShuffleCosts) -> dict[str, Any]:
    """Is z used, is u?"""
    return {
        "shuffle_z_nats_per_frame": costs.z,
        "shuffle_memory_nats_per_frame": costs.memory,
        "active_units_z": used.active_units_z,
        "active_units_u": used.active_units_u,
        "kl_z_per_dim": used.kl_z_per_dim,
        "u_nats_per_dim": used.u_nats_per_dim,
    }


def transfer_figures(
    model: AudioVAE, held_out: HeldOut, classifier: VoiceClassifier, seed: int
) -> dict[str, Any]:
    """Voice transfer, and whether the judge can be trusted; no figures with one voice only."""
    judged = {"classifier_accuracy": classifier.accuracy(held_out.real, held_out.voices)}
    pairs = usage.draw_pairs(held_out.speakers, PAIRS, np.random.default_rng(seed))
    if not pairs:
        return {**judged, "transfer_success": None, "transfer_success_mean_reference": None}
    one, several = (
        usage.transfer(model, held_out.codes, held_out.speakers, pairs, classifier, references=n)
        for n in (1, REFERENCES)
    )
    return {
        **judged,
        "transfer_success": one.success,
        "transfer_success_mean_reference": several.success,
        "transfer_kept_source": one.kept_source,
        "transfer_by_voice": one.by_target(),
        "transfer_pairs": len(pairs),
    }


def reconstruction_figures(
    held_out: HeldOut,
    rebuilt: Mapping[str, quality.Reconstruction],
    classifier: VoiceClassifier,
    likeness: quality.SpeechLikeness,
) -> dict[str, Any]:
    """Reconstructions from posterior means, means over utterances."""
    rows = list(rebuilt.values())
    mels = [r.mel for r in rows]
    patches = likeness.compare(mels)
    return {
        "recon_logmel_l1": _mean([r.distance.l1 for r in rows]),
        "recon_mcd_db": _mean([r.distance.mcd for r in rows]),
        "recon_flux_ratio": _mean([r.flux_ratio for r in rows]),
        "recon_alignment_error_seconds": _mean([r.alignment_error for r in rows]),
        "recon_alignment_astray": _mean([r.alignment_worst > ASTRAY for r in rows]),
        "recon_own_voice": classifier.accuracy(mels, held_out.voices),
        "recon_fd_ratio": patches.ratio if patches else None,
    }


def sample_figures(
    held_out: HeldOut,
    drawn: Mapping[str, quality.Samples],
    likeness: quality.SpeechLikeness,
    train_seconds: Sequence[float],
) -> dict[str, Any]:
    """Samples of each prior of z against real speech; those of N(0, I) at the top."""
    tables: dict[str, Any] = {}
    for prior, samples in drawn.items():
        lengths = dataclasses.asdict(metrics.compare_durations(samples.seconds, held_out.seconds))
        patches = likeness.compare(samples.mels)
        tables[prior] = {
            "number": len(samples.mels),
            "duration": lengths,
            "duration_ratio_to_train": lengths["mean"] / float(np.mean(train_seconds)),
            "hit_cap": samples.hit_cap,
            "patches": dataclasses.asdict(patches) if patches else None,
        }
    normal = tables["normal"]
    return {
        "sample_duration_ratio": normal["duration"]["ratio"],
        "sample_hit_cap": normal["hit_cap"],
        "sample_fd_ratio": normal["patches"]["ratio"] if normal["patches"] else None,
        "samples": tables,
    }


def listening_figures(heard: listening.Listening | None) -> dict[str, Any]:
    """Natural, copy and model as audio; None without a vocoder."""
    if heard is None:
        rows = {source: listening.Row() for source in listening.SOURCES}
        heard = listening.Listening(rows, math.nan, message="no vocoder was given")
    return {
        "copy_synthesis_logmel_l1": heard.copy_l1,
        "wer": {source: row.wer for source, row in heard.rows.items()},
        "cer": {source: row.cer for source, row in heard.rows.items()},
        "wer_message": heard.message,
        "side_by_side": {source: dataclasses.asdict(row) for source, row in heard.rows.items()},
        "wer_prompts": len(heard.texts),
        "wer_words": sum(len(text["reference"].split()) for text in heard.texts.values()),
    }


def by_length(
    held_out: HeldOut,
    bounds: Mapping[str, quality.Bound],
    rebuilt: Mapping[str, quality.Reconstruction],
) -> dict[str, Any]:
    """The shorter and the longer half of the utterances."""
    order = held_out.by_length
    middle = len(order) // 2
    halves = {"short": order[:middle], "long": order[middle:]}
    return {
        name: {
            "utterances": len(half),
            "mean_frames": _mean([len(held_out.mels[u]) for u in half]),
            "neg_elbo_nats_per_frame": quality.per_frame([bounds[u] for u in half]),
            "recon_logmel_l1": _mean([rebuilt[u].distance.l1 for u in half]),
        }
        for name, half in halves.items()
        if half
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def jsonable(value: Any) -> Any:
    """Plain values: no number that JSON lacks, six significant digits."""
    if isinstance(value, dict):
        return {str(key): jsonable(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
