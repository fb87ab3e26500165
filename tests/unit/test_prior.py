"""p(u, K | z): proper distributions, the mixture, and draws that follow them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from audiovae.config import LatentConfig
from audiovae.models.posterior import Gaussian
from audiovae.models.prior import LocalPrior


def small_prior(mixtures: int = 1, hazard: float | None = None, seed: int = 0) -> LocalPrior:
    """Tiny and seeded; hazard makes the chance to stop after any u the same."""
    torch.manual_seed(seed)
    config = LatentConfig(z_dim=4, u_dim=3, prior_dim=8, prior_mixtures=mixtures)
    prior = LocalPrior(config).eval()
    with torch.no_grad():
        for parameter in prior.next.parameters():
            parameter.mul_(3)  # what it has learned should matter
        if hazard is not None:
            prior.stop.weight.zero_()
            prior.stop.bias.fill_(math.log(hazard / (1 - hazard)))
    return prior


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def posterior(*shape: int, seed: int = 5) -> Gaussian:
    return Gaussian(normal(*shape, seed=seed), 0.2 + normal(*shape, seed=seed + 1).abs())


@torch.no_grad()
def length_nats(prior: LocalPrior, most: int) -> torch.Tensor:
    """-log p(K | u, z) for K = 1 .. most and one u."""
    u = normal(1, most, 3, seed=1).expand(most, -1, -1)
    z = normal(1, 4, seed=2).expand(most, -1)
    lengths = torch.arange(1, most + 1)
    return prior(u, lengths, z, Gaussian(u, torch.ones_like(u)))[1]


def test_length_is_a_distribution() -> None:
    geometric = length_nats(small_prior(hazard=0.2), 30)
    wanted = -math.log(0.2) - torch.arange(30) * math.log(0.8)
    torch.testing.assert_close(geometric, wanted, rtol=1e-5, atol=1e-5)
    prior = small_prior()
    with torch.no_grad():
        prior.stop.weight.mul_(5)  # the end depends on u and z
    nats = length_nats(prior, 60)
    assert (-nats).exp().sum() == pytest.approx(1, abs=1e-4)
    assert nats[:10].std() > 0.1


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
    hidden = prior._states(u, z)
    wanted = Normal(q.mean, q.std).log_prob(u).sum(-1) - as_distribution(
        *prior._next_u(hidden[:, :-1], z)
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
        hidden = prior._states(torch.zeros(1, 1, 3), z)
        log_weights, components = prior._next_u(hidden[:, :1], z)
    wanted = as_distribution(log_weights[0, 0], Gaussian(components.mean[0, 0],
                                                         components.std[0, 0]))  # fmt: skip
    u = drawn.u[:, 0]
    spread = wanted.variance.sqrt()
    assert ((u.mean(0) - wanted.mean).abs() < 4 * spread / count**0.5).all()
    torch.testing.assert_close(u.std(0), spread, rtol=0.05, atol=0)


def test_drawn_lengths_are_geometric_and_the_cap_is_told() -> None:
    prior = small_prior(hazard=0.25)
    drawn = prior.sample(normal(4000, 4, seed=2), 8, generator=torch.Generator().manual_seed(0))
    share = torch.bincount(drawn.u_lengths, minlength=9)[1:] / 4000
    for k in range(1, 8):
        assert share[k - 1].item() == pytest.approx(0.25 * 0.75 ** (k - 1), abs=0.03)
    assert drawn.hit_cap.float().mean().item() == pytest.approx(0.75**8, abs=0.03)
    assert (drawn.u_lengths[drawn.hit_cap] == 8).all()
    assert ((drawn.u_lengths == 8) & ~drawn.hit_cap).any()  # ended by itself at the cap
    padding = torch.arange(8) >= drawn.u_lengths[:, None]
    assert (drawn.u[padding] == 0).all()


@torch.no_grad()
def test_draws_end_as_often_as_their_likelihood_says() -> None:
    """The end after u_k depends on u_k, when drawing as when scoring."""
    prior, count = small_prior(seed=1), 20000
    prior.stop.weight.mul_(8)
    z = normal(1, 4, seed=2).expand(count, -1)
    drawn = prior.sample(z, 1, generator=torch.Generator().manual_seed(0))
    _, nats = prior(drawn.u, drawn.u_lengths, z, Gaussian(drawn.u, torch.ones_like(drawn.u)))
    chance, ended = (-nats).exp(), (~drawn.hit_cap).float()
    assert chance.std() > 0.05
    for part in (chance < chance.median(), chance >= chance.median()):
        assert ended[part].mean().item() == pytest.approx(chance[part].mean().item(), abs=0.02)


def test_a_cold_draw_is_the_mean_of_each_step() -> None:
    prior = small_prior(hazard=0.01)
    z = normal(2, 4, seed=2)
    drawn = prior.sample(z, 5, temperature=0.0, generator=torch.Generator().manual_seed(0))
    assert drawn.u_lengths.tolist() == [5, 5]
    with torch.no_grad():
        _, components = prior._next_u(prior._states(drawn.u, z)[:, :-1], z)
    torch.testing.assert_close(drawn.u, components.mean[:, :, 0], atol=1e-5, rtol=1e-5)
    assert (drawn.u[:, 0] - drawn.u[:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("mixtures", [1, 3])
def test_an_utterance_draws_the_same_in_any_batch(mixtures: int) -> None:
    prior = small_prior(mixtures, hazard=0.1)
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
