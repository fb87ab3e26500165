"""Render codes into files: safe names, wav and latents, and the manifest that lists them."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audiovae.config import FeatureConfig
from audiovae.data.atomic import atomic_path, write_text
from audiovae.data.audio_io import write_wav
from audiovae.errors import CheckpointError, ConfigError, DataDirError
from audiovae.jobs import Job
from audiovae.models.vae import AudioVAE
from audiovae.synthesis import Codes, decode, vocode
from audiovae.vocoder import Vocoder

_log = logging.getLogger(__name__)

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What made the outputs; the same on every manifest line of a run."""

    step: int | None  # of training; None where the model folder does not tell
    model_sha256: str  # of model.safetensors
    vocoder: str
    feature: FeatureConfig


@dataclass(frozen=True, kw_only=True)
class Output:
    """One utterance to write."""

    name: str  # file name without suffix; see jobs.file_name
    operation: str
    wave: np.ndarray  # (N,) float32
    frames: int  # mel frames
    inputs: Sequence[str] = ()  # utt_ids or wav files, in the operation's order
    settings: Mapping[str, Any] = field(default_factory=dict)  # what sets it apart
    seed: int | None = None
    stop_reason: str = "input"  # "input" its length came from; else "prior", or "prior_cap"
    latents: dict[str, np.ndarray] | None = None  # written as .npz
    by_model: bool = True  # False for real audio and its copy synthesis
    by_vocoder: bool = True  # False for real audio


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What became of a job: for plots."""

    job: Job
    line: dict[str, Any]  # of the manifest
    mel: np.ndarray  # (T, n_mels) natural log
    alignment: np.ndarray  # (L, K)


class OutputFolder:
    """A folder of outputs with one manifest line each.

    Rewriting a name replaces its files and its line; all others stay. Every file is written under
    a temporary name, then renamed, and the manifest last.
    """

    def __init__(self, path: str | Path, origin: Origin, *, float32: bool = False) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        read_manifest(self.path / MANIFEST)  # one that can't be read is told before any work
        self.origin = origin
        self.float32 = float32
        self.lines: list[dict[str, Any]] = []
        self._names: set[str] = set()

    def write(self, output: Output) -> dict[str, Any]:
        """Write wav (and npz); the manifest line it will have."""
        if output.name in self._names:
            raise ConfigError(
                f"{self.path / output.name}.wav: two outputs of this run have this name. "
                f"Rename an input, or run once for each with its own --out"
            )
        self._names.add(output.name)
        wav, npz = f"{output.name}.wav", f"{output.name}.npz"
        sample_rate = self.origin.feature.sample_rate
        beyond = write_wav(self.path / wav, output.wave, sample_rate, float32=self.float32)
        if output.latents is not None:
            _write_npz(self.path / npz, output.latents)
        line = {
            "file": wav,
            "operation": output.operation,
            "inputs": list(output.inputs),
            "settings": dict(output.settings),
            "seed": output.seed,
            "latents": npz if output.latents is not None else None,
            "seconds": round(len(output.wave) / sample_rate, 4),
            "frames": output.frames,
            "clipped_samples": 0 if self.float32 else beyond,
            "stop_reason": output.stop_reason,
            "model_step": self.origin.step if output.by_model else None,
            "model_sha256": self.origin.model_sha256 if output.by_model else None,
            "vocoder": self.origin.vocoder if output.by_vocoder else None,
            "feature_hash": self.origin.feature.hash,
        }
        self.lines.append(line)
        _log.info("%s: %.2f s", self.path / wav, line["seconds"])
        return line

    def finish(self) -> Path:
        """Write the manifest: the new lines, and those of older outputs not written again."""
        path = self.path / MANIFEST
        written = {line["file"] for line in self.lines}
        kept = [line for line in read_manifest(path) if line["file"] not in written]
        text = "".join(
            json.dumps(line, ensure_ascii=False) + "\n"
            for line in sorted(kept + self.lines, key=lambda line: line["file"])
        )
        write_text(path, text)
        return path

    def clipping_report(self) -> str | None:
        """One sentence on clipped samples, or None where there were none."""
        clipped = [line for line in self.lines if line["clipped_samples"]]
        if not clipped:
            return None
        worst = max(clipped, key=lambda line: line["clipped_samples"])
        total = sum(line["clipped_samples"] for line in clipped)
        return (
            f"{total} samples in {len(clipped)} files were beyond full scale and are clipped, most "
            f"in {worst['file']} ({worst['clipped_samples']}). To keep them: --float"
        )


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Codes into files: decode, vocode, write."""

    model: AudioVAE
    vocoder: Vocoder
    folder: OutputFolder
    batch_size: int = 16  # utterances at once, on an accelerator
    tempo: float = 1.0
    save_latents: bool = False

    def render(self, jobs: Iterable[Job]) -> Iterator[Rendered]:
        """Make jobs as they come; call `folder.finish()` after the last.

        On the CPU they go one by one whatever the batch size: a batch is hardly faster there, as
        vocoding takes most of the time, and the bytes then do not depend on the neighbours.
        """
        size = 1 if self.model.device.type == "cpu" else self.batch_size
        for group in _groups(jobs, size):
            codes = Codes.stack([job.codes for job in group])
            decoded = decode(self.model, codes, tempo=self.tempo)
            waves = vocode(self.vocoder, decoded.mel, decoded.lengths)
            for i, (job, wave) in enumerate(zip(group, waves, strict=True)):
                frames, steps = int(decoded.lengths[i]), int(decoded.align_lengths[i])
                slots = int(job.codes.u_lengths[0])
                line = self.folder.write(_output(job, wave, frames, self.save_latents))
                yield Rendered(
                    job=job,
                    line=line,
                    mel=decoded.mel[i, :frames].float().cpu().numpy(),
                    alignment=decoded.alignment[i, :steps, :slots].float().cpu().numpy(),
                )


