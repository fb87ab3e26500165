"""Configuration files: load, merge, dump; all faults of a config in one message."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from audiovae.config import Config, FeatureConfig
from audiovae.errors import ConfigError


def load_config(path: str | Path | None = None, overrides: typing.Sequence[str] = ()) -> Config:
    """Defaults, then a YAML file, then `section.field=value` overrides.

    Raises:
        ConfigError: all faults of the file and the overrides together, each with its key.
    """
    where = str(path) if path is not None else "command line"
    try:
        layers = [] if path is None else [OmegaConf.create(read_yaml(Path(path)))]
        for override in overrides:
            if "=" not in override:
                raise ConfigError(f"{override!r}: wanted section.field=value")
        layers.append(OmegaConf.from_dotlist(list(overrides)))
        merged = OmegaConf.to_container(OmegaConf.merge(*layers), resolve=False)
    except (OmegaConfBaseException, yaml.YAMLError) as error:  # the latter: an override's value
        raise ConfigError(f"{where}: {error}") from error
    return config_from_dict(merged, where)


def config_from_dict(values: Any, where: str = "config") -> Config:
    """A Config from nested plain values; missing keys take their defaults.

    Raises:
        ConfigError: unknown keys (with "did you mean"), wrong types, wrong values, all at once.
    """
    faults: list[str] = []
    config = _build(Config, values, "", faults)
    if faults:
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in faults))
    return typing.cast(Config, config)


def feature_config_from_dict(values: Any, where: str) -> FeatureConfig:
    """A complete FeatureConfig from plain values: here a missing field is an error as well."""
    faults: list[str] = []
    if isinstance(values, dict):
        names = [f.name for f in dataclasses.fields(FeatureConfig)]
        faults += [f"{name}: missing" for name in names if name not in values]
    feature = _build(FeatureConfig, values, "", faults)
    if faults:
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in faults))
    return typing.cast(FeatureConfig, feature)


def config_to_dict(config: Any) -> dict[str, Any]:
    """Plain nested values, ready for YAML or JSON."""
    values = dataclasses.asdict(config)
    return typing.cast(dict[str, Any], json.loads(json.dumps(values)))


def find_conf(name: str) -> Path:
    """The file `conf/<name>`, from the installed package or from the repository.

    Raises:
        ConfigError: neither holds it.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"conf/{name}: no such file")


def dump_config(config: Config, path: str | Path) -> None:
    """Write the resolved config as YAML."""
    Path(path).write_text(yaml.safe_dump(config_to_dict(config), sort_keys=False), "utf-8")


class _UniqueKeyLoader(yaml.SafeLoader):
    """yaml.SafeLoader that refuses a key written twice, or one that is not a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is not a word")
            if key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Fields of a YAML file; nothing in it runs.

    Raises:
        ConfigError: no such file, not YAML, a key twice, or no fields.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        values = yaml.load(path.read_text("utf-8"), Loader=_UniqueKeyLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {type(values).__name__}, wanted sections with fields")
    return values


def _build(cls: Any, values: Any, prefix: str, faults: list[str]) -> Any:
    if values is None:
        values = {}
    if not isinstance(values, dict):
        faults.append(f"{prefix or 'config'}: found {values!r}, wanted fields")
        return None
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    arguments: dict[str, Any] = {}
    before = len(faults)
    for key, value in values.items():
        full = f"{prefix}{key}"
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f"did you mean '{prefix}{close[0]}'?" if close else f"known: {', '.join(names)}"
            faults.append(f"unknown key '{full}'; {hint}")
        elif dataclasses.is_dataclass(hints[key]):
            arguments[key] = _build(hints[key], value, f"{full}.", faults)
        else:
            try:
                arguments[key] = _convert(value, hints[key])
            except ValueError as error:
                faults.append(f"{full}: {error}")
    try:
        built = cls(
            **{
                k: v
                for k, v in arguments.items()
                if v is not None or k not in hints or not dataclasses.is_dataclass(hints[k])
            }
        )
    except ConfigError as error:
        faults.extend(str(error).split("\n"))
        return None
    return built if len(faults) == before else None


def _convert(value: Any, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        return _convert(value, next(o for o in options if o is not type(None)))
    if origin is Literal:
        options = typing.get_args(hint)
        # YAML reads an unquoted no as False and 10 as a number.
        text = (
            {False: "no", True: "yes"}.get(value, str(value))
            if not isinstance(value, str)
            else value
        )
        if text not in options:
            raise ValueError(f"found {value!r}, wanted one of {', '.join(options)}")
        return text
    if origin is tuple:
        parts = typing.get_args(hint)
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            raise ValueError(f"found {value!r}, wanted {len(parts)} values")
        return tuple(_convert(v, p) for v, p in zip(value, parts, strict=True))
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int and number and float(value).is_integer():
        return int(value)
    if hint is float:
        if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a word
            try:
                value = float(value)
            except ValueError:
                raise ValueError(f"found {value!r}, wanted a number") from None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ValueError(f"found {value!r}, wanted {getattr(hint, '__name__', hint)}")
