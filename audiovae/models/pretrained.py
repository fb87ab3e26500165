"""Model folders: `config.json` and `model.safetensors`, on disk or on the Hugging Face hub."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from audiovae.config import Config
from audiovae.config_file import config_from_dict, config_to_dict
from audiovae.errors import CheckpointError, ConfigError
from audiovae.models.vae import AudioVAE

FORMAT = 2  # 2: the prior draws the length first
FILES = ("config.json", "model.safetensors")


def save(model: AudioVAE, folder: str | Path) -> None:
    """Write the folder; each file under a temporary name, then renamed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, "audiovae": config_to_dict(model.config)}, indent=2)
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    temporary = [folder / f".{name}.tmp-{os.getpid()}" for name in FILES]
    temporary[0].write_text(text + "\n", "utf-8")
    save_file(tensors, temporary[1])
    for source, name in zip(temporary, FILES, strict=True):
        source.replace(folder / name)


def load(
    source: str | Path, *, revision: str | None = None, device: str | torch.device = "cpu"
) -> AudioVAE:
    """The model of a folder or a hub id, rebuilt from its own config, strict, ready to use.

    Raises:
        CheckpointError: not found, another format, damaged, or keys and shapes that do not fit.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _download(str(source), revision)
    for name in FILES:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: no {name}; wanted a model folder with {FILES}")
    config = read_config(folder)
    try:
        tensors = load_file(folder / FILES[1], device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / FILES[1]}: damaged: {error}") from error
    model = AudioVAE(config)
    require_fit(model.state_dict(), tensors, folder / FILES[1])
    model.load_state_dict(tensors)
    return model.to(device).eval()


def push(model: AudioVAE, repo_id: str, *, revision: str | None = None) -> str:
    """Upload the model folder to the hub."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repo_id, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        info = api.upload_folder(repo_id=repo_id, folder_path=folder, revision=revision)
    return str(info.commit_url)


def read_config(folder: Path) -> Config:
    """The config that stands in a model folder.

    Raises:
        CheckpointError: not readable, of another format, or with wrong keys or values.
    """
    path = folder / FILES[0]
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from error
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise CheckpointError(
            f"{path}: format {found!r}, wanted {FORMAT}: made by another version of audiovae. "
            f"Use that version, or train again with another --exp"
        )
    try:
        return config_from_dict(values.get("audiovae"), str(path))
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def require_fit(
    wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor], path: Path
) -> None:
    """All faults at once: missing and extra keys, wrong shapes, values that are not finite."""
    faults = [f"missing {key}" for key in wanted.keys() - found.keys()]
    faults += [f"unknown {key}" for key in found.keys() - wanted.keys()]
    for key in sorted(wanted.keys() & found.keys()):
        if wanted[key].shape != found[key].shape:
            faults.append(f"{key}: {tuple(found[key].shape)}, wanted {tuple(wanted[key].shape)}")
        elif not bool(found[key].isfinite().all()):
            faults.append(f"{key}: not finite")
    if faults:
        raise CheckpointError(f"{path}: does not fit its config\n  " + "\n  ".join(sorted(faults)))


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    command = f"hf download {repo_id}" + (f" --revision {revision}" if revision else "")
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(FILES)))
    except HFValidationError as error:
        raise CheckpointError(f"{repo_id}: no such folder, and not a hub id") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{repo_id}: no such folder, and the hub (revision {revision or 'main'}, "
            f"files {FILES}) cannot be reached. Where it can, run: {command}"
        ) from error
