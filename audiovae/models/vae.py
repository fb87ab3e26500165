"""AudioVAE: z -> (u, K) -> memory -> mel, with posteriors for z and u.

    z ~ N(0, I);  K ~ p(K);  u_1..K ~ p(u | K, z);  M = f(u, z);  x ~ location-aware decoder over M

The encoder's hidden states never reach the decoder: all that passes is z, and u at a limited
rate. So reconstruct and sample run the same path, and z is worth using.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from audiovae.config import Config, FeatureConfig
from audiovae.errors import CheckpointError
from audiovae.models import noise
from audiovae.models.adaptive_norm import AdaptiveNorm
from audiovae.models.conformer import ConformerEncoder
from audiovae.models.decoder import Decoder
from audiovae.models.masking import ceil_div, instance_norm, length_mask
from audiovae.models.memory import StochasticMemory
from audiovae.models.posterior import Gaussian, LocalPosterior, UtterancePosterior
from audiovae.models.prior import LocalPrior, PriorDraw
from audiovae.models.warp import warp_mel_axis

MIN_LOG_SCALE = math.log(1e-3)  # of the Laplace likelihood, normalised mel
LOG_SCALE_GAIN = 10.0  # Adam moves a parameter by its rate at most: this keeps up with the error
FITTED_COMPONENTS = 10  # of the mixture fitted to q(z) after training


@dataclass
class Latents:
    """Posterior of a batch: z (B, Z), u (B, K, U), u_lengths (B,)."""

    z_mean: Tensor
    z_std: Tensor
    u_mean: Tensor
    u_std: Tensor
    u_lengths: Tensor

    def sample(
        self, temperature: float = 1.0, generator: noise.Generators = None
    ) -> tuple[Tensor, Tensor]:
        """(z, u) from the posterior; temperature scales its standard deviation, 0 is its mean."""
        ones = torch.ones_like(self.u_lengths)
        z_noise = noise.normal(ones, self.z_mean.shape[1], generator)[:, 0]
        u_noise = noise.normal(self.u_lengths, self.u_mean.shape[2], generator)
        z = self.z_mean + temperature * self.z_std * z_noise
        return z, self.u_mean + temperature * self.u_std * u_noise


@dataclass
class Decoded:
    """mel (B, T, M), lengths (B,) frames, alignment (B, L, K), align_lengths (B,) steps."""

    mel: Tensor
    lengths: Tensor
    alignment: Tensor
    align_lengths: Tensor


@dataclass
class LossTerms:
    """The parts of -ELBO in nats per utterance, each with shape (B,) unless said.

    kl_z has shape (B, Z), kl_u (B, K) with zeros in the padding; the rest follows from them.
    """

    reconstruction: Tensor
    end: Tensor
    kl_z: Tensor
    kl_u: Tensor
    length: Tensor
    frames: Tensor
    u_lengths: Tensor
    z_mean: Tensor
    u: Tensor

    @property
    def negative_elbo(self) -> Tensor:
        """-ELBO of log p(x) in nats with shape (B,), all weights 1."""
        kl = self.kl_z.sum(1) + self.kl_u.sum(1)
        return self.reconstruction + self.end + kl + self.length


class AudioVAE(nn.Module):
    """A sequence VAE of log-mel speech that can be sampled.

    Args:
        config: all sections; feature, encoder, latent and decoder decide the model.
        mean: per-bin mean of the training mel with shape (M,); zeros when loading.
        scale: one global standard deviation around it.
    """

    mel_mean: Tensor
    mel_scale: Tensor
    fitted_log_weight: Tensor
    fitted_mean: Tensor
    fitted_std: Tensor

    def __init__(
        self, config: Config, mean: np.ndarray | Tensor | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        n_mels, latent, dim = config.feature.n_mels, config.latent, config.encoder.dim
        self.config = config
        self.z_encoder = ConformerEncoder(n_mels, config.encoder, config.encoder.z_blocks)
        self.z_posterior = UtterancePosterior(dim, latent)
        self.u_encoder = ConformerEncoder(n_mels, config.encoder, config.encoder.blocks)
        self.u_posterior = LocalPosterior(dim, latent)
        self.prior = LocalPrior(latent)
        self.memory = StochasticMemory(latent.u_dim, latent.z_dim, config.decoder.memory_dim)
        self.decoder = Decoder(n_mels, latent.z_dim, config.decoder, config.slots_per_step)
        self.adaptive_norm = AdaptiveNorm(latent.z_dim, n_mels) if latent.adaptive_norm else None
        self.log_scale = nn.Parameter(torch.zeros(n_mels))  # see likelihood_log_scale
        mean = torch.zeros(n_mels) if mean is None else torch.as_tensor(mean, dtype=torch.float32)
        self.register_buffer("mel_mean", mean.clone())
        self.register_buffer("mel_scale", torch.tensor(float(scale)))
        self.register_buffer("fitted_log_weight", torch.zeros(FITTED_COMPONENTS))
        self.register_buffer("fitted_mean", torch.zeros(FITTED_COMPONENTS, latent.z_dim))
        self.register_buffer("fitted_std", torch.zeros(FITTED_COMPONENTS, latent.z_dim))

    @property
    def feature(self) -> FeatureConfig:
        """The mel contract of what goes in and comes out."""
        return self.config.feature

    @property
    def likelihood_log_scale(self) -> Tensor:
        """Log scale of the Laplace likelihood of each bin (M,), learned, normalised mel."""
        return (LOG_SCALE_GAIN * self.log_scale).clamp(min=MIN_LOG_SCALE)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.mel_mean.device

    # ---- inference ----------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, mel: Tensor, lengths: Tensor) -> Latents:
        """mel (B, T, M) natural log, lengths (B,) frames -> the posterior of z and u."""
        normalised = self._normalise(mel, lengths)
        z, u, u_lengths = self._posteriors(normalised, lengths)
        return Latents(z.mean, z.std, u.mean, u.std, u_lengths)

    @torch.no_grad()
    def decode(
        self, z: Tensor, u: Tensor, u_lengths: Tensor,
        *, tempo: float = 1.0, generator: noise.Generators = None,
    ) -> Decoded:  # fmt: skip
        """Free-running mel of latents.

        The length follows from K: 4 * u_stride * K / tempo frames. The end flag only trims groups
        of frames within the last slot. The prenet's dropout stays on: pass a generator (or one per
        utterance) to get the same numbers again.

        Args:
            z: with shape (B, Z). u: with shape (B, K, U). u_lengths: with shape (B,).
            tempo: > 1 is faster.
        """
        reduction, slot = self.decoder.reduction, self.config.frames_per_slot
        per_step = reduction * tempo
        steps = torch.ceil(u_lengths * slot / per_step).long()
        memory = self.memory(u, z)
        out = self.decoder.generate(steps, memory, u_lengths, z, tempo=tempo, generator=generator)
        index = torch.arange(out.end.shape[1], device=z.device)
        in_last_slot = index >= torch.ceil((u_lengths - 1) * slot / per_step).long()[:, None]
        fired = (out.end > 0) & in_last_slot & (index < steps[:, None])
        first = torch.where(fired, index, steps[:, None] - 1).amin(1)
        steps = torch.minimum(steps, first + 1)
        # R may not divide the frames of a slot: what the last group has too many is cut
        whole = torch.ceil(u_lengths * slot / tempo).long()
        lengths = torch.minimum(steps * reduction, whole)
        size = int(lengths.max())
        shift, scale = self._utterance_norm(z)
        mel = (shift + scale * out.frames[:, :size]) * self.mel_scale + self.mel_mean
        padding = ~length_mask(lengths, size).unsqueeze(-1)
        mel = mel.masked_fill(padding, math.log(self.feature.floor))
        return Decoded(mel, lengths, out.alignment[:, : int(steps.max())], steps)

    def sample_z(
        self, n: int, *, prior: str = "normal", temperature: float = 1.0,
        generator: noise.Generators = None,
    ) -> Tensor:  # fmt: skip
        """n draws of z with shape (n, Z) from N(0, I) or from the mixture fitted to q(z)."""
        ones = torch.ones(n, dtype=torch.long, device=self.device)
        z = noise.normal(ones, self.config.latent.z_dim, generator)[:, 0] * temperature
        if prior == "normal":
            return z
        if not bool(self.fitted_std.any()):
            raise CheckpointError("this model has no fitted prior: train to the end, or use normal")
        chosen = noise.uniform(ones, 1, generator)[:, 0, 0]
        cumulative = self.fitted_log_weight.exp().cumsum(0)
        index = (cumulative < chosen[:, None]).sum(1).clamp(max=FITTED_COMPONENTS - 1)
        return self.fitted_mean[index] + self.fitted_std[index] * z

    def sample_prior(
        self, z: Tensor, *, temperature: float = 1.0, max_seconds: float = 20.0,
        generator: noise.Generators = None,
    ) -> PriorDraw:  # fmt: skip
        """K from p(K), then u from p(u | K, z), for z (B, Z); hit_cap: those the cap ended."""
        slots_per_second = self.feature.frame_rate / self.config.frames_per_slot
        cap = max(1, int(max_seconds * slots_per_second))
        return self.prior.sample(z, cap, temperature, generator)

    def sample(
        self, n: int, *, prior: str = "normal", temperature: float = 1.0,
        max_seconds: float = 20.0, generator: noise.Generators = None,
    ) -> Decoded:  # fmt: skip
        """n utterances from the model alone: z, then u and its length, then mel."""
        z = self.sample_z(n, prior=prior, temperature=temperature, generator=generator)
        draw = self.sample_prior(
            z, temperature=temperature, max_seconds=max_seconds, generator=generator
        )
        return self.decode(z, draw.u, draw.u_lengths, generator=generator)

    # ---- training -----------------------------------------------------------------------------

    def forward(self, mel: Tensor, lengths: Tensor) -> LossTerms:
        """The terms of -ELBO for mel (B, T, M) natural log, lengths (B,) frames."""
        x = self._normalise(mel, lengths)
        q_z, q_u, u_lengths = self._posteriors(x, lengths)
        z = q_z.sample(torch.randn_like(q_z.mean))
        u = q_u.sample(torch.randn_like(q_u.mean))
        kl_u, length = self.prior(u, u_lengths, z, q_u)
        reconstruction, end = self._likelihood(x, lengths, z, u, u_lengths)
        return LossTerms(
            reconstruction, end, q_z.kl_to_standard(), kl_u, length, lengths, u_lengths,
            q_z.mean, u,
        )  # fmt: skip

    @torch.no_grad()
    def teacher_forced_nats(
        self, mel: Tensor, lengths: Tensor, z: Tensor, u: Tensor, u_lengths: Tensor,
        generator: noise.Generators = None,
    ) -> Tensor:  # fmt: skip
        """-log p(x | z, u) in nats with shape (B,), for latents of any origin."""
        x = self._normalise(mel, lengths)
        return self._likelihood(x, lengths, z, u, u_lengths, generator)[0]

    def _normalise(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """Normalised mel, zero in the padding."""
        x = (mel - self.mel_mean) / self.mel_scale
        return x * length_mask(lengths, mel.shape[1]).unsqueeze(-1)

    def _posteriors(self, x: Tensor, lengths: Tensor) -> tuple[Gaussian, Gaussian, Tensor]:
        q_z = self.z_posterior(*self.z_encoder(x, lengths))
        content = x
        if self.training and self.config.latent.warp > 0:
            content = warp_mel_axis(content, self.config.latent.warp)
        if self.config.latent.instance_norm:
            content = instance_norm(content, length_mask(lengths, x.shape[1]))
        q_u, u_lengths = self.u_posterior(*self.u_encoder(content, lengths))
        return q_z, q_u, u_lengths

    def _likelihood(
        self, x: Tensor, lengths: Tensor, z: Tensor, u: Tensor, u_lengths: Tensor,
        generator: noise.Generators = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """-log p(x | z, u) and -log p(end) in nats, each with shape (B,)."""
        memory = self.memory(u, z)
        shift, scale = self._utterance_norm(z)
        fed = (x - shift) / scale
        out = self.decoder(fed, lengths, memory, u_lengths, z, generator=generator)
        log_scale = self.likelihood_log_scale
        error = (x - shift - scale * out.frames[:, : x.shape[1]].float()).abs()
        nats = error / log_scale.exp() + log_scale + math.log(2)
        nats = (nats.sum(-1) * length_mask(lengths, x.shape[1])).sum(1)
        steps = ceil_div(lengths, self.decoder.reduction)
        last = F.one_hot(steps - 1, out.end.shape[1]).to(out.end.dtype)
        end = F.binary_cross_entropy_with_logits(out.end, last, reduction="none")
        return nats, (end * length_mask(steps, out.end.shape[1])).sum(1)

    def _utterance_norm(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale between the decoder's frames and the normalised mel, of (B, 1, M)."""
        if self.adaptive_norm is None:
            return z.new_zeros(1, 1, 1), z.new_ones(1, 1, 1)
        return self.adaptive_norm(z)

    # ---- model folders ------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, revision: str | None = None,
        device: str | torch.device = "cpu",
    ) -> AudioVAE:  # fmt: skip
        """A model from a folder or a Hugging Face hub id; see `models.pretrained.load`."""
        from audiovae.models import pretrained

        return pretrained.load(folder, revision=revision, device=device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors` into folder."""
        from audiovae.models import pretrained

        pretrained.save(self, folder)

    def push_to_hub(self, repo_id: str, *, revision: str | None = None) -> str:
        """Upload the model folder to the Hugging Face hub; returns the commit's address."""
        from audiovae.models import pretrained

        return pretrained.push(self, repo_id, revision=revision)
