"""What is wrong with a value of the configuration, in EdgeLink's own words, and which key may have been meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from edgelink.config.models import Config
from edgelink.strict_yaml import Place, dotted
from edgelink.yaml_mistakes import key_without_colon

EXPLAINED = "the documentation's page Configuration explains every key"
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    str: "a text, in quotes if it looks like a number",
    Path: "a path",
    IPv4Address: "an IPv4 address such as 10.10.0.1",
    IPv4Network: "an IPv4 network such as 10.10.0.0/24",
}


def key_of(loc: Sequence[str | int], values: Mapping[str, Any]) -> Place:
    """Return the part of pydantic's ``loc`` that leads to a value of ``values``. The rest names types."""
    inner: Any = values
    for index, part in enumerate(loc):
        if isinstance(inner, dict):
            is_there = part in inner
        else:
            is_there = isinstance(inner, list) and isinstance(part, int) and part < len(inner)
        if not is_there:
            return tuple(loc[:index])
        inner = inner[part]
    return tuple(loc)


def describe(item: Any, place: Place, schema: type[BaseModel] = Config) -> str:
    """Return what is wrong with the value at ``place`` of what ``schema`` describes.

    Args:
        item: one of pydantic's errors.
    """
    key = dotted(place) or "(top level)"
    if item["type"] == "extra_forbidden":
        word, _, rest = str(place[-1]).partition(" ")
        if rest:
            return f"{key}: no colon and space after {word}; write `{word}: {rest}…`"
        return f"{key}: unknown key; {_meant(place)}"
    if item["type"] == "missing" and isinstance(item["loc"][-1], str):
        return f"{key}: has no {item['loc'][-1]}"
    if item["type"] == "value_error":
        problem = item["msg"].removeprefix("Value error, ")  # before the words of our own validators
        is_shown = isinstance(item["input"], dict) or repr(item["input"]) in problem
        return f"{key}: {problem}" if is_shown else f"{key}: {problem} (got {item['input']!r})"
    kind = _kind_at(place, schema)
    if isinstance(item["input"], str) and _is_section(kind) and (found := key_without_colon(item["input"])):
        return f"{key}: no colon and space after {found[0]}; write `{found[1]}`"
    return f"{key}: has to be {_wanted(kind)} (got {item['input']!r})"


def _meant(place: Place) -> str:
    """The known key that is most like ``place``: of its section, else of any; else all keys of its section."""
    name, section = str(place[-1]), _kind_at(place[:-1])
    known = _keys_of(section)
    if near := get_close_matches(name, known, n=1):
        return f"did you mean {dotted((*place[:-1], near[0]))}?"
    everywhere: dict[str, list[str]] = {key: [key] for key in Config.model_fields}
    for above in Config.model_fields:
        for key in _keys_of(_kind_at((above,))):
            everywhere.setdefault(key, []).append(f"{above}.{key}")
    if near := get_close_matches(name, everywhere, n=1):
        return f"did you mean {' or '.join(everywhere[near[0]])}?"
    return f"known are {', '.join(known)}"


def _keys_of(kind: Any) -> list[str]:
    return list(kind.model_fields) if _is_section(kind) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _kind_at(place: Place, schema: type[BaseModel] = Config) -> Any:
    """The type of the value at ``place``, with its bounds. None: ``schema`` has no such place."""
    kind: Any = schema
    for part in place:
        kind = _without(kind)
        if _is_section(kind):
            field = kind.model_fields.get(str(part))
            if field is None:
                return None
            kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        else:
            arguments = get_args(kind)
            kind = None if not arguments else arguments[-1] if get_origin(kind) is dict else arguments[0]
    return kind if get_origin(kind) is Annotated else _without(kind)


def _without(kind: Any) -> Any:
    """``kind`` without annotations and None."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType) and len(others := _others(kind)) == 1:
            kind = others[0]
        else:
            return kind


def _others(kind: Any) -> list[Any]:
    return [argument for argument in get_args(kind) if argument is not NoneType]


def _wanted(kind: Any) -> str:
    """What a value of type ``kind`` looks like."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _wanted(arguments[0]) + _bounds(arguments[1:])
    if origin in (Union, UnionType):
        return " or ".join(_wanted(other) for other in _others(kind))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is tuple and Ellipsis in arguments:
        return f"a list, each item {_wanted(arguments[0])}"
    if origin is tuple:
        return f"a range FIRST-LAST, each {_wanted(arguments[0])}"
    if origin is dict or _is_section(kind):
        return "a section with keys of its own below it"
    return _KINDS.get(kind, "another value")


def _bounds(metadata: Sequence[Any]) -> str:
    bounds = [bound for each in metadata for bound in getattr(each, "metadata", [each])]
    low = [f" from {bound.ge}" for bound in bounds if getattr(bound, "ge", None) is not None]
    high = [f" to {bound.le}" for bound in bounds if getattr(bound, "le", None) is not None]
    return "".join(low + high)