def _output(job: Job, wave: np.ndarray, frames: int, save_latents: bool) -> Output:
    capped = bool(job.codes.hit_cap[0])
    z, u = job.codes.z[0].float().cpu().numpy(), job.codes.u[0].float().cpu().numpy()
    return Output(
        name=job.name,
        operation=job.operation,
        wave=wave,
        frames=frames,
        inputs=job.inputs,
        settings=job.settings,
        seed=job.seed,
        stop_reason="prior_cap" if capped else "prior" if job.from_prior else "input",
        latents={"z": z, "u": u} if save_latents else None,
    )


def _groups(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    iterator = iter(jobs)
    while group := list(itertools.islice(iterator, size)):
        yield group


def read_manifest(path: str | Path) -> list[dict[str, Any]]:
    """All lines of a manifest; none where there is no file.

    Raises:
        DataDirError: a line that is not a JSON object with a file name.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = json.loads(text.decode("utf-8"))
            if not isinstance(line["file"], str):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            shown = text[:40].decode("utf-8", errors="replace")
            raise DataDirError(
                f"{path}:{number}: found {shown!r}, wanted a JSON object with 'file'. "
                f"Remove the file (the wavs stay), or give another --out"
            ) from None
        lines.append(line)
    return lines


def read_origin(model_dir: Path, vocoder: str, feature: FeatureConfig) -> Origin:
    """Origin of outputs made with the model in a folder.

    Raises:
        CheckpointError: its manifest is damaged.
    """
    manifest = model_dir / "manifest.json"  # of a checkpoint; an exported model has none
    try:
        step = json.loads(manifest.read_text("utf-8"))["step"] if manifest.is_file() else None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{manifest}: damaged: {error!r}; use another checkpoint") from error
    with (model_dir / "model.safetensors").open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return Origin(step=step, model_sha256=sha256, vocoder=vocoder, feature=feature)


def _write_npz(path: Path, latents: Mapping[str, np.ndarray]) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, z=latents["z"], u=latents["u"])
