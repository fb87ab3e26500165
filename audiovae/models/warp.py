"""Vocal tract perturbation of a mel: what changes a voice and leaves the content."""

from __future__ import annotations

import torch
from torch import Tensor


def warp_mel_axis(mel: Tensor, amount: float) -> Tensor:
    """Stretch each utterance's mel axis by a factor drawn from U(1 - amount, 1 + amount).

    On the u path in training, so that u cannot tell the voice (Jaitly and Hinton 2013, VTLP).

    Args:
        mel: with shape (B, T, M).
        amount: in [0, 1).
    """
    batch, _, bins = mel.shape
    factor = 1 + amount * (2 * torch.rand(batch, 1, device=mel.device) - 1)
    position = (torch.arange(bins, device=mel.device) * factor).clamp(max=bins - 1)
    below = position.floor().long().clamp(max=bins - 2)
    share = (position - below).unsqueeze(1).to(mel.dtype)
    below = below.unsqueeze(1).expand_as(mel)
    return mel.gather(2, below) * (1 - share) + mel.gather(2, below + 1) * share
