"""Set keys of a configuration file and leave the rest of its text as it is: comments, order, spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from edgelink.errors import ConfigError
from edgelink.strict_yaml import StrictLoader

Value = str | list[str] | bool
Settings = Mapping[str, Mapping[str, Value]]  # by section, then by key


def with_settings(text: str, wanted: Settings, source: str) -> str:
    """Return ``text``, a valid configuration file, in which each key of ``wanted`` has its value.

    Args:
        source: the file's name, for messages.

    Raises:
        ConfigError: the text has a form in which this is not possible, such as an alias or a second document.
    """
    expected = {section: _present(text).get(section) for section in wanted} | _present(text)
    try:
        for section, keys in wanted.items():
            expected[section] = {**(expected[section] or {}), **keys}
            for key, value in reversed(list(keys.items())):  # each comes before those that are there
                text = _with_key(text, section, key, value)
        is_as_wanted = _present(text) == expected
    except yaml.YAMLError:
        is_as_wanted = False
    if not is_as_wanted:
        lines = "; ".join(f"{section}: {_flow(dict(keys))}" for section, keys in wanted.items())
        raise ConfigError(f"{source}: EdgeLink cannot add to this file", hint=f"write into it yourself: {lines}")
    return text


def _present(text: str) -> dict[str, Any]:
    return yaml.load(text, StrictLoader) or {}  # noqa: S506 - a SafeLoader


def _with_key(text: str, section: str, key: str, value: Value) -> str:
    root = yaml.compose(text, StrictLoader)
    node = _value_of(root, section)
    if isinstance(node, yaml.MappingNode):
        if (old := _value_of(node, key)) is not None:
            return text[: old.start_mark.index] + _flow(value) + text[old.end_mark.index :]
        at = node.start_mark.index
        if node.flow_style:
            return f"{text[: at + 1]}{key}: {_flow(value)}, {text[at + 1 :]}"
        return f"{text[:at]}{key}: {_flow(value)}\n{' ' * node.start_mark.column}{text[at:]}"
    if node is not None:  # a heading with nothing below it
        return f"{text[: node.start_mark.index]} {{{key}: {_flow(value)}}}{text[node.end_mark.index :]}"
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        at = root.start_mark.index + 1
        return f"{text[:at]}{section}: {{{key}: {_flow(value)}}}, {text[at:]}"
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{section}:\n  {key}: {_flow(value)}\n"


def _value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _flow(value: object) -> str:
    """Return ``value`` on one line, as it may stand inside of brackets."""
    return yaml.safe_dump([value], default_flow_style=True, width=1_000_000, allow_unicode=True).strip()[1:-1]
