"""The HiFi-GAN generator against a plain transcription of the paper, alone and in a batch."""

import logging
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from audiovae.config import FeatureConfig
from audiovae.errors import VocoderError
from audiovae.vocoder import HiFiGAN
from audiovae.vocoder.hifigan import Generator, GeneratorConfig, fold_weight_norm

FEATURE = FeatureConfig(
    sample_rate=8000, n_fft=64, win_length=64, hop_length=16, n_mels=10, f_max=4000.0
)


def tiny_config(resblock: str = "1", **changes: Any) -> GeneratorConfig:
    values: dict[str, Any] = {
        "num_mels": 10,
        "resblock": resblock,
        "upsample_rates": (4, 2, 2),
        "upsample_kernel_sizes": (8, 4, 4),
        "upsample_initial_channel": 32,
        "resblock_kernel_sizes": (3, 7),
        "resblock_dilation_sizes": ((1, 3), (1, 5)),
    }
    return GeneratorConfig(**(values | changes))


def tiny_generator(resblock: str = "1", seed: int = 0) -> Generator:
    generator = Generator(tiny_config(resblock))
    draws = torch.Generator().manual_seed(seed)
    for parameter in generator.parameters():
        nn.init.normal_(parameter, std=0.2, generator=draws)
    return generator


def tiny_vocoder(resblock: str = "1") -> HiFiGAN:
    return HiFiGAN("tiny", FEATURE, tiny_generator(resblock))


def some_mel(batch: int, frames: int, seed: int = 1) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, FEATURE.n_mels, generator=draws)


