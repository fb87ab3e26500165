"""What the decoder attends to: the stochastic memory f(u, z), one slot per u_k."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StochasticMemory(nn.Module):
    """m_k = W [u_k; z] + PE(k). Nothing of the encoder passes except through the latents.

    The positions are scaled down, so that at the start the content is not small beside them.
    """

    POSITION_SCALE = 0.2

    def __init__(self, u_dim: int, z_dim: int, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(u_dim + z_dim, dim)
        half = dim // 2
        frequency = 10000 ** (-torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequency", frequency, persistent=False)

    frequency: Tensor

    def forward(self, u: Tensor, z: Tensor) -> Tensor:
        """u (B, K, U), z (B, Z) -> memory (B, K, D)."""
        steps = u.shape[1]
        memory = self.project(torch.cat([u, z.unsqueeze(1).expand(-1, steps, -1)], -1))
        angle = torch.arange(steps, device=u.device)[:, None] * self.frequency
        return memory + self.POSITION_SCALE * torch.cat([angle.sin(), angle.cos()], -1)
