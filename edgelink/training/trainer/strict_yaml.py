"""YAML in which a key that is written twice is a mistake, and 1e-3 is a number. PyYAML's own loader drops the first
one in silence, and takes 1e-3 for a text, as YAML 1.1 did.

Apart from ``edgelink/strict_yaml.py``, as this package goes to workers without the rest.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_TEXT_TAG = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TEXT_TAG:
                continue
            if key.value in seen:
                raise ValueError(f"the key {key.value} is there twice, in line {key.start_mark.line + 1} again")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        str(value)  # refuses what Python cannot write in decimals: no message could name it
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_WITH_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")  # as YAML 1.2 has it
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """What ``text`` says. Raises ValueError: it is no YAML, has a key twice, or a value that does not fit its tag."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except (yaml.YAMLError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error
