"""The command line: quick to start, and faults end in one message and their exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

VERBS = (
    "prepare", "validate", "extract", "stats", "train", "evaluate", "synthesize", "export",
)  # fmt: skip


def audiovae(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "audiovae", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_help_lists_the_verbs_and_loads_no_torch() -> None:
    script = (
        "import sys, typer.testing\n"
        "from audiovae.cli.main import app\n"
        "result = typer.testing.CliRunner().invoke(app, ['--help'])\n"
        "heavy = {'torch', 'librosa', 'matplotlib', 'scipy', 'accelerate'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert result.exit_code == 0\n"
        "sys.stdout.write(result.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f" {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself(verb: str) -> None:
    from typer.testing import CliRunner

    from audiovae.cli.main import app

    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize(
    ("status", "arguments", "said"),
    [
        (2, ["nosuchverb"], "nosuchverb"),
        (2, ["validate", "--nosuchoption", "x"], "nosuchoption"),
        (2, ["extract", "data", "dump", "--config", "none.yaml"], "none.yaml"),
        (2, ["extract", "data", "dump", "latent.zdim=3"], "did you mean 'latent.z_dim'"),
        (3, ["prepare", "audio", "data"], "audio: no such folder"),
        (2, ["prepare", ".", "data", "--speaker_regex", "p[0-9]+"], "wanted one"),
        (3, ["validate", "data"], "data"),
        (3, ["extract", "data", "dump"], "data"),
        (3, ["stats", "dump"], "dump"),
        (4, ["export", "exp/none", "out"], "exp/none"),
        (4, ["synthesize", "exp/none", "sample"], "exp/none"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_faults_end_in_one_message(
    status: int, arguments: list[str], said: str, tmp_path: Path
) -> None:
    done = audiovae(*arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.wav"))


@pytest.mark.parametrize("fault", [PermissionError(13, "denied", "exp/a"), MemoryError()], ids=str)
def test_disk_and_memory_end_with_status_5(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from audiovae.cli import main

    def fail() -> None:
        raise fault

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as end:
        main.run()
    assert end.value.code == 5
    said = capsys.readouterr().err
    assert said.startswith("audiovae: ") and (str(fault) or "out of memory") in said


def test_public_names_are_there() -> None:
    import audiovae

    assert all(getattr(audiovae, name) is not None for name in audiovae.__all__)
    with pytest.raises(AttributeError, match="nosuchname"):
        _ = audiovae.nosuchname
