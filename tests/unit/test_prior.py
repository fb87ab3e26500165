"""p(u, K | z): proper distributions, the mixture, and draws that follow them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from audiovae.config import LatentConfig
from audiovae.models.posterior import Gaussian
from audiovae.models.prior import LocalPrior


def small_prior(mixtures: int = 1, seed: int = 0) -> LocalPrior:
    """Tiny and seeded."""
    torch.manual_seed(seed)
    config = LatentConfig(z_dim=4, u_dim=3, prior_dim=8, prior_mixtures=mixtures)
    prior = LocalPrior(config).eval()
    with torch.no_grad():
        for parameter in prior.next.parameters():
            parameter.mul_(3)  # what it has learned should matter
    return prior


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def posterior(*shape: int, seed: int = 5) -> Gaussian:
    return Gaussian(normal(*shape, seed=seed), 0.2 + normal(*shape, seed=seed + 1).abs())


@torch.no_grad()
def test_length_is_a_distribution_and_draws_follow_it() -> None:
    prior, count = small_prior(), 20000
    chance = (-prior.length.nats(torch.arange(1, 3000))).exp()
    assert chance.sum() == pytest.approx(1, abs=1e-3)
    generator = torch.Generator().manual_seed(0)
    drawn = prior.length.sample(torch.rand(count, 2, generator=generator))
    share = torch.bincount(drawn, minlength=40)[1:40] / count
    torch.testing.assert_close(share, chance[:39], atol=0.006, rtol=0)
    middle = torch.full((1, 2), 0.5)
    assert prior.length.sample(middle, temperature=0.0).item() == round(math.exp(3.5))


def test_lengths_are_fitted_to_those_of_the_training_set() -> None:
    prior, generator = small_prior(), torch.Generator().manual_seed(0)
    short = 20 * torch.exp(0.2 * torch.randn(600, generator=generator))
    long = 90 * torch.exp(0.1 * torch.randn(400, generator=generator))
    seen = torch.cat([short, long]).round().long()
    before = prior.length.nats(seen).mean()
    prior.length.fit(seen)
    assert prior.length.nats(seen).mean() < before - 0.2
    drawn = prior.length.sample(torch.rand(20000, 2, generator=generator)).float()
    assert drawn.mean().item() == pytest.approx(seen.float().mean().item(), rel=0.03)
    assert ((drawn > 40) & (drawn < 60)).float().mean() < 0.03
    prior.length.fit(torch.tensor([7, 7, 7]))  # all alike
    drawn = prior.length.sample(torch.rand(200, 2, generator=generator))
    assert (drawn == 7).float().mean() > 0.9


@torch.no_grad()
def test_what_pads_u_costs_nothing_and_the_past_is_all_that_counts() -> None:
    prior = small_prior()
    u, z, q = normal(2, 6, 3, seed=1), normal(2, 4, seed=2), posterior(2, 6, 3)
    kl, length = prior(u, torch.tensor([6, 4]), z, q)
    assert (kl[1, 4:] == 0).all() and (kl[0] > 0).all()
    alone_kl, alone_length = prior(
        u[1:, :4], torch.tensor([4]), z[1:], Gaussian(q.mean[1:, :4], q.std[1:, :4])
    )
    torch.testing.assert_close(kl[1, :4], alone_kl[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(length[1:], alone_length, atol=1e-5, rtol=0)
    longer_kl, _ = prior(u[1:], torch.tensor([6]), z[1:], Gaussian(q.mean[1:], q.std[1:]))
    assert (longer_kl[0, :4] - alone_kl[0]).abs().max() > 1e-3  # how much is to come counts
    later = u.clone()
    later[:, 3] += 5
    moved, _ = prior(later, torch.tensor([6, 4]), z, q)
    torch.testing.assert_close(moved[:, :4], kl[:, :4])
    assert (moved[0, 4] - kl[0, 4]).abs() > 1e-3


def as_distribution(log_weights: torch.Tensor, components: Gaussian) -> MixtureSameFamily:
    each = Independent(Normal(components.mean, components.std), 1)
    return MixtureSameFamily(Categorical(logits=log_weights), each)


@torch.no_grad()
def test_mixture_against_torch_distributions() -> None:
    prior = small_prior(mixtures=4)
    u, z, q = normal(2, 6, 3, seed=1), normal(2, 4, seed=2), posterior(2, 6, 3)
    kl, _ = prior(u, torch.tensor([6, 6]), z, q)
    hidden = prior._states(u, torch.tensor([6, 6]), z)
    wanted = Normal(q.mean, q.std).log_prob(u).sum(-1) - as_distribution(
        *prior._next_u(hidden, z)
    ).log_prob(u)
    torch.testing.assert_close(kl, wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_closed_form_is_what_sampling_gives() -> None:
    """Monte Carlo of log q - log p, by a mixture whose components are all the one Gaussian."""
    single, double = small_prior(1), small_prior(2)
    double.load_state_dict(
        {
            name: torch.cat([value, value]) if name.startswith("next.2") else value
            for name, value in single.state_dict().items()
        }
    )
    count = 20000
    q = posterior(1, 1, 3)
    u = q.mean + q.std * normal(count, 1, 3, seed=7)
    z, ones = normal(1, 4, seed=2).expand(count, -1), torch.ones(count, dtype=torch.long)
    exact = single(u[:1], ones[:1], z[:1], q)[0].item()
    drawn = double(u, ones, z, q)[0][:, 0]
    assert drawn.std() > 0.5
    assert drawn.mean().item() == pytest.approx(exact, abs=4 * drawn.std().item() / count**0.5)


def test_draws_follow_the_mixture() -> None:
    prior, count = small_prior(mixtures=3), 20000
    z = normal(1, 4, seed=2)
    drawn = prior.sample(z.expand(count, -1), 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = prior._states(torch.zeros(1, 1, 3), torch.tensor([1]), z)
        log_weights, components = prior._next_u(hidden, z)
    wanted = as_distribution(log_weights[0, 0], Gaussian(components.mean[0, 0],
                                                         components.std[0, 0]))  # fmt: skip
    u = drawn.u[:, 0]
    spread = wanted.variance.sqrt()
    assert ((u.mean(0) - wanted.mean).abs() < 4 * spread / count**0.5).all()
    torch.testing.assert_close(u.std(0), spread, rtol=0.05, atol=0)


def test_a_draw_has_its_length_and_the_cap_is_told() -> None:
    prior = small_prior()
    drawn = prior.sample(normal(400, 4, seed=2), 20, generator=torch.Generator().manual_seed(0))
    assert len(set(drawn.u_lengths.tolist())) > 10
    assert (drawn.u_lengths[drawn.hit_cap] == 20).all()
    assert 0 < drawn.hit_cap.sum() < 400
    real = torch.arange(20) < drawn.u_lengths[:, None]
    assert (drawn.u[~real] == 0).all() and (drawn.u[real] != 0).all()


def test_a_cold_draw_is_the_mean_of_each_step() -> None:
    prior = small_prior()
    with torch.no_grad():
        prior.length.place.fill_(4.0)
    z = normal(2, 4, seed=2)
    drawn = prior.sample(z, 5, temperature=0.0, generator=torch.Generator().manual_seed(0))
    assert drawn.u_lengths.tolist() == [5, 5]
    with torch.no_grad():
        _, components = prior._next_u(prior._states(drawn.u, drawn.u_lengths, z), z)
    torch.testing.assert_close(drawn.u, components.mean[:, :, 0], atol=1e-5, rtol=1e-5)
    assert (drawn.u[:, 0] - drawn.u[:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("mixtures", [1, 3])
def test_an_utterance_draws_the_same_in_any_batch(mixtures: int) -> None:
    prior = small_prior(mixtures)
    z = normal(5, 4, seed=2)

    def draw(rows: list[int], cap: int = 30) -> object:
        own = [torch.Generator().manual_seed(100 + row) for row in rows]
        return prior.sample(z[rows], cap, generator=own)

    together = draw([0, 1, 2, 3, 4])
    assert len(set(together.u_lengths.tolist())) > 2
    for row in range(5):
        alone, length = draw([row]), int(together.u_lengths[row])
        assert alone.u_lengths.tolist() == [length]
        assert alone.hit_cap[0] == together.hit_cap[row]
        torch.testing.assert_close(alone.u[0], together.u[row, :length], atol=1e-5, rtol=0)
