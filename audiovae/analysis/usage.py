"""Is z used, or does everything pass by the memory? And is there a voice in z?

KL and active units do not tell: a decoder may ignore a z that the encoder pays for. What tells is
the cost of the wrong z (shuffle) and what an utterance becomes with another's z (transfer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from audiovae import synthesis
from audiovae.analysis.voices import VoiceClassifier
from audiovae.data.batches import Batch, by_length, unpad
from audiovae.models.vae import AudioVAE, Latents
from audiovae.synthesis import Codes

ACTIVE_VARIANCE = 0.01  # of the posterior mean over utterances (Burda et al. 2016)


@dataclass(frozen=True)
class LatentUsage:
    """What the posteriors say about z and u; see ShuffleCosts for whether the decoder listens."""

    kl_z_per_dim: list[float]  # nats per utterance
    active_units_z: int
    u_nats_per_dim: list[float]  # nats per memory step, see `latent_usage`
    active_units_u: int


def latent_usage(latents: Sequence[Latents]) -> LatentUsage:
    """KL and active units of each dimension, over all utterances and all their memory steps.

    u has no KL per dimension under an autoregressive prior. Given here is its KL from the one
    Gaussian of the same mean and variance as all u together, 1/2 (ln var u - mean ln s^2): what u
    would cost were its steps independent.
    """
    z_mean, z_std = (np.concatenate([_array(x) for x in xs]) for xs in _of(latents, "z"))
    kl = 0.5 * (z_mean**2 + z_std**2 - 1) - np.log(z_std)
    u_mean, u_std = (
        np.concatenate([row for x, lat in zip(xs, latents, strict=True)
                        for row in unpad(x, lat.u_lengths)])
        for xs in _of(latents, "u")
    )  # fmt: skip
    u_variance = u_mean.var(0) + (u_std**2).mean(0)
    u_nats = 0.5 * (np.log(u_variance) - np.log(u_std**2).mean(0))
    return LatentUsage(
        kl_z_per_dim=kl.mean(0).tolist(),
        active_units_z=int((z_mean.var(0) > ACTIVE_VARIANCE).sum()),
        u_nats_per_dim=u_nats.tolist(),
        active_units_u=int((u_mean.var(0) > ACTIVE_VARIANCE).sum()),
    )


def _of(latents: Sequence[Latents], name: str) -> tuple[list[Tensor], list[Tensor]]:
    means = [getattr(item, f"{name}_mean") for item in latents]
    return means, [getattr(item, f"{name}_std") for item in latents]


def _array(x: Tensor) -> np.ndarray:
    return x.float().cpu().numpy()


@dataclass(frozen=True)
class ShuffleCosts:
    """How many nats per frame the reconstruction loses with another utterance's latent."""

    z: float
    memory: float


def shuffle_costs(
    model: AudioVAE, batches: Sequence[Batch], latents: Sequence[Latents], *, seed: int = 0
) -> ShuffleCosts:
    """Teacher-forced -log p(x | z, u) with z, then u, of another utterance, less that with its own.

    The other is drawn within the batch, so of about the same length; its u is stretched to the
    utterance's number of memory steps (nearest). One posterior sample; the same decoder noise on
    all three. Utterances alone in their batch are left out.
    """
    rng = np.random.default_rng(seed)
    own, other_z, other_u, frames = 0.0, 0.0, 0.0, 0
    for n, (batch, latent) in enumerate(zip(batches, latents, strict=True)):
        if len(batch.utt_ids) < 2:
            continue
        noise = torch.Generator().manual_seed(synthesis.item_seed(seed, "posterior", n))
        z, u = latent.sample(generator=noise)
        donor = torch.from_numpy(derangement(len(batch.utt_ids), rng)).to(z.device)
        stretched = _stretch(u[donor], latent.u_lengths[donor], latent.u_lengths)
        sums = []
        for used_z, used_u in ((z, u), (z[donor], u), (z, stretched)):
            noise = torch.Generator().manual_seed(synthesis.item_seed(seed, "decode", n))
            nats = model.teacher_forced_nats(
                batch.mel, batch.lengths, used_z, used_u, latent.u_lengths, generator=noise
            )
            sums.append(float(nats.double().sum()))
        own, other_z, other_u = own + sums[0], other_z + sums[1], other_u + sums[2]
        frames += int(batch.lengths.sum())
    if not frames:
        return ShuffleCosts(float("nan"), float("nan"))
    return ShuffleCosts((other_z - own) / frames, (other_u - own) / frames)


