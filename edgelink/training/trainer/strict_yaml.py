"""YAML in which a key that is written twice is a mistake, 1e-3 is a number, and 0123 and 12:34 are texts.

PyYAML's own loader drops the first one in silence, takes 1e-3 for a text, and makes the numbers
83 and 754 of the others, as YAML 1.1 did.

Apart from ``edgelink/strict_yaml.py``, as this package goes to workers without the rest.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_TEXT_TAG = "tag:yaml.org,2002:str"

# Numbers of YAML 1.1 but for what nobody means by them: 0123 is no octal, 12:34 is not to the base of sixty.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}


class _KeyTwiceError(ValueError):
    """A key that is written twice."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TEXT_TAG:
                continue
            if key.value in seen:
                raise _KeyTwiceError(f"line {key.start_mark.line + 1} has the key {key.value} again")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        str(value)  # refuses what Python cannot write in decimals: no message could name it
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, expression)) for tag, expression in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_WITH_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")  # as YAML 1.2 has it
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """What ``text`` says. Raises ValueError: it is no YAML, has a key twice, or a value that does not fit its tag."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except _KeyTwiceError:
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
        tab = " is indented by a tab: use spaces" if line[: len(line) - len(line.lstrip())].count("\t") else ""
        raise ValueError(f"line {mark.line + 1 if mark else 1}{tab or ' is not YAML'}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError("a value does not fit its type, or has a character that YAML does not allow") from error
