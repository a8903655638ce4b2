"""YAML in which a key that is written twice is a mistake, and 0123 and 12:34 are texts.

PyYAML's own loader drops the first one in silence, and makes the numbers 83 and 754 of those, as YAML 1.1 did.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

TEXT_TAG = "tag:yaml.org,2002:str"
# What PyYAML raises of a value that does not fit its tag: ``!!int abc``, ``!!bool maybe``, ``!!timestamp 2024-99-99``.
BAD_VALUE = (ValueError, LookupError, AttributeError, ArithmeticError)

# Numbers of YAML 1.1 but for what nobody means by them: 0123 is no octal, 12:34 is not to the base of sixty.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}


class StrictLoader(yaml.SafeLoader):
    """Raises, beside yaml.YAMLError, BAD_VALUE; and RecursionError of what is nested too deeply."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != TEXT_TAG:
                continue
            if key.value in seen:
                problem = f"found duplicate key {key.value}"
                raise yaml.constructor.ConstructorError(
                    "while constructing a mapping", node.start_mark, problem, key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        str(value)  # refuses what Python cannot write in decimals: no message could name it
        return value


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, expression)) for tag, expression in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
