"""Autoregressive decoder: prenet, attention RNN, attention over the memory, decoder RNN, frames.

Only the attention RNN and the attention feed back into themselves, so with the frames known
(training) all else runs over the whole sequence at once: the prenet and its part of the gates
before the loop, the decoder RNN and the projections after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from audiovae.config import DecoderConfig
from audiovae.models import noise
from audiovae.models.attention import LocationAttention
from audiovae.models.masking import ceil_div, length_mask
from audiovae.models.recurrence import attention_recurrence


@dataclass
class Frames:
    """frames (B, L * R, M) normalised, end logits (B, L), alignment (B, L, K)."""

    frames: Tensor
    end: Tensor
    alignment: Tensor


class Decoder(nn.Module):
    """p(x | u, z) frame group by frame group; R = reduction_factor frames a step.

    Args:
        n_mels: M. z_dim: Z.
        config: widths and dropout.
        slots_per_step: memory slots per decoder step.
    """

    def __init__(
        self, n_mels: int, z_dim: int, config: DecoderConfig, slots_per_step: float
    ) -> None:
        super().__init__()
        self.n_mels = n_mels
        self.reduction = config.reduction_factor
        self.frame_dropout = config.frame_dropout
        self.prenet = _Prenet(n_mels, config)
        hidden, memory = config.attention_rnn_dim, config.memory_dim
        self.attention_init = nn.Linear(z_dim, 2 * hidden)
        self.attention_rnn = nn.LSTMCell(self.prenet.out_dim + memory + z_dim, hidden)
        self.attention = LocationAttention(hidden, config, slots_per_step)
        self.decoder_init = nn.Linear(z_dim, 2 * config.decoder_rnn_dim)
        self.decoder_rnn = nn.LSTM(
            hidden + memory + z_dim, config.decoder_rnn_dim, batch_first=True
        )
        width = config.decoder_rnn_dim + memory + z_dim
        self.frame_out = nn.Linear(width, self.reduction * n_mels)
        self.end_out = nn.Linear(width, 1)

    def forward(
        self, frames: Tensor, lengths: Tensor, memory: Tensor, slots: Tensor, z: Tensor,
        *, generator: noise.Generators = None,
    ) -> Frames:  # fmt: skip
        """Teacher forcing.

        Args:
            frames: normalised mel with shape (B, T, M).
            lengths: frames with shape (B,).
            memory: with shape (B, K, D); slots: real ones with shape (B,).
            z: with shape (B, Z).
        """
        fed = self._fed_back(frames, generator)
        steps = ceil_div(lengths, self.reduction)
        fed = self.prenet(fed, self.prenet.masks(steps, fed.shape[1], generator))
        batch, count, _ = fed.shape
        weight_p, weight_c, weight_z = self._input_weights(memory.shape[-1])
        gates = fed.transpose(0, 1) @ weight_p.t() + self._constant_gates(z, weight_z)
        location = self.attention.folded_location()
        hidden, context, alignment = attention_recurrence(
            gates, self.attention.key(memory), memory,
            self.attention.bias(count, memory.shape[1]), length_mask(slots, memory.shape[1]),
            self.attention.windows(count, memory.shape[1]),
            _start(self.attention_init, z),
            torch.cat([weight_c, self.attention_rnn.weight_hh], 1),
            self.attention.query.weight, location, self.attention.score.weight[0],
        )  # fmt: skip
        hidden, context = hidden.transpose(0, 1), context.transpose(0, 1)
        each_z = z.unsqueeze(1).expand(-1, count, -1)
        start = tuple(s.unsqueeze(0) for s in _start(self.decoder_init, z))
        out, _ = self.decoder_rnn(torch.cat([hidden, context, each_z], -1), start)
        mean, end = self._project(out, context, each_z)
        return Frames(mean.reshape(batch, -1, self.n_mels), end, alignment.transpose(0, 1))

    @torch.no_grad()
    def generate(
        self, steps: Tensor, memory: Tensor, slots: Tensor, z: Tensor,
        *, tempo: float = 1.0, generator: noise.Generators = None,
    ) -> Frames:  # fmt: skip
        """Free running for steps (B,) decoder steps; each group of frames is fed back."""
        return self.step_by_step(steps, memory, slots, z, None, tempo, generator)

    def step_by_step(
        self, steps: Tensor, memory: Tensor, slots: Tensor, z: Tensor, frames: Tensor | None,
        tempo: float = 1.0, generator: noise.Generators = None,
    ) -> Frames:  # fmt: skip
        """The plain loop, one step after the other: feeds back its own frames, or the given ones.

        With frames it is what `forward` computes, written as the paper does.
        """
        count = int(steps.max())
        fed = self._fed_back(frames, generator) if frames is not None else None
        masks = self.prenet.masks(steps, count, generator)
        mask = length_mask(slots, memory.shape[1])
        keys = self.attention.key(memory)
        bias = self.attention.bias(count, memory.shape[1], tempo)
        state = self.attention.start(memory)
        hidden, cell = _start(self.attention_init, z)
        out_hidden, out_cell = (s.unsqueeze(0) for s in _start(self.decoder_init, z))
        last = memory.new_zeros(len(z), self.n_mels)
        means, ends, alignments = [], [], []
        for i in range(count):
            last = fed[:, i] if fed is not None else last
            p = self.prenet(last, [m[:, i] for m in masks])
            hidden, cell = self.attention_rnn(torch.cat([p, state.context, z], -1), (hidden, cell))
            state = self.attention(hidden, state, memory, keys, bias[i], mask)
            joined = torch.cat([hidden, state.context, z], -1).unsqueeze(1)
            out, (out_hidden, out_cell) = self.decoder_rnn(joined, (out_hidden, out_cell))
            mean, end = self._project(out[:, 0], state.context, z)
            last = mean[:, -self.n_mels :]
            means.append(mean)
            ends.append(end)
            alignments.append(state.weights)
        mean = torch.stack(means, 1).reshape(len(z), -1, self.n_mels)
        return Frames(mean, torch.stack(ends, 1), torch.stack(alignments, 1))

    def _fed_back(self, frames: Tensor, generator: noise.Generators) -> Tensor:
        """The last frame of the group before each step, zero before the first: (B, L, M)."""
        extra = -frames.shape[1] % self.reduction
        groups = F.pad(frames, (0, 0, 0, extra))[:, self.reduction - 1 :: self.reduction]
        fed = F.pad(groups[:, :-1], (0, 0, 1, 0))
        if self.training and self.frame_dropout > 0:
            keep = torch.rand(*fed.shape[:2], 1, device=fed.device) >= self.frame_dropout
            fed = fed * keep
        return fed

    def _input_weights(self, memory_dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """The attention RNN's input weights, for prenet, context and z."""
        sizes = [self.prenet.out_dim, memory_dim]
        weight = self.attention_rnn.weight_ih
        p, c, z = weight.split([*sizes, weight.shape[1] - sum(sizes)], dim=1)
        return p, c, z

    def _constant_gates(self, z: Tensor, weight_z: Tensor) -> Tensor:
        return z @ weight_z.t() + self.attention_rnn.bias_ih + self.attention_rnn.bias_hh

    def _project(self, out: Tensor, context: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([out, context, z], -1)
        return self.frame_out(joined), self.end_out(joined).squeeze(-1)


class _Prenet(nn.Module):
    """Two ReLU layers whose dropout stays on when decoding (Tacotron 2, Shen et al. 2018)."""

    def __init__(self, n_mels: int, config: DecoderConfig) -> None:
        super().__init__()
        self.dropout = config.prenet_dropout
        self.hidden_dim, self.out_dim = config.prenet_dim, config.prenet_dim // 2
        self.layers = nn.ModuleList(
            [nn.Linear(n_mels, self.hidden_dim), nn.Linear(self.hidden_dim, self.out_dim)]
        )

    def masks(self, steps: Tensor, count: int, generator: noise.Generators) -> list[Tensor]:
        """One dropout mask per layer, with shape (B, count, width), scaled to mean 1."""
        widths = [self.hidden_dim, self.out_dim]
        drawn = noise.uniform(steps, sum(widths), generator)
        drawn = F.pad(drawn, (0, 0, 0, count - drawn.shape[1]))
        keep = (drawn >= self.dropout).float() / (1 - self.dropout)
        return list(keep.split(widths, dim=-1))

    def forward(self, frame: Tensor, masks: list[Tensor]) -> Tensor:
        for layer, mask in zip(self.layers, masks, strict=True):
            frame = F.relu(layer(frame)) * mask
        return frame


def _start(layer: nn.Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """First hidden and cell state, tanh(W z)."""
    hidden, cell = torch.tanh(layer(z)).chunk(2, dim=-1)
    return hidden.contiguous(), cell.contiguous()
