"""audiovae: a sequence VAE with attention for speech and audio."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "AudioVAE": "audiovae.models.vae",
    "Config": "audiovae.config",
    "FeatureConfig": "audiovae.config",
    "LogMel": "audiovae.features",
    "load_config": "audiovae.config_file",
    "load_vocoder": "audiovae.vocoder",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `audiovae --help` and the data tools do not import torch.
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'audiovae' has no attribute {name!r}")
