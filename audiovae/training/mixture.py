"""The fitted prior of z: a mixture of diagonal Gaussians over what the encoder gives."""

from __future__ import annotations

import numpy as np
import torch

from audiovae.data.archive import FeatureArchive
from audiovae.data.batches import length_sorted
from audiovae.models.vae import FITTED_COMPONENTS, AudioVAE

STD_FLOOR = 0.05
ITERATIONS = 50


@torch.no_grad()
def fit_mixture(model: AudioVAE, archive: FeatureArchive, *, seed: int) -> None:
    """Fit the model's mixture to one draw of q(z | x) per utterance, into its buffers."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for batch in length_sorted({u: archive[u] for u in archive.utt_ids}, model.device):
        drawn.append(model.encode(batch.mel, batch.lengths).sample(generator=generator)[0])
    z = torch.cat(drawn).double().cpu()
    z = z[z.isfinite().all(1)]  # what training skipped is not fitted either
    if not len(z):
        return
    log_weight, mean, std = _expectation_maximisation(z, seed)
    model.fitted_log_weight.copy_(log_weight)
    model.fitted_mean.copy_(mean)
    model.fitted_std.copy_(std)


def _expectation_maximisation(
    z: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """z (N, Z) -> log weights (C,), means (C, Z), stds (C, Z)."""
    count = len(z)
    chosen = np.random.default_rng(seed).choice(
        count, FITTED_COMPONENTS, replace=count < FITTED_COMPONENTS
    )
    mean, std = z[chosen], z.std(0, unbiased=False).clamp(min=STD_FLOOR).repeat(len(chosen), 1)
    log_weight = torch.full((len(chosen),), -float(np.log(len(chosen))), dtype=z.dtype)
    for _ in range(ITERATIONS):
        scaled = (z.unsqueeze(1) - mean) / std
        joint = log_weight - 0.5 * scaled.square().sum(-1) - std.log().sum(-1)
        share = joint.softmax(1)
        weight = share.sum(0) + 1e-6
        mean = (share.T @ z) / weight.unsqueeze(1)
        variance = (share.T @ z.square()) / weight.unsqueeze(1) - mean.square()
        std = variance.clamp(min=STD_FLOOR**2).sqrt()
        log_weight = (weight / weight.sum()).log()
    return log_weight, mean, std
