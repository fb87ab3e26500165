"""Is z used: models of which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from audiovae.analysis import usage
from audiovae.analysis.voices import VoiceClassifier
from audiovae.data.batches import by_length, length_sorted, pad, unpad
from audiovae.models.vae import Decoded, Latents
from audiovae.synthesis import Codes

SLOT, MELS = 4, 20


class _Additive:
    """A frame is z plus the u of its slot; -log p is the sum of |x - frame|."""

    device = torch.device("cpu")

    def __init__(self, *, uses_z: bool = True) -> None:
        self.uses_z = uses_z

    def _frames(self, z: Tensor, u: Tensor) -> Tensor:
        return u.repeat_interleave(SLOT, 1) + (z.unsqueeze(1) if self.uses_z else 0)

    def decode(self, z, u, u_lengths, *, tempo=1.0, generator=None) -> Decoded:  # type: ignore[no-untyped-def]
        alignment = torch.eye(u.shape[1]).expand(len(z), -1, -1)
        return Decoded(self._frames(z, u), u_lengths * SLOT, alignment, u_lengths)

    def teacher_forced_nats(self, mel, lengths, z, u, u_lengths, generator=None) -> Tensor:  # type: ignore[no-untyped-def]
        real = torch.arange(mel.shape[1]) < lengths[:, None]
        error = (mel - self._frames(z, u)[:, : mel.shape[1]]).abs().sum(-1)
        return (error * real).sum(1)

    def encode(self, mel: Tensor, lengths: Tensor, *, voice_in_u: bool = False) -> Latents:
        slots = lengths // SLOT
        u = mel.unflatten(1, (-1, SLOT)).mean(2)
        z = mel.sum(1) / lengths[:, None]
        u = u if voice_in_u else u - z.unsqueeze(1)
        return Latents(z, torch.full_like(z, 1e-6), u, torch.full_like(u, 1e-6), slots)


def _utterances(n: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    rng = np.random.default_rng(0)
    tilt = np.linspace(-3, 3, MELS)
    mels, speakers = {}, {}
    for k in range(n):
        utt_id = f"utt{k:02d}"
        speakers[utt_id] = f"speaker{k % 2}"
        slots = rng.standard_normal((3 + k % 5, MELS))
        slots -= slots.mean(0)
        frames = np.repeat(slots, SLOT, axis=0) + (1 if k % 2 else -1) * tilt
        mels[utt_id] = frames.astype(np.float32)
    return mels, speakers


def _encoded(model: _Additive, n: int = 40, *, voice_in_u: bool = False):  # type: ignore[no-untyped-def]
    mels, speakers = _utterances(n)
    batches = length_sorted(mels, "cpu")
    latents = [model.encode(b.mel, b.lengths, voice_in_u=voice_in_u) for b in batches]
    return mels, speakers, batches, latents


def _codes(batches, latents) -> dict[str, Codes]:  # type: ignore[no-untyped-def]
    codes = {}
    for batch, latent in zip(batches, latents, strict=True):
        no_cap = torch.zeros(len(latent.z_mean), dtype=torch.bool)
        seeds = tuple(range(len(no_cap)))
        all_of_them = Codes(latent.z_mean, latent.u_mean, latent.u_lengths, seeds, no_cap)
        codes.update({utt_id: all_of_them[n] for n, utt_id in enumerate(batch.utt_ids)})
    return codes


def test_batches_are_even_sorted_and_come_back() -> None:
    assert by_length([5, 1, 4], most=32) == [[1, 2, 0]]
    sizes = [len(part) for part in by_length(list(range(33)), most=32)]
    assert sizes == [17, 16]
    assert by_length([]) == []
    arrays = [np.ones((n, 2), np.float32) * n for n in (3, 1, 2)]
    padded, lengths = pad(arrays)
    assert padded.shape == (3, 3, 2) and float(padded[1, 1:].abs().sum()) == 0
    for a, b in zip(arrays, unpad(padded, lengths), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [2, 3, 17])
def test_a_derangement_moves_everything(n: int) -> None:
    donor = usage.derangement(n, np.random.default_rng(n))
    assert sorted(donor) == list(range(n))
    assert (donor != np.arange(n)).all()


def test_shuffle_costs_against_one_by_one() -> None:
    model = _Additive()
    mels, _, batches, latents = _encoded(model)
    costs = usage.shuffle_costs(model, batches, latents, seed=3)  # type: ignore[arg-type]
    rng, z_cost, u_cost = np.random.default_rng(3), 0.0, 0.0
    for batch, latent in zip(batches, latents, strict=True):
        donors = usage.derangement(len(batch.utt_ids), rng)
        for n, donor in enumerate(donors):
            frames, slots = len(mels[batch.utt_ids[n]]), int(latent.u_lengths[n])
            own, other = latent.u_mean[n, :slots], latent.u_mean[donor]
            theirs = int(latent.u_lengths[donor])
            nearest = [int((k + 0.5) * theirs / slots) for k in range(slots)]
            z_cost += float((latent.z_mean[n] - latent.z_mean[donor]).abs().sum()) * frames
            u_cost += float((own - other[nearest]).abs().sum()) * SLOT
    frames = sum(map(len, mels.values()))
    assert costs.z == pytest.approx(z_cost / frames, rel=1e-4)
    assert costs.memory == pytest.approx(u_cost / frames, rel=1e-4)
    assert costs.z > 10 and costs.memory > 10


def test_a_bypassed_z_costs_nothing_and_carries_no_voice() -> None:
    """The decoder ignores z, and KL and active units do not show it."""
    model = _Additive(uses_z=False)
    mels, speakers, batches, latents = _encoded(model, voice_in_u=True)
    costs = usage.shuffle_costs(model, batches, latents)  # type: ignore[arg-type]
    assert costs.z == 0 and costs.memory > 1
    assert usage.latent_usage(latents).active_units_z == MELS
    moved = _transfer(model, mels, speakers, batches, latents)
    assert (moved.success, moved.kept_source) == (0, 1)


def test_a_used_z_carries_the_voice() -> None:
    model = _Additive()
    moved = _transfer(model, *_encoded(model))
    assert (moved.success, moved.kept_source) == (1, 0)
    assert moved.by_target() == {"speaker0": 1, "speaker1": 1}
    several = _transfer(model, *_encoded(model), references=4)
    assert several.success == 1


def _transfer(model, mels, speakers, batches, latents, references: int = 1) -> usage.Transfer:  # type: ignore[no-untyped-def]
    classifier = VoiceClassifier.fit(list(mels.values()), [speakers[u] for u in mels])
    pairs = usage.draw_pairs(speakers, 25, np.random.default_rng(0))
    assert len(pairs) == len(set(pairs)) == 25
    assert all(speakers[pair.content] != speakers[pair.style] for pair in pairs)
    codes = _codes(batches, latents)
    moved = usage.transfer(model, codes, speakers, pairs, classifier, references=references)
    # an output is as long as its content
    assert [len(mel) for mel in moved.mels] == [len(mels[pair.content]) for pair in pairs]
    return moved


def test_one_speaker_has_no_pairs() -> None:
    assert usage.draw_pairs({"a": "x", "b": "x"}, 5, np.random.default_rng(0)) == []
    two = usage.draw_pairs({"a": "x", "b": "y"}, 5, np.random.default_rng(0))
    assert set(two) == {usage.Pair("a", "b"), usage.Pair("b", "a")}


def test_latent_usage_against_torch_distributions() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([5, 2, 7])
    z_mean, z_std = torch.randn(3, 4), torch.rand(3, 4) + 0.1
    z_mean[:, 3], z_std[:, 3] = 0, 1  # a dead dimension
    u_mean, u_std = torch.randn(3, 7, 2), torch.rand(3, 7, 2) + 0.1
    used = usage.latent_usage([Latents(z_mean, z_std, u_mean, u_std, lengths)])
    normal = torch.distributions.Normal
    kl = torch.distributions.kl_divergence(normal(z_mean, z_std), normal(0.0, 1.0)).mean(0)
    np.testing.assert_allclose(used.kl_z_per_dim, kl, rtol=1e-5, atol=1e-6)
    assert used.active_units_z == 3
    means = torch.cat([u_mean[n, :k] for n, k in enumerate(lengths)])
    stds = torch.cat([u_std[n, :k] for n, k in enumerate(lengths)])
    overall = (means.var(0, correction=0) + (stds**2).mean(0)).sqrt()
    apart = torch.distributions.kl_divergence(normal(means, stds), normal(means.mean(0), overall))
    np.testing.assert_allclose(used.u_nats_per_dim, apart.mean(0), rtol=1e-5)


def test_decode_all_keeps_the_order() -> None:
    model = _Additive()
    mels, _, batches, latents = _encoded(model)
    codes = _codes(batches, latents)
    decoded = usage.decode_all(model, Codes.stack([codes[u] for u in mels]))  # type: ignore[arg-type]
    for (mel, weights), original in zip(decoded, mels.values(), strict=True):
        np.testing.assert_allclose(mel, original, atol=1e-5)
        assert weights.shape == (len(original) // SLOT, len(original) // SLOT)