def transcription(config: GeneratorConfig, state: dict[str, Tensor], mel: Tensor) -> Tensor:
    """Kong et al. 2020, section 2.2 and appendix A, in 1-d convolutions; mel (B, n_mels, T)."""

    def conv(name: str, x: Tensor, dilation: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        padding = dilation * (weight.size(2) - 1) // 2
        return F.conv1d(x, weight, state[f"{name}.bias"], padding=padding, dilation=dilation)

    x = conv("conv_pre", mel)
    block = 0
    stages = zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)
    for stage, (rate, kernel) in enumerate(stages):
        weight, bias = state[f"ups.{stage}.weight"], state[f"ups.{stage}.bias"]
        x = F.leaky_relu(x, 0.1)
        x = F.conv_transpose1d(x, weight, bias, stride=rate, padding=(kernel - rate) // 2)
        outputs = []
        for dilations in config.resblock_dilation_sizes:
            y = x
            for i, dilation in enumerate(dilations):
                if config.resblock == "1":
                    inner = conv(f"resblocks.{block}.convs1.{i}", F.leaky_relu(y, 0.1), dilation)
                    y = y + conv(f"resblocks.{block}.convs2.{i}", F.leaky_relu(inner, 0.1))
                else:
                    y = y + conv(f"resblocks.{block}.convs.{i}", F.leaky_relu(y, 0.1), dilation)
            outputs.append(y)
            block += 1
        x = torch.stack(outputs).mean(0)
    return torch.tanh(conv("conv_post", F.leaky_relu(x, 0.01)))[:, 0]


@pytest.mark.parametrize("resblock", ["1", "2"])
def test_equals_a_plain_transcription(resblock: str) -> None:
    generator = tiny_generator(resblock)
    mel = some_mel(2, 23).transpose(1, 2)
    expected = transcription(tiny_config(resblock), generator.state_dict(), mel)
    with torch.no_grad():
        found = generator(mel)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("frames", [1, 2, 37])
def test_length_law(frames: int) -> None:
    wave = tiny_vocoder()(some_mel(2, frames))
    assert wave.shape == (2, frames * FEATURE.hop_length)
    assert wave.dtype == torch.float32 and wave.abs().max() <= 1


@pytest.mark.parametrize("resblock", ["1", "2"])
@pytest.mark.parametrize("batched", ["vocoder", "generator"])
def test_an_utterance_alone_and_in_a_ragged_batch(resblock: str, batched: str) -> None:
    vocoder = tiny_vocoder(resblock)
    lengths = torch.tensor([19, 1, 33, 7])
    mel = some_mel(4, 33)
    for row, n in enumerate(lengths.tolist()):
        mel[row, n:] = 50.0  # what pads an utterance must not be heard in it
    if batched == "vocoder":
        waves = vocoder(mel, lengths)
    else:  # what an accelerator runs: one masked batch
        with torch.no_grad():
            waves = vocoder.generator(mel.transpose(1, 2), lengths)
    for row, n in enumerate(lengths.tolist()):
        end = n * FEATURE.hop_length
        alone = vocoder(mel[row : row + 1, :n])[0]
        torch.testing.assert_close(waves[row, :end], alone, atol=1e-5, rtol=0)
        assert waves[row, end:].eq(0).all()


@pytest.mark.parametrize("style", ["weight_g", "parametrization"])
def test_weight_norm_folds_to_the_same_layer(style: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 6, 20)
    for layer, plain in (
        (nn.Conv1d(6, 4, 5), nn.Conv1d(6, 4, 5)),
        (nn.ConvTranspose1d(6, 4, 8, 4), nn.ConvTranspose1d(6, 4, 8, 4)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old names are deprecated, and in every release
            normed = (
                nn.utils.weight_norm(layer)
                if style == "weight_g"
                else nn.utils.parametrizations.weight_norm(layer)
            )
        with torch.no_grad():
            for parameter in normed.parameters():
                parameter.copy_(torch.randn_like(parameter))
        state = {f"ups.0.{k}": v for k, v in normed.state_dict().items()}
        folded = fold_weight_norm(state)
        assert set(folded) == {"ups.0.weight", "ups.0.bias"}
        plain.load_state_dict({k.removeprefix("ups.0."): v for k, v in folded.items()})
        torch.testing.assert_close(plain(x), normed(x), atol=1e-5, rtol=1e-5)


def test_half_a_weight_norm_pair_is_left_for_the_strict_check() -> None:
    state = {"conv_pre.weight_g": torch.ones(2, 1, 1)}
    assert fold_weight_norm(state) == state


def test_product_of_upsample_rates_is_the_hop() -> None:
    feature = FeatureConfig(
        sample_rate=8000, n_fft=64, win_length=64, hop_length=32, n_mels=10, f_max=4000.0
    )
    with pytest.raises(VocoderError, match="found 16, wanted hop_length = 32"):
        HiFiGAN("tiny", feature, tiny_generator())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upsample_kernel_sizes": (8, 5, 4)}, "larger by an even number"),
        ({"upsample_kernel_sizes": (8, 4)}, "one for each of"),
        ({"upsample_initial_channel": 12}, "multiple of 8"),
        ({"resblock_kernel_sizes": (3, 4)}, "wanted odd"),
        ({"resblock_kernel_sizes": (3,)}, "one list per"),
        ({"resblock": "3"}, "wanted 1 or 2"),
        ({"upsample_rates": (4, 0, 2)}, "below 1"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VocoderError, match=message):
        tiny_config(**change)


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((2, 5, 11), None, "n_mels = 10"),
        ((5, 10), None, "n_mels = 10"),
        ((2, 0, 10), None, "frames >= 1"),
        ((2, 5, 10), [5], "wanted 2 from 1 to 5"),
        ((2, 5, 10), [5, 0], "wanted 2 from 1 to 5"),
        ((2, 5, 10), [6, 5], "wanted 2 from 1 to 5"),
    ],
)
def test_impossible_input_is_refused(
    shape: tuple[int, ...], lengths: list[int] | None, message: str
) -> None:
    with pytest.raises(VocoderError, match=message):
        tiny_vocoder()(torch.zeros(shape), None if lengths is None else torch.tensor(lengths))


def test_bf16_is_near_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audiovae.vocoder.hifigan._has_bf16", lambda device: True)
    mel = some_mel(1, 50)
    reference = tiny_vocoder()(mel)
    fast = HiFiGAN("tiny", FEATURE, tiny_generator(), "bf16")
    assert fast.generator.ups[0].weight.dtype == torch.bfloat16
    error = (fast(mel) - reference).square().mean() / reference.square().mean()
    assert 0 < error < 1e-3


def test_bf16_without_the_instructions_says_so_and_stays_exact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("audiovae.vocoder.hifigan._has_bf16", lambda device: False)
    with caplog.at_level(logging.WARNING):
        slow = HiFiGAN("tiny", FEATURE, tiny_generator(), "bf16")
    assert slow.precision == "fp32" and "no bf16" in caplog.text
    mel = some_mel(1, 9)
    assert torch.equal(slow(mel), tiny_vocoder()(mel))
