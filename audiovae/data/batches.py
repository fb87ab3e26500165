"""Utterances of any length as padded batches, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BATCH_UTTERANCES = 32


@dataclass(frozen=True)
class Batch:
    """Utterances of about one length: mel (B, T, M), zero after each end, and lengths (B,)."""

    utt_ids: list[str]
    mel: Tensor
    lengths: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(self.utt_ids, self.mel.to(device), self.lengths.to(device))


def pad(arrays: Sequence[np.ndarray], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Arrays of (T, C) -> float32 (B, longest T, C), zero after each end, and lengths (B,)."""
    lengths = torch.tensor([len(array) for array in arrays])
    padded = torch.zeros(len(arrays), int(lengths.max()), arrays[0].shape[1])
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = torch.from_numpy(np.ascontiguousarray(array))
    return padded.to(device), lengths.to(device)


def unpad(padded: Tensor, lengths: Tensor) -> list[np.ndarray]:
    """(B, T, ...) and lengths (B,) -> the real part of each row."""
    rows = padded.float().cpu().numpy()
    return [row[:n].copy() for row, n in zip(rows, lengths.tolist(), strict=True)]


def by_length(lengths: Sequence[int], most: int = BATCH_UTTERANCES) -> list[list[int]]:
    """Indices in batches of neighbours in length, of even sizes: a lone one only if N = 1."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    parts = math.ceil(len(order) / most)
    return [part.tolist() for part in np.array_split(order, parts)] if parts else []


def length_sorted(mels: Mapping[str, np.ndarray], device: torch.device | str) -> list[Batch]:
    """Batches of at most 32 utterances, shortest first."""
    utt_ids = list(mels)
    batches = []
    for part in by_length([len(mels[utt_id]) for utt_id in utt_ids]):
        chosen = [utt_ids[n] for n in part]
        batches.append(Batch(chosen, *pad([mels[utt_id] for utt_id in chosen], device)))
    return batches
