"""p(u_1..K, K | z) = p(K) p(u_1..K | K, z): how many local latents, then one after the other."""

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

CLOCK_STEPS = (2.0, 8.0, 32.0)  # time constants of what tells the prior where it is, slots
LENGTHS = 5  # logistics in the mixture over log K


@dataclass
class PriorDraw:
    """u (B, K, U), u_lengths (B,), hit_cap (B,) bool: the cap ended it, not the prior."""

    u: Tensor
    u_lengths: Tensor
    hit_cap: Tensor


class LengthPrior(nn.Module):
    """p(K): log K from a mixture of logistics, fitted to the lengths of the training set.

    Not of z: how much is said is not the voice's. Not by the gradient of batches either: those of
    short utterances hold fewer frames, and would count for more than their share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(LENGTHS))
        self.register_buffer("place", torch.linspace(2.0, 5.0, LENGTHS))
        self.register_buffer("log_width", torch.full((LENGTHS,), -1.0))

    weight: Tensor
    place: Tensor
    log_width: Tensor

    def fit(self, lengths: Tensor, iterations: int = 500) -> None:
        """Set to the maximum likelihood of lengths (N,), all of one training set."""
        kinds, counts = lengths.to(self.place.device).unique(return_counts=True)
        share = counts / counts.sum()
        log_k = lengths.double().log()
        centres = (torch.arange(LENGTHS) + 0.5) / LENGTHS
        start = (
            torch.zeros(LENGTHS), log_k.quantile(centres.double()),
            torch.full((LENGTHS,), math.log(log_k.std(unbiased=False) / LENGTHS + 0.05)),
        )  # fmt: skip
        free = [t.to(self.place).requires_grad_() for t in start]
        optimizer = torch.optim.Adam(free, lr=0.02)
        for _ in range(iterations):
            optimizer.zero_grad()
            (_length_nats(kinds, *free) * share).sum().backward()
            optimizer.step()
        for buffer, found in zip((self.weight, self.place, self.log_width), free, strict=True):
            buffer.copy_(found.detach())

    def nats(self, lengths: Tensor) -> Tensor:
        """-log p(K) with shape (B,)."""
        return _length_nats(lengths, self.weight, self.place, self.log_width)

    def sample(self, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
        """K with shape (B,), by inversion of uniforms (B, 2)."""
        chosen = _pick(self.weight.log_softmax(0).expand(len(uniforms), -1), uniforms[:, 0])
        spread = temperature * self.log_width.exp()[chosen]
        log_k = self.place[chosen] + spread * torch.logit(uniforms[:, 1], eps=1e-6)
        return log_k.clamp(max=20).exp().round().long().clamp(min=1)


class LocalPrior(nn.Module):
    """A GRU over u, given z and K; a mixture of Gaussians for the next u.

    g_k = GRU([u_{k-1}; z; clock(k, K)], g_{k-1}), g_0 = tanh(W z), u_0 = 0, and u_k is drawn from
    the head on g_k. The clock says how many are done and how many are to come: an utterance is
    begun, said and ended within its length, and a draw cannot lose its way.
    """

    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.mixtures = config.prior_mixtures
        self.u_dim = config.u_dim
        self.dropout = config.prior_dropout
        self.length = LengthPrior()
        self.init = nn.Linear(config.z_dim, config.prior_dim)
        clock = 2 * len(CLOCK_STEPS)
        self.gru = nn.GRU(config.u_dim + config.z_dim + clock, config.prior_dim, batch_first=True)
        self.next = nn.Sequential(
            nn.Linear(config.prior_dim + config.z_dim, config.prior_dim),
            nn.SiLU(),
            nn.Linear(config.prior_dim, self.mixtures * (2 * config.u_dim + 1)),
        )

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
            length: -log p(K) in nats with shape (B,).
        """
        mixture, components = self._next_u(self._states(u, lengths, z), z)
        if self.mixtures == 1:
            first = Gaussian(components.mean[:, :, 0], components.std[:, :, 0])
            kl = posterior.kl(first)
        else:
            kl = _log_prob(posterior, u).sum(-1) - self._mixture_log_prob(mixture, components, u)
        return kl * length_mask(lengths, u.shape[1]), self.length.nats(lengths)

    @torch.no_grad()
    def sample(
        self,
        z: Tensor,
        max_steps: int,
        temperature: float = 1.0,
        generator: noise.Generators = None,
    ) -> PriorDraw:
        """Draw K and u given z with shape (B, Z); at most max_steps each."""
        batch = len(z)
        ones = torch.ones(batch, dtype=torch.long, device=z.device)
        drawn = self.length.sample(noise.uniform(ones, 2, generator)[:, 0], temperature)
        lengths = drawn.clamp(max=max_steps)
        normals = noise.normal(lengths, self.u_dim, generator) * temperature
        uniforms = noise.uniform(lengths, 1, generator)[..., 0]
        size = int(lengths.max())
        clock = _clock(lengths, size)
        rows = torch.arange(batch, device=z.device)
        u = z.new_zeros(batch, size, self.u_dim)
        last, state = u[:, 0], torch.tanh(self.init(z)).unsqueeze(0)
        for k in range(size):
            hidden, state = self.gru(torch.cat([last, z, clock[:, k]], -1).unsqueeze(1), state)
            mixture, components = self._next_u(hidden, z)
            chosen = _pick(mixture[:, 0], uniforms[:, k])
            mean, std = components.mean[rows, 0, chosen], components.std[rows, 0, chosen]
            last = u[:, k] = mean + std * normals[:, k]
        return PriorDraw(u * length_mask(lengths, size).unsqueeze(-1), lengths, drawn > max_steps)

    def _states(self, u: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """g_1 .. g_K with shape (B, K, G)."""
        if self.training and self.dropout > 0:
            # whole steps are dropped: the prior must not lean on the last u alone
            keep = torch.rand(*u.shape[:2], 1, device=u.device) >= self.dropout
            u = u * keep
        previous = F.pad(u[:, :-1], (0, 0, 1, 0))
        each_z = z.unsqueeze(1).expand(-1, u.shape[1], -1)
        inputs = torch.cat([previous, each_z, _clock(lengths, u.shape[1])], -1)
        hidden, _ = self.gru(inputs, torch.tanh(self.init(z)).unsqueeze(0))
        return hidden

    def _with_z(self, hidden: Tensor, z: Tensor) -> Tensor:
        return torch.cat([hidden, z.unsqueeze(1).expand(-1, hidden.shape[1], -1)], -1)

    def _next_u(self, hidden: Tensor, z: Tensor) -> tuple[Tensor, Gaussian]:
        """Log weights (B, K, C) and components (B, K, C, U) of p(u_k | u_<k, K, z)."""
        out = self.next(self._with_z(hidden, z)).unflatten(-1, (self.mixtures, -1))
        mean, logvar = out[..., 1 : self.u_dim + 1], out[..., self.u_dim + 1 :]
        std = (0.5 * logvar.clamp(LOGVAR_MIN, LOGVAR_MAX)).exp()
        return out[..., 0].log_softmax(-1), Gaussian(mean, std)

    def _mixture_log_prob(self, mixture: Tensor, components: Gaussian, u: Tensor) -> Tensor:
        each = _log_prob(components, u.unsqueeze(2)).sum(-1)
        return (mixture + each).logsumexp(-1)


def _length_nats(lengths: Tensor, weight: Tensor, place: Tensor, log_width: Tensor) -> Tensor:
    width = log_width.exp()
    k = lengths.to(width.dtype).unsqueeze(1)
    below = ((k - 0.5).log() - place) / width
    above = ((k + 0.5).log() - place) / width
    # sigmoid(above) - sigmoid(below) = sigmoid(above) sigmoid(-below) (1 - exp(below - above))
    inside = F.logsigmoid(-below) + (-(below - above).exp()).log1p()
    share = F.logsigmoid(above) + torch.where(k == 1, 0.0, inside)  # K = 1 takes all below it
    return -(weight.log_softmax(0) + share).logsumexp(1)


def _log_prob(gaussian: Gaussian, x: Tensor) -> Tensor:
    scaled = (x - gaussian.mean) / gaussian.std
    return -0.5 * scaled.square() - gaussian.std.log() - 0.5 * math.log(2 * math.pi)


def _pick(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Index drawn from log_weights (B, C) by inversion of uniform (B,)."""
    cumulative = log_weights.exp().cumsum(-1)
    return (cumulative < uniform.unsqueeze(-1)).sum(-1).clamp(max=log_weights.shape[-1] - 1)


def _clock(lengths: Tensor, size: int) -> Tensor:
    """Where each of `size` steps stands: (B, size, 6), in (0, 1], of steps done and to come."""
    done = torch.arange(size, device=lengths.device).expand(len(lengths), -1)
    left = (lengths[:, None] - 1 - done).clamp(min=0)
    scale = torch.tensor(CLOCK_STEPS, device=lengths.device)
    return torch.cat([(-t.unsqueeze(-1) / scale).exp() for t in (done, left)], -1)
