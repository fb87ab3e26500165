"""Held-out utterances and what the encoder makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from audiovae import synthesis
from audiovae.data.archive import FeatureArchive
from audiovae.data.batches import Batch, length_sorted
from audiovae.models.vae import AudioVAE, Latents
from audiovae.synthesis import Codes


@dataclass(frozen=True)
class HeldOut:
    """A test set: mels, speakers, and posteriors of length-sorted batches."""

    mels: dict[str, np.ndarray]
    speakers: dict[str, str]
    frame_rate: float  # mel frames per second
    batches: list[Batch]
    latents: list[Latents]
    codes: dict[str, Codes]  # posterior means, one utterance each

    @property
    def real(self) -> list[np.ndarray]:
        """Mels of all utterances."""
        return list(self.mels.values())

    @property
    def seconds(self) -> list[float]:
        """Lengths of all utterances."""
        return [len(mel) / self.frame_rate for mel in self.mels.values()]

    @property
    def by_length(self) -> list[str]:
        """Utterances, shortest first."""
        return sorted(self.mels, key=lambda utt_id: (len(self.mels[utt_id]), utt_id))

    @property
    def voices(self) -> list[str]:
        """Speakers of all utterances."""
        return [self.speakers[u] for u in self.mels]


def load(model: AudioVAE, archive: FeatureArchive, limit: int | None, seed: int) -> HeldOut:
    """Read and encode the test set, or `limit` utterances of it drawn by the seed."""
    mels = subset(archive, limit, seed)
    batches = length_sorted(mels, model.device)
    latents = [model.encode(batch.mel, batch.lengths) for batch in batches]
    codes: dict[str, Codes] = {}
    for batch, latent in zip(batches, latents, strict=True):
        seeds = tuple(synthesis.item_seed(seed, utt_id) for utt_id in batch.utt_ids)
        no_cap = torch.zeros(len(seeds), dtype=torch.bool, device=model.device)
        together = Codes(latent.z_mean, latent.u_mean, latent.u_lengths, seeds, no_cap)
        codes.update({utt_id: together[n] for n, utt_id in enumerate(batch.utt_ids)})
    speakers = {utt_id: archive.utt2spk[utt_id] for utt_id in mels}
    return HeldOut(
        mels, speakers, model.feature.frame_rate, batches, latents, {u: codes[u] for u in mels}
    )


def subset(archive: FeatureArchive, limit: int | None, seed: int) -> dict[str, np.ndarray]:
    """Mels of `limit` utterances drawn by the seed, of all with None; in the archive's order."""
    utt_ids = archive.utt_ids
    if limit is not None and limit < len(utt_ids):
        chosen = np.random.default_rng(seed).permutation(len(utt_ids))[:limit]
        utt_ids = [utt_ids[n] for n in sorted(chosen)]
    return {utt_id: archive[utt_id] for utt_id in utt_ids}
