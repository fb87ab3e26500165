"""Griffin-Lim: a waveform from a log-mel without a trained model. Never chosen silently."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from audiovae.config import FeatureConfig
from audiovae.features import mel_filterbank
from audiovae.vocoder.base import Vocoder

_MAGNITUDE_STEPS = 50
_TINY = 1e-9  # keeps the updates of bins that no filter reaches from 0 / 0


class GriffinLim(Vocoder):
    """Magnitudes by non-negative least squares, phases by fast Griffin-Lim.

    Frames lie as in `audiovae.features`: reflect padding of (n_fft - hop) / 2, not centred. The
    iteration goes through exactly that padding, so the edges are as consistent as the middle.
    The first phases are drawn from `seed` anew for each utterance: same mel, same bytes.

    Args:
        feature: the mel contract to invert.
        iterations: of the phase; 60 is where the log-mel distance flattens.
        momentum: of Perraudin et al. 2013, "A fast Griffin-Lim algorithm"; 0 is the original.
        seed: of the first phases.
    """

    filters: Tensor
    window: Tensor

    def __init__(
        self,
        feature: FeatureConfig,
        *,
        iterations: int = 60,
        momentum: float = 0.99,
        seed: int = 0,
    ) -> None:
        super().__init__("griffin_lim", feature)
        self.iterations = iterations
        self.momentum = momentum
        self.seed = seed
        self.register_buffer("filters", torch.tensor(mel_filterbank(feature)), persistent=False)
        window = torch.hann_window(feature.win_length)
        side = feature.n_fft - feature.win_length
        window = F.pad(window, (side // 2, side - side // 2))
        self.register_buffer("window", window, persistent=False)

    def _render(self, mel: Tensor, frames: list[int]) -> Tensor:
        if mel.size(0) > 1:
            return self._render_each(mel, frames)
        # Reflect padding needs more samples than it adds: a short mel is held, then cut.
        hop = self.feature.hop_length
        held = max(self._pad // hop + 1 - mel.size(1), 0)
        magnitude = self._magnitude(torch.cat([mel, mel[:, -1:].expand(-1, held, -1)], dim=1))
        return self._invert(magnitude)[:, : mel.size(1) * hop].clamp(-1, 1)

    @property
    def _pad(self) -> int:
        return (self.feature.n_fft - self.feature.hop_length) // 2

    def _magnitude(self, mel: Tensor) -> Tensor:
        """Log-mel (1, T, n_mels) -> magnitude (1, n_fft // 2 + 1, T).

        Least squares under x >= 0 by multiplicative updates (Lee and Seung 2001): from the
        clipped pseudo-inverse they end nearer to the mel than L-BFGS does, in less time.
        """
        feature = self.feature
        linear = mel.exp() if feature.log_base == "e" else 10**mel
        if feature.floor_mode == "add":
            linear = (linear - feature.floor).clamp(min=0)
        linear = linear.transpose(1, 2)
        energy = (torch.linalg.pinv(self.filters) @ linear).clamp(min=_TINY)
        gram, target = self.filters.T @ self.filters, self.filters.T @ linear
        for _ in range(_MAGNITUDE_STEPS):
            energy = energy * target / (gram @ energy).clamp(min=_TINY)
        return energy if feature.power == 1.0 else energy.sqrt()

    def _invert(self, magnitude: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        turns = torch.rand(magnitude.shape, generator=generator).to(magnitude.device)
        phase = torch.polar(torch.ones_like(magnitude), 2 * torch.pi * turns)
        previous = torch.zeros_like(phase)
        for _ in range(self.iterations):
            rebuilt = self._spectrum(self._wave(magnitude * phase))
            ahead = rebuilt - previous * (self.momentum / (1 + self.momentum))
            phase = ahead / ahead.abs().clamp(min=1e-16)
            previous = rebuilt
        return self._wave(magnitude * phase)

    def _spectrum(self, wave: Tensor) -> Tensor:
        padded = F.pad(wave.unsqueeze(1), (self._pad, self._pad), mode="reflect").squeeze(1)
        return torch.stft(
            padded,
            self.feature.n_fft,
            hop_length=self.feature.hop_length,
            window=self.window,
            center=False,
            return_complex=True,
        )

    def _wave(self, spectrum: Tensor) -> Tensor:
        """Least-squares inverse of the STFT; torch.istft refuses frames that are not centred."""
        n_fft, hop = self.feature.n_fft, self.feature.hop_length
        frames = torch.fft.irfft(spectrum, n=n_fft, dim=1) * self.window[:, None]
        weights = self.window.square()[:, None].expand(1, -1, spectrum.size(2))
        length = (spectrum.size(2) - 1) * hop + n_fft
        added, weight = (
            F.fold(x, (1, length), (1, n_fft), stride=(1, hop))[:, 0, 0] for x in (frames, weights)
        )
        inside = slice(self._pad, length - self._pad)
        return added[:, inside] / weight[:, inside].clamp(min=1e-8)
