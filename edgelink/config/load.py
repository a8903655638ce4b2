"""Read the configuration file and the ``EDGELINK_…`` environment into a :class:`Config`.

Environment variables win over the file: ``EDGELINK_RAY__PORT=6380`` is ``ray.port``. All mistakes are reported at
once, each with the path of its key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from edgelink.config.models import Config
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.errors import ConfigError

_ENV_PREFIX = "EDGELINK_"
_SECTIONS = frozenset(Config.model_fields)


def load_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration of this node.

    Args:
        path: the file; default ``EDGELINK_CONFIG``, then ``/etc/edgelink/edgelink.yaml``, which may be absent.

    Raises:
        ConfigError: a named file that is missing, is not YAML, or holds unknown or unusable keys.
    """
    environ = os.environ if environ is None else environ
    named = path or (Path(environ["EDGELINK_CONFIG"]) if environ.get("EDGELINK_CONFIG") else None)
    source = named or DEFAULT_CONFIG_FILE
    values = _read_yaml(source) if named or source.exists() else {}
    _apply_environment(values, environ)
    return _validated(values, str(source))


def override(config: Config, flags: Mapping[str, Mapping[str, Any]]) -> Config:
    """``config`` with the sections' keys that were given as flags; None and empty mean not given.

    Raises:
        ConfigError: an unusable value.
    """
    values = config.model_dump()
    for section, keys in flags.items():
        values[section] |= {key: value for key, value in keys.items() if value not in (None, (), "")}
    return _validated(values, "command line")


def _validated(values: dict[str, Any], source: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            f"{source}: " + "; ".join(_describe(item) for item in error.errors()),
            hint="docs/reference/config.md lists every key",
        ) from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: the top level must be a mapping, not {type(values).__name__}")
    return {key: value for key, value in values.items() if value is not None}  # a heading with nothing below it


def _apply_environment(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, text in environ.items():
        if not name.startswith(_ENV_PREFIX):
            continue
        keys = name.removeprefix(_ENV_PREFIX).lower().split("__")
        if keys[0] not in _SECTIONS:
            continue  # EDGELINK_CONFIG, EDGELINK_TOKEN_FILE and what the driver gets are not configuration keys
        section = values
        for key in keys[:-1]:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{name}: {key} is not a section", hint="docs/reference/config.md lists every key")
        try:
            section[keys[-1]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{name}: is not a YAML value: {text!r}", hint="put it in quotes") from error


def _describe(item: Any) -> str:
    key_path = ".".join(str(part) for part in item["loc"]) or "(top level)"
    if item["type"] == "extra_forbidden":
        return f"{key_path}: unknown key"
    return f"{key_path}: {item['msg']} (got {item['input']!r})"
