"""Random numbers that can be owned: by nobody, by the batch, or by each utterance of it.

With one generator per utterance, an utterance gets the same numbers alone and inside any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Generators = torch.Generator | Sequence[torch.Generator] | None


def normal(lengths: Tensor, width: int, generator: Generators) -> Tensor:
    """Standard normal noise with shape (B, max length, width), on the device of lengths."""
    return _draw(torch.randn, lengths, width, generator)


def uniform(lengths: Tensor, width: int, generator: Generators) -> Tensor:
    """Uniform noise in [0, 1) with shape (B, max length, width), on the device of lengths."""
    return _draw(torch.rand, lengths, width, generator)


def _draw(draw, lengths: Tensor, width: int, generator: Generators) -> Tensor:  # type: ignore[no-untyped-def]
    size = int(lengths.max())
    if generator is None:
        return draw(len(lengths), size, width, device=lengths.device)
    if isinstance(generator, torch.Generator):
        noise = draw(len(lengths), size, width, generator=generator, device=generator.device)
        return noise.to(lengths.device)
    noise = torch.zeros(len(lengths), size, width)
    for row, own, length in zip(noise, generator, lengths.tolist(), strict=True):
        row[:length] = draw(length, width, generator=own, device=own.device)
    return noise.to(lengths.device)
