"""The objective: warm-up, free bits, capacity, and a loss that batches do not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from audiovae.config import Config
from audiovae.models.vae import LossTerms
from audiovae.training.losses import Capacity, ContentAdversary, Objective

SmallConfig = Callable[..., Config]
NO_GAMES = ["latent.z_capacity=0", "latent.u_adversary=0"]
PLAIN = [*NO_GAMES, "latent.z_warmup_steps=0", "latent.u_warmup_steps=0"]


def terms(batch: int = 4, seed: int = 0) -> LossTerms:
    """Plausible numbers with gradients; u_lengths 1 .. batch."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator).requires_grad_()

    u_lengths = torch.arange(1, batch + 1)
    mask = torch.arange(batch) < u_lengths[:, None]
    return LossTerms(
        reconstruction=100 * draw(batch), end=draw(batch), kl_z=draw(batch, 3),
        kl_u=10 * draw(batch, batch) * mask, length=draw(batch), frames=4 * u_lengths,
        u_lengths=u_lengths, z_mean=draw(batch, 4), u=draw(batch, batch, 3),
    )  # fmt: skip


def rows(whole: LossTerms, part: slice) -> LossTerms:
    return LossTerms(**{f.name: getattr(whole, f.name)[part] for f in fields(whole)})


def test_with_all_weights_one_it_is_the_bound_per_frame(small_config: SmallConfig) -> None:
    given = terms()
    # a mixture prior's KL is an estimate and may be negative
    given.kl_u = given.kl_u - 5 * (given.kl_u > 0)
    loss, parts = Objective(small_config(*PLAIN))(given, step=0)
    torch.testing.assert_close(loss, given.negative_elbo.sum() / given.frames.sum())
    assert parts["loss"] == pytest.approx(parts["negative_elbo"])
    assert parts["kl_z"] == pytest.approx(given.kl_z.sum(1).mean().item())
    seconds = given.frames.sum() * 256 / 22050
    assert parts["kl_u_per_second"] == pytest.approx((given.kl_u.sum() / seconds).item())


def test_warm_up_raises_each_kl_by_its_own_steps(small_config: SmallConfig) -> None:
    warmup = ["latent.z_warmup_steps=10", "latent.u_warmup_steps=20", "latent.u_beta=0.5"]
    objective, given = Objective(small_config(*NO_GAMES, *warmup)), terms()
    frames = given.frames.sum()
    fixed = (given.reconstruction + given.end + given.length).sum()
    for step, beta_z, beta_u in ((0, 0, 0), (5, 0.5, 0.125), (10, 1, 0.25), (30, 1, 0.5)):
        loss, parts = objective(given, step)
        assert (parts["beta_z"], parts["beta_u"]) == (beta_z, beta_u)
        wanted = (fixed + beta_z * given.kl_z.sum() + beta_u * given.kl_u.sum()) / frames
        torch.testing.assert_close(loss, wanted)
        # what is reported is always the bound
        assert parts["negative_elbo"] == pytest.approx((given.negative_elbo.sum() / frames).item())


def test_below_the_free_bits_a_kl_costs_nothing_more(small_config: SmallConfig) -> None:
    given = terms()
    given.kl_z = torch.tensor([[0.1, 3.0, 0.0]]).repeat(4, 1).requires_grad_()
    given.kl_u = given.kl_u.detach().requires_grad_()
    config = small_config(*PLAIN, "latent.z_free_bits=0.5", "latent.u_free_bits=4")
    loss, parts = Objective(config)(given, step=0)
    loss.backward()
    assert (given.kl_z.grad[:, [0, 2]] == 0).all() and (given.kl_z.grad[:, 1] > 0).all()
    mask = torch.arange(4) < given.u_lengths[:, None]
    assert torch.equal(given.kl_u.grad > 0, mask & (given.kl_u > 4))
    kl = 4 * (0.5 + 3 + 0.5) + given.kl_u.clamp(min=4)[mask].sum()
    fixed = (given.reconstruction + given.end + given.length).sum()
    torch.testing.assert_close(loss, (fixed + kl) / given.frames.sum())
    assert parts["kl_z"] == pytest.approx(3.1)


def test_the_multiplier_rises_above_the_limit_and_falls_below() -> None:
    capacity = Capacity(limit=10.0)
    start = capacity.multiplier
    assert 0 < start < 0.2  # hardly there at first
    for _ in range(300):
        capacity.update(30.0)
    high = capacity.multiplier
    assert high > 1
    for _ in range(300):
        capacity.update(5.0)
    assert 0 < capacity.multiplier < high
    before = capacity.raw
    capacity.update(10.0)
    capacity.update(float("nan"))
    assert capacity.raw == before
    for _ in range(5000):
        capacity.update(1e9)
    assert capacity.raw == 50.0  # bounded: one bad batch, or many, can be undone
    assert Capacity(limit=0.0).multiplier == 0
    off = Capacity(limit=0.0)
    off.update(100.0)
    assert off.raw == Capacity(limit=0.0).raw


