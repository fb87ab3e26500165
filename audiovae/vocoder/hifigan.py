"""HiFi-GAN generator (Kong et al. 2020, V1 to V3), weight norm folded, fp32 or bf16."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from audiovae.config import FeatureConfig
from audiovae.errors import VocoderError
from audiovae.vocoder.base import Vocoder

log = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16"]

_SLOPE = 0.1  # of the leaky rectifiers, `LRELU_SLOPE` of the official models.py
_LAST_SLOPE = 0.01  # before conv_post the official code calls F.leaky_relu with its default


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The shape of a generator, under the names of the published config.json."""

    num_mels: int
    resblock: Literal["1", "2"]  # "1" V1 and V2, "2" V3
    upsample_rates: tuple[int, ...]  # their product is the hop
    upsample_kernel_sizes: tuple[int, ...]
    upsample_initial_channel: int
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        faults = []
        rates, kernels = self.upsample_rates, self.upsample_kernel_sizes
        sizes = (*rates, self.num_mels, self.upsample_initial_channel, *self.resblock_kernel_sizes)
        if min(sizes) < 1 or not all(min(d, default=0) > 0 for d in self.resblock_dilation_sizes):
            faults.append("found a size below 1, or none")
        if self.resblock not in ("1", "2"):
            faults.append(f"resblock: found {self.resblock}, wanted 1 or 2")
        if len(rates) != len(kernels) or any(
            k < u or (k - u) % 2 for u, k in zip(rates, kernels, strict=False)
        ):
            faults.append(
                f"upsample_kernel_sizes: found {kernels}, wanted one for each of "
                f"upsample_rates = {rates}, larger by an even number"
            )
        if self.upsample_initial_channel % 2 ** len(rates):
            faults.append(
                f"upsample_initial_channel: found {self.upsample_initial_channel}, "
                f"wanted a multiple of {2 ** len(rates)}"
            )
        if len(self.resblock_kernel_sizes) != len(self.resblock_dilation_sizes):
            faults.append("resblock_dilation_sizes: wanted one list per resblock_kernel_sizes")
        if not all(k % 2 for k in self.resblock_kernel_sizes):
            faults.append(f"resblock_kernel_sizes: found {self.resblock_kernel_sizes}, wanted odd")
        if faults:
            raise VocoderError("\n".join(faults))

    @property
    def hop_length(self) -> int:
        """Samples per mel frame."""
        return math.prod(self.upsample_rates)


# The convolutions run as 2-d ones of height 1, which is what torch makes of 1-d ones anyway:
# only the 2-d form has the channels-last layout that the bf16 kernels of a CPU want.
# Parameters keep the published names and shapes. The sums between layers are float32 also
# where a layer is bfloat16, and are made in place: outside the kernels memory is the limit.


