"""Settings: every shipped file loads, faults are answered with their key and what was meant."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from audiovae.config import Config, FeatureConfig
from audiovae.config_file import (
    config_from_dict,
    config_to_dict,
    dump_config,
    feature_config_from_dict,
    find_conf,
    load_config,
)
from audiovae.errors import ConfigError, FeatureMismatchError

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.name)
def test_every_conf_loads(path: Path) -> None:
    assert isinstance(load_config(path), Config)


def test_base_spells_out_exactly_the_defaults() -> None:
    import yaml

    written = yaml.safe_load((CONF / "vae_base.yaml").read_text("utf-8"))
    assert load_config(CONF / "vae_base.yaml") == Config()
    assert {section: set(fields) for section, fields in written.items()} == {
        section: set(fields) for section, fields in config_to_dict(Config()).items()
    }


def test_what_is_dumped_is_what_loads(tmp_path: Path) -> None:
    config = load_config(None, ["latent.z_dim=8", "train.max_minutes=0.5", "data.trim_db=40"])
    dump_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert config_from_dict(config_to_dict(config)) == config


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    return path


def test_overrides_come_after_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "latent: {z_dim: 8, u_dim: 24}\n")
    config = load_config(path, ["latent.z_dim=12"])
    assert (config.latent.z_dim, config.latent.u_dim) == (12, 24)


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3"])
def test_numbers_as_people_write_them(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, f"train: {{learning_rate: {text}, mixed_precision: no}}\n")
    assert load_config(path).train.learning_rate == 1e-3
    assert load_config(None, [f"train.learning_rate={text}"]).train.learning_rate == 1e-3
    assert load_config(path).train.mixed_precision == "no"


def test_unknown_keys_are_answered_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'latent\.zdim'; did you mean 'latent\.z_dim'"):
        load_config(write(tmp_path, "latent: {zdim: 8}\n"))
    with pytest.raises(ConfigError, match=r"'latnet'; did you mean 'latent'"):
        load_config(None, ["latnet.z_dim=8"])
    with pytest.raises(ConfigError, match=r"'vocoder\.zzz'; known: name"):
        load_config(None, ["vocoder.zzz=8"])


def test_all_faults_come_together(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "latent: {zdim: 8, u_dim: many}\n"
        "train: {steps: -1, mixed_precision: fp8}\n"
        "decoder: {location_kernel: 4}\n"
        "data: 7\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["feature.f_max=20000"])
    message = str(caught.value)
    for wanted in (
        "latent.zdim",
        "latent.u_dim: found 'many', wanted int",
        "train.mixed_precision: found 'fp8', wanted one of no, bf16",
        "train.steps: found -1",
        "decoder.location_kernel: found 4",
        "data.: found 7",
        "feature.f_min, f_max",
    ):
        assert wanted in message
    assert all(line.startswith(str(path)) for line in message.splitlines())


def test_a_key_written_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: line 3: key 'z_dim' twice"):
        load_config(write(tmp_path, "latent:\n  z_dim: 8\n  z_dim: 9\n"))


@pytest.mark.parametrize(
    "text",
    [
        "latent: [",
        "- a list",
        "latent: !!python/object/apply:os.system ['true']",
        "latent: {z_dim: ${oc.env:HOME}}",
        "latent: {z_dim: .nan}",
        "3: {z_dim: 8}",
        "latent: {z_dim: true}",
    ],
)
def test_odd_files_end_in_a_config_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load_config(write(tmp_path, text))


def test_missing_file_and_override_without_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"wanted section\.field=value"):
        load_config(None, ["latent.z_dim"])


@pytest.mark.parametrize(
    "override",
    [
        "encoder.heads=0", "encoder.heads=-2", "encoder.conv_kernel=-1", "encoder.ff_mult=0",
        "decoder.location_kernel=-3", "train.betas=[2,3]", "train.seed=-1", "train.weight_decay=-1",
    ],
)  # fmt: skip
def test_numbers_that_no_model_can_have(override: str) -> None:
    with pytest.raises(ConfigError, match=override.split("=")[0]):
        load_config(None, [override])


@pytest.mark.parametrize("override", ["train.steps=[1", "train.steps={a: 1", "train.steps='1"])
def test_an_override_that_is_not_yaml(override: str) -> None:
    with pytest.raises(ConfigError, match="command line"):
        load_config(None, [override])


def test_mel_contracts_name_each_field_that_differs() -> None:
    mine, other = FeatureConfig(), FeatureConfig(hop_length=200, n_fft=1024, f_max=7600.0)
    assert mine.hash != other.hash and mine.hash == FeatureConfig().hash
    assert mine.differences(other) == [("hop_length", 256, 200), ("f_max", 8000.0, 7600.0)]
    mine.require_same(FeatureConfig(), "a", "b")
    with pytest.raises(FeatureMismatchError, match=r"(?s)dump/train.*256 \| 200.*f_max"):
        mine.require_same(other, "dump/train", "the vocoder")


def test_a_feature_card_must_be_complete() -> None:
    card = dataclasses.asdict(FeatureConfig())
    assert feature_config_from_dict(card, "feature.json") == FeatureConfig()
    del card["hop_length"]
    with pytest.raises(ConfigError, match=r"feature\.json: hop_length: missing"):
        feature_config_from_dict(card, "feature.json")


def test_shipped_conf_is_found_by_name() -> None:
    assert find_conf("vae_base.yaml").is_file()
    with pytest.raises(ConfigError, match=r"conf/vae_none\.yaml: no such file"):
        find_conf("vae_none.yaml")
