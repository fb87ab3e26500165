"""Conformer encoder (Gulati et al. 2020, arXiv 2005.08100) behind a convolution of time stride 4.

Differences, for speed and so that padding changes nothing: rotary positions instead of
Transformer-XL's, LayerNorm instead of BatchNorm, dropout on the output of the attention instead
of its weights (perf: a fused attention kernel), masked convolutions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from audiovae.config import EncoderConfig
from audiovae.models.masking import ceil_div, length_mask


class ConformerEncoder(nn.Module):
    """Mel to hidden states at a quarter of the frame rate.

    Args:
        n_mels: channels of the input.
        config: width, kernel.
        blocks: depth.
    """

    def __init__(self, n_mels: int, config: EncoderConfig, blocks: int) -> None:
        super().__init__()
        self.stem = _ConvStem(n_mels, config.dim)
        self.blocks = nn.ModuleList(_ConformerBlock(config) for _ in range(blocks))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """mel (B, T, M), lengths (B,) frames -> hidden (B, ceil(T/4), D), lengths (B,) steps."""
        hidden, lengths = self.stem(mel, lengths)
        mask = length_mask(lengths, hidden.shape[1])
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.norm(hidden), lengths


class _ConvStem(nn.Module):
    """Three convolutions, the first two with time stride 2."""

    def __init__(self, n_mels: int, dim: int) -> None:
        super().__init__()
        self.strides = (2, 2, 1)
        self.convs = nn.ModuleList(
            [
                nn.Conv1d(n_mels, dim, 5, stride=2, padding=2),
                nn.Conv1d(dim, dim, 5, stride=2, padding=2),
                nn.Conv1d(dim, dim, 3, padding=1),
            ]
        )

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = mel.transpose(1, 2)
        for conv, stride in zip(self.convs, self.strides, strict=True):
            x = x * length_mask(lengths, x.shape[2]).unsqueeze(1)
            x = F.silu(conv(x))
            lengths = ceil_div(lengths, stride)
        return x.transpose(1, 2), lengths


class _ConformerBlock(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.feed_forward_1 = _FeedForward(config)
        self.attention = _SelfAttention(config)
        self.convolution = _Convolution(config)
        self.feed_forward_2 = _FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward_1(x)
        x = x + self.attention(x, mask)
        x = x + self.convolution(x, mask)
        return x + 0.5 * self.feed_forward_2(x)


class _FeedForward(nn.Sequential):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(
            nn.LayerNorm(config.dim),
            nn.Linear(config.dim, config.dim * config.ff_mult),
            nn.SiLU(),
            nn.Linear(config.dim * config.ff_mult, config.dim),
            nn.Dropout(config.dropout),
        )


class _SelfAttention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.LayerNorm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, steps, dim = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, steps, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            _rotate(q), _rotate(k), v, attn_mask=mask[:, None, None, :]
        )
        return self.dropout(self.out(attended.transpose(1, 2).reshape(batch, steps, dim)))


def _rotate(x: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): x with shape (B, H, T, E)."""
    half = x.shape[-1] // 2
    frequency = 10000 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class _Convolution(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        dim = config.dim
        self.norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, 2 * dim)
        self.depthwise = nn.Conv1d(
            dim, dim, config.conv_kernel, padding=config.conv_kernel // 2, groups=dim
        )
        self.mid_norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = F.glu(self.expand(self.norm(x))) * mask.unsqueeze(-1)
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.out(F.silu(self.mid_norm(x))))