class _Conv(nn.Conv1d):
    def __init__(self, in_dim: int, out_dim: int, kernel: int, dilation: int = 1) -> None:
        padding = dilation * (kernel - 1) // 2
        super().__init__(in_dim, out_dim, kernel, dilation=dilation, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        padding, dilation = (0, int(self.padding[0])), (1, self.dilation[0])
        weight = self.weight.unsqueeze(2)
        return F.conv2d(x, weight, self.bias, padding=padding, dilation=dilation)


class _Upsample(nn.ConvTranspose1d):
    def __init__(self, in_dim: int, out_dim: int, kernel: int, rate: int) -> None:
        super().__init__(in_dim, out_dim, kernel, rate, padding=(kernel - rate) // 2)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        padding, stride = (0, int(self.padding[0])), (1, self.stride[0])
        weight = self.weight.unsqueeze(2)
        return F.conv_transpose2d(x, weight, self.bias, stride=stride, padding=padding)


class _ResBlock(nn.Module):
    """Version 1: pairs of convolutions, a dilated and a plain one. Version 2: dilated ones only."""

    def __init__(self, version: str, dim: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        dilated = nn.ModuleList(_Conv(dim, dim, kernel, d) for d in dilations)
        if version == "1":
            self.convs1 = dilated
            self.convs2 = nn.ModuleList(_Conv(dim, dim, kernel) for _ in dilations)
        else:
            self.convs = dilated

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        x = x.clone()
        layers = [self.convs1, self.convs2] if hasattr(self, "convs1") else [self.convs]
        for first, *second in zip(*layers, strict=True):
            y = _masked(first(_rectified(x, first)), keep)
            for conv in second:
                y = _masked(conv(F.leaky_relu_(y, _SLOPE)), keep)
            x += y
        return x


def _rectified(x: Tensor, layer: nn.Module) -> Tensor:
    """The leaky rectifier of x, in the type of the layer it is for; x stays as it is."""
    dtype = next(layer.parameters()).dtype
    return F.leaky_relu(x, _SLOPE) if x.dtype == dtype else F.leaky_relu_(x.to(dtype), _SLOPE)


class Generator(nn.Module):
    """Transposed convolutions up to the sample rate, residual blocks of several widths between."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        dim = config.upsample_initial_channel
        shapes = list(
            zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.rates = config.upsample_rates
        self.widths = len(shapes)
        self.conv_pre = _Conv(config.num_mels, dim, 7)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate, kernel in zip(self.rates, config.upsample_kernel_sizes, strict=True):
            self.ups.append(_Upsample(dim, dim // 2, kernel, rate))
            dim //= 2
            self.resblocks.extend(_ResBlock(config.resblock, dim, *shape) for shape in shapes)
        self.conv_post = _Conv(dim, 1, 7)

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Render log-mels of shape (B, n_mels, T) as waves of shape (B, T * hop) in [-1, 1].

        With lengths (B,) in frames, every layer sees zeros after an utterance's end, as it
        does when the utterance is alone.
        """
        keep = _keep(lengths, mel.size(2))
        x = _masked(self.conv_pre(_masked(mel.unsqueeze(2), keep)), keep)
        for stage, (up, rate) in enumerate(zip(self.ups, self.rates, strict=True)):
            keep = None if keep is None else keep.repeat_interleave(rate, dim=3)
            x = _masked(up(_rectified(x, up)).float(), keep)
            blocks = self.resblocks[stage * self.widths : (stage + 1) * self.widths]
            total = blocks[0](x, keep)
            for block in blocks[1:]:
                total += block(x, keep)
            x = total.div_(self.widths)
        x = self.conv_post(F.leaky_relu_(x, _LAST_SLOPE))
        return _masked(torch.tanh(x), keep)[:, 0, 0]

    def bf16_inside(self) -> None:
        """Make the convolutions bfloat16, but for those at the edges.

        conv_pre, the last stage and conv_post stay float32: a log-mel of -11 has a step of 1/16
        in bfloat16, and what the last layers round is heard as hiss in the quiet bands.
        """
        for layer in (*self.ups[:-1], *self.resblocks[: -self.widths]):
            layer.bfloat16()


class HiFiGAN(Vocoder):
    """A generator with the contract of the mels it was trained on. Inference only.

    precision "fp32" is the reference. "bf16" runs the inner convolutions in bfloat16, about twice
    as fast where the processor has the instructions; elsewhere it says so and stays with fp32.
    """

    def __init__(
        self,
        name: str,
        feature: FeatureConfig,
        generator: Generator,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(name, feature)
        hop = math.prod(generator.rates)
        if hop != feature.hop_length:
            raise VocoderError(
                f"vocoder {name}: product of upsample_rates {generator.rates}: found {hop}, "
                f"wanted hop_length = {feature.hop_length}"
            )
        if generator.conv_pre.in_channels != feature.n_mels:
            raise VocoderError(
                f"vocoder {name}: num_mels: found {generator.conv_pre.in_channels}, "
                f"wanted n_mels = {feature.n_mels}"
            )
        self.generator = generator.eval().requires_grad_(False)
        self.precision = precision
        if precision == "bf16" and not _has_bf16(next(generator.parameters()).device):
            log.warning("vocoder %s: no bf16 instructions here, running in fp32", name)
            self.precision = "fp32"
        if self.precision == "bf16":
            generator.bf16_inside()

    def _render(self, mel: Tensor, frames: list[int]) -> Tensor:
        if mel.size(0) > 1 and mel.device.type == "cpu":
            return self._render_each(mel, frames)  # a batch gains nothing here, padding costs
        x = mel.transpose(1, 2)  # as a view: channels stay last in memory
        ragged = any(n < mel.size(1) for n in frames)
        return self.generator(x, torch.tensor(frames, device=mel.device) if ragged else None)


def fold_weight_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Plain weights from weight-normed ones: w = g * v / |v|, the norm over all axes but the first.

    Reads the names of torch.nn.utils.weight_norm (weight_g, weight_v) and of its parametrization
    (parametrizations.weight.original0, .original1). Half a pair is left as it stands.
    """
    pairs = (
        ("weight_g", "weight_v"),
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    )
    folded = dict(state)
    for g_name, v_name in pairs:
        for key in [k for k in folded if k.endswith(f".{g_name}")]:
            layer = key.removesuffix(g_name)
            if layer + v_name in folded:
                g, v = folded.pop(key), folded.pop(layer + v_name)
                norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
                folded[f"{layer}weight"] = g * v / norm
    return folded


def _keep(lengths: Tensor | None, frames: int) -> Tensor | None:
    """True where an utterance is, with shape (B, 1, 1, T)."""
    if lengths is None:
        return None
    return (torch.arange(frames, device=lengths.device) < lengths[:, None])[:, None, None]


def _masked(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x * keep


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # Not torch.ops.mkldnn._is_mkldnn_bf16_supported: that is true where bf16 is only emulated.
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))
