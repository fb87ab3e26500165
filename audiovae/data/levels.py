"""How long and how loud an audio file is, by decoding all of it in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audiovae.data import audio_io

_FULL_SCALE = 0.9999  # |x|; 16 bits end at 0.99997
_CLIPPED_RUN = 3  # samples at full scale in a row: one may be a peak set there on purpose


@dataclass(frozen=True)
class Levels:
    """What the samples of a file say, whatever its header promised."""

    sample_rate: int  # Hz
    channels: int
    num_samples: int  # per channel
    peak: float  # |x| of the loudest channel
    clipped: int  # samples inside runs at full scale, of all channels
    rms: float  # of the mono mix

    @property
    def seconds(self) -> float:
        """The decoded length."""
        return self.num_samples / self.sample_rate

    @property
    def is_silent(self) -> bool:
        """Whether extraction would refuse it as silence."""
        return self.rms < audio_io.QUIETEST


def measure(path: str | Path) -> Levels:
    """Decode a file and measure it.

    Raises:
        DataDirError: it cannot be decoded, or what comes out is no audio.
    """
    rate = channels = num_samples = not_finite = clipped = 0
    peak = mixed_peak = energy = 0.0
    for block, its_rate in audio_io.stream(path):
        rate = its_rate
        loud = np.abs(block)
        if not np.isfinite(loud.max(initial=0.0)):
            not_finite += int(np.sum(~np.isfinite(block)))
            continue
        mix = audio_io.mix_down(block)
        channels = block.shape[1]
        num_samples += len(block)
        peak = max(peak, float(loud.max(initial=0.0)))
        mixed_peak = max(mixed_peak, float(np.abs(mix).max(initial=0.0)))
        energy += float(np.sum(np.square(mix, dtype=np.float64)))
        clipped += _in_runs(loud >= _FULL_SCALE)
    audio_io.check_range(Path(path), num_samples + not_finite, not_finite, mixed_peak)
    rms = float(np.sqrt(energy / num_samples))
    return Levels(rate, channels, num_samples, peak, clipped, rms)


def _in_runs(at_full_scale: np.ndarray) -> int:
    """How many of the marked samples (n, C) lie in a run of at least `_CLIPPED_RUN` in time."""
    if len(at_full_scale) < _CLIPPED_RUN or not at_full_scale.any():
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(at_full_scale, _CLIPPED_RUN, axis=0)
    starts = np.asarray(windows.all(-1))
    inside = np.zeros_like(at_full_scale)
    for shift in range(_CLIPPED_RUN):
        inside[shift : shift + len(starts)] |= starts
    return int(inside.sum())
