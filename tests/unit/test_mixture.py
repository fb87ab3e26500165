"""The fitted prior of z: as likely as the truth it was drawn from."""

from __future__ import annotations

import math

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from audiovae.training.mixture import STD_FLOOR, _expectation_maximisation


def mixture(log_weight: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(logits=log_weight), Independent(Normal(mean, std), 1))


def test_it_finds_the_voices() -> None:
    torch.manual_seed(0)
    weight = torch.tensor([0.5, 0.3, 0.2])
    mean = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    truth = mixture(weight.log(), mean, torch.tensor([[0.5, 0.2], [0.3, 0.6], [1.0, 0.4]]))
    train, test = truth.sample((3000,)), truth.sample((3000,))
    found = _expectation_maximisation(train.double(), seed=0)
    fitted = mixture(*(part.float() for part in found))
    assert fitted.log_prob(test).mean() > truth.log_prob(test).mean() - 0.03
    torch.testing.assert_close(found[0].exp().sum().item(), 1.0, rtol=1e-6, atol=1e-6)


def test_few_and_equal_utterances_keep_a_width() -> None:
    for z in (torch.zeros(3, 2), torch.randn(1, 2)):
        log_weight, mean, std = _expectation_maximisation(z.double(), seed=0)
        assert log_weight.isfinite().all() and mean.isfinite().all()
        assert math.isclose(float(std.min()), STD_FLOOR) and std.max() < 1
