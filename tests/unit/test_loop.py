"""Training: what is interrupted ends as what is not, bit for bit; what cannot run is refused."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from audiovae.config import Config
from audiovae.config_file import dump_config, load_config
from audiovae.data.archive import FeatureArchive, write_feature_json
from audiovae.data.stats import compute_stats
from audiovae.errors import CheckpointError, DataDirError, FeatureMismatchError, ResourceError
from audiovae.training import checkpoint, loop

SmallConfig = Callable[..., Config]
RUN = [
    "feature.n_mels=12", "data.batch_utterances=3", "train.steps=6", "train.warmup_steps=2",
    "train.log_every=1", "train.valid_every=100", "train.sample_every=100", "train.save_every=100",
    "latent.z_warmup_steps=4", "latent.u_adversary=0.5",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.fixture
def config(small_config: SmallConfig) -> Config:
    return small_config(*RUN)


def random_mels(names: list[str], seed: int) -> dict[str, np.ndarray]:
    """A wave that travels over the bins, from a phase of its own, and a little noise."""
    rng = np.random.default_rng(seed)
    mels = {}
    for name, frames in zip(names, rng.integers(20, 60, len(names)), strict=True):
        wave = np.sin(np.arange(frames)[:, None] / 4 + np.arange(12) / 2 + rng.uniform(0, 6))
        mels[name] = (2 * wave - 5 + 0.1 * rng.standard_normal(wave.shape)).astype(np.float32)
    return mels


@pytest.fixture
def dump(write_dump: Callable[..., Path], config: Config, tmp_path: Path) -> Path:
    """Ten utterances to train on, so four batches an epoch, and four for dev."""
    root = tmp_path / "a dump"
    train = [f"s{n % 2}-{n}" for n in range(10)]
    write_dump(root / "train", random_mels(train, 0), config.feature)
    write_dump(root / "dev", random_mels(["s0-a", "s0-b", "s1-c", "s1-d"], 1), config.feature)
    compute_stats(FeatureArchive(root / "train")).save(root / "train" / "stats.json")
    return root


class Steps(list[tuple[list[str], float]]):
    """The batch ids and the loss of each step; `stop_after` sends SIGTERM in the midst."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.stop_after = -1
        real = loop._Run._step

        def step(run: Any, batches: list[Any]) -> None:
            real(run, batches)
            self.append(([u for batch in batches for u in batch.utt_ids], run.parts["loss"]))
            if run.at.step == self.stop_after:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(loop._Run, "_step", step)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_three_steps_and_three_more_are_six(
    accumulate: int, small_config: SmallConfig, dump: Path, steps: Steps, tmp_path: Path
) -> None:
    config = small_config(*RUN, f"train.accumulate={accumulate}")
    straight = loop.train(config, dump, tmp_path / "straight")
    wanted, handler = list(steps), signal.getsignal(signal.SIGTERM)
    steps.clear()
    steps.stop_after = 3
    with pytest.raises(SystemExit) as stopped:
        loop.train(config, dump, tmp_path / "broken")
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == handler
    halfway = checkpoint.latest(tmp_path / "broken" / "checkpoints")
    assert halfway is not None and halfway.name == "step-00000003"
    resumed = loop.train(config, dump, tmp_path / "broken")
    assert list(steps) == wanted and len(wanted) == 6
    assert straight.name == resumed.name == "step-00000006"
    for name in ("model.safetensors", "optimizer.safetensors", "objective.safetensors"):
        assert (straight / name).read_bytes() == (resumed / name).read_bytes(), name
    state = [json.loads((path / "state.json").read_text()) for path in (straight, resumed)]
    for each in state:
        assert each["progress"].pop("seconds") > 0
    assert state[0] == state[1]
    # every utterance once an epoch: four batches of the first
    first_epoch = [u for ids, _ in wanted[: 4 // accumulate] for u in ids]
    assert len(first_epoch) == len(set(first_epoch))
    assert accumulate > 1 or len(first_epoch) == 10


def test_a_finished_run_ends_at_once(config: Config, dump: Path, steps: Steps,
                                     tmp_path: Path) -> None:  # fmt: skip
    first = loop.train(config, dump, tmp_path / "run")
    weights = (first / "model.safetensors").read_bytes()
    steps.clear()
    assert loop.train(config, dump, tmp_path / "run") == first
    assert not steps and (first / "model.safetensors").read_bytes() == weights


def test_a_run_learns_and_shows_itself(
    small_config: SmallConfig, dump: Path, tmp_path: Path
) -> None:
    config = small_config(
        *RUN, "train.steps=40", "train.valid_every=20", "train.sample_every=40",
        "train.learning_rate=3e-2", "train.save_every=20", "latent.u_capacity=5",
    )  # fmt: skip
    exp = tmp_path / "exp" / "a run"
    last = loop.train(config, dump, exp)
    assert load_config(exp / "config.yaml") == config
    lines = [json.loads(line) for line in (exp / "train.log").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == list(range(1, 41))
    bound = [line["negative_elbo"] for line in trained]
    assert np.mean(bound[-4:]) < 0.85 * np.mean(bound[:4])  # an epoch is four batches
    wanted = "loss kl_z kl_u length end adversary beta_u u_multiplier grad_norm learning_rate"
    assert {*wanted.split(), "audio_seconds_per_second"} <= trained[0].keys()
    checked = [line for line in lines if line["kind"] == "valid"]
    assert {line["step"] for line in checked} == {20, 40}
    assert {"negative_elbo", "shuffle_z", "shuffle_memory", "active_units_z"} <= checked[0].keys()
    saved = {path.name for path in (exp / "checkpoints").iterdir()}
    assert saved == {"step-00000020", "step-00000040"}
    assert json.loads((exp / "env.json").read_text())["processes"] == 1
    assert any((exp / "tensorboard").iterdir())
    shown = {path.name for path in (exp / "samples" / "step-00000040").iterdir()}
    assert {"sample-0.wav", "reconstruct-s0-a.wav", "reconstruct-s0-a-mel.png",
            "reconstruct-s0-a-alignment.png"} <= shown  # fmt: skip
    tensors = load_file(last / "model.safetensors")
    assert tensors["fitted_std"].min() > 0  # the fitted prior of z, made at the end
    stats = json.loads((dump / "train" / "stats.json").read_text())
    np.testing.assert_allclose(tensors["mel_mean"], stats["mean"], rtol=1e-6)


def test_a_step_that_is_not_finite_is_not_applied(
    config: Config, dump: Path, write_dump: Callable[..., Path], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    mels = random_mels([f"s{n % 2}-{n}" for n in range(10)], 0)
    mels["s1-3"][5] = np.inf
    other = tmp_path / "spoilt"
    write_dump(other / "train", mels, config.feature)
    (dump / "dev").rename(other / "dev")
    (dump / "train" / "stats.json").rename(other / "train" / "stats.json")
    with caplog.at_level(logging.WARNING):
        last = loop.train(config, other, tmp_path / "run")
    skipped = [r.getMessage() for r in caplog.records if "not finite" in r.getMessage()]
    assert 1 <= len(skipped) <= 2 and all("s1-3" in message for message in skipped)
    assert all(t.isfinite().all() for t in load_file(last / "model.safetensors").values())


def test_nothing_but_bad_steps_is_an_error(
    small_config: SmallConfig, dump: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loop, "MAX_SKIPPED", 3)
    ark = dump / "train" / "feats.ark"
    archive = FeatureArchive(dump / "train")
    content = bytearray(ark.read_bytes())
    for offset in archive._offsets.values():
        content[offset + 15 : offset + 19] = np.float32(np.nan).tobytes()
    ark.write_bytes(content)
    with pytest.raises(DataDirError, match="3 steps in a row are not finite; the last had s"):
        loop.train(small_config(*RUN), dump, tmp_path / "run")


def test_a_failed_save_is_not_hidden_by_the_signal(
    config: Config, dump: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    steps.stop_after = 2
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="No space left"):
        loop.train(config, dump, tmp_path / "run")


# ---- what is refused ----------------------------------------------------------------------------


def test_features_of_another_contract_are_refused(
    small_config: SmallConfig, dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(FeatureMismatchError, match=r"f_max: 7600\.0 \| 8000\.0"):
        loop.train(small_config(*RUN, "feature.f_max=7600"), dump, tmp_path / "run")


def test_a_run_of_another_shape_or_contract_is_not_gone_on_with(
    small_config: SmallConfig, dump: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    loop.train(small_config(*RUN, "train.steps=1"), dump, run)
    written = (run / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match="does not fit its config"):
        loop.train(small_config(*RUN, "latent.z_dim=5"), dump, run)
    # extracted again with other settings: the shapes are the same
    other = small_config(*RUN, "feature.f_max=7600")
    for name in ("train", "dev"):
        write_feature_json(dump / name, other.feature)
    compute_stats(FeatureArchive(dump / "train")).save(dump / "train" / "stats.json")
    with pytest.raises(FeatureMismatchError, match="f_max"):
        loop.train(other, dump, run)
    assert (run / "config.yaml").read_bytes() == written


def test_missing_inputs_are_named(config: Config, dump: Path, tmp_path: Path) -> None:
    (dump / "train" / "stats.json").unlink()
    with pytest.raises(DataDirError, match=r"stats\.json: no such file; run audiovae stats"):
        loop.train(config, dump, tmp_path / "run")
    (dump / "dev" / "feature.json").unlink()
    with pytest.raises(DataDirError, match=r"dev/feature\.json"):
        loop.train(config, dump, tmp_path / "run")


def test_a_folder_in_use_is_refused(config: Config, dump: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("pid 1234 on elsewhere")
        file.flush()
        with pytest.raises(ResourceError, match="another run is training here: pid 1234 on else"):
            loop.train(config, dump, run)
    assert not (run / "checkpoints").exists()


# ---- as a process -------------------------------------------------------------------------------


def test_sigterm_saves_and_ends_with_143(
    small_config: SmallConfig, dump: Path, tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", tmp_path / "config.yaml"
    dump_config(small_config(*RUN, "train.steps=1000000"), settings)
    command = [sys.executable, "-m", "audiovae", "train", "--config", str(settings),
               "--dump", str(dump), "--exp", str(run)]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 300
            while time.monotonic() < until and process.poll() is None:
                log = run / "train.log"
                if log.exists() and len(log.read_text().splitlines()) >= 3:
                    break
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    path = checkpoint.latest(run / "checkpoints")
    assert path is not None
    step = json.loads((path / "state.json").read_text())["progress"]["step"]
    logged = [json.loads(line)["step"] for line in (run / "train.log").read_text().splitlines()]
    assert step == logged[-1] >= 3


def audiovae_train(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "audiovae", "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_two_processes_train_one_model(
    small_config: SmallConfig, dump: Path, tmp_path: Path
) -> None:
    """An even share of each batch, one log, one checkpoint that a single process goes on from."""
    path = tmp_path / "config.yaml"
    dump_config(small_config(*RUN, "data.batch_utterances=4", "train.steps=4"), path)
    options = ["--config", path, "--dump", dump, "--exp", tmp_path / "run"]
    done = audiovae_train(*options, "--num_processes", 2)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step 4 train") == 1
    assert json.loads((tmp_path / "run" / "env.json").read_text())["processes"] == 2
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None and newest.name.endswith("4")
    more = audiovae_train(*options, "train.steps=6")
    assert more.returncode == 0, more.stderr
    assert "going on from" in more.stderr


def test_a_fault_in_several_processes_is_told_once(dump: Path, tmp_path: Path) -> None:
    (dump / "train" / "feature.json").unlink()
    done = audiovae_train("--dump", dump, "--exp", tmp_path / "run", "--num_processes", 2)
    assert done.returncode == DataDirError.exit_code
    assert done.stderr.count("feature.json") == 1
    assert "Traceback" not in done.stderr
