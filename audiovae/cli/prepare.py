"""`audiovae prepare`: from a folder of audio to data dirs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from audiovae.data.split import DEV, TEST

if TYPE_CHECKING:
    from rich.table import Table

    from audiovae.data.corpus_report import CorpusReport

_log = logging.getLogger(__name__)
_CHANNELS = {"1": "mono", "2": "stereo"}
_MOST_ROWS = 20  # speakers in the table; the rest are in prepare.json


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""
    app.command()(prepare)


def prepare(
    folder: Annotated[Path, typer.Argument(help="audio: wav flac ogg opus mp3 m4a aac, any depth")],
    data_dir: Annotated[Path, typer.Argument(help="folder to make, e.g. data")],
    speaker_regex: Annotated[
        str | None,
        typer.Option("--speaker_regex", help="its group is the speaker; the folder's path without"),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="metadata.csv or Kaldi text; looked for without")
    ] = None,
    split: Annotated[
        Literal["utterance", "speaker"], typer.Option(help="what is not in two sets")
    ] = "utterance",
    test: Annotated[
        int, typer.Option(help="per mille for the test set, by hash; 0 for none")
    ] = TEST,
    dev: Annotated[int, typer.Option(help="per mille for the dev set, by hash; 0 for none")] = DEV,
    min_seconds: Annotated[
        float | None,
        typer.Option("--min_seconds", min=0, help="skip shorter files; data.min_seconds without"),
    ] = None,
    nj: Annotated[int | None, typer.Option(min=1, help="parallel jobs; all cores without")] = None,
) -> None:
    """Make DATA_DIR/{train,dev,test} of a folder of audio, and say what is in it."""
    import joblib
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from audiovae.config import DataConfig
    from audiovae.data.prepare import prepare as run

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("prepare", total=None, visible=False)
        report = run(
            folder,
            data_dir,
            speaker_regex=speaker_regex,
            text=text,
            split=split,
            test=test,
            dev=dev,
            min_seconds=DataConfig.min_seconds if min_seconds is None else min_seconds,
            nj=nj or joblib.cpu_count(),
            on_progress=lambda done, total: progress.update(
                bar, completed=done, total=total, visible=True
            ),
        )
    console.print(_sets_and_speakers(report))
    console.print(_findings(report))
    _log.info(
        "%s: %d audio files in = %d out + %d skipped; all figures: %s",
        data_dir, report.num_in, len(report.utterances), len(report.skipped),
        data_dir / "prepare.json",
    )  # fmt: skip
    if report.skipped:
        _log.info("the skipped, with reasons: %s", data_dir / "skipped.tsv")


def _sets_and_speakers(report: CorpusReport) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "utterances", "speakers", "hours", "with text")
    for column in table.columns[1:]:
        column.justify = "right"
    speakers = list(report.speakers.items())
    rows = [*report.parts.items(), ("all", report.total), *speakers[:_MOST_ROWS]]
    last_of_sets = len(report.parts)
    for number, (name, total) in enumerate(rows):
        is_speaker = number > last_of_sets
        table.add_row(
            escape(name),
            str(total.utterances),
            "" if is_speaker else str(total.speakers),
            f"{total.seconds / 3600:.3f}",
            str(total.with_text),
            end_section=number == last_of_sets,
        )
    if (rest := len(speakers) - _MOST_ROWS) > 0:
        table.caption = f"and {rest} more speakers: prepare.json"
    return table


def _findings(report: CorpusReport) -> Table:
    from rich.markup import escape
    from rich.table import Table

    def counts(values: dict[str, int], unit: str = "") -> str:
        return ", ".join(f"{name}{unit}: {n}" for name, n in values.items()) or "none"

    loudest = max(report.utterances.items(), key=lambda item: item[1].levels.peak)
    clipped = report.clipped
    text = counts(report.text_sources)
    if report.text_unmatched:
        text += f"; {len(report.text_unmatched)} lines without audio ({report.text_unmatched[0]})"
    worst = max(clipped, key=lambda utt_id: clipped[utt_id], default="")
    rows = {
        "sample rates": counts(report.count("sample_rate"), " Hz"),
        "channels": counts({_CHANNELS.get(c, c): n for c, n in report.count("channels").items()}),
        "formats": counts(report.count("suffix")),
        "highest peak": f"{loudest[1].levels.peak:.3f} ({loudest[0]})",
        "clipped": f"{len(clipped)}, worst: {worst}" if clipped else "none",
        "transcripts": text,
        "skipped": counts(report.skipped_kinds),
        "other files": counts({suffix or "no suffix": n for suffix, n in report.others.items()}),
    }
    table = Table("found", "files", show_lines=False)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table
