"""Checkpoints: equal after loading; a damaged or unfinished one is passed over, never loaded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from audiovae.config import Config
from audiovae.errors import CheckpointError, FeatureMismatchError
from audiovae.models.vae import AudioVAE
from audiovae.training import checkpoint
from audiovae.training.checkpoint import Progress
from audiovae.training.losses import Objective

SmallConfig = Callable[..., Config]
FILES = ["config.json", "model.safetensors", "optimizer.safetensors", "objective.safetensors",
         "state.json", "manifest.json"]  # fmt: skip


class Trainee:
    """Model, objective and optimizer, and steps along random gradients."""

    def __init__(self, config: Config, seed: int) -> None:
        torch.manual_seed(seed)
        self.model, self.objective = AudioVAE(config), Objective(config)
        self.parameters = [*self.model.parameters(), *self.objective.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-2, fused=True)

    def walk(self, steps: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        for _ in range(steps):
            for parameter in self.parameters:
                parameter.grad = torch.randn_like(parameter)
            self.optimizer.step()
            self.objective.after_step(30.0, 5.0)

    def save(self, folder: Path, step: int, keep: int = 2) -> Path:
        return checkpoint.save(
            folder, Progress(step, 2, 7, 1.5, 3.25), self.model, self.objective, self.optimizer,
            keep,
        )  # fmt: skip

    def load(self, folder: Path) -> Progress:
        return checkpoint.load(folder, self.model, self.objective, self.optimizer)

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def config(small_config: SmallConfig) -> Config:
    return small_config("feature.n_mels=12", "latent.u_adversary=1", "latent.u_capacity=10")


@pytest.fixture
def trained(config: Config) -> Trainee:
    trainee = Trainee(config, seed=0)
    trainee.walk(3)
    return trainee


@pytest.fixture
def two(trained: Trainee, tmp_path: Path) -> Path:
    """Checkpoints of step 1 and 2."""
    folder = tmp_path / "checkpoints"
    trained.save(folder, 1)
    trained.walk(1)
    trained.save(folder, 2)
    return folder


def test_what_is_loaded_goes_on_as_what_was_saved(
    trained: Trainee, config: Config, tmp_path: Path
) -> None:
    path = trained.save(tmp_path / "checkpoints", 5)
    assert path.name == "step-00000005"
    assert sorted(p.name for p in path.iterdir()) == sorted(FILES)
    other = Trainee(config, seed=1)
    assert not same(other.weights(), trained.weights())
    assert other.load(path) == Progress(5, 2, 7, 1.5, 3.25)
    assert same(other.weights(), trained.weights())
    assert other.objective.multipliers() == trained.objective.multipliers()
    for trainee in (trained, other):  # with the moments and the step count of the optimizer
        trainee.walk(2, seed=9)
    assert same(other.weights(), trained.weights())
    model = AudioVAE.from_pretrained(path)
    assert model.config == config


def test_the_optimizers_moments_are_in_it(trained: Trainee, config: Config, tmp_path: Path) -> None:
    path = trained.save(tmp_path / "checkpoints", 5)
    other, fresh = Trainee(config, seed=1), Trainee(config, seed=1)
    other.load(path)
    fresh.model.load_state_dict(trained.model.state_dict())
    fresh.objective.load_state_dict(trained.objective.state_dict())
    assert same(other.weights(), fresh.weights())
    other.walk(1)
    fresh.walk(1)
    assert not same(other.weights(), fresh.weights())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_found_and_the_one_before_used(
    name: str, damage: str, two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert checkpoint.latest(two) == two / "step-00000002"
    file = two / "step-00000002" / name
    content = bytearray(file.read_bytes())
    if damage == "flip":
        # of the manifest a digit of a checksum, elsewhere any bit
        at = content.index(b'"sha256": "') + 15 if name == "manifest.json" else len(content) // 2
        content[at] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.unlink()
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(two) == two / "step-00000001"
    assert "step-00000002: passed over" in caplog.text
    assert checkpoint.latest_model(two.parent) == two / "step-00000001"


def test_without_a_whole_one_the_error_says_what_to_run(two: Path, tmp_path: Path) -> None:
    for path in two.iterdir():
        (path / "model.safetensors").write_bytes(b"")
    assert checkpoint.latest(two) is None
    with pytest.raises(
        CheckpointError, match=r"no checkpoint that verifies\. Train first: audiovae"
    ):
        checkpoint.latest_model(two.parent)
    with pytest.raises(CheckpointError, match="no checkpoint that verifies"):
        checkpoint.latest_model(tmp_path / "never")


def test_only_the_newest_are_kept(trained: Trainee, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 9, 10, 100):
        trained.save(folder, step, keep=3)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-00000009", "step-00000010", "step-00000100"]
    trained.save(folder, 100, keep=1)  # again, as at the end of a run
    assert [path.name for path in folder.iterdir()] == ["step-00000100"]
    assert checkpoint.latest(folder) == folder / "step-00000100"


def test_an_unfinished_save_is_not_seen(
    two: Path, trained: Trainee, monkeypatch: pytest.MonkeyPatch
) -> None:
    (two / "step-00000009.tmp-123").mkdir()
    (two / "step-abc").mkdir()
    (two / "step-00000009").write_text("a file")

    def full(path: Path, values: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_json", full)
        with pytest.raises(OSError, match="No space left"):
            trained.save(two, 3)
    assert checkpoint.latest(two) == two / "step-00000002"
    (two / "step-00000009").unlink()
    assert trained.save(two, 3) == checkpoint.latest(two)
    assert (two / "step-00000002").is_dir()


def test_another_model_is_refused_before_anything_changes(
    two: Path, small_config: SmallConfig
) -> None:
    other = Trainee(small_config("feature.n_mels=12", "latent.z_dim=5"), seed=1)
    before = other.weights()
    with pytest.raises(
        CheckpointError, match=r"does not fit its config\n(?s:.*)z_posterior(?s:.*)another --exp"
    ):
        other.load(two / "step-00000002")
    assert same(other.weights(), before)


def test_another_mel_contract_is_refused(two: Path, small_config: SmallConfig) -> None:
    """All shapes fit, and the numbers mean something else."""
    other = Trainee(small_config(
        "feature.n_mels=12", "latent.u_adversary=1", "latent.u_capacity=10", "feature.f_max=7600"
    ), seed=1)  # fmt: skip
    before = other.weights()
    with pytest.raises(FeatureMismatchError, match="f_max"):
        other.load(two / "step-00000002")
    assert same(other.weights(), before)


def test_weights_that_are_not_finite_are_refused(two: Path, config: Config) -> None:
    from safetensors.torch import load_file, save_file

    path = two / "step-00000002"
    for name in ("model.safetensors", "objective.safetensors"):
        tensors = load_file(path / name)
        whole = (path / name).read_bytes()
        next(iter(tensors.values())).view(-1)[0] = torch.inf
        save_file(tensors, path / name)
        other = Trainee(config, seed=1)
        before = other.weights()
        with pytest.raises(CheckpointError, match=rf"{name}.*\n.*not finite"):
            other.load(path)
        assert same(other.weights(), before)
        (path / name).write_bytes(whole)


def test_the_manifest_names_its_files(two: Path) -> None:
    manifest = json.loads((two / "step-00000002" / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"]) == (checkpoint.FORMAT, 2)
    assert sorted(manifest["files"]) == sorted(set(FILES) - {"manifest.json"})
    manifest["files"]["../step-00000001/model.safetensors"] = {}
    (two / "step-00000002" / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.latest(two) == two / "step-00000001"


def test_a_damaged_newer_one_is_not_kept_in_place_of_a_sound_one(
    trained: Trainee, tmp_path: Path
) -> None:
    """The run went on from step 100, because 200 was damaged, and saves on its way there."""
    folder = tmp_path / "checkpoints"
    trained.save(folder, 100)
    damaged = trained.save(folder, 200)
    (damaged / "state.json").write_text("{}")
    assert trained.save(folder, 150, keep=1) == folder / "step-00000150"
    assert [path.name for path in folder.iterdir()] == ["step-00000150"]
    trained.save(folder, 160, keep=2)
    assert sorted(path.name[-3:] for path in folder.iterdir()) == ["150", "160"]


@pytest.mark.parametrize("change", ["latent.u_stride=1", "decoder.rate_bias=false"])
def test_a_setting_that_no_tensor_shows_is_refused(
    change: str, two: Path, small_config: SmallConfig
) -> None:
    """All shapes fit, and the same tensors mean another function."""
    other = Trainee(small_config(
        "feature.n_mels=12", "latent.u_adversary=1", "latent.u_capacity=10", change
    ), seed=1)  # fmt: skip
    before = other.weights()
    with pytest.raises(CheckpointError, match=change.split("=")[0]):
        other.load(two / "step-00000002")
    assert same(other.weights(), before)


def test_a_damaged_checkpoint_is_refused_by_name_too(two: Path) -> None:
    checkpoint.require_sound(two / "step-00000002")
    (two / "step-00000002" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        checkpoint.require_sound(two / "step-00000002")
