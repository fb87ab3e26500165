"""Wave to log-mel: `LogMel` on tensors, `log_mel` on arrays, one definition for both.

The definition is HiFi-GAN's (Kong et al. 2020, `meldataset.py`): reflect padding of
(n_fft - hop) / 2 on each side, frames not centred, magnitude, mel filters, log of the floored mel.
Length law: N samples give N // hop_length frames.
"""

from __future__ import annotations

import functools

import librosa
import numpy as np
import scipy.fft
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn

from audiovae.config import FeatureConfig
from audiovae.errors import DataDirError

__all__ = ["FeatureConfig", "LogMel", "log_mel", "mel_filterbank"]


@functools.lru_cache(maxsize=8)
def mel_filterbank(feature: FeatureConfig) -> np.ndarray:
    """The mel filters, (n_mels, n_fft // 2 + 1) float32."""
    filters = librosa.filters.mel(
        sr=feature.sample_rate,
        n_fft=feature.n_fft,
        n_mels=feature.n_mels,
        fmin=feature.f_min,
        fmax=feature.f_max,
        htk=feature.mel_scale == "htk",
        norm=None if feature.mel_norm == "none" else feature.mel_norm,
    )
    filters = filters.astype(np.float32)
    filters.setflags(write=False)  # the cache hands out one array to all
    return filters


@functools.lru_cache(maxsize=8)
def _window(feature: FeatureConfig) -> np.ndarray:
    window = librosa.filters.get_window(feature.window, feature.win_length, fftbins=True)
    window = librosa.util.pad_center(window, size=feature.n_fft).astype(np.float32)
    window.setflags(write=False)
    return window


def min_samples(feature: FeatureConfig) -> int:
    """The shortest wave that reflect padding can extend, and that gives a frame."""
    return max((feature.n_fft - feature.hop_length) // 2 + 1, feature.hop_length)


class LogMel(nn.Module):
    """Log-mel spectrogram of a batch of waves, differentiable.

    Args:
        feature: the mel contract.
    """

    filters: Tensor
    window: Tensor

    def __init__(self, feature: FeatureConfig) -> None:
        super().__init__()
        self.feature = feature
        self.register_buffer("filters", torch.tensor(mel_filterbank(feature)), persistent=False)
        self.register_buffer("window", torch.tensor(_window(feature)), persistent=False)

    def forward(self, wave: Tensor) -> Tensor:
        """wave with shape (B, N) -> mel with shape (B, N // hop_length, n_mels).

        Raises:
            DataDirError: fewer samples than `min_samples`.
        """
        feature = self.feature
        _require_long_enough(wave.shape[-1], feature)
        pad = (feature.n_fft - feature.hop_length) // 2
        wave = nn.functional.pad(wave.unsqueeze(1), (pad, pad), mode="reflect").squeeze(1)
        spectrum = torch.stft(
            wave,
            feature.n_fft,
            hop_length=feature.hop_length,
            window=self.window,
            center=False,
            return_complex=True,
        )
        energy = torch.view_as_real(spectrum).square().sum(-1) + feature.magnitude_floor
        magnitude = energy.sqrt() if feature.power == 1.0 else energy
        mel = (self.filters @ magnitude).transpose(1, 2)
        mel = mel.clamp(min=feature.floor) if feature.floor_mode == "clamp" else mel + feature.floor
        return mel.log() if feature.log_base == "e" else mel.log10()


def log_mel(wave: np.ndarray, feature: FeatureConfig) -> np.ndarray:
    """Log-mel of one wave, the same numbers as `LogMel` without a tensor: what extraction runs.

    Args:
        wave: (N,) in [-1, 1] at feature.sample_rate.

    Returns:
        (N // hop_length, n_mels) float32.

    Raises:
        DataDirError: fewer samples than `min_samples`.
    """
    _require_long_enough(len(wave), feature)
    pad = (feature.n_fft - feature.hop_length) // 2
    padded = np.pad(np.asarray(wave, np.float32), pad, mode="reflect")
    frames = sliding_window_view(padded, feature.n_fft)[:: feature.hop_length]
    # scipy keeps float32, numpy would go through float64
    spectrum = scipy.fft.rfft(frames * _window(feature), axis=1)
    energy = spectrum.real**2 + spectrum.imag**2 + np.float32(feature.magnitude_floor)
    magnitude = np.sqrt(energy) if feature.power == 1.0 else energy
    mel = magnitude @ mel_filterbank(feature).T
    floor = np.float32(feature.floor)
    mel = np.maximum(mel, floor) if feature.floor_mode == "clamp" else mel + floor
    return np.log(mel) if feature.log_base == "e" else np.log10(mel)


def _require_long_enough(samples: int, feature: FeatureConfig) -> None:
    if samples < min_samples(feature):
        raise DataDirError(
            f"{samples} samples are too few for one frame, wanted at least {min_samples(feature)}"
        )
