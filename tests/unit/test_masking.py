"""Lengths and masks against plain loops over each utterance's real steps."""

from __future__ import annotations

import math

import numpy as np
import torch

from audiovae.models.masking import ceil_div, instance_norm, length_mask, masked_mean

LENGTHS = torch.tensor([5, 1, 3])


def padded() -> torch.Tensor:
    """Rows with much larger numbers in the padding than before it."""
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)) * 3 + 2
    return torch.where(length_mask(LENGTHS, 6).unsqueeze(-1), x, 1e4)


def test_a_mask_is_true_before_each_end() -> None:
    assert length_mask(LENGTHS).int().tolist() == [[1] * 5, [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert length_mask(LENGTHS, 6).shape == (3, 6)
    assert length_mask(LENGTHS, 2).sum(1).tolist() == [2, 1, 2]


def test_the_mean_is_of_the_real_steps() -> None:
    x = padded()
    found = masked_mean(x, length_mask(LENGTHS, 6))
    for row, mean, length in zip(x, found, LENGTHS.tolist(), strict=True):
        torch.testing.assert_close(mean, row[:length].mean(0))


def test_instance_norm_takes_out_what_is_constant() -> None:
    x = padded()
    mask = length_mask(LENGTHS, 6)
    found = instance_norm(x, mask)
    for row, normal, length in zip(x, found, LENGTHS.tolist(), strict=True):
        real = row[:length].double().numpy()
        wanted = (real - real.mean(0)) / np.sqrt(real.var(0) + 1e-5)
        np.testing.assert_allclose(normal[:length], wanted, atol=1e-5)
        assert (normal[length:] == 0).all()
    # another level and another spread of each channel: the same content
    torch.testing.assert_close(instance_norm(x * 7 - 3, mask)[0], found[0], atol=1e-4, rtol=0)


def test_lengths_are_rounded_up() -> None:
    lengths = torch.arange(1, 20)
    for b in (1, 2, 3, 5):
        assert ceil_div(lengths, b).tolist() == [math.ceil(a / b) for a in range(1, 20)]
