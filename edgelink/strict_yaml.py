"""YAML in which a key that is written twice is a mistake, and 0123 and 12:34 are texts.

PyYAML's own loader drops the first one in silence, and makes the numbers 83 and 754 of those, as YAML 1.1 did.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from edgelink.yaml_mistakes import YamlMistakeError, told_plainly

TEXT_TAG = "tag:yaml.org,2002:str"
# What PyYAML raises of a value that does not fit its tag: ``!!int abc``, ``!!bool maybe``, ``!!timestamp 2024-99-99``.
_BAD_VALUE = (ValueError, LookupError, AttributeError, ArithmeticError)
_MOST_SHOWN = 40

Place = tuple[str | int, ...]  # the keys on the way to a value, and the indices of lists

# Numbers of YAML 1.1 but for what nobody means by them: 0123 is no octal, 12:34 is not to the base of sixty.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}


class StrictLoader(yaml.SafeLoader):
    """Raises YamlMistakeError beside PyYAML's errors, which :func:`told_plainly` makes such ones of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001
        first: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag != TEXT_TAG:
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                problem = f"has the key {key.value} again, which is in line {first[key.value]}"
                raise YamlMistakeError(line, problem, "keep one of the two")
            first[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001
        try:
            return super().construct_object(node, deep)
        except _BAD_VALUE as error:
            shown = str(node.value)
            shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
            problem = f"has a value that does not fit its type: {shown!r}"
            raise YamlMistakeError(node.start_mark.line + 1, problem, "put it in quotes, if it is a text") from error

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        str(value)  # refuses what Python cannot write in decimals: no message could name it
        return value


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, expression)) for tag, expression in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str) -> Any:
    """Return what ``text`` says. Raises YamlMistakeError."""
    with told_plainly(text):
        return yaml.load(text, StrictLoader)  # noqa: S506 - a SafeLoader


def dotted(place: Place) -> str:
    """Return ``place`` as people write it: ``ray.allow_from[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def lines_of_keys(text: str) -> dict[Place, int]:
    """Return the line of each key and of each item of a list, by its path. Lines count from 1.

    Args:
        text: what :func:`parse` could read.
    """
    with told_plainly(text):
        return lines_below(yaml.compose(text, StrictLoader))


def lines_below(root: yaml.Node | None) -> dict[Place, int]:
    """Return the line of each key and of each item of a list below ``root``. An alias counts where it is made."""
    lines: dict[Place, int] = {}
    seen: set[int] = set()

    def walk(node: yaml.Node | None, place: Place) -> None:
        if node is None or isinstance(node, yaml.ScalarNode) or id(node) in seen:
            return
        seen.add(id(node))
        parts: list[tuple[str | int, yaml.Node, yaml.Node]]
        if isinstance(node, yaml.MappingNode):
            parts = [(str(key.value), key, value) for key, value in node.value]
        else:
            parts = [(index, item, item) for index, item in enumerate(node.value)]
        for part, at, value in parts:
            lines[*place, part] = at.start_mark.line + 1
            walk(value, (*place, part))

    walk(root, ())
    return lines
