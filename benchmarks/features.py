"""python benchmarks/features.py: seconds of audio a second that become log-mel, ours and others'.

Every extractor gets the same waves and the same definition, one thread, runs interleaved; medians.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import librosa
import numpy as np
import torch
import torchaudio

from audiovae.config import FeatureConfig
from audiovae.features import LogMel, log_mel, mel_filterbank

SECONDS = (1.0, 3.0, 8.0)  # of one utterance each
REPEATS = 15


def extractors(feature: FeatureConfig) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """name -> wave (N,) to log-mel; the peers pad alike, and differ in the last decimals."""
    pad = (feature.n_fft - feature.hop_length) // 2
    ours = LogMel(feature)
    theirs = torchaudio.transforms.Spectrogram(
        feature.n_fft, feature.win_length, feature.hop_length, power=1.0, center=False
    )
    filters = torch.from_numpy(mel_filterbank(feature).T.copy())

    def by_torchaudio(wave: np.ndarray) -> np.ndarray:
        padded = np.pad(wave, pad, mode="reflect")
        magnitude = theirs(torch.from_numpy(padded))
        return (magnitude.T @ filters).clamp_min(feature.floor).log().numpy()

    def by_librosa(wave: np.ndarray) -> np.ndarray:
        mel = librosa.feature.melspectrogram(
            y=np.pad(wave, pad, mode="reflect"), sr=feature.sample_rate, n_fft=feature.n_fft,
            hop_length=feature.hop_length, center=False, power=1.0, n_mels=feature.n_mels,
            fmin=feature.f_min, fmax=feature.f_max,
        )  # fmt: skip
        return np.log(np.maximum(mel, feature.floor)).T

    return {
        "log_mel": lambda wave: log_mel(wave, feature),
        "LogMel": lambda wave: ours(torch.from_numpy(wave)[None])[0].numpy(),
        "torchaudio": by_torchaudio,
        "librosa": by_librosa,
    }


def main() -> None:
    torch.set_num_threads(1)
    feature = FeatureConfig()
    generator = np.random.default_rng(0)
    waves = [
        0.1 * generator.standard_normal(int(s * feature.sample_rate), dtype=np.float32)
        for s in SECONDS
    ]
    functions = extractors(feature)
    for wave in waves:
        reference = functions["librosa"](wave)
        for name, function in functions.items():
            assert np.abs(function(wave) - reference).max() < 1e-3, name
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(REPEATS):
        for name, function in functions.items():
            start = time.perf_counter()
            for wave in waves:
                function(wave)
            times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    for name, median in medians.items():
        rate, ratio = sum(SECONDS) / median, medians["torchaudio"] / median
        sys.stdout.write(f"{name:12} {rate:8.0f} audio-s/s   {ratio:.2f} x torchaudio\n")


if __name__ == "__main__":
    main()
