"""The two posteriors: q(z | x) by attentive pooling, q(u_k | x) by a strided head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from audiovae.config import LatentConfig
from audiovae.models.masking import ceil_div, length_mask

LOGVAR_MIN, LOGVAR_MAX = -10.0, 4.0  # a bounded log variance keeps KL and its gradient finite


@dataclass
class Gaussian:
    """A diagonal Gaussian; mean and std of one shape (..., C)."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std * noise, noise of the shape of mean."""
        return self.mean + self.std * noise

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) in nats, summed over the last axis; in float32 whatever the input."""
        a_mean, a_std, b_mean, b_std = (
            t.float() for t in (self.mean, self.std, other.mean, other.std)
        )
        variance_ratio = (a_std / b_std).square()
        distance = ((a_mean - b_mean) / b_std).square()
        return 0.5 * (variance_ratio + distance - 1 - variance_ratio.log()).sum(-1)

    def kl_to_standard(self) -> Tensor:
        """KL(self || N(0, I)) in nats per dimension, with shape (..., C)."""
        mean, std = self.mean.float(), self.std.float()
        return 0.5 * (std.square() + mean.square() - 1) - std.log()


class UtterancePosterior(nn.Module):
    """q(z | x): attentive statistics pooling (Okabe et al. 2018), then mean and std."""

    def __init__(self, dim: int, config: LatentConfig) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.out = nn.Linear(2 * dim, 2 * config.z_dim)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Gaussian:
        """hidden (B, K, D), lengths (B,) -> Gaussian over (B, Z)."""
        mask = length_mask(lengths, hidden.shape[1])
        score = self.score(hidden).squeeze(-1).masked_fill(~mask, -torch.inf)
        weight = score.softmax(1).unsqueeze(-1)
        mean = (weight * hidden).sum(1)
        variance = (weight * (hidden - mean.unsqueeze(1)).square()).sum(1)
        pooled = torch.cat([mean, (variance + 1e-5).sqrt()], dim=-1)
        mu, logvar = self.out(pooled).chunk(2, dim=-1)
        return Gaussian(mu, (0.5 * logvar.clamp(LOGVAR_MIN, LOGVAR_MAX)).exp())


class LocalPosterior(nn.Module):
    """q(u_k | x): one Gaussian per u_stride encoder steps, its std never under the floor."""

    def __init__(self, dim: int, config: LatentConfig) -> None:
        super().__init__()
        self.stride = config.u_stride
        self.std_floor = config.u_std_floor
        self.out = nn.Linear(dim, 2 * config.u_dim)
        # A mean of about unit spread and a low variance: u carries something from the first step.
        nn.init.normal_(self.out.weight, std=dim**-0.5)
        nn.init.zeros_(self.out.bias)
        nn.init.constant_(self.out.bias[config.u_dim :], config.u_logvar_init)

    def forward(self, hidden: Tensor, lengths: Tensor) -> tuple[Gaussian, Tensor]:
        """hidden (B, T, D), lengths (B,) -> Gaussian over (B, K, U), lengths (B,) of u."""
        u_lengths = ceil_div(lengths, self.stride)
        if self.stride > 1:
            hidden = self._pool(hidden, lengths)
        mu, logvar = self.out(hidden).chunk(2, dim=-1)
        variance = logvar.clamp(LOGVAR_MIN, LOGVAR_MAX).exp() + self.std_floor**2
        return Gaussian(mu, variance.sqrt()), u_lengths

    def _pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Mean over each stride, of the real steps only."""
        mask = length_mask(lengths, hidden.shape[1]).unsqueeze(-1).to(hidden.dtype)
        extra = -hidden.shape[1] % self.stride
        hidden = nn.functional.pad(hidden * mask, (0, 0, 0, extra))
        mask = nn.functional.pad(mask, (0, 0, 0, extra))
        groups = hidden.unflatten(1, (-1, self.stride)).sum(2)
        return groups / mask.unflatten(1, (-1, self.stride)).sum(2).clamp(min=1)
