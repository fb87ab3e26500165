"""Operations on latents: reconstruct, sample, interpolate, transfer, traverse; then mel and wave.

An operation makes `Codes`, the latents of B utterances; `decode` makes mel of codes, `vocode` audio
of mel. Every utterance owns its noise (`Codes.seeds`), so it sounds the same alone and in a batch.

    model = AudioVAE.from_pretrained("exp/vae")
    a, b = encode(model, mel_a, lengths_a), encode(model, mel_b, lengths_b)
    decoded = decode(model, interpolate(model, a, b, 7))
    waves = vocode(load_vocoder("hifigan_universal"), decoded.mel, decoded.lengths)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from audiovae.errors import ConfigError
from audiovae.models.vae import AudioVAE, Decoded
from audiovae.vocoder import Vocoder

Mode = Literal["morph", "shared_noise", "hold"]
LatentChoice = Literal["mean", "sample"]
Prior = Literal["normal", "fitted"]


@dataclass(frozen=True)
class Codes:
    """B utterances as the decoder needs them.

    Attributes:
        z: (B, Z) utterance latents.
        u: (B, K, U) local latents, padded after each end.
        u_lengths: (B,) memory steps.
        seeds: B seeds, of each utterance's prior and decoding noise.
        hit_cap: (B,) bool, True where the prior was cut at its longest length.
    """

    z: Tensor
    u: Tensor
    u_lengths: Tensor
    seeds: tuple[int, ...]
    hit_cap: Tensor

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, i: int) -> Codes:
        """Utterance i alone, without padding."""
        i = range(len(self))[i]
        return Codes(
            z=self.z[i : i + 1],
            u=self.u[i : i + 1, : int(self.u_lengths[i])],
            u_lengths=self.u_lengths[i : i + 1],
            seeds=self.seeds[i : i + 1],
            hit_cap=self.hit_cap[i : i + 1],
        )

    @staticmethod
    def stack(parts: Sequence[Codes]) -> Codes:
        """One batch of all parts, in order."""
        rows = [u[:k] for part in parts for u, k in zip(part.u, part.u_lengths, strict=True)]
        return Codes(
            z=torch.cat([part.z for part in parts]),
            u=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            u_lengths=torch.cat([part.u_lengths for part in parts]),
            seeds=tuple(seed for part in parts for seed in part.seeds),
            hit_cap=torch.cat([part.hit_cap for part in parts]),
        )


def item_seed(seed: int, *key: str | int) -> int:
    """A 63-bit seed for one utterance, from the run's seed and what names the utterance."""
    digest = hashlib.sha256(repr((seed, *key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@torch.inference_mode()
def encode(
    model: AudioVAE,
    mel: Tensor,
    lengths: Tensor,
    *,
    latent: LatentChoice = "mean",
    temperature: float = 1.0,
    seeds: int | Sequence[int] = 0,
) -> Codes:
    """Posterior latents of real mels.

    Args:
        mel: (B, T, n_mels) natural log; lengths: (B,) frames.
        latent: "mean" is the posterior's centre and ignores temperature; "sample" draws from it.
        temperature: factor on the posterior's standard deviation.
        seeds: one a mel, or one number from which each row's is made.
    """
    device = model.device
    found = model.encode(mel.to(device), lengths.to(device))
    rows = _seeds(seeds, len(mel))
    z, u = found.z_mean, found.u_mean
    if latent == "sample":
        z, u = found.sample(temperature=temperature, generator=_generators(rows, "posterior"))
    return _codes(z, u, found.u_lengths, rows)


@torch.inference_mode()
def sample(
    model: AudioVAE,
    n: int,
    *,
    prior: Prior = "normal",
    temperature: float = 1.0,
    voice: Codes | None = None,
    max_seconds: float = 20.0,
    seeds: int | Sequence[int] = 0,
) -> Codes:
    """n new utterances: z from its prior (or a voice), then K from p(K) and u from p(u | K, z).

    Draw i depends on its own seed only: a larger n extends a smaller one.

    Args:
        prior: of z, N(0, I) or the mixture fitted to the training posteriors.
        temperature: factor on the standard deviations of z and u.
        voice: reference utterances; their mean z replaces the draw of z.
        max_seconds: where a draw is cut; `hit_cap` tells which were.
        seeds: one a draw, or one number from which each draw's is made.
    """
    rows = _seeds(seeds, n)
    if voice is None:
        noise = _generators(rows, "z")
        z = model.sample_z(n, prior=prior, temperature=temperature, generator=noise)
    else:
        z = voice.z.mean(dim=0).expand(n, -1)
    return _continue(model, z, rows, temperature, max_seconds)


@torch.inference_mode()
def interpolate(
    model: AudioVAE,
    a: Codes,
    b: Codes,
    n: int,
    *,
    mode: Mode = "morph",
    temperature: float = 1.0,
    max_seconds: float = 20.0,
) -> Codes:
    """n steps from utterance a to utterance b, both ends included; all share a's noise.

    z moves along the great circle (`slerp`). What is said follows the mode:
    "morph" stretches both u to the length in between and blends them; "shared_noise" draws u from
    p(u | z) with the same noise at each step, so only z moves; "hold" keeps the u of a.
    """
    if len(a) != 1 or len(b) != 1:
        raise ConfigError(f"interpolate: found {len(a)} and {len(b)} utterances, wanted 1 and 1")
    if n < 2:
        raise ConfigError(f"interpolate: found n = {n}, wanted 2 or more steps")
    weights = [step / (n - 1) for step in range(n)]
    z = torch.stack([slerp(a.z[0], b.z[0], weight) for weight in weights])
    if mode == "shared_noise":
        return _continue(model, z, a.seeds * n, temperature, max_seconds)
    contents = [a.u[0] if mode == "hold" else morph(a.u[0], b.u[0], w) for w in weights]
    u_lengths = torch.tensor([len(u) for u in contents], device=z.device)
    u = torch.nn.utils.rnn.pad_sequence(contents, batch_first=True)
    return _codes(z, u, u_lengths, a.seeds * n)


def transfer(content: Codes, style: Codes) -> Codes:
    """The content's words in the style's voice: u of each content, z the mean over all styles."""
    z = style.z.mean(dim=0, keepdim=True).expand(len(content), -1)
    return Codes(z, content.u, content.u_lengths, content.seeds, content.hit_cap)


def traverse(codes: Codes, dim: int, values: Sequence[float]) -> Codes:
    """One utterance with z[dim] set to each value in turn (units: standard deviations of p(z))."""
    if len(codes) != 1:
        raise ConfigError(f"traverse: found {len(codes)} utterances, wanted 1")
    size = codes.z.shape[1]
    if not 0 <= dim < size:
        raise ConfigError(f"traverse: found dim {dim}, wanted 0 to {size - 1}")
    moved = Codes.stack([codes] * len(values))
    z = moved.z.clone()
    z[:, dim] = torch.tensor(values, dtype=z.dtype, device=z.device)
    return Codes(z, moved.u, moved.u_lengths, moved.seeds, moved.hit_cap)


@torch.inference_mode()
def decode(model: AudioVAE, codes: Codes, *, tempo: float = 1.0) -> Decoded:
    """Mel of codes, free running; tempo 2 speaks twice as fast."""
    noise = _generators(codes.seeds, "decode")
    return model.decode(codes.z, codes.u, codes.u_lengths, generator=noise, tempo=tempo)


def reconstruct(
    model: AudioVAE,
    mel: Tensor,
    lengths: Tensor,
    *,
    latent: LatentChoice = "mean",
    temperature: float = 1.0,
    tempo: float = 1.0,
    seeds: int | Sequence[int] = 0,
) -> Decoded:
    """`encode`, then `decode`: (B, T, n_mels) and (B,) in, mel and lengths out."""
    codes = encode(model, mel, lengths, latent=latent, temperature=temperature, seeds=seeds)
    return decode(model, codes, tempo=tempo)


@torch.inference_mode()
def vocode(vocoder: Vocoder, mel: Tensor, lengths: Tensor) -> list[np.ndarray]:
    """Audio of mels: B float32 arrays of lengths[i] * hop_length samples.

    Args:
        mel: (B, T, n_mels) natural log; lengths: (B,) frames.
    """
    wave = vocoder(mel, lengths).float().cpu().numpy()
    hop = vocoder.feature.hop_length
    return [w[: int(t) * hop] for w, t in zip(wave, lengths, strict=True)]


def slerp(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """The point at weight (0 a, 1 b) of the arc between two vectors (Shoemake 1985).

    Draws of N(0, I) in many dimensions lie near a sphere: a straight line would leave it. Nearly
    parallel or opposite vectors have no such arc; there the line is taken.
    """
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).clamp(-1, 1)
    if cosine.abs() > 0.9995 or a.norm() == 0 or b.norm() == 0:
        return torch.lerp(a, b, weight)
    angle = torch.acos(cosine)
    return (torch.sin((1 - weight) * angle) * a + torch.sin(weight * angle) * b) / torch.sin(angle)


def morph(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """Two u, (Ka, U) and (Kb, U), stretched to (1 - weight) Ka + weight Kb steps and blended."""
    k = max(1, round((1 - weight) * len(a) + weight * len(b)))
    return torch.lerp(_stretch(a, k), _stretch(b, k), weight)


def _stretch(u: Tensor, k: int) -> Tensor:
    """(K, U) -> (k, U) by linear interpolation in time, both ends kept."""
    if len(u) == k:
        return u
    stretched = torch.nn.functional.interpolate(
        u.T[None], size=k, mode="linear", align_corners=True
    )
    return stretched[0].T


def _continue(
    model: AudioVAE, z: Tensor, seeds: tuple[int, ...], temperature: float, max_seconds: float
) -> Codes:
    """K from p(K) and u from p(u | K, z), for z with shape (B, Z)."""
    noise = _generators(seeds, "u")
    draw = model.sample_prior(z, temperature=temperature, generator=noise, max_seconds=max_seconds)
    return Codes(z, draw.u, draw.u_lengths, seeds, draw.hit_cap)


def _codes(z: Tensor, u: Tensor, u_lengths: Tensor, seeds: Sequence[int]) -> Codes:
    hit_cap = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    return Codes(z, u, u_lengths, tuple(seeds), hit_cap)


def _seeds(seeds: int | Sequence[int], n: int) -> tuple[int, ...]:
    if isinstance(seeds, int):
        return tuple(item_seed(seeds, i) for i in range(n))
    if len(seeds) != n:
        raise ConfigError(f"seeds: found {len(seeds)}, wanted one for each of {n} utterances")
    return tuple(seeds)


def _generators(seeds: Sequence[int], purpose: str) -> list[torch.Generator]:
    # One stream a purpose: a longer prior draw must not change the decoding noise. On the CPU
    # whatever the model's device: the same seed is then the same noise everywhere.
    return [torch.Generator().manual_seed(item_seed(seed, purpose)) for seed in seeds]
