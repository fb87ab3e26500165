"""Adaptive instance norm of the decoder: what is constant over an utterance comes from z."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MAX_LOG_SCALE = 2.0  # of a bin, around the spread of the training mel


class AdaptiveNorm(nn.Module):
    """x = shift(z) + scale(z) * y, per mel bin.

    The u path lost each utterance's mean and standard deviation (`instance_norm`); here z gives
    them back, so the decoder feeds on and makes frames y without them. AdaIN-VC, Chou et al.
    2019, arXiv 1904.05742.
    """

    def __init__(self, z_dim: int, n_mels: int) -> None:
        super().__init__()
        self.out = nn.Linear(z_dim, 2 * n_mels)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, Z) -> shift and scale, each with shape (B, 1, M)."""
        shift, log_scale = self.out(z).unsqueeze(1).chunk(2, dim=-1)
        return shift, (MAX_LOG_SCALE * torch.tanh(log_scale / MAX_LOG_SCALE)).exp()
