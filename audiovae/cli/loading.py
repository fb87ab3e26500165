"""What the verbs that use a trained model load, and check before any work is done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from audiovae.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from audiovae.models.vae import AudioVAE
    from audiovae.vocoder import Vocoder


def model_folder(path: Path) -> Path:
    """The folder that holds the weights: `path` itself, or the newest checkpoint of a run.

    Raises:
        CheckpointError: no such folder, or no model in it.
    """
    if (path / "config.json").is_file() and (path / "model.safetensors").is_file():
        from audiovae.training.checkpoint import require_sound

        require_sound(path)
        return path
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such folder, wanted exp/<tag> or a model folder. "
            f"Train one: audiovae train --config F --dump DIR --exp {path}"
        )
    from audiovae.training.checkpoint import latest_model

    return latest_model(path)


def run_folder(path: Path) -> Path:
    """Where outputs go by default: the run's folder, not a checkpoint, which is removed in time."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def pick_device(name: str | None) -> torch.device:
    """The device asked for; without a name the accelerator where there is one, else the CPU.

    Raises:
        ConfigError: a name that torch does not know, or a device that is not here.
    """
    import torch

    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device {name}: {reason}. Wanted cpu or a device of this machine"
        ) from None
    return device


def load_model(folder: Path, device: torch.device) -> AudioVAE:
    """The model of a folder, ready for inference."""
    from audiovae.models.vae import AudioVAE

    return AudioVAE.from_pretrained(folder, device=device).eval()


def load_vocoder_for(model: AudioVAE, spec: str | None, device: torch.device) -> Vocoder:
    """The vocoder asked for, or the one of the model's config; its mel contract is the model's.

    Raises:
        VocoderError: weights that are missing or damaged.
        FeatureMismatchError: the two contracts differ.
    """
    from audiovae.vocoder import load_vocoder

    spec = spec or model.config.vocoder.name
    return load_vocoder(spec, device, feature=model.feature).eval()