def test_capacity_weighs_the_kl_it_limits(small_config: SmallConfig) -> None:
    config = small_config(
        *PLAIN, "latent.z_capacity=2", "latent.u_capacity=50"
    )  # fmt: skip
    objective, given = Objective(config), terms()
    for _ in range(100):
        objective.after_step(kl_z=6.0, kl_u_per_second=10.0)  # above, below
    z, u = objective.z_capacity.multiplier, objective.u_capacity.multiplier
    assert z > 1 > 0.1 > u > 0
    loss, parts = objective(given, step=0)
    extra = (z * given.kl_z.sum() + u * given.kl_u.sum()) / given.frames.sum()
    torch.testing.assert_close(loss, given.negative_elbo.sum() / given.frames.sum() + extra)
    assert (parts["z_multiplier"], parts["u_multiplier"]) == (z, u)
    restored = Objective(config)
    restored.load_multipliers(objective.multipliers())
    assert restored.z_capacity == objective.z_capacity
    assert restored.u_capacity == objective.u_capacity


def test_accumulated_parts_are_the_whole(small_config: SmallConfig) -> None:
    config = small_config("latent.z_warmup_steps=10", "latent.u_adversary=0")
    objective, given = Objective(config), terms()
    frames = float(given.frames.sum())
    whole, _ = objective(given, step=5)
    parts = [objective(rows(given, part), 5, frames)[0] for part in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(sum(parts), whole)


def test_the_adversary_is_weighed_like_the_rest(small_config: SmallConfig) -> None:
    """In the loss once, however many batches and processes a step is dealt to."""
    torch.manual_seed(0)
    config = small_config(*PLAIN, "latent.u_adversary=0.5")
    objective, given = Objective(config), terms()
    loss, parts = objective(given, step=0)
    bound = given.negative_elbo.sum() / given.frames.sum()
    assert loss.item() == pytest.approx(bound.item() + parts["adversary"], rel=1e-5)
    frames = float(given.frames.sum())
    half, _ = objective(given, 0, 2 * frames)  # one of two such batches
    torch.testing.assert_close(2 * half, loss)


def test_the_adversary_learns_and_u_unlearns() -> None:
    torch.manual_seed(0)
    adversary = ContentAdversary(3, 4)
    given = terms()
    u = given.u.detach().requires_grad_()
    z_mean = given.z_mean.detach().requires_grad_()
    gradient = {}
    for weight in (-1.0, 0.5):  # -1 undoes the reversal
        u.grad = None
        adversary.zero_grad()
        adversary(u, given.u_lengths, z_mean, weight).backward()
        gradient[weight] = u.grad.clone()
        assert all(p.grad.abs().sum() > 0 for p in adversary.parameters())
        own = next(adversary.parameters()).grad
        torch.testing.assert_close(own, gradient.setdefault("own", own.clone()))
    torch.testing.assert_close(gradient[0.5], -0.5 * gradient[-1.0])
    assert gradient[0.5].abs().sum() > 0 and z_mean.grad is None
    mask = torch.arange(4) < given.u_lengths[:, None]
    assert (gradient[0.5][~mask] == 0).all()
    with torch.no_grad():  # the optimizer goes against the gradient, and the guess gets worse
        moved = [u + sign * 0.1 * gradient[0.5] for sign in (-1, 1)]
        worse, better = (adversary(m, given.u_lengths, z_mean, 0.5) for m in moved)
        assert better < adversary(u, given.u_lengths, z_mean, 0.5) < worse


def test_u_does_not_run_from_an_adversary_that_knows_nothing() -> None:
    torch.manual_seed(0)
    adversary, given = ContentAdversary(3, 4), terms()
    adversary.out.bias.data[:] = torch.tensor([9.0, -9.0, 9.0, -9.0])  # worse than the mean of z
    u = given.u.detach().requires_grad_()
    assert adversary(u, given.u_lengths, given.z_mean, 0.5) > 1
    adversary(u, given.u_lengths, given.z_mean, 0.5).backward()
    assert (u.grad == 0).all()
    assert all(p.grad.abs().sum() > 0 for p in adversary.parameters())


def test_the_adversary_hears_the_real_steps_only() -> None:
    torch.manual_seed(0)
    adversary, given = ContentAdversary(3, 4), terms()
    u = given.u.detach()
    wanted = adversary(u, given.u_lengths, given.z_mean, 1.0)
    mask = torch.arange(4) < given.u_lengths[:, None]
    padded = torch.nn.functional.pad(u.masked_fill(~mask.unsqueeze(-1), 9.0), (0, 0, 0, 3))
    torch.testing.assert_close(adversary(padded, given.u_lengths, given.z_mean, 1.0), wanted)
