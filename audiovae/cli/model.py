"""`audiovae train | evaluate | synthesize | export`: from features to a model and its audio."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from audiovae.cli.synthesize import synthesize
from audiovae.errors import DataDirError

_log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    app.command()(train)
    app.command()(evaluate)
    app.command()(synthesize)
    app.command()(export)


def train(
    dump: Annotated[Path, typer.Option(help="folder with the features of train and dev")],
    exp: Annotated[Path, typer.Option(help="folder of the run: exp/<tag>")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b=c]...", help="config overrides")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file; the defaults without")] = None,
    num_processes: Annotated[
        int,
        typer.Option(
            "--num_processes",
            min=1,
            help="processes, on CPU cores; for GPUs: accelerate launch -m audiovae",
        ),
    ] = 1,
) -> None:
    """Train a model, or go on where an interrupted run stopped."""
    from audiovae.config_file import load_config

    settings = load_config(config, overrides or [])
    if num_processes > 1:
        from audiovae.training.launch import launch

        options = ["--dump", str(dump), "--exp", str(exp)]
        options += ["--config", str(config)] if config else []
        launch(num_processes, ["train", *options, *(overrides or [])])
    else:
        from audiovae.training.loop import train as run

        run(settings, dump, exp)


def evaluate(
    exp_dir: Annotated[Path, typer.Argument(help="exp/<tag>, or a model folder")],
    dump: Annotated[Path, typer.Option(help="folder of the sets' features")],
    dataset: Annotated[str, typer.Option("--set", help="which set of it")] = "test",
    data: Annotated[
        Path | None, typer.Option(help="data dir with utt2lang, where the features have none")
    ] = None,
    vocoder: Annotated[str | None, typer.Option(help="instead of the config's")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="so many utterances, by the seed")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="EXP_DIR/eval/SET without")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of all draws")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the best without")] = None,
) -> None:
    """Measure a model on held-out utterances: metrics.json, utt.tsv, report.md, plots."""
    from rich.console import Console

    from audiovae.analysis.evaluation import evaluate as run
    from audiovae.analysis.report import tables
    from audiovae.cli.loading import (
        load_model,
        load_vocoder_for,
        model_folder,
        pick_device,
        run_folder,
    )
    from audiovae.data.archive import FeatureArchive

    if data is not None and not (data / "utt2lang").is_file():
        raise DataDirError(
            f"{data / 'utt2lang'}: no such file, wanted lines of utt_id and language"
        )
    where = pick_device(device)
    model = load_model(model_folder(exp_dir), where)
    test, train_set = FeatureArchive(dump / dataset), FeatureArchive(dump / "train")
    renderer = load_vocoder_for(model, vocoder, where)
    values = run(
        model, test, train_set, out or run_folder(exp_dir) / "eval" / dataset,
        vocoder=renderer, data_dir=data, seed=seed, limit=limit,
    )  # fmt: skip
    Console().print(*tables(values))


def export(
    exp_dir: Annotated[Path, typer.Argument(help="exp/<tag>, or a model folder")],
    out_dir: Annotated[Path, typer.Argument(help="new folder, ready for the Hugging Face hub")],
) -> None:
    """Write a model folder to keep or publish: config.json, model.safetensors, README.md."""
    from audiovae.cli.loading import model_folder
    from audiovae.export import export_model

    export_model(model_folder(exp_dir), out_dir, run_dir=exp_dir)
    _log.info("%s: AudioVAE.from_pretrained(%r)", out_dir, str(out_dir))
