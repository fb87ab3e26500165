"""The verbs on a trained model, from the command line: files, seeds, and errors that help."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
import torch
import typer
from click.testing import Result
from typer.testing import CliRunner

from audiovae.cli import model as verbs
from audiovae.config import Config
from audiovae.data.extract import extract
from audiovae.data.kaldi_dir import DataDir
from audiovae.errors import (
    CheckpointError,
    ConfigError,
    DataDirError,
    FeatureMismatchError,
    VocoderError,
)
from audiovae.models.vae import AudioVAE
from audiovae.rendering import read_manifest
from audiovae.training import checkpoint

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def world(small_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two spaces: features of four utterances of two voices, and a random model."""
    root = tmp_path_factory.mktemp("a  b")
    config = small_config()
    wav, utt2spk = {}, {}
    for i, pitch in enumerate((110, 220, 115, 225)):
        utt_id = f"voice{pitch // 200}-{i}"
        time = np.arange(int(16000 * (0.5 + 0.1 * i))) / 16000
        wave = sum(np.sin(2 * np.pi * pitch * h * time) / h for h in range(1, 20)) * 0.1
        soundfile.write(root / f"{utt_id}.wav", wave, 16000)
        wav[utt_id], utt2spk[utt_id] = str(root / f"{utt_id}.wav"), utt_id[:6]
    data = DataDir(path=root, wav=wav, utt2spk=utt2spk)
    extract(data, root / "dump" / "test", config, nj=1)
    torch.manual_seed(0)
    model = AudioVAE(config, np.full(80, -5.0), 2.0)
    with torch.no_grad():
        model.prior.length.place.fill_(2.0)
    model.save_pretrained(root / "model")
    manifest = {"format": checkpoint.FORMAT, "step": 12, "files": {}}
    (root / "model" / "manifest.json").write_text(json.dumps(manifest))
    return root


@pytest.fixture
def run(world: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(world)
    app = typer.Typer(pretty_exceptions_enable=False)
    verbs.register(app)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return call


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, audiovae.cli.model, audiovae.cli.loading, audiovae.cli.synthesize\n"
        "assert not {'torch', 'numpy', 'librosa'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["reconstruct", "--n", "2"], ["voice0-0.reconstruct.wav", "voice0-2.reconstruct.wav"]),
        (["sample", "--n", "2", "--max_seconds", "1"], ["sample.0000.wav", "sample.0001.wav"]),
        (["sample", "--n", "1", "--voice", "voice1-1"], ["voice1-1.sample.0000.wav"]),
        (["sample", "--n", "1", "--voice", "voice1-1.wav"], ["voice1-1.sample.0000.wav"]),
        (
            ["interpolate", "--utt_id", "voice0-0", "--utt_id", "voice1-1", "--n", "2"],
            [f"voice0-0.voice1-1.interpolate.morph.{i:02d}.wav" for i in range(2)],
        ),
        (
            ["transfer", "--utt_id", "voice0-0", "--voice", "voice1-3.wav"],
            ["voice0-0.transfer.voice1-3.wav"],
        ),
        (
            ["traverse", "--wav", "voice0-0.wav", "--dim", "3", "--n", "2"],
            [f"voice0-0.traverse.z03.{i:02d}.wav" for i in range(2)],
        ),
    ],
)
def test_synthesize_writes_what_its_manifest_lists(
    arguments: list[str], files: list[str], run: Run, world: Path, tmp_path: Path
) -> None:
    options = ["--dump", "dump", "--out", str(tmp_path), "--device", "cpu", "--save_latents"]
    result = run("synthesize", "model", *arguments, *options)
    assert result.exit_code == 0, result.exception
    lines = read_manifest(tmp_path / "manifest.jsonl")
    assert [line["file"] for line in lines] == files
    for line in lines:
        wave, rate = soundfile.read(tmp_path / line["file"])
        assert (rate, len(wave)) == (22050, line["frames"] * 256)
        assert (tmp_path / line["latents"]).is_file()
        assert line["model_step"] == 12
        assert line["model_sha256"] == _sha256(world / "model" / "model.safetensors")
        assert line["vocoder"] == "griffin_lim"


def test_the_seed_decides_the_bytes(run: Run, tmp_path: Path) -> None:
    def digest(name: str, *options: str) -> str:
        out = tmp_path / name
        arguments = ["--n", "1", "--max_seconds", "1", "--device", "cpu", "--out", str(out)]
        assert run("synthesize", "model", "sample", *arguments, *options).exit_code == 0
        return _sha256(out / "sample.0000.wav")

    first = digest("a", "--seed", "5")
    assert first == digest("b", "--seed", "5", "--batch_size", "7")
    assert first != digest("c", "--seed", "6")


