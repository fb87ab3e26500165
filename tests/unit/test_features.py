"""Log-mel features: the published extractor's numbers, from librosa and from the formula."""

from __future__ import annotations

import math

import librosa
import numpy as np
import pytest
import torch

from audiovae.config import FeatureConfig
from audiovae.errors import DataDirError
from audiovae.features import LogMel, log_mel, mel_filterbank, min_samples

# Above this mel (a sum of magnitudes) float32 is exact to 1e-4 of the log; on quieter bins the
# rounding noise of a float32 FFT, about 1e-7 of the loudest bin, is a larger share of the value.
LOUD, LOUD_TOLERANCE, QUIET_TOLERANCE = 1e-3, 1e-4, 1e-3

VARIANTS = {
    "hifigan": FeatureConfig(),
    "16 kHz": FeatureConfig(sample_rate=16000, hop_length=200, f_min=40.0, f_max=7600.0),
    "short window": FeatureConfig(win_length=800, mel_scale="htk", mel_norm="none", n_mels=40),
    "power, log10": FeatureConfig(power=2.0, log_base="10", floor=1e-10, floor_mode="add"),
}


@pytest.fixture(scope="module")
def wave() -> np.ndarray:
    """A voice-like sound: gliding harmonics that swell, a pause of faint noise, a hiss."""
    rng = np.random.default_rng(0)
    time = np.arange(22050) / 22050
    phase = 2 * np.pi * (120 * time + 30 * time**2)
    voice = sum(np.sin(h * phase) / h for h in range(1, 40)) * np.sin(np.pi * time) ** 2 * 0.3
    hiss = rng.standard_normal(22050) * np.where(time > 0.8, 0.05, 1e-4)
    wave = np.where(np.abs(time - 0.5) < 0.05, 0, voice) + hiss
    return np.clip(wave, -1, 1).astype(np.float32)


