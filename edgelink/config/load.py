"""Read the configuration file and the ``EDGELINK_…`` environment into a :class:`Config`.

Environment variables win over the file: ``EDGELINK_RAY__PORT=6380`` is ``ray.port``. All mistakes are reported at
once, each with the file or variable that it stands in and the path of its key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from edgelink.config.mistakes import EXPLAINED, describe, key_of
from edgelink.config.models import Config, switch_in_full
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.errors import ConfigError
from edgelink.strict_yaml import Place, lines_of_keys, parse
from edgelink.yaml_mistakes import YamlMistakeError, colon_missing, key_without_colon

_ENV_PREFIX = "EDGELINK_"
_IN_ONE = "set all of them at once: EDGELINK_RAY__ENVIRONMENT='{ROS_DOMAIN_ID: \"7\", MUJOCO_GL: egl}'"
_SECTIONS = frozenset(Config.model_fields)

Variables = Mapping[tuple[str, ...], str]  # by the path of a key, the name of the variable that it came from


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
    written = _read_yaml(source, may_be_absent=named is None)
    values, text = written or ({}, "")
    variables = _apply_environment(values, environ)
    return _validated(values, None if written is None else str(source), variables, text)


def override(config: Config, flags: Mapping[str, Mapping[str, Any]]) -> Config:
    """``config`` with the sections' keys that were given as flags; None and empty mean not given.

    Raises:
        ConfigError: an unusable value.
    """
    values = config.model_dump()
    for section, keys in flags.items():
        values[section] |= {key: value for key, value in keys.items() if value not in (None, (), "")}
    return _validated(values, "command line")


def _validated(
    values: dict[str, Any],
    source: str | None,
    variables: Variables | None = None,
    text: str = "",
) -> Config:
    """Return ``values`` as the models have them.

    Args:
        source: where the values come from that no variable set.
        text: of ``source``, where it is a file.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        found: list[tuple[int, str, Place, str]] = []
        lines = lines_of_keys(text)
        for item in error.errors():
            key = key_of(item["loc"], values)
            where = _source_of(key, source, variables or {})
            line = line_of(key, lines) if where == source else None
            at = "" if line is None else f"line {line}: "
            found.append((line or 0, where, key, at + describe(item, key)))
        mistakes: dict[str, dict[Place, str]] = {}
        for _, where, key, told_of in sorted(found, key=itemgetter(0)):
            mistakes.setdefault(where, {}).setdefault(key, told_of)
        message = "; ".join(f"{where}: {'; '.join(told.values())}" for where, told in mistakes.items())
        raise ConfigError(message, hint=EXPLAINED) from error


def line_of(key: Place, lines: Mapping[Place, int]) -> int | None:
    """The line of ``key``, or of what it belongs to."""
    return next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), None)


def _source_of(place: Place, source: str | None, variables: Variables) -> str:
    """Where to mend the mistake at ``place``. It may be one of several keys that do not go together."""
    keys = tuple(str(part) for part in place)
    for length in range(len(keys), 0, -1):
        if keys[:length] in variables:
            return variables[keys[:length]]
    below = [name for path, name in variables.items() if path[: len(keys)] == keys]
    return ", ".join(([] if source is None else [source]) + below)


def _read_yaml(path: Path, *, may_be_absent: bool) -> tuple[dict[str, Any], str] | None:
    """Return what the file says, and its text. None: there is no such file, and there need be none."""
    try:
        text = path.read_text()
    except OSError as error:
        if may_be_absent and isinstance(error, FileNotFoundError):
            return None
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}",
            hint="correct --config or EDGELINK_CONFIG, or let this user read the file",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text", hint="save it as UTF-8") from error
    try:
        values = parse(text)
        if isinstance(values, str) and (found := key_without_colon(text.strip())):
            raise colon_missing(1, *found)
    except YamlMistakeError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error
    if values is None:
        return {}, text
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: has no keys", hint=f"begin each line with a key and a colon. {EXPLAINED}")
    # A heading with nothing below it says nothing.
    return {key: value for key, value in values.items() if value is not None}, text


def _parsed(text: str, source: str) -> Any:
    try:
        return parse(text)
    except YamlMistakeError as error:
        raise ConfigError(f"{source}: {error}", hint=error.hint) from error


def _apply_environment(values: dict[str, Any], environ: Mapping[str, str]) -> Variables:
    """Put what the variables say into ``values``; returns which key came from which."""
    variables: dict[tuple[str, ...], str] = {}
    for name in sorted(environ, key=len):  # a section's own variable before those of its keys
        if not name.startswith(_ENV_PREFIX):
            continue
        keys = tuple(name.removeprefix(_ENV_PREFIX).lower().split("__"))
        if keys[0] not in _SECTIONS:
            continue  # EDGELINK_CONFIG, EDGELINK_TOKEN_FILE and what the driver gets are not configuration keys
        if keys[:2] == ("ray", "environment") and len(keys) > 2:
            raise ConfigError(f"{name}: one variable of ray.environment has no variable of its own", hint=_IN_ONE)
        section = values
        for key in keys[:-1]:
            below = section.get(key)
            if key in ("firewall", "ray"):
                below = switch_in_full(below)
            section[key] = {} if below is None else below
            section = section[key]
            if not isinstance(section, dict):
                raise ConfigError(f"{name}: {key} is not a section", hint=EXPLAINED)
        section[keys[-1]] = _variable_value(keys, environ[name], name)
        variables[keys] = name
    return variables


def _variable_value(keys: tuple[str, ...], text: str, name: str) -> Any:
    """Text as it was typed where a text is meant, 0123 as 0123; else what YAML makes of it. Nothing at all is None."""
    text = text.strip()
    if not _takes_text(keys) or text[:1] in ("'", '"'):
        return _parsed(text, name)
    return None if text.lower() in ("", "~", "null") else text


def _takes_text(keys: tuple[str, ...]) -> bool:
    kind: Any = Config
    for key in keys:
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)) or key not in kind.model_fields:
            return False
        kind = kind.model_fields[key].annotation
    return _is_text(kind)


def _is_text(kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_text(arguments[0])
    if origin is Literal:
        return all(isinstance(argument, str) for argument in arguments)
    if origin in (Union, UnionType):
        return all(_is_text(argument) for argument in arguments if argument is not NoneType)
    return kind in (str, Path, IPv4Address, IPv4Network)