def test_float_wav_is_float(run: Run, tmp_path: Path) -> None:
    result = run("synthesize", "model", "reconstruct", "--wav", "voice0-0.wav", "--float",
                 "--out", str(tmp_path))  # fmt: skip
    assert result.exit_code == 0, result.exception
    assert soundfile.info(tmp_path / "voice0-0.reconstruct.wav").subtype == "FLOAT"


def test_a_run_gives_its_newest_whole_checkpoint(run: Run, world: Path, tmp_path: Path) -> None:

    model = AudioVAE.from_pretrained(world / "model")
    for step in (10, 20):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        model.save_pretrained(folder)
        files = {path.name: checkpoint._fingerprint(path) for path in folder.iterdir()}
        manifest = {"format": checkpoint.FORMAT, "step": step, "files": files}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    arguments = ["sample", "--n", "1", "--max_seconds", "0.5", "--device", "cpu"]
    manifest_file = tmp_path / "synth" / "manifest.jsonl"
    assert run("synthesize", str(tmp_path), *arguments).exit_code == 0
    assert read_manifest(manifest_file)[0]["model_step"] == 20
    (tmp_path / "checkpoints" / "step-00000020" / "config.json").write_text("{}")
    assert run("synthesize", str(tmp_path), *arguments).exit_code == 0
    assert read_manifest(manifest_file)[0]["model_step"] == 10


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["nowhere", "sample"], CheckpointError, "nowhere: no such folder, wanted exp/<tag>"),
        (["dump", "sample"], CheckpointError, "no checkpoint that verifies"),
        (
            ["model", "traverse", "--dump", "dump", "--utt_id", "voice0-3"],
            DataDirError,
            "no utt_id 'voice0-3'; did you mean 'voice",
        ),
        (["model", "traverse", "--utt_id", "a"], ConfigError, "in which dump? Give --dump"),
        (["model", "sample", "--mode", "hold"], ConfigError, "sample does not read --mode"),
        (["model", "sample", "--voice", "no.wav"], ConfigError, "'no.wav'"),
        (["model", "transfer", "--wav", "no.wav", "--voice", "voice0-0.wav"], DataDirError,
         "no.wav"),
        (["model", "sample", "--set", "dev"], ConfigError, "--set is read with --dump only"),
        (["model", "reconstruct", "--wav", "a.wav", "--n", "3"], ConfigError, "--n takes the"),
        (["model", "reconstruct", "--temperature", "2"], ConfigError, "nothing is drawn here"),
        (["model", "interpolate", "--max_seconds", "1"], ConfigError, "--mode shared_noise"),
        (["model", "sample", "--voice", "a.wav", "--prior", "fitted"], ConfigError, "--prior is"),
        (["model", "sample", "--latent", "sample"], ConfigError, "--latent is of the voice"),
        (["model", "transfer", "--wav", "a.wav", "--utt_id", "b"], ConfigError,
         "the order of inputs counts"),
        (["model", "sample", "--device", "abacus"], ConfigError, "--device abacus"),
        (["model", "sample", "--vocoder", "nothing"], VocoderError, "nothing"),
        (["model", "reconstruct", "--dump", "dump", "--set", "dev"], DataDirError, "feature.json"),
        (["model", "sample", "--prior", "fitted", "--n", "1"], Exception, "no fitted prior"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(
    arguments: list[str], error: type[Exception], message: str, run: Run, tmp_path: Path
) -> None:
    result = run("synthesize", *arguments, "--out", str(tmp_path / "out"))
    assert isinstance(result.exception, error), result.exception
    assert message in str(result.exception)


def test_a_dump_of_another_contract_is_refused(run: Run, world: Path, tmp_path: Path) -> None:
    values = json.loads((world / "dump" / "test" / "feature.json").read_text())
    values["feature"]["f_max"] = 7600.0
    (tmp_path / "test").mkdir()
    for file in (world / "dump" / "test").iterdir():
        if file.is_file():
            (tmp_path / "test" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "test" / "feature.json").write_text(json.dumps(values))
    result = run("synthesize", "model", "reconstruct", "--dump", str(tmp_path))
    assert isinstance(result.exception, FeatureMismatchError)
    assert "f_max: 8000.0 | 7600.0" in str(result.exception)


def test_the_demo_shows_all_operations_beside_the_originals(run: Run, tmp_path: Path) -> None:
    result = run("synthesize", "model", "demo", "--dump", "dump", "--n", "2", "--max_seconds", "1",
                 "--out", str(tmp_path), "--device", "cpu")  # fmt: skip
    assert result.exit_code == 0, result.exception
    lines = read_manifest(tmp_path / "manifest.jsonl")
    counts = Counter(line["operation"] for line in lines)
    assert counts == {"original": 2, "copy": 2, "reconstruct": 2, "sample": 4 + 2,
                      "interpolate": 5, "transfer": 2, "traverse": 5}  # fmt: skip
    page = (tmp_path / "index.html").read_text("utf-8")
    linked = {unquote(name) for name in re.findall(r'src="([^"]+)"', page)}
    assert linked == {p.name for p in tmp_path.iterdir() if p.suffix in (".wav", ".png")}
    assert "latents.png" in linked
    voices = {line["inputs"][0][:6] for line in lines if line["operation"] == "original"}
    assert voices == {"voice0", "voice1"}


def test_export_makes_a_folder_that_loads_and_again(run: Run, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "hub"
    for _ in range(2):
        assert run("export", "model", str(out)).exit_code == 0
    assert {p.name for p in out.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert [p.name for p in tmp_path.iterdir()] == ["hub"]
    source = AudioVAE.from_pretrained(world / "model").state_dict()
    copy = AudioVAE.from_pretrained(out).state_dict()
    assert all(torch.equal(copy[key], source[key]) for key in source)
    card = (out / "README.md").read_text("utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n")
    for text in (
        "trained for 12 steps",
        "| hop_length | 256 |",
        _sha256(out / "model.safetensors"),
    ):
        assert text in card


def test_export_keeps_away_from_other_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    result = run("export", "model", str(tmp_path))
    assert isinstance(result.exception, ConfigError)
    assert "holds thesis.tex" in str(result.exception)


def test_export_prints_the_figures_of_the_run(world: Path, tmp_path: Path) -> None:
    from audiovae.export import export_model

    metrics = tmp_path / "run" / "eval" / "test" / "metrics.json"
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"recon_logmel_l1": 0.41234, "wer": {"model": 0.125, "copy": null}}')
    export_model(world / "model", tmp_path / "out", run_dir=tmp_path / "run")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "### test\n| figure |" in card
    assert "| 0.412 |" in card
    assert "`wer.model`" in card


def test_export_with_damaged_figures_writes_nothing(world: Path, tmp_path: Path) -> None:
    from audiovae.export import export_model

    metrics = tmp_path / "run" / "eval" / "test" / "metrics.json"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("x")
    with pytest.raises(DataDirError, match=r"metrics\.json: damaged.*audiovae evaluate"):
        export_model(world / "model", tmp_path / "out", run_dir=tmp_path / "run")
    assert not (tmp_path / "out").exists()


def test_what_was_made_before_a_fault_stands_in_the_manifest(
    run: Run, world: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.wav").write_bytes(b"")
    inputs = ["--wav", "voice0-0.wav", "--wav", str(tmp_path / "empty.wav")]
    result = run("synthesize", "model", "reconstruct", *inputs, "--out", str(tmp_path / "out"))
    assert isinstance(result.exception, DataDirError)
    lines = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert [line["file"] for line in lines] == [p.name for p in (tmp_path / "out").glob("*.wav")]


def test_outputs_do_not_go_into_a_checkpoint() -> None:
    from audiovae.cli.loading import run_folder

    assert run_folder(Path("exp/a/checkpoints/step-00000010")) == Path("exp/a")
    assert run_folder(Path("exp/a")) == Path("exp/a")


def test_train_gets_config_overrides_and_folders(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[Config, Path, Path]] = []
    loop = SimpleNamespace(train=lambda *arguments: calls.append(arguments))
    monkeypatch.setitem(sys.modules, "audiovae.training.loop", loop)
    config = tmp_path / "c.yaml"
    config.write_text("train:\n  steps: 7\n")
    options = ["--config", str(config), "--dump", "dump", "--exp", "exp/a"]
    result = run("train", *options, "train.seed=9", "latent.z_dim=5")
    assert result.exit_code == 0, result.exception
    ((found, dump, exp),) = calls
    assert (found.train.steps, found.train.seed, found.latent.z_dim) == (7, 9, 5)
    assert (dump, exp) == (Path("dump"), Path("exp/a"))
    result = run("train", *options, "train.sede=9")
    assert "did you mean 'train.seed'" in str(result.exception)


def test_evaluate_passes_the_sets_and_prints_the_table(
    run: Run, monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    from audiovae.analysis import evaluation

    calls: dict[str, Any] = {}

    def evaluate(model: Any, test: Any, train: Any, out: Path, **told: Any) -> dict[str, Any]:
        calls.update(test=test.path, train=train.path, out=out, **told)
        return {"recon_logmel_l1": 0.41234}

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    result = run("evaluate", "model", "--dump", "dump", "--limit", "3", "--set", "test")
    assert isinstance(result.exception, DataDirError)  # no dump/train
    shutil.copytree(world / "dump", tmp_path / "dump")
    shutil.copytree(world / "dump" / "test", tmp_path / "dump" / "train")
    result = run("evaluate", "model", "--dump", str(tmp_path / "dump"), "--limit", "3")
    assert result.exit_code == 0, result.exception
    assert (calls["test"], calls["train"]) == (tmp_path / "dump/test", tmp_path / "dump/train")
    assert (calls["out"], calls["limit"]) == (Path("model/eval/test"), 3)
    assert calls["vocoder"].name == "griffin_lim"
    assert "0.412" in result.stdout
