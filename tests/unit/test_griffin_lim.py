"""Griffin-Lim: near the mel it inverts, the length law, the same bytes each time."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor

from audiovae.config import FeatureConfig
from audiovae.features import log_mel
from audiovae.vocoder import GriffinLim, load_vocoder

FEATURE = FeatureConfig()


def voice(seconds: float = 0.8, sample_rate: int = 22050) -> np.ndarray:
    """A glottal buzz with a moving pitch through three formants, and a little breath."""
    n = int(seconds * sample_rate)
    pitch = 120 + 40 * np.sin(2 * np.pi * 1.5 * np.arange(n) / sample_rate)
    turns = np.cumsum(pitch) / sample_rate
    wave = np.diff(np.floor(turns), prepend=0.0)
    wave = wave + 0.01 * np.random.default_rng(0).standard_normal(n)
    for hertz, width in ((600, 80), (1400, 100), (2600, 150)):
        radius = np.exp(-np.pi * width / sample_rate)
        poles = [1, -2 * radius * np.cos(2 * np.pi * hertz / sample_rate), radius**2]
        wave = scipy.signal.lfilter([1 - radius], poles, wave)
    return (0.5 * wave / np.abs(wave).max()).astype(np.float32)


def mel_of(wave: np.ndarray, feature: FeatureConfig = FEATURE) -> Tensor:
    return torch.tensor(log_mel(wave, feature))[None]


@pytest.mark.parametrize(
    "feature",
    [
        FEATURE,
        replace(FEATURE, power=2.0, log_base="10", floor_mode="add", floor=1e-6),
        replace(FEATURE, win_length=800, hop_length=200, mel_scale="htk", mel_norm="none"),
    ],
    ids=["hifigan", "power-log10-add", "window-htk"],
)
def test_copy_synthesis_is_near(feature: FeatureConfig) -> None:
    mel = mel_of(voice(), feature)
    wave = GriffinLim(feature)(mel)
    scale = 1.0 if feature.log_base == "e" else np.log(10)
    error = (mel_of(wave[0].numpy(), feature) - mel).abs().mean() * scale / feature.power
    assert error < 0.25
    noise = GriffinLim(feature, iterations=0)(mel)
    assert (mel_of(noise[0].numpy(), feature) - mel).abs().mean() * scale / feature.power > 0.4


@pytest.mark.parametrize("frames", [1, 2, 20])
def test_length_law(frames: int) -> None:
    wave = GriffinLim(FEATURE, iterations=2)(mel_of(voice())[:, :frames])
    assert wave.shape == (1, frames * FEATURE.hop_length)
    assert wave.isfinite().all() and wave.abs().max() > 0


def test_an_utterance_alone_and_in_a_batch_and_seeded() -> None:
    vocoder = GriffinLim(FEATURE, iterations=4)
    mel = mel_of(voice())
    batch = torch.cat([mel, mel.flip(1)])
    lengths = torch.tensor([30, mel.size(1)])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    waves = vocoder(batch, lengths)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(waves[0, : 30 * 256], vocoder(mel[:, :30])[0])
    assert waves[0, 30 * 256 :].eq(0).all()
    assert torch.equal(waves, vocoder(batch, lengths))
    assert not torch.equal(waves, GriffinLim(FEATURE, iterations=4, seed=1)(batch, lengths))


def test_silence_stays_silent() -> None:
    mel = torch.full((1, 10, 80), float(np.log(1e-5)))
    assert load_vocoder("griffin_lim", feature=FEATURE)(mel).abs().max() < 1e-3