def slaney_filters(feature: FeatureConfig) -> np.ndarray:
    """Triangles on Slaney's scale (Auditory Toolbox, 1998), each of unit area: float64."""

    def to_hz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    def to_mel(hz: float) -> float:
        return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)

    mels = np.linspace(to_mel(feature.f_min), to_mel(feature.f_max), feature.n_mels + 2)
    edges = np.array([to_hz(mel) for mel in mels])
    frequency = np.arange(feature.n_fft // 2 + 1) * feature.sample_rate / feature.n_fft
    filters = []
    for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
        rise = (frequency - low) / (centre - low)
        fall = (high - frequency) / (high - centre)
        filters.append(np.maximum(0, np.minimum(rise, fall)) * 2 / (high - low))
    return np.array(filters)


def published_mel(wave: np.ndarray) -> np.ndarray:
    """`mel_spectrogram` of HiFi-GAN's meldataset.py at its defaults, in float64: (T, 80)."""
    n_fft, hop, feature = 1024, 256, FeatureConfig()
    padded = np.pad(wave.astype(np.float64), (n_fft - hop) // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    starts = range(0, len(padded) - n_fft + 1, hop)
    spectrum = np.fft.rfft([padded[s : s + n_fft] * window for s in starts])
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
    return np.asarray(magnitude @ slaney_filters(feature).T)


def librosa_mel(wave: np.ndarray, feature: FeatureConfig) -> np.ndarray:
    """The same contract by librosa's STFT, in float64: (T, n_mels) before floor and log."""
    pad = (feature.n_fft - feature.hop_length) // 2
    spectrum = librosa.stft(
        np.pad(wave.astype(np.float64), pad, mode="reflect"), n_fft=feature.n_fft,
        hop_length=feature.hop_length, win_length=feature.win_length, window="hann", center=False,
    )  # fmt: skip
    energy = np.abs(spectrum) ** 2 + feature.magnitude_floor
    filters = librosa.filters.mel(
        sr=feature.sample_rate, n_fft=feature.n_fft, n_mels=feature.n_mels, fmin=feature.f_min,
        fmax=feature.f_max, htk=feature.mel_scale == "htk", dtype=np.float64,
        norm="slaney" if feature.mel_norm == "slaney" else None,
    )  # fmt: skip
    return np.asarray((filters @ energy ** (feature.power / 2)).T)


def to_log(mel: np.ndarray, feature: FeatureConfig) -> np.ndarray:
    floor = feature.floor
    mel = np.maximum(mel, floor) if feature.floor_mode == "clamp" else mel + floor
    return np.log(mel) if feature.log_base == "e" else np.log10(mel)


def assert_close(found: np.ndarray, mel: np.ndarray, feature: FeatureConfig) -> None:
    error = np.abs(found - to_log(mel, feature))
    loud = mel > LOUD**feature.power
    assert loud.mean() > 0.3
    assert error[loud].max() < LOUD_TOLERANCE
    assert error.max() < QUIET_TOLERANCE


def both_paths(wave: np.ndarray, feature: FeatureConfig) -> list[np.ndarray]:
    return [log_mel(wave, feature), LogMel(feature)(torch.from_numpy(wave)[None])[0].numpy()]


def test_equal_to_the_published_extractor(wave: np.ndarray) -> None:
    feature = FeatureConfig()
    np.testing.assert_allclose(mel_filterbank(feature), slaney_filters(feature), atol=1e-8)
    mel = published_mel(wave)
    assert (mel < LOUD).mean() > 0.1  # quiet bins are looked at as well
    for found in both_paths(wave, feature):
        assert found.dtype == np.float32
        assert_close(found, mel, feature)


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_to_librosa(name: str, wave: np.ndarray) -> None:
    feature = VARIANTS[name]
    for found in both_paths(wave, feature):
        assert_close(found, librosa_mel(wave, feature), feature)


def test_silence_is_the_floor() -> None:
    feature = FeatureConfig()
    for found in both_paths(np.zeros(4000, np.float32), feature):
        # the magnitude floor, sqrt(1e-9), through filters of about unit area
        assert math.log(1e-5) <= found.min() and found.max() < -8
    clamped = FeatureConfig(magnitude_floor=0.0)
    for found in both_paths(np.zeros(4000, np.float32), clamped):
        np.testing.assert_allclose(found, math.log(1e-5), rtol=1e-6)


@pytest.mark.parametrize("hop", [256, 200])
def test_samples_and_frames_follow_the_length_law(hop: int, wave: np.ndarray) -> None:
    feature = FeatureConfig(hop_length=hop)
    for samples in (min_samples(feature), 5 * hop - 1, 5 * hop, 5 * hop + 1, 12345):
        for found in both_paths(wave[:samples], feature):
            assert found.shape == (samples // hop, 80)


def test_too_short_is_an_error_that_says_how_short() -> None:
    least = min_samples(FeatureConfig())
    assert least == 385
    short = np.zeros(least - 1, np.float32)
    with pytest.raises(DataDirError, match=r"384 samples are too few .* at least 385"):
        log_mel(short, FeatureConfig())
    with pytest.raises(DataDirError, match="384 samples"):
        LogMel(FeatureConfig())(torch.from_numpy(short)[None])


def test_a_wave_in_a_batch_is_itself_and_gradients_flow(wave: np.ndarray) -> None:
    front = LogMel(FeatureConfig())
    batch = torch.from_numpy(np.stack([wave[:5000], wave[9000:14000]])).requires_grad_()
    mel = front(batch)
    alone = front(batch[1:])
    torch.testing.assert_close(mel[1:], alone, atol=1e-5, rtol=0)
    mel.sum().backward()
    assert batch.grad is not None and batch.grad.isfinite().all()
    assert (batch.grad.abs().sum(1) > 0).all()
    assert not front.state_dict()  # filters follow from the contract: no checkpoint holds them
