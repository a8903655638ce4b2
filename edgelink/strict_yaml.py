"""YAML in which a key that is written twice is a mistake. PyYAML's own loader drops the first one in silence."""

from __future__ import annotations

from typing import Any

import yaml

TEXT_TAG = "tag:yaml.org,2002:str"
# What PyYAML raises of a value that does not fit its tag: ``!!int abc``, ``!!bool maybe``, ``!!timestamp 2024-99-99``.
BAD_VALUE = (ValueError, LookupError, AttributeError, ArithmeticError)


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
