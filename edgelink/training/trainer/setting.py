"""Settings as fields of dataclasses: each says what it means and which values make sense, once for all that read it.

A section of the trainer's configuration is a dataclass. Fields with a default can be set by users; what has none is
filled in by the run. ``values`` checks what was given against the fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def setting(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field that users can set.

    Args:
        meaning: for help and reference, with the unit; begins in lower case, no full stop.
        at_least, above, at_most: bounds of a number, or of each number of a list.
        choices: the words there are, for a text or each text of a list, which has one at least.
    """
    metadata = {"meaning": meaning, "at_least": at_least, "above": above, "at_most": at_most, "choices": choices}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def open_fields(kind: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """The fields of ``kind`` that users can set, with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(kind) if "meaning" in field.metadata}


def values(kind: type, given: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    """What of ``given`` may go into ``kind``, converted to its fields' types; the rest is told in ``problems``.

    Args:
        name: of the section, for the problems.
    """
    fields = open_fields(kind)
    result: dict[str, Any] = {}
    for key, value in given.items():
        where = f"{name}.{key}"
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            known = f"did you mean {close[0]}?" if close else f"known are {', '.join(fields)}"
            problems.append(f"{where}: there is no such setting; {known}")
            continue
        field, hint = fields[key]
        if misread := list(_misread(hint, value, where)):
            problems += misread
            continue
        try:
            result[key] = _converted(hint, value)
        except ValueError as error:
            problems.append(f"{where}: {error}, not {value!r}")
            continue
        problems += [f"{where}: {problem}" for problem in _out_of_bounds(field.metadata, result[key])]
    return result


def _misread(hint: Any, value: Any, where: str) -> Iterator[str]:
    """Texts that YAML has taken for something else: from 83, it cannot be told that 0123 was written."""
    texts: list[tuple[str, Any]] = []
    if hint is str and value is not None:
        texts = [(where, value)]
    elif hint == dict[str, str] and isinstance(value, Mapping):
        texts = [(f"{where}.{key}", text) for key, part in value.items() for text in (key, part)]
    for place, text in texts:
        if not isinstance(text, str):
            yield f"{place}: must be a text, not {text!r}: put it in quotes"


def _converted(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return _converted(hint, value)
    if origin is tuple:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        parts = [parts] if isinstance(parts, (int, float)) else parts
        if not isinstance(parts, (list, tuple)):
            raise ValueError(f"must be a list of {arguments[0].__name__}")
        return tuple(_converted(arguments[0], part) for part in parts)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError("must be a mapping")
        return {str(key): part for key, part in value.items()}
    return _plain(hint, value)


def _plain(hint: type, value: Any) -> Any:
    if hint is bool or isinstance(value, bool):
        if hint is bool and isinstance(value, bool):
            return value
    elif hint is float and isinstance(value, (int, float, str)):
        try:
            return float(value)  # YAML takes 1e-3 for a text
        except ValueError:
            pass
    elif hint is int and isinstance(value, int):
        return value
    elif hint is int and isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        return int(value)  # not through a float, which has 53 bits
    elif hint is int and isinstance(value, (float, str)):
        try:
            if float(value) == int(float(value)):
                return int(float(value))
        except (ValueError, OverflowError):
            pass
    elif hint is str and isinstance(value, (str, int, float)):
        return str(value)
    elif hint is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"must be {_NAMES.get(hint, hint.__name__)}")


_DIGITS = re.compile(r"[-+]?[0-9]{1,1000}")
_NAMES = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path",
}  # fmt: skip


def _out_of_bounds(metadata: Mapping[str, Any], value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = tuple(value.values())
    known = ", ".join(choice or "''" for choice in metadata["choices"])
    if value == () and known:
        yield f"must name at least one; known are {known}"
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, str) and known and item not in metadata["choices"]:
            yield f"{item!r} is not known; known are {known}"
        if not isinstance(item, (int, float)) or isinstance(item, bool):
            continue
        if isinstance(item, float) and not math.isfinite(item):
            yield f"must be a finite number, not {item:g}"
            continue
        if (least := metadata["at_least"]) is not None and item < least:
            yield f"must be at least {number_text(least)}, not {number_text(item)}"
        if (bound := metadata["above"]) is not None and item <= bound:
            yield f"must be more than {number_text(bound)}, not {number_text(item)}"
        if (most := metadata["at_most"]) is not None and item > most:
            yield f"must be at most {number_text(most)}, not {number_text(item)}"


def number_text(number: float) -> str:
    """For people; a whole number with all of its digits."""
    return f"{number:g}" if isinstance(number, float) else str(number)
