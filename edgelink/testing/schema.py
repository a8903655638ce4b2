"""Whether a JSON document is what :mod:`edgelink.api.schema` says."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints


def deviations(value: Any, kind: Any, at: str = "") -> Iterator[str]:
    """Where ``value`` is not of this type, with keys that are missing, and keys that nobody documented; pure."""
    origin, parts = get_origin(kind), get_args(kind)
    if hasattr(kind, "__total__"):
        yield from _of_object(value, kind, at)
    elif origin in (Union, types.UnionType):
        if all(any(deviations(value, part, at)) for part in parts):
            found = [list(deviations(value, part, at)) for part in parts if part is not type(None)]
            yield from min(found, key=len) if value is not None else [f"{at}: null"]
    elif origin is Literal:
        if value not in parts:
            yield f"{at}: {value!r} is none of {parts}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{at}: {value!r} is no list"
        else:
            for number, item in enumerate(value):
                yield from deviations(item, parts[0], f"{at}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is no object"
        else:
            for key, item in value.items():
                yield from deviations(item, parts[1], f"{at}.{key}")
    elif not _is(value, kind):
        yield f"{at}: {value!r} is not {kind.__name__}"


def _of_object(value: Any, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is no object"
        return
    hints, extras = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    yield from (f"{at}.{key}: not documented" for key in value.keys() - hints.keys())
    for key, hint in hints.items():
        if key in value:
            yield from deviations(value[key], hint, f"{at}.{key}")
        elif get_origin(extras[key]) is not NotRequired:
            yield f"{at}.{key}: missing"


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
