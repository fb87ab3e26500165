"""The stage script: options, stage names, what is skipped, paths with spaces. No stage is real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
STAGES = ("download", "prepare", "extract", "stats", "train", "evaluate", "synthesize", "export")

# Stand-ins for the commands: they note their arguments, and make what the real ones make.
COMMAND = """#!/usr/bin/env bash
set -eu
{ printf '%s' "${0##*/}"; printf ' <%s>' "$@"; echo; } >>"$NOTES"
case " $* " in
  *" ${FAIL:-nothing} "*) echo "it broke" >&2; exit 3 ;;
esac
case "${0##*/} ${1:-}" in
  "data.sh download") mkdir -p downloads ;;
  "data.sh prepare")
    mkdir -p data/{train,dev,test}
    for part in data/*; do echo "a a.wav" >"$part/wav.scp"; done ;;
  "audiovae extract")
    mkdir -p "$3"; for f in feats.scp feature.json utt2num_frames; do echo "$*" >"$3/$f"; done ;;
  "audiovae stats") echo 1 >"$2/stats.json" ;;
  "audiovae train" | "accelerate launch")
    mkdir -p exp/mine/checkpoints/step-1; echo 1 >exp/mine/checkpoints/step-1/manifest.json ;;
  "audiovae evaluate") mkdir -p "$2/eval/test"; echo 1 >"$2/eval/test/metrics.json" ;;
  "audiovae synthesize") mkdir -p "$2/synth" ;;
  "audiovae export") mkdir -p "$3" ;;
esac
"""


class Recipe:
    """A corpus folder with a space in its path, and stand-ins for the commands on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = folder / "my corpus"
        self.notes = folder / "notes"
        self.config = folder / "my config.yaml"
        folder.mkdir()
        self.config.write_text("train: {steps: 5}\n")
        for script in ("bin/audiovae", "bin/accelerate", "my corpus/local/data.sh"):
            path = folder / script
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(COMMAND)
            path.chmod(0o755)

    def run(self, *options: str, fail: str = "") -> subprocess.CompletedProcess[str]:
        self.notes.write_text("")
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "NOTES": str(self.notes),
            "FAIL": fail,
        }
        command = [RECIPES / "vae.sh", "--corpus", "my corpus", "--config", "my config.yaml"]
        return subprocess.run(
            [*command, "--tag", "mine", "--ngpu", "0", *options],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    @property
    def commands(self) -> list[str]:
        return self.notes.read_text().splitlines()

    @property
    def verbs(self) -> list[str]:
        words = [line.replace("<", "").replace(">", "").split() for line in self.commands]
        return list(dict.fromkeys("train" if w[0] == "accelerate" else w[1] for w in words))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path / "a folder")


def test_all_stages_run_in_order_and_once(recipe: Recipe) -> None:
    done = recipe.run("--nj", "3", "--langs", "en it", "data.max_seconds=9", "latent.z_dim=8")
    assert done.returncode == 0, done.stderr
    assert recipe.verbs == ["download", "prepare", "validate", *STAGES[2:]]
    extract = next(line for line in recipe.commands if "<extract>" in line)
    assert "<data/train> <dump/train>" in extract and "<--nj> <3>" in extract
    assert f"<{recipe.config}>" in extract  # whole, though it holds spaces
    assert "<data.max_seconds=9>" in extract and "z_dim" not in extract
    train = next(line for line in recipe.commands if "<train>" in line)
    assert train.startswith("audiovae <train>")
    assert train.endswith("<--num_processes> <3> <data.max_seconds=9> <latent.z_dim=8>")
    assert recipe.commands[0] == "data.sh <download> <--langs> <en it>"
    assert "+ audiovae extract data/train" in (recipe.corpus / "log/extract.log").read_text()

    again = recipe.run("--nj", "1", "--langs", "en it", "data.max_seconds=9", "latent.z_dim=8")
    assert again.returncode == 0
    assert recipe.commands == []
    assert again.stderr.count("done before") == 8


@pytest.mark.parametrize(("ngpu", "kind"), [(1, "one_gpu"), (3, "multi_gpu")])
def test_gpus_go_through_accelerate(recipe: Recipe, ngpu: int, kind: str) -> None:
    assert recipe.run("--ngpu", str(ngpu)).returncode == 0
    train = next(line for line in recipe.commands if "<train>" in line)
    assert train.startswith("accelerate <launch>")
    assert f"/{kind}.yaml> <--num_processes> <{ngpu}> <-m> <audiovae> <train>" in train


def test_stages_by_name_and_number(recipe: Recipe) -> None:
    assert recipe.run("--stage", "download", "--stop_stage", "2").returncode == 0
    assert recipe.verbs == ["download", "prepare", "validate", "extract"]
    assert recipe.run("--stage=3", "--stop-stage=stats").returncode == 0
    assert recipe.verbs == ["stats"]


@pytest.mark.parametrize("stage", ["8", "-1", "trian", "", "1.5"])
def test_unknown_stages_are_refused(recipe: Recipe, stage: str) -> None:
    done = recipe.run(f"--stage={stage}")
    assert done.returncode == 2
    assert "download prepare extract" in done.stderr
    assert recipe.commands == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lang", "en"], "unknown option '--lang'; known: --corpus --stage"),
        (["--PATH=x"], "unknown option '--PATH'"),
        (["-j", "4"], "-j"),
        (["--nj"], "'--nj' needs a value"),
        (["--nj", "--stage", "1"], "'--nj' needs a value"),
        (["--nj", "many"], "--nj: found 'many'"),
        (["--tag", "../up"], "--tag: found '../up'"),
        (["--config", "none.yaml"], "no file 'none.yaml'"),
        (["--corpus", "none"], "--corpus: found 'none'"),
        (["train"], "unknown argument 'train'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    recipe: Recipe, options: list[str], said: str
) -> None:
    done = recipe.run(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert recipe.commands == []


def test_a_change_runs_what_depends_on_it(recipe: Recipe) -> None:
    recipe.run()
    recipe.config.write_text("train: {steps: 6}\n")
    recipe.run()
    assert recipe.verbs[0] == "extract" and "train" in recipe.verbs
    assert "download" not in recipe.verbs

    (recipe.corpus / "exp/mine/checkpoints/step-1/manifest.json").write_text("2\n")
    recipe.run()
    assert recipe.verbs == ["evaluate", "synthesize", "export"]

    (recipe.corpus / "dump/train/stats.json").unlink()
    recipe.run()
    assert recipe.verbs == ["stats"]


def test_a_failed_stage_stops_with_its_status_and_runs_again(recipe: Recipe) -> None:
    done = recipe.run(fail="evaluate")
    assert done.returncode == 3
    assert "stage evaluate stopped with status 3" in done.stderr
    assert "it broke" in (recipe.corpus / "log/evaluate.log").read_text()
    assert "synthesize" not in recipe.verbs
    assert recipe.run().returncode == 0
    assert recipe.verbs == ["evaluate", "synthesize", "export"]


def test_help_needs_nothing() -> None:
    done = subprocess.run([RECIPES / "vae.sh", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--stop_stage N" in done.stdout and "#" not in done.stdout
