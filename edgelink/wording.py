"""How messages name several things, and what others chose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_ROLES = {"bootstrap": "relay"}  # where it has another name than the command that starts its daemon


def role_in_words(verb: str) -> str:
    """The name of the role whose daemon the command ``verb`` starts."""
    return _ROLES.get(verb, verb)


def node_name(node: Mapping[str, Any]) -> str:
    """The hostname of a node; its rank where nobody has told the hostname."""
    return str(node["hostname"] or f"rank {node['node_rank']}")


def few(names: Sequence[object], most: int = 8) -> str:
    """``a, b and 3 more``: not more names than can be read."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def json_mistake(error: Exception) -> str:
    """Return what keeps a text from being JSON, from what reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} is not JSON from column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is not JSON that can be read: nested too deeply, or a number that is too large"


def printable(text: str) -> str:
    """``text`` without what a terminal would obey or cannot show: somebody else chose it. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def presence_in_words(seen: Mapping[str, Any]) -> str:
    """How a node is by the registry's row of it: its phase, "paused" where the head misses it, or how it is away."""
    if seen.get("paused"):
        return "paused"
    return str(seen["phase"]) if seen["online"] else away_in_words(seen["phase"])


def away_in_words(phase: str) -> str:
    """How a node is that is not online, by the last phase that it told: it went on purpose, or nobody knows why."""
    return {"Left": "left", "Stopping": "off"}.get(phase, "offline")
