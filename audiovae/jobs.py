"""What to render: the inputs of an operation, and one `Job` for each utterance it makes."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audiovae.data.archive import FeatureArchive
from audiovae.data.audio_io import read_audio
from audiovae.errors import ConfigError, DataDirError
from audiovae.features import log_mel
from audiovae.models.vae import AudioVAE
from audiovae.synthesis import (
    Codes,
    LatentChoice,
    Mode,
    Prior,
    encode,
    interpolate,
    item_seed,
    sample,
    transfer,
    traverse,
)

TRAVERSAL = 2.0  # z[dim] runs from minus to plus this, in standard deviations of its prior
_LONGEST_NAME = 200  # bytes; file systems stop at 255, temporary names and suffixes need some

Name = str | Path  # an utt_id of the dump, or a wav file


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an operation is told; each reads what it needs."""

    inputs: Sequence[Name] = ()
    voices: Sequence[Name] = ()  # of sample and transfer; several are averaged
    n: int | None = None  # outputs, steps or values; None is the operation's default
    seed: int = 0
    latent: LatentChoice = "mean"
    temperature: float = 1.0
    prior: Prior = "normal"
    mode: Mode = "morph"
    dim: int = 0
    max_seconds: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One utterance to decode, vocode and write."""

    name: str  # of the files, without suffix
    operation: str
    codes: Codes  # of one utterance
    inputs: Sequence[str] = ()  # utt_ids and wav files
    settings: Mapping[str, Any] = field(default_factory=dict)  # what sets it apart
    seed: int  # of the run
    from_prior: bool = False  # its u and length were drawn, not taken from an input


class Inputs:
    """Real utterances as latents: those of a dump by utt_id, any wav file by path.

    Raises:
        FeatureMismatchError: the dump has another mel contract than the model.
    """

    def __init__(self, model: AudioVAE, archive: FeatureArchive | None = None) -> None:
        self.model = model
        self.archive = archive
        if archive is not None:
            model.feature.require_same(archive.feature, "the model", str(archive.path))

    def mel(self, name: Name) -> np.ndarray:
        """Log-mel (T, n_mels) of one input.

        Raises:
            ConfigError: an utt_id without a dump.
            DataDirError: no such utterance or file, or one that cannot be used.
        """
        if isinstance(name, Path):
            feature = self.model.feature
            wave = read_audio(name, sample_rate=feature.sample_rate)
            try:
                return log_mel(wave, feature)
            except DataDirError as error:
                raise DataDirError(f"{name}: {error}") from error
        if self.archive is None:
            raise ConfigError(
                f"utt_id '{name}': in which dump? Give --dump and --set, or --wav FILE"
            )
        if name not in self.archive:
            close = difflib.get_close_matches(name, self.archive.utt_ids, n=1, cutoff=0.4)
            hint = f"did you mean '{close[0]}'?" if close else "its feats.scp lists those it has"
            raise DataDirError(f"{self.archive.path}: no utt_id '{name}'; {hint}")
        return self.archive[name]

    def codes(self, name: Name, request: Request) -> Codes:
        """Posterior latents of one input."""
        mel = torch.from_numpy(np.ascontiguousarray(self.mel(name)))[None]
        return encode(
            self.model,
            mel,
            torch.tensor([mel.shape[1]]),
            latent=request.latent,
            temperature=request.temperature,
            seeds=[item_seed(request.seed, label(name))],
        )

    def voice(self, request: Request) -> Codes | None:
        """Latents of all voice references together; None where there are none."""
        if not request.voices:
            return None
        return Codes.stack([self.codes(name, request) for name in request.voices])


def label(name: Name) -> str:
    """What stands for an input in file names."""
    return name.stem if isinstance(name, Path) else name


def file_name(*parts: str) -> str:
    """A file name without suffix from utt_ids and words: one to one, safe on any file system.

    ASCII letters, digits, - and _ stay; every other byte of UTF-8 becomes %XX; parts are joined by
    a dot. A name that would be too long ends in a hash instead.
    """
    name = ".".join(
        re.sub(rb"[^A-Za-z0-9_-]", lambda m: b"%%%02X" % m[0][0], part.encode("utf-8")).decode()
        for part in parts
    )
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def plan(operation: str, inputs: Inputs, request: Request) -> Iterator[Job]:
    """The jobs of an operation; inputs are read as their turn comes.

    Raises:
        ConfigError: an operation that is not known, or not enough inputs for it.
    """
    if operation not in PLANS:
        raise ConfigError(f"operation: found {operation!r}, wanted one of {', '.join(PLANS)}")
    return PLANS[operation](inputs, request)


def _reconstruct(inputs: Inputs, request: Request) -> Iterator[Job]:
    names = list(request.inputs)
    if not names and inputs.archive is not None:
        names = list(inputs.archive.utt_ids[: request.n])
    _require_inputs("reconstruct", names, 1)
    settings: dict[str, Any] = {"latent": request.latent}
    if request.latent == "sample":
        settings["temperature"] = request.temperature
    for name in names:
        yield Job(
            name=file_name(label(name), "reconstruct"),
            operation="reconstruct",
            codes=inputs.codes(name, request),
            inputs=[str(name)],
            settings=settings,
            seed=request.seed,
        )


def _sample(inputs: Inputs, request: Request) -> Iterator[Job]:
    voice = inputs.voice(request)
    for i in range(request.n or 8):
        codes = sample(
            inputs.model,
            1,
            prior=request.prior,
            temperature=request.temperature,
            voice=voice,
            max_seconds=request.max_seconds,
            seeds=[item_seed(request.seed, "sample", i)],
        )
        yield Job(
            name=file_name(*map(label, request.voices), "sample", f"{i:04d}"),
            operation="sample",
            codes=codes,
            inputs=[str(name) for name in request.voices],
            settings={
                "z": "voice" if voice is not None else request.prior,
                "temperature": request.temperature,
            },
            seed=request.seed,
            from_prior=True,
        )


def _interpolate(inputs: Inputs, request: Request) -> Iterator[Job]:
    _require_inputs("interpolate", request.inputs, 2, most=2)
    a, b = request.inputs
    steps = interpolate(
        inputs.model,
        inputs.codes(a, request),
        inputs.codes(b, request),
        request.n or 7,
        mode=request.mode,
        temperature=request.temperature,
        max_seconds=request.max_seconds,
    )
    for i in range(len(steps)):
        yield Job(
            name=file_name(label(a), label(b), "interpolate", request.mode, f"{i:02d}"),
            operation="interpolate",
            codes=steps[i],
            inputs=[str(a), str(b)],
            settings={"mode": request.mode, "weight": round(i / (len(steps) - 1), 6)},
            seed=request.seed,
            from_prior=request.mode == "shared_noise",
        )


def _transfer(inputs: Inputs, request: Request) -> Iterator[Job]:
    """Without voices the first input is the content, and the others are the voice."""
    _require_inputs("transfer", request.inputs, 1 if request.voices else 2)
    contents = request.inputs if request.voices else request.inputs[:1]
    voices = request.voices or request.inputs[1:]
    style = Codes.stack([inputs.codes(name, request) for name in voices])
    for name in contents:
        yield Job(
            name=file_name(label(name), "transfer", *map(label, voices)),
            operation="transfer",
            codes=transfer(inputs.codes(name, request), style),
            inputs=[str(name), *map(str, voices)],
            settings={"latent": request.latent},
            seed=request.seed,
        )


def _traverse(inputs: Inputs, request: Request) -> Iterator[Job]:
    _require_inputs("traverse", request.inputs, 1)
    values = np.linspace(-TRAVERSAL, TRAVERSAL, request.n or 5).tolist()
    for name in request.inputs:
        moved = traverse(inputs.codes(name, request), request.dim, values)
        for i, value in enumerate(values):
            yield Job(
                name=file_name(label(name), "traverse", f"z{request.dim:02d}", f"{i:02d}"),
                operation="traverse",
                codes=moved[i],
                inputs=[str(name)],
                settings={"dim": request.dim, "value": round(value, 6)},
                seed=request.seed,
            )


PLANS: dict[str, Callable[[Inputs, Request], Iterator[Job]]] = {
    "reconstruct": _reconstruct,
    "sample": _sample,
    "interpolate": _interpolate,
    "transfer": _transfer,
    "traverse": _traverse,
}


def _require_inputs(
    operation: str, found: Sequence[Name], least: int, most: int | None = None
) -> None:
    if len(found) < least or (most is not None and len(found) > most):
        raise ConfigError(
            f"{operation}: found {len(found)} inputs, wanted {least}{'' if most else ' or more'}: "
            f"--utt_id A of a --dump, or --wav FILE, once for each"
        )
