"""Checkpoints: a folder of safetensors and JSON that is whole, or is not there.

`checkpoints/step-00001000/` holds a model folder (config.json, model.safetensors) and what
training needs besides. It is written as `step-00001000.tmp-<pid>`, the manifest with a sha256 of
each file last, then renamed. Older ones are removed only then. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from audiovae.config import Config
from audiovae.errors import CheckpointError
from audiovae.models import pretrained
from audiovae.models.vae import AudioVAE
from audiovae.training.losses import Objective

_log = logging.getLogger(__name__)
FORMAT = 2
# Settings that no tensor shows, and that change what the tensors mean.
_FIXED = ("encoder.heads", "latent.u_stride", "latent.instance_norm", "latent.u_std_floor",
          "decoder.rate_bias")  # fmt: skip
_NAME = re.compile(r"step-(\d{8,})(\.old)?")


@dataclass
class Progress:
    """Where training stands; the order of the data and all noise follow from it."""

    step: int = 0  # optimizer steps done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done
    seconds: float = 0.0  # of training, over all runs
    best: float = float("inf")  # least -ELBO per frame on dev


def save(
    folder: Path, progress: Progress, model: AudioVAE, objective: Objective,
    optimizer: torch.optim.Optimizer, keep: int,
) -> Path:  # fmt: skip
    """Write the checkpoint of a step and remove all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{progress.step:08d}"
    temporary = folder / f"{final.name}.tmp-{os.getpid()}"
    for left in folder.glob("step-*.tmp-*"):  # of runs that were killed while saving
        shutil.rmtree(left)
    temporary.mkdir()
    pretrained.save(model, temporary)
    save_file(_optimizer_tensors(optimizer), temporary / "optimizer.safetensors")
    save_file(_tensors(objective), temporary / "objective.safetensors")
    state = {"progress": asdict(progress), "multipliers": objective.multipliers()}
    _write_json(temporary / "state.json", state)
    files = {path.name: _fingerprint(path) for path in sorted(temporary.iterdir())}
    _write_json(
        temporary / "manifest.json",
        {"format": FORMAT, "step": progress.step, "mel": model.feature.hash, "files": files},
    )
    for path in (*temporary.iterdir(), temporary):
        _sync(path)
    aside = final.with_name(f"{final.name}.old")  # still loads, if this is cut off here
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    _sync(folder)
    shutil.rmtree(aside, ignore_errors=True)
    known = _all(folder)
    newer = known[: known.index(final)]  # passed over when this run went on from an older one
    older = known[known.index(final) + 1 :]
    for path in (*(p for p in newer if _fault(p)), *older[max(0, keep - 1) :]):
        shutil.rmtree(path)
    return final


def load(
    folder: Path, model: AudioVAE, objective: Objective, optimizer: torch.optim.Optimizer
) -> Progress:
    """Restore a verified checkpoint into model, objective and optimizer.

    Raises:
        CheckpointError: keys or shapes that are not those of the config; nothing is changed then.
        FeatureMismatchError: made from features of another mel contract.
    """
    made = pretrained.read_config(folder)
    model.feature.require_same(made.feature, "the config", str(folder))
    try:
        found = load_file(folder / "model.safetensors")
        objective_tensors = load_file(folder / "objective.safetensors")
        optimizer_tensors = load_file(folder / "optimizer.safetensors")
        state = json.loads((folder / "state.json").read_text("utf-8"))
        progress, multipliers = Progress(**state["progress"]), state["multipliers"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: damaged: {error}") from error
    try:
        _require_same_function(model.config, made, folder)
        pretrained.require_fit(model.state_dict(), found, folder / "model.safetensors")
        pretrained.require_fit(
            objective.state_dict(), objective_tensors, folder / "objective.safetensors"
        )
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}\nIf this run was begun with another config ({folder / 'config.json'} holds "
            f"it): give that one, or another --exp (--tag in a recipe) for a new run"
        ) from error
    model.load_state_dict(found)
    objective.load_state_dict(objective_tensors)
    objective.load_multipliers(multipliers)
    _load_optimizer(optimizer, optimizer_tensors)
    return progress


def latest(folder: Path) -> Path | None:
    """The newest checkpoint whose manifest verifies; those passed over are named in the log."""
    for path in _all(folder):
        fault = _fault(path)
        if fault is None:
            return path
        _log.warning("%s: passed over: %s", path, fault)
    return None


def latest_model(exp_dir: str | Path) -> Path:
    """The newest verified checkpoint of a run, a folder for `AudioVAE.from_pretrained`.

    Raises:
        CheckpointError: there is none.
    """
    folder = Path(exp_dir) / "checkpoints"
    found = latest(folder)
    if found is None:
        raise CheckpointError(
            f"{folder}: no checkpoint that verifies. "
            f"Train first: audiovae train --config F --dump DIR --exp {exp_dir}"
        )
    return found


def _all(folder: Path) -> list[Path]:
    """Checkpoints by step, newest first, without those that were never finished."""
    paths = [p for p in folder.glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(
        paths, key=lambda p: (int(p.name.split("-")[1].split(".")[0]), p.suffix == ""), reverse=True
    )


def require_sound(path: Path) -> None:
    """Refuse a checkpoint folder that does not verify; other model folders have no manifest."""
    if (path / "manifest.json").is_file() and (fault := _fault(path)):
        raise CheckpointError(f"{path}: {fault}. Give the run's folder to use the newest sound one")


def _require_same_function(config: Config, made: Config, folder: Path) -> None:
    differing = []
    for name in _FIXED:
        section, field = name.split(".")
        wanted, found = (getattr(getattr(c, section), field) for c in (config, made))
        if wanted != found:
            differing.append(f"{name}: the checkpoint has {found}, the config {wanted}")
    if differing:
        raise CheckpointError(f"{folder}: does not fit its config\n  " + "\n  ".join(differing))


def _fault(path: Path) -> str | None:
    try:
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']!r}, wanted {FORMAT}: made by another audiovae"
        for name, wanted in manifest["files"].items():
            if Path(name).name != name or not (path / name).is_file():
                return f"{name} is missing"
            if _fingerprint(path / name) != wanted:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json: {error!r}"
    return None


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of each parameter by its number and name: `12.exp_avg`."""
    return {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
