"""A trained model as a folder to keep or publish: config.json, model.safetensors, README.md."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from audiovae.analysis.report import markdown
from audiovae.config_file import config_to_dict
from audiovae.data.atomic import write_text
from audiovae.errors import ConfigError, DataDirError
from audiovae.models.vae import AudioVAE
from audiovae.rendering import Origin, read_origin

_FILES = ("config.json", "model.safetensors", "README.md")

_CARD = """\
---
license: apache-2.0
library_name: audiovae
pipeline_tag: audio-to-audio
tags: [audio, speech, vae]
---
# {name}

A sequence VAE with attention for speech and audio. An utterance becomes a vector z (its voice and
manner, {z_dim} numbers) and a sequence u (what is said, {rate:.1f} vectors of {u_dim} a second).
New ones are drawn from p(z) p(K) p(u | K, z), K the length; real ones are rebuilt, blended or
revoiced.

```python
from audiovae import AudioVAE, load_vocoder
from audiovae.synthesis import decode, sample, vocode

model = AudioVAE.from_pretrained("{name}")
decoded = decode(model, sample(model, 4, seeds=1))
waves = vocode(load_vocoder("{vocoder}"), decoded.mel, decoded.lengths)
```

From a shell: `audiovae synthesize {name} sample --n 4 --out samples`

## Model
{parameters:,} parameters, {training}; sha256 of model.safetensors `{sha256}`.

## Features
The mel contract, hash `{hash}`. A vocoder must have the same.

| field | value |
|---|---|
{feature}

## Figures
{figures}
## Limits
It knows the voices, language and recording conditions of its corpus. The licence above is of this
folder; the corpus has its own. Draws from the prior sound like speech but say nothing. Ask people
before you imitate their voices.
"""


def export_model(model_dir: Path, out_dir: Path, *, run_dir: Path | None = None) -> None:
    """Check a model folder by loading it, and write it with a model card.

    Args:
        model_dir: holds config.json and model.safetensors.
        out_dir: made, or one of an earlier export, whose files are replaced.
        run_dir: exp/<tag>, for the figures of its evaluations.

    Raises:
        CheckpointError: the model cannot be loaded.
        ConfigError: out_dir holds other files.
    """
    others = [p.name for p in out_dir.iterdir() if p.name not in _FILES] if out_dir.exists() else []
    if others:
        raise ConfigError(f"{out_dir}: holds {sorted(others)[0]}; wanted a new or exported folder")
    model = AudioVAE.from_pretrained(model_dir)
    origin = read_origin(model_dir, model.config.vocoder.name, model.feature)
    card = model_card(model, out_dir.resolve().name, origin, _figures(run_dir))
    out_dir.mkdir(parents=True, exist_ok=True)
    # In the folder above, so that the renames stay on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}.", dir=out_dir.parent) as temporary:
        model.save_pretrained(temporary)
        for file in ("model.safetensors", "config.json"):
            (Path(temporary) / file).replace(out_dir / file)
    write_text(out_dir / "README.md", card)


def model_card(model: AudioVAE, name: str, origin: Origin, figures: str) -> str:
    """The README.md of a model folder, with the front matter the Hugging Face hub reads."""
    config = model.config
    fields = config_to_dict(config.feature)
    return _CARD.format(
        name=name,
        z_dim=config.latent.z_dim,
        u_dim=config.latent.u_dim,
        rate=config.feature.frame_rate / config.frames_per_slot,
        vocoder=config.vocoder.name,
        parameters=sum(p.numel() for p in model.parameters()),
        training="steps unknown" if origin.step is None else f"trained for {origin.step} steps",
        sha256=origin.model_sha256,
        hash=config.feature.hash,
        feature="\n".join(f"| {key} | {value} |" for key, value in fields.items()),
        figures=figures,
    )


def _figures(run_dir: Path | None) -> str:
    """The tables of a run's evaluations, by set."""
    files = sorted(run_dir.glob("eval/*/metrics.json")) if run_dir is not None else []
    parts = []
    for file in files:
        try:
            parts.append(f"### {file.parent.name}\n{markdown(json.loads(file.read_text('utf-8')))}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataDirError(
                f"{file}: damaged: {error!r}. Make it again: audiovae evaluate {run_dir} --dump DIR"
            ) from error
    return "\n".join(parts) or "Not evaluated.\n"
