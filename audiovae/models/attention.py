"""Location-aware attention (Chorowski et al. 2015, arXiv 1506.07503) with a known-rate bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from audiovae.config import DecoderConfig


@dataclass
class AttentionState:
    """What one step hands to the next: context (B, D), previous and cumulative weights (B, K)."""

    context: Tensor
    weights: Tensor
    cumulative: Tensor


@dataclass(frozen=True)
class Windows:
    """The memory slots that each decoder step looks at: `size` of them from first[i] on."""

    first: list[int]
    size: int

    def index(self, device: torch.device) -> Tensor:
        """Slots of each step, with shape (L, W)."""
        first = torch.tensor(self.first, device=device)
        return first[:, None] + torch.arange(self.size, device=device)


NEGLIGIBLE = math.log(1e-7)  # of an attention weight: float32 rounds it away


class LocationAttention(nn.Module):
    """e_ij = v.tanh(W s_i + V m_j + U f_ij + b) + rate_ij, a_i = softmax_j(e_i), c_i = a_i M.

    f_i = F * [a_{i-1}; sum_{l<i} a_l]. How many memory slots pass per decoder step is known, so
    rate_ij = -((j + .5) - (i + .5) rate)^2 / (2 s^2) with a learned s keeps the alignment near it.

    Args:
        query_dim: width of the attention RNN.
        config: attention_dim, location_filters, location_kernel, rate_bias, rate_bias_slots.
        slots_per_step: memory slots per decoder step.
    """

    def __init__(self, query_dim: int, config: DecoderConfig, slots_per_step: float) -> None:
        super().__init__()
        self.slots_per_step = slots_per_step
        self.rate_bias = config.rate_bias
        self.query = nn.Linear(query_dim, config.attention_dim, bias=False)
        self.key = nn.Linear(config.memory_dim, config.attention_dim)
        self.location_conv = nn.Conv1d(
            2, config.location_filters, config.location_kernel,
            padding=config.location_kernel // 2, bias=False,
        )  # fmt: skip
        self.location = nn.Linear(config.location_filters, config.attention_dim, bias=False)
        self.score = nn.Linear(config.attention_dim, 1, bias=False)
        self.log_slots = nn.Parameter(torch.tensor(config.rate_bias_slots).log())

    def start(self, memory: Tensor) -> AttentionState:
        """The state before the first step, for memory with shape (B, K, D)."""
        nothing = memory.new_zeros(memory.shape[:2])
        return AttentionState(memory.new_zeros(memory.shape[0], memory.shape[2]), nothing, nothing)

    def bias(self, steps: int, slots: int, tempo: float = 1.0) -> Tensor:
        """rate_ij with shape (steps, slots); zero if the config turns it off."""
        if not self.rate_bias:
            return self.log_slots.new_zeros(steps, slots)
        i = torch.arange(steps, device=self.log_slots.device)[:, None] + 0.5
        j = torch.arange(slots, device=self.log_slots.device) + 0.5
        distance = j - i * (self.slots_per_step * tempo)
        return -0.5 * (distance / self.log_slots.exp()).square()

    def windows(self, steps: int, slots: int) -> Windows:
        """Where a weight can be more than 1e-7 of the largest: all slots without a rate bias.

        |v . tanh| <= |v|_1, so a slot whose bias is lower than the best by 2 |v|_1 + ln 1e7 is out.
        """
        reach = slots
        if self.rate_bias:
            with torch.no_grad():
                gap = 2 * self.score.weight.abs().sum() - NEGLIGIBLE
                # the nearest slot is at most half a slot away
                distance = (2 * gap * self.log_slots.exp().square() + 0.25).sqrt()
            reach = min(slots, math.ceil(float(distance)))
        size = min(slots, 2 * reach + 1)
        centres = ((i + 0.5) * self.slots_per_step for i in range(steps))
        return Windows([max(0, min(slots - size, int(c) - reach)) for c in centres], size)

    def forward(
        self, query: Tensor, state: AttentionState, memory: Tensor, keys: Tensor, bias: Tensor,
        mask: Tensor,
    ) -> AttentionState:  # fmt: skip
        """One step.

        Args:
            query: s_i with shape (B, H).
            memory: with shape (B, K, D); keys: self.key(memory) with shape (B, K, A).
            bias: rate_i with shape (K,).
            mask: with shape (B, K), True where a slot is real.
        """
        history = torch.stack([state.weights, state.cumulative], dim=1)
        location = self.location(self.location_conv(history).transpose(1, 2))
        energy = torch.tanh(self.query(query).unsqueeze(1) + keys + location)
        score = self.score(energy).squeeze(-1) + bias
        weights = score.masked_fill(~mask, -torch.inf).softmax(-1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return AttentionState(context, weights, state.cumulative + weights)

    def folded_location(self) -> Tensor:
        """The location convolution and its projection as one filter, with shape (A, 2, kernel)."""
        return torch.einsum("af,fck->ack", self.location.weight, self.location_conv.weight)
