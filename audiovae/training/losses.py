"""From the terms of -ELBO to the number that is minimised."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from audiovae.config import Config
from audiovae.models.masking import length_mask, masked_mean
from audiovae.models.vae import LossTerms
from audiovae.training.schedules import kl_weight

MIN_SPREAD = 0.3  # of a dimension of z, so that one which says nothing is hardly guessed at


@dataclass
class Capacity:
    """An upper limit on a KL, held by a multiplier that grows while the KL is above it.

    It adds multiplier * (KL - limit) to the loss (Capacitron, Battenberg et al. 2019); the
    multiplier is softplus(raw), and raw climbs by `rate` times the relative excess, clipped to 1.
    """

    limit: float
    raw: float = -2.0
    rate: float = 0.03

    @property
    def multiplier(self) -> float:
        """What the KL weighs on top of its own weight; 0 without a limit."""
        return math.log1p(math.exp(self.raw)) if self.limit > 0 else 0.0

    def update(self, kl: float) -> None:
        """One ascent step, after the optimizer's."""
        if self.limit > 0 and math.isfinite(kl):
            excess = max(-1.0, min(1.0, kl / self.limit - 1))
            self.raw = max(-8.0, min(50.0, self.raw + self.rate * excess))


class ContentAdversary(nn.Module):
    """Guesses z from u; the u path is trained to leave it nothing to guess from.

    Needs no labels: the target is the posterior mean of z, which carries the voice. Gradient
    reversal after Ganin and Lempitsky 2015, as long as the guess beats the mean of z: beyond that
    nothing is hidden any more, and u would run away from a guesser it can mislead without end.
    """

    def __init__(self, u_dim: int, z_dim: int, width: int = 128) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(u_dim, width, 5, padding=2), nn.SiLU(), nn.Conv1d(width, width, 1), nn.SiLU()
        )
        self.out = nn.Linear(2 * width, z_dim)

    def forward(self, u: Tensor, u_lengths: Tensor, z_mean: Tensor, weight: float) -> Tensor:
        """u (B, K, U), z_mean (B, Z) -> mean squared error of the guess, relative to z's spread."""
        mask = length_mask(u_lengths, u.shape[1])
        u = u * mask.unsqueeze(-1)
        hidden = self.local(u.transpose(1, 2)).transpose(1, 2)
        mean = masked_mean(hidden, mask)
        spread = masked_mean((hidden - mean.unsqueeze(1)).square(), mask).add(1e-5).sqrt()
        guess = self.out(torch.cat([mean, spread], -1))
        target = z_mean.detach()
        target = (target - target.mean(0)) / target.std(0, unbiased=False).clamp(min=MIN_SPREAD)
        error = (guess - target).square().mean(1)
        if u.requires_grad:
            informed = (error.detach() < target.square().mean(1)).to(u.dtype)[:, None, None]
            u.register_hook(lambda gradient: -weight * informed * gradient)
        return error.mean()


class Objective(nn.Module):
    """Weighs the terms: KL warm-up, free bits, capacity, and the game over u.

    With every weight at 1 and no capacity in force the loss is -ELBO per frame.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.latent = config.latent
        self.seconds_per_frame = 1 / config.feature.frame_rate
        self.z_capacity = Capacity(config.latent.z_capacity)
        self.u_capacity = Capacity(config.latent.u_capacity)
        self.adversary = (
            ContentAdversary(config.latent.u_dim, config.latent.z_dim)
            if config.latent.u_adversary > 0
            else None
        )

    def forward(
        self, terms: LossTerms, step: int, normaliser: float | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch in nats per frame, and its parts by name for the log.

        Args:
            normaliser: frames to divide by; those of the batch if None.
        """
        latent, frames = self.latent, terms.frames.sum()
        beta_z = kl_weight(step, latent.z_warmup_steps)
        beta_u = latent.u_beta * kl_weight(step, latent.u_warmup_steps)
        # free bits of the batch's mean per dimension (z) and of each u_k
        kl_z = terms.kl_z.mean(0).clamp(min=latent.z_free_bits).sum() * len(terms.frames)
        kl_u = terms.kl_u
        if latent.u_free_bits > 0:  # a mixture prior's KL is an estimate: it may be below 0
            kl_u = kl_u.clamp(min=latent.u_free_bits)
        kl_u = (kl_u * length_mask(terms.u_lengths, kl_u.shape[1])).sum()
        loss = terms.reconstruction.sum() + terms.end.sum() + terms.length.sum()
        loss = loss + (beta_z + self.z_capacity.multiplier) * kl_z
        loss = loss + (beta_u + self.u_capacity.multiplier) * kl_u
        divisor = frames if normaliser is None else normaliser
        loss = loss / divisor
        parts = {
            "loss": loss,
            "negative_elbo": terms.negative_elbo.sum() / frames,
            "reconstruction": terms.reconstruction.sum() / frames,
            "kl_z": terms.kl_z.sum(1).mean(),
            "kl_u": terms.kl_u.sum(1).mean(),
            "kl_u_per_second": terms.kl_u.sum() / (frames * self.seconds_per_frame),
            "length": terms.length.mean(),
            "end": terms.end.mean(),
        }
        if self.adversary is not None:
            # in nats per frame like the rest: the reversed gradient is scaled, not the guess
            guess = self.adversary(terms.u, terms.u_lengths, terms.z_mean, latent.u_adversary)
            loss = loss + guess * (frames / divisor)
            parts["adversary"] = guess
        values = torch.stack([v.detach().float() for v in parts.values()]).tolist()
        logged = dict(zip(parts, values, strict=True))
        logged |= {"beta_z": beta_z, "beta_u": beta_u}
        logged |= {"z_multiplier": self.z_capacity.multiplier}
        logged |= {"u_multiplier": self.u_capacity.multiplier}
        return loss, logged

    def after_step(self, kl_z: float, kl_u_per_second: float) -> None:
        """Move the multipliers, given the batch's KL(z) in nats and KL(u) in nats per second."""
        self.z_capacity.update(kl_z)
        self.u_capacity.update(kl_u_per_second)

    def multipliers(self) -> dict[str, float]:
        """The state that is not in tensors."""
        return {"z": self.z_capacity.raw, "u": self.u_capacity.raw}

    def load_multipliers(self, state: dict[str, float]) -> None:
        """Restore `multipliers()`."""
        self.z_capacity.raw, self.u_capacity.raw = float(state["z"]), float(state["u"])
