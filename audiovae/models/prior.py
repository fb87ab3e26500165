"""p(u_1..K, K | z): an autoregressive prior of the local latents, and of how many there are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from audiovae.config import LatentConfig
from audiovae.models import noise
from audiovae.models.masking import length_mask
from audiovae.models.posterior import LOGVAR_MAX, LOGVAR_MIN, Gaussian


@dataclass
class PriorDraw:
    """u (B, K, U), u_lengths (B,), hit_cap (B,) bool: the cap ended it, not the prior."""

    u: Tensor
    u_lengths: Tensor
    hit_cap: Tensor


class LocalPrior(nn.Module):
    """A GRU over u, given z; a mixture of Gaussians for the next u, a hazard for the end.

    g_k = GRU([u_{k-1}; z], g_{k-1}), g_0 = tanh(W z), u_0 = 0. u_k is drawn from the head on g_k,
    and the end after k from the head on g_{k+1}, which has seen u_k: the end depends on what was
    just said.
    """

    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.mixtures = config.prior_mixtures
        self.u_dim = config.u_dim
        self.dropout = config.prior_dropout
        self.init = nn.Linear(config.z_dim, config.prior_dim)
        self.gru = nn.GRU(config.u_dim + config.z_dim, config.prior_dim, batch_first=True)
        width = config.prior_dim + config.z_dim
        self.next = nn.Sequential(
            nn.Linear(width, config.prior_dim),
            nn.SiLU(),
            nn.Linear(config.prior_dim, self.mixtures * (2 * config.u_dim + 1)),
        )
        self.stop = nn.Linear(width, 1)

    def forward(
        self, u: Tensor, lengths: Tensor, z: Tensor, posterior: Gaussian
    ) -> tuple[Tensor, Tensor]:
        """What u and its length cost under the prior.

        Args:
            u: a sample of the posterior, with shape (B, K, U).
            lengths: with shape (B,).
            z: with shape (B, Z).
            posterior: q(u | x), with shape (B, K, U).

        Returns:
            kl: nats per u_k with shape (B, K), zero in the padding. In closed form given the
            sampled u_<k for one Gaussian, by the sample u_k for a mixture.
            length: -log p(K | u, z) in nats with shape (B,).
        """
        hidden = self._states(u, z)
        mask = length_mask(lengths, u.shape[1])
        mixture, components = self._next_u(hidden[:, :-1], z)
        if self.mixtures == 1:
            first = Gaussian(components.mean[:, :, 0], components.std[:, :, 0])
            kl = posterior.kl(first)
        else:
            kl = _log_prob(posterior, u).sum(-1) - self._mixture_log_prob(mixture, components, u)
        logits = self._stop_logits(hidden[:, 1:], z)
        last = F.one_hot(lengths - 1, u.shape[1]).to(logits.dtype)
        length = F.binary_cross_entropy_with_logits(logits, last, reduction="none")
        return kl * mask, (length * mask).sum(1)

    @torch.no_grad()
    def sample(
        self,
        z: Tensor,
        max_steps: int,
        temperature: float = 1.0,
        generator: noise.Generators = None,
    ) -> PriorDraw:
        """Draw u and K given z with shape (B, Z); at most max_steps each."""
        batch = len(z)
        full = torch.full((batch,), max_steps, device=z.device)
        # All numbers first: what one utterance draws does not depend on when the others end.
        normals = noise.normal(full, self.u_dim, generator) * temperature
        uniforms = noise.uniform(full, 2, generator)
        u = z.new_zeros(batch, max_steps, self.u_dim)
        lengths = full.clone()
        running = torch.ones(batch, dtype=torch.bool, device=z.device)
        state = torch.tanh(self.init(z)).unsqueeze(0)
        hidden, state = self.gru(torch.cat([u[:, 0], z], -1).unsqueeze(1), state)
        for k in range(max_steps):
            mixture, components = self._next_u(hidden, z)
            chosen = _pick(mixture[:, 0], uniforms[:, k, 0])
            rows = torch.arange(batch, device=z.device)
            mean, std = components.mean[rows, 0, chosen], components.std[rows, 0, chosen]
            u[:, k] = mean + std * normals[:, k]
            hidden, state = self.gru(torch.cat([u[:, k], z], -1).unsqueeze(1), state)
            stops = uniforms[:, k, 1] < self._stop_logits(hidden, z)[:, 0].sigmoid()
            lengths = torch.where(running & stops, k + 1, lengths)
            running = running & ~stops
            if not running.any():
                break
        size = int(lengths.max())
        u = u[:, :size] * length_mask(lengths, size).unsqueeze(-1)
        return PriorDraw(u, lengths, running)

    def _states(self, u: Tensor, z: Tensor) -> Tensor:
        """g_1 .. g_{K+1} with shape (B, K + 1, G)."""
        if self.training and self.dropout > 0:
            # whole steps are dropped: the prior must not lean on the last u alone
            keep = torch.rand(*u.shape[:2], 1, device=u.device) >= self.dropout
            u = u * keep
        previous = F.pad(u, (0, 0, 1, 0))
        inputs = torch.cat([previous, z.unsqueeze(1).expand(-1, previous.shape[1], -1)], -1)
        hidden, _ = self.gru(inputs, torch.tanh(self.init(z)).unsqueeze(0))
        return hidden

    def _with_z(self, hidden: Tensor, z: Tensor) -> Tensor:
        return torch.cat([hidden, z.unsqueeze(1).expand(-1, hidden.shape[1], -1)], -1)

    def _next_u(self, hidden: Tensor, z: Tensor) -> tuple[Tensor, Gaussian]:
        """Log weights (B, K, C) and components (B, K, C, U) of p(u_k | u_<k, z)."""
        out = self.next(self._with_z(hidden, z)).unflatten(-1, (self.mixtures, -1))
        mean, logvar = out[..., 1 : self.u_dim + 1], out[..., self.u_dim + 1 :]
        std = (0.5 * logvar.clamp(LOGVAR_MIN, LOGVAR_MAX)).exp()
        return out[..., 0].log_softmax(-1), Gaussian(mean, std)

    def _stop_logits(self, hidden: Tensor, z: Tensor) -> Tensor:
        return self.stop(self._with_z(hidden, z)).squeeze(-1)

    def _mixture_log_prob(self, mixture: Tensor, components: Gaussian, u: Tensor) -> Tensor:
        each = _log_prob(components, u.unsqueeze(2)).sum(-1)
        return (mixture + each).logsumexp(-1)


def _log_prob(gaussian: Gaussian, x: Tensor) -> Tensor:
    scaled = (x - gaussian.mean) / gaussian.std
    return -0.5 * scaled.square() - gaussian.std.log() - 0.5 * math.log(2 * math.pi)


def _pick(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Index drawn from log_weights (B, C) by inversion of uniform (B,)."""
    cumulative = log_weights.exp().cumsum(-1)
    return (cumulative < uniform.unsqueeze(-1)).sum(-1).clamp(max=log_weights.shape[-1] - 1)
