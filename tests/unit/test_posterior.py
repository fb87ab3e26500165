"""The posteriors: KL against torch.distributions, bounds, and pooling against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from audiovae.config import LatentConfig
from audiovae.models.posterior import Gaussian, LocalPosterior, UtterancePosterior

LENGTHS = torch.tensor([9, 1, 4])


def random_gaussian(seed: int) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(3, 7, 5, generator=generator)
    return Gaussian(mean, torch.randn(3, 7, 5, generator=generator).exp())


@pytest.fixture
def hidden() -> torch.Tensor:
    return torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(3))


def test_kl_against_torch_distributions() -> None:
    q, p = random_gaussian(0), random_gaussian(1)
    wanted = kl_divergence(Normal(q.mean, q.std), Normal(p.mean, p.std)).sum(-1)
    torch.testing.assert_close(q.kl(p), wanted, rtol=1e-5, atol=1e-5)
    standard = kl_divergence(Normal(q.mean, q.std), Normal(0.0, 1.0))
    torch.testing.assert_close(q.kl_to_standard(), standard, rtol=1e-5, atol=1e-5)
    assert (q.kl(q).abs() < 1e-6).all()
    half = Gaussian(q.mean.bfloat16(), q.std.bfloat16())
    assert half.kl(p).dtype == half.kl_to_standard().dtype == torch.float32


def test_a_sample_is_mean_plus_std_times_noise() -> None:
    q = random_gaussian(0)
    noise = torch.randn(20000, 1, 1, 5, generator=torch.Generator().manual_seed(2))
    drawn = q.sample(noise)
    error = (drawn.mean(0) - q.mean).abs() / q.std
    assert error.max() < 4 / math.sqrt(20000)
    torch.testing.assert_close(drawn.std(0), q.std, rtol=0.03, atol=0)


def test_local_std_has_a_floor_and_a_ceiling(hidden: torch.Tensor) -> None:
    torch.manual_seed(0)
    head = LocalPosterior(16, LatentConfig(u_dim=3, u_std_floor=0.1))
    q, _ = head(hidden, LENGTHS)
    assert q.std.min() > 0.1 and q.std.max() < 3  # starts near exp(-1.5)
    for sign in (1, -1):
        with torch.no_grad():
            head.out.bias[3:] = sign * 1e6
        q, _ = head(hidden, LENGTHS)
        wanted = math.sqrt(math.exp(4 if sign > 0 else -10) + 0.01)
        torch.testing.assert_close(q.std, torch.full_like(q.std, wanted))
        assert q.kl_to_standard().isfinite().all()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_local_steps_are_means_of_the_real_steps(stride: int, hidden: torch.Tensor) -> None:
    torch.manual_seed(0)
    head = LocalPosterior(16, LatentConfig(u_dim=3, u_stride=stride))
    q, u_lengths = head(hidden, LENGTHS)
    assert u_lengths.tolist() == [math.ceil(n / stride) for n in LENGTHS.tolist()]
    assert q.mean.shape == (3, math.ceil(9 / stride), 3)
    for n, length in enumerate(LENGTHS.tolist()):
        for k in range(int(u_lengths[n])):
            pooled = hidden[n, k * stride : min(length, (k + 1) * stride)].mean(0)
            torch.testing.assert_close(q.mean[n, k], head.out(pooled)[:3], atol=1e-5, rtol=1e-5)


def test_utterance_pooling_is_weighted_mean_and_spread_of_the_real_steps(
    hidden: torch.Tensor,
) -> None:
    torch.manual_seed(0)
    head = UtterancePosterior(16, LatentConfig(z_dim=4))
    hidden[:, 4:] += 100 * (torch.arange(4, 9) >= LENGTHS[:, None]).unsqueeze(-1)
    q = head(hidden, LENGTHS)
    assert q.mean.shape == q.std.shape == (3, 4)
    for n, length in enumerate(LENGTHS.tolist()):
        real = hidden[n, :length]
        weight = head.score(real).exp()
        weight = weight / weight.sum()
        mean = (weight * real).sum(0)
        spread = ((weight * (real - mean) ** 2).sum(0) + 1e-5).sqrt()
        mu, logvar = head.out(torch.cat([mean, spread])).chunk(2)
        torch.testing.assert_close(q.mean[n], mu, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(q.std[n], (0.5 * logvar).exp(), atol=1e-5, rtol=1e-5)


def test_utterance_std_is_bounded(hidden: torch.Tensor) -> None:
    head = UtterancePosterior(16, LatentConfig(z_dim=4))
    for sign, bound in ((1, math.exp(2)), (-1, math.exp(-5))):
        with torch.no_grad():
            head.out.bias[4:] = sign * 1e6
        q = head(hidden, LENGTHS)
        torch.testing.assert_close(q.std, torch.full_like(q.std, bound))
        assert q.kl_to_standard().isfinite().all()
