"""`audiovae validate | extract | stats`: from a data dir to features."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

_log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    app.command()(validate)
    app.command()(extract)
    app.command()(stats)


def validate(
    data_dir: Annotated[Path, typer.Argument(help="a Kaldi data dir: wav.scp, utt2spk, ...")],
    as_json: Annotated[bool, typer.Option("--json", help="problems as JSON on stdout")] = False,
) -> None:
    """List every problem of a data dir, with file and line."""
    from audiovae.data import kaldi_dir
    from audiovae.errors import DataDirError

    problems = kaldi_dir.validate(data_dir)
    if as_json:
        rows = [vars(problem) for problem in problems]
        sys.stdout.write(json.dumps({"dir": str(data_dir), "problems": rows}, indent=1) + "\n")
    if problems and as_json:
        raise typer.Exit(DataDirError.exit_code)
    kaldi_dir.raise_if(problems)
    if not as_json:
        data = kaldi_dir.DataDir.read(data_dir)
        _log.info(
            "%s: %d utterances, %d recordings, %d speakers, %d with text: no problems",
            data_dir, len(data.utt_ids), len(data.wav), len(set(data.utt2spk.values())),
            len(data.text),
        )  # fmt: skip


def extract(
    data_dir: Annotated[Path, typer.Argument(help="a Kaldi data dir")],
    dump_dir: Annotated[Path, typer.Argument(help="folder for the features, e.g. dump/train")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b=c]...", help="config overrides")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file; the defaults without")] = None,
    nj: Annotated[int | None, typer.Option(min=1, help="parallel jobs; all cores without")] = None,
) -> None:
    """Extract log-mel features, in parallel, resuming where an earlier run stopped."""
    import joblib
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from audiovae.config_file import load_config
    from audiovae.data.extract import extract as run
    from audiovae.data.kaldi_dir import DataDir

    resolved = load_config(config, overrides or [])
    data = DataDir.read(data_dir)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(f"extract {dump_dir}", total=len(data.utt_ids))
        report = run(
            data,
            dump_dir,
            resolved,
            nj=nj or joblib.cpu_count(),
            on_progress=lambda utterances: progress.advance(bar, utterances),
        )
    _log.info("%s: %s%s", dump_dir, report, " (reused)" if report.reused else "")
    if report.skipped:
        _log.info("the skipped, with reasons: %s", dump_dir / "skipped.tsv")


def stats(
    dump_dir: Annotated[Path, typer.Argument(help="features of the training set")],
) -> None:
    """Mean and deviation of the mel bins, into DUMP_DIR/stats.json."""
    from audiovae.data.archive import FeatureArchive
    from audiovae.data.stats import compute_stats

    result = compute_stats(FeatureArchive(dump_dir))
    result.save(dump_dir / "stats.json")
    _log.info(
        "%s: %d frames, mean %.3f, scale %.3f",
        dump_dir / "stats.json", result.num_frames, result.mean.mean(), result.scale,
    )  # fmt: skip