def derangement(n: int, rng: np.random.Generator) -> np.ndarray:
    """A random permutation of n >= 2 that leaves nothing in its place: one random cycle."""
    order = rng.permutation(n)
    donor = np.empty(n, np.int64)
    donor[order] = np.roll(order, 1)
    return donor


def _stretch(u: Tensor, lengths: Tensor, wanted: Tensor) -> Tensor:
    """Rows of u (B, K, U) with `lengths` real steps -> `wanted` steps, each the nearest old one."""
    steps = torch.arange(int(wanted.max()), device=u.device)
    index = ((steps + 0.5) * (lengths / wanted).unsqueeze(1)).long()
    index = torch.minimum(index, lengths.unsqueeze(1) - 1)
    return u.gather(1, index.unsqueeze(-1).expand(-1, -1, u.shape[2]))


def decode_all(model: AudioVAE, codes: Codes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Free-running mel (T, M) and alignment (L, K) of each utterance, in order."""
    done: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for part in by_length(codes.u_lengths.tolist()):
        chosen = Codes.stack([codes[n] for n in part])
        decoded = synthesis.decode(model, chosen)
        mels = unpad(decoded.mel, decoded.lengths)
        alignments = unpad(decoded.alignment, decoded.align_lengths)
        for n, mel, weights, slots in zip(
            part, mels, alignments, chosen.u_lengths.tolist(), strict=True
        ):
            done[n] = mel, weights[:, :slots]
    return [done[n] for n in range(len(codes))]


@dataclass(frozen=True)
class Pair:
    """A voice transfer: the words of one utterance, the voice of one of another speaker."""

    content: str
    style: str


def draw_pairs(speakers: Mapping[str, str], number: int, rng: np.random.Generator) -> list[Pair]:
    """Different pairs of utterances of different speakers, every such pair equally likely.

    Fewer than `number` where there are not so many; none of one speaker.
    """
    utt_ids = sorted(speakers)
    drawn: dict[Pair, None] = {}
    for _ in range(100 * number):
        a, b = (utt_ids[n] for n in rng.integers(len(utt_ids), size=2))
        if speakers[a] != speakers[b]:
            drawn[Pair(a, b)] = None
        if len(drawn) == number:
            break
    return list(drawn)


@dataclass(frozen=True)
class Transfer:
    """Outputs of voice transfers and the voices they were taken for."""

    pairs: list[Pair]
    mels: list[np.ndarray]
    targets: list[str]
    sources: list[str]
    heard: list[str]

    @property
    def success(self) -> float:
        """Share taken for the target voice."""
        return _share(self.heard, self.targets)

    @property
    def kept_source(self) -> float:
        """Share taken for the voice of the content."""
        return _share(self.heard, self.sources)

    def by_target(self) -> dict[str, float]:
        """Success for each target voice."""
        kept = sorted(set(self.targets))
        rows = {v: [n for n, target in enumerate(self.targets) if target == v] for v in kept}
        return {v: float(np.mean([self.heard[n] == v for n in ns])) for v, ns in rows.items()}


def transfer(
    model: AudioVAE,
    codes: Mapping[str, Codes],
    speakers: Mapping[str, str],
    pairs: Sequence[Pair],
    classifier: VoiceClassifier,
    *,
    references: int = 1,
) -> Transfer:
    """Decode u of the content with z of the style, free running, and ask whose voice it is.

    Args:
        codes: posterior means of each utterance.
        references: utterances of the target speaker whose mean z is used; the style comes first.
    """
    swapped = [
        replace(codes[pair.content], z=_voice(codes, speakers, pair.style, references))
        for pair in pairs
    ]
    mels = [mel for mel, _ in decode_all(model, Codes.stack(swapped))]
    return Transfer(
        pairs=list(pairs),
        mels=mels,
        targets=[speakers[pair.style] for pair in pairs],
        sources=[speakers[pair.content] for pair in pairs],
        heard=classifier.predict(mels),
    )


def _voice(
    codes: Mapping[str, Codes], speakers: Mapping[str, str], style: str, references: int
) -> Tensor:
    others = [u for u in sorted(codes) if speakers[u] == speakers[style] and u != style]
    # starting behind the style: each style has its own references
    start = sum(u < style for u in others)
    chosen = [style, *(others[start:] + others[:start])[: references - 1]]
    return torch.stack([codes[u].z for u in chosen]).mean(0)


def _share(a: Sequence[str], b: Sequence[str]) -> float:
    return float(np.mean([x == y for x, y in zip(a, b, strict=True)])) if a else float("nan")
