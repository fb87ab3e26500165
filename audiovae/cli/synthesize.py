"""`audiovae synthesize EXP OPERATION`: latents of real or drawn utterances, to wav files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from audiovae.errors import ConfigError

if TYPE_CHECKING:
    from audiovae.data.archive import FeatureArchive
    from audiovae.jobs import Name
    from audiovae.rendering import OutputFolder

_log = logging.getLogger(__name__)

# What each operation reads of the options that not all read; the others are refused, not ignored.
_READS = {
    "reconstruct": {"utt_id", "wav", "n", "latent", "temperature"},
    "sample": {"voice", "n", "prior", "latent", "temperature", "max_seconds"},
    "interpolate": {"utt_id", "wav", "n", "mode", "latent", "temperature", "max_seconds"},
    "transfer": {"utt_id", "wav", "voice", "latent", "temperature"},
    "traverse": {"utt_id", "wav", "n", "dim", "latent", "temperature"},
    "demo": {"n", "prior", "temperature", "max_seconds"},
}
_SOME_READ = set().union(*_READS.values())


def synthesize(
    context: typer.Context,
    exp_dir: Annotated[Path, typer.Argument(help="exp/<tag>, or a model folder")],
    operation: Annotated[
        Literal["reconstruct", "sample", "interpolate", "transfer", "traverse", "demo"],
        typer.Argument(help="what to make"),
    ],
    dump: Annotated[Path | None, typer.Option(help="folder of the sets' features")] = None,
    dataset: Annotated[str, typer.Option("--set", help="which set of it")] = "test",
    utt_id: Annotated[list[str] | None, typer.Option("--utt_id", help="input; repeatable")] = None,
    wav: Annotated[list[Path] | None, typer.Option(help="input file; repeatable")] = None,
    voice: Annotated[
        list[str] | None,
        typer.Option(help="voice of sample and transfer, utt_id or file; several are averaged"),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="outputs, steps or values")] = None,
    seed: Annotated[int, typer.Option(help="the same seed, the same bytes (CPU)")] = 0,
    latent: Annotated[
        Literal["mean", "sample"], typer.Option(help="centre of the posterior, or a draw")
    ] = "mean",
    temperature: Annotated[float, typer.Option(min=0, max=10, help="of every draw")] = 1.0,
    prior: Annotated[Literal["normal", "fitted"], typer.Option(help="of z")] = "normal",
    mode: Annotated[
        Literal["morph", "shared_noise", "hold"],
        typer.Option(help="words on the way: blend both, draw from the prior, keep the first"),
    ] = "morph",
    dim: Annotated[int, typer.Option(min=0, help="of z, to traverse")] = 0,
    max_seconds: Annotated[
        float, typer.Option("--max_seconds", min=0.1, max=3600, help="longest draw of the prior")
    ] = 20.0,
    tempo: Annotated[float, typer.Option(min=0.25, max=4, help="2 is twice as fast")] = 1.0,
    vocoder: Annotated[str | None, typer.Option(help="instead of the config's")] = None,
    float32: Annotated[bool, typer.Option("--float", help="float wav, nothing clipped")] = False,
    save_latents: Annotated[
        bool, typer.Option("--save_latents", help="z and u beside each wav, .npz")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="EXP_DIR/synth without")] = None,
    batch_size: Annotated[
        int, typer.Option("--batch_size", min=1, help="utterances at once; the CPU takes one")
    ] = 16,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the best without")] = None,
) -> None:
    """Make wav files and manifest.jsonl from latents of real or drawn utterances.

    Inputs are utterances of a set (--dump dump --set test --utt_id A) or files (--wav a.wav).
    interpolate goes from the first to the second. transfer says the words of the first in the voice
    of the others, or of --voice. reconstruct without inputs takes the whole set, or its first --n.
    demo makes all of them from a few utterances of the set, with plots and a page to listen.
    """
    _refuse_unread(context, operation)
    if operation in ("transfer", "interpolate") and utt_id and wav:
        raise ConfigError(
            f"{operation}: the order of inputs counts, and --utt_id and --wav have none between "
            f"them. Give inputs of one kind; transfer takes the other's voice by --voice"
        )
    from audiovae.cli.loading import (
        load_model,
        load_vocoder_for,
        model_folder,
        pick_device,
        run_folder,
    )
    from audiovae.data.archive import FeatureArchive
    from audiovae.jobs import Inputs, Request, plan
    from audiovae.rendering import OutputFolder, Renderer, read_origin

    archive = FeatureArchive(dump / dataset) if dump is not None else None
    request = Request(
        inputs=[*(utt_id or []), *(wav or [])],
        voices=[_utt_or_file(name, archive) for name in voice or []],
        n=n, seed=seed, latent=latent, temperature=temperature, prior=prior, mode=mode, dim=dim,
        max_seconds=max_seconds,
    )  # fmt: skip
    where = pick_device(device)
    weights = model_folder(exp_dir)
    model = load_model(weights, where)
    inputs = Inputs(model, archive)
    sounder = load_vocoder_for(model, vocoder, where)
    folder = OutputFolder(
        out or run_folder(exp_dir) / "synth",
        read_origin(weights, sounder.name, model.feature),
        float32=float32,
    )
    renderer = Renderer(
        model=model, vocoder=sounder, folder=folder, batch_size=batch_size, tempo=tempo,
        save_latents=save_latents,
    )  # fmt: skip
    try:
        if operation == "demo":
            from audiovae.analysis.demo import demonstrate

            _log.info("listen and look: %s", demonstrate(inputs, renderer, request))
        else:
            for _ in renderer.render(plan(operation, inputs, request)):
                pass
    finally:  # what is written stands in the manifest, however it ends
        folder.finish()
    _report(folder, max_seconds)


def _refuse_unread(context: typer.Context, operation: str) -> None:
    given = {
        name
        for name in (*_SOME_READ, "dataset")
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    }
    unread = sorted(given - _READS[operation] - {"dataset"})
    if unread:
        raise ConfigError(
            f"{operation} does not read {', '.join(f'--{name}' for name in unread)}; "
            f"it reads {', '.join(f'--{name}' for name in sorted(_READS[operation]))}"
        )
    values = context.params
    draws_u = operation in ("sample", "demo") or values["mode"] == "shared_noise"
    idle = {
        "set": "dataset" in given and values["dump"] is None and "is read with --dump only",
        "temperature": "temperature" in given and not draws_u and values["latent"] == "mean"
        and "is of draws, and nothing is drawn here: add --latent sample",
        "max_seconds": "max_seconds" in given and not draws_u
        and "is of draws from the prior: add --mode shared_noise",
        "n": "n" in given and operation == "reconstruct" and (values["utt_id"] or values["wav"])
        and "takes the first of a whole set: give no --utt_id and no --wav",
        "latent": "latent" in given and operation == "sample" and not values["voice"]
        and "is of the voice: add --voice",
        "prior": "prior" in given and bool(values["voice"])
        and "is where z comes from without --voice: give one of the two",
    }  # fmt: skip
    for name, fault in idle.items():
        if fault:
            raise ConfigError(f"{operation}: --{name} {fault}")


def _utt_or_file(name: str, archive: FeatureArchive | None) -> Name:
    if archive is not None and name in archive:
        return name
    if Path(name).is_file():
        return Path(name)
    if archive is None:
        raise ConfigError(f"--voice '{name}': no such file; an utt_id needs --dump and --set")
    return name


def _report(folder: OutputFolder, max_seconds: float) -> None:
    lines = folder.lines
    seconds = sum(line["seconds"] for line in lines)
    _log.info("%d files, %.1f s of audio, in %s", len(lines), seconds, folder.path)
    if clipping := folder.clipping_report():
        _log.warning(clipping)
    capped = [line["file"] for line in lines if line["stop_reason"] == "prior_cap"]
    if capped:
        _log.warning(
            "%d draws were cut at --max_seconds %g: %s", len(capped), max_seconds, ", ".join(capped)
        )
