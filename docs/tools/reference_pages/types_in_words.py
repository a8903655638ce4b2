"""Types of fields as people read them, for the pages about what programs say to each other."""

from __future__ import annotations

import types
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime

from edgelink.protocol.payloads import Base64, NodeId

_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    datetime: "time",
    AwareDatetime: "time",
    IPv4Address: "IPv4 address",
    IPv4Network: "IPv4 network",
}
_NAMED = ((NodeId, "node id"), (Base64, "Base64"))


def in_words(kind: Any) -> str:
    """Return such as "list of text"; a model is a link to its section of the page."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next((words for named, words in _NAMED if kind == named), None) or in_words(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(in_words, parts)))
    if origin is Literal:
        return " or ".join(f'`"{part}"`' for part in parts)
    if origin in (tuple, list):
        return f"list of {in_words(parts[0])}"
    if origin is dict:
        return f"object: {in_words(parts[1])} by {in_words(parts[0])}"
    if issubclass(kind, StrEnum):
        return " or ".join(f'`"{member}"`' for member in kind)
    return _WORDS.get(kind) or link_to(kind)


def link_to(model: type) -> str:
    """Return a link to the section of ``model`` on the same page."""
    return f"[{model.__name__}](#{model.__name__.lower()})"
