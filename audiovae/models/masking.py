"""Lengths and masks: the one place that says which steps of a padded batch are real."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, size: int | None = None) -> Tensor:
    """lengths with shape (B,) -> bool mask with shape (B, size), True where a step is real."""
    size = int(lengths.max()) if size is None else size
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over time of the real steps: x (B, T, C), mask (B, T) -> (B, C)."""
    weight = mask.unsqueeze(-1).to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1)


def instance_norm(x: Tensor, mask: Tensor, eps: float = 1e-5) -> Tensor:
    """Take mean and standard deviation over time out of each utterance and channel.

    What is constant over an utterance (a voice's mean spectrum, the channel) is removed, what
    changes (the content) stays: AdaIN-VC, arXiv 1904.05742.

    Args:
        x: with shape (B, T, C).
        mask: with shape (B, T), True where a step is real; the rest comes back as zero.
    """
    mean = masked_mean(x, mask).unsqueeze(1)
    centred = (x - mean) * mask.unsqueeze(-1)
    variance = masked_mean(centred.square(), mask).unsqueeze(1)
    return centred * (variance + eps).rsqrt()


def ceil_div(a: Tensor, b: int) -> Tensor:
    """ceil(a / b) of integer lengths."""
    return torch.div(a + b - 1, b, rounding_mode="floor")
