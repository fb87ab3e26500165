"""How good is what the model makes: the bound, reconstructions, and samples of the prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from audiovae import synthesis
from audiovae.analysis import metrics
from audiovae.analysis.usage import decode_all
from audiovae.data.batches import Batch
from audiovae.models.vae import AudioVAE
from audiovae.synthesis import Codes

MAX_PATCHES = 10000  # of a set, drawn once
BATCH_SAMPLES = 32


@dataclass(frozen=True)
class Bound:
    """-ELBO of an utterance and its parts, nats, of the mel as the model normalises it."""

    frames: int
    reconstruction: float
    end: float
    kl_z: float
    kl_u: float
    length: float

    @property
    def total(self) -> float:
        """-ELBO, all weights 1: an upper bound on -log p(x), up to the one posterior sample."""
        return self.reconstruction + self.end + self.kl_z + self.kl_u + self.length


def bounds(model: AudioVAE, batches: Sequence[Batch], *, seed: int = 0) -> dict[str, Bound]:
    """The bound of each utterance, with one posterior sample."""
    found: dict[str, Bound] = {}
    with torch.random.fork_rng(devices=_cuda(model)):
        for n, batch in enumerate(batches):
            torch.manual_seed(synthesis.item_seed(seed, "bound", n))
            terms = model(batch.mel, batch.lengths)
            columns = (
                batch.lengths, terms.reconstruction, terms.end, terms.kl_z.sum(1),
                terms.kl_u.sum(1), terms.length,
            )  # fmt: skip
            for utt_id, frames, *parts in zip(
                batch.utt_ids, *(column.tolist() for column in columns), strict=True
            ):
                found[utt_id] = Bound(frames, *parts)
    return found


def _cuda(model: AudioVAE) -> list[torch.device]:
    return [model.device] if model.device.type == "cuda" else []


def per_frame(bound: Sequence[Bound], part: str = "total") -> float:
    """Nats of a part of the bound over frames, of all utterances together."""
    return sum(getattr(b, part) for b in bound) / sum(b.frames for b in bound)


@dataclass(frozen=True)
class Reconstruction:
    """One utterance decoded from its posterior means, free running, beside the original."""

    mel: np.ndarray  # (T, M)
    alignment: np.ndarray  # (L, K)
    distance: metrics.MelDistance
    alignment_error: float  # seconds, mean over decoder steps
    alignment_worst: float  # seconds
    flux_ratio: float  # of the original's


def reconstructions(
    model: AudioVAE, codes: Mapping[str, Codes], originals: Mapping[str, np.ndarray]
) -> dict[str, Reconstruction]:
    """Decode the codes (posterior means) of all utterances and compare with the originals."""
    config = model.config
    slot_seconds = config.frames_per_slot / model.feature.frame_rate
    utt_ids = list(codes)
    decoded = decode_all(model, Codes.stack([codes[utt_id] for utt_id in utt_ids]))
    found: dict[str, Reconstruction] = {}
    for utt_id, (mel, weights) in zip(utt_ids, decoded, strict=True):
        original = originals[utt_id]
        error = metrics.alignment_error(weights, config.slots_per_step) * slot_seconds
        found[utt_id] = Reconstruction(
            mel=mel,
            alignment=weights,
            distance=metrics.mel_distance(original, mel, power=model.feature.power),
            alignment_error=float(error.mean()),
            alignment_worst=float(error.max()),
            flux_ratio=metrics.flux(mel) / max(metrics.flux(original), 1e-9),
        )
    return found


@dataclass(frozen=True)
class Samples:
    """Utterances drawn from the prior."""

    mels: list[np.ndarray]  # (T, M) each
    seconds: list[float]
    hit_cap: int  # how many the longest length cut


def prior_samples(model: AudioVAE, n: int, prior: synthesis.Prior, *, seed: int = 0) -> Samples:
    """z from its prior, then K from p(K) and u from p(u | K, z), then the mel."""
    drawn = []
    for start in range(0, n, BATCH_SAMPLES):
        seeds = [synthesis.item_seed(seed, i) for i in range(start, min(n, start + BATCH_SAMPLES))]
        drawn.append(synthesis.sample(model, len(seeds), prior=prior, seeds=seeds))
    codes = Codes.stack(drawn)
    mels = [mel for mel, _ in decode_all(model, codes)]
    seconds = [len(mel) / model.feature.frame_rate for mel in mels]
    return Samples(mels, seconds, int(codes.hit_cap.sum()))


@dataclass(frozen=True)
class PatchFigures:
    """Frechet distance of mel patches to held-out real speech, and what training data reach."""

    distance: float  # squared nats
    floor: float  # of training data, with as many patches
    ratio: float  # distance / floor
    patches: int  # on each side
    too_short: int  # mels without a patch


class SpeechLikeness:
    """Frechet distances of mel patches in the main components of the training data.

    Args:
        train, held_out: real log-mels, (T, M) each.
    """

    def __init__(
        self, train: Sequence[np.ndarray], held_out: Sequence[np.ndarray], *, seed: int = 0
    ) -> None:
        self.seed = seed
        patches = self._draw(train)
        self.space = metrics.PatchSpace.fit(patches)
        self.train = self.space.project(patches)
        self.held_out = self.space.project(self._draw(held_out))

    def _draw(self, mels: Sequence[np.ndarray]) -> np.ndarray:
        return metrics.draw_patches(mels, MAX_PATCHES, np.random.default_rng(self.seed))

    def compare(self, mels: Sequence[np.ndarray]) -> PatchFigures | None:
        """Distance of `mels` to the held-out set over that of the training set, equal patch counts.

        None where a set holds too few patches for a covariance.
        """
        points = self.space.project(self._draw(mels))
        number = min(metrics.PATCHES, len(points), len(self.train), len(self.held_out))
        if number < 2 * metrics.PATCH_COMPONENTS:
            return None
        distance, floor = (
            metrics.mean_frechet_distance(
                some, self.held_out, number, np.random.default_rng(self.seed)
            )
            for some in (points, self.train)
        )
        too_short = sum(len(mel) < metrics.PATCH_FRAMES for mel in mels)
        return PatchFigures(distance, floor, distance / floor, number, too_short)
