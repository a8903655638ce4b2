"""A node and its conditions as lines for people, for ``edgelink status`` and for a daemon on a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from edgelink.cli.layout import wrapped
from edgelink.condition_table import KINDS, Weight, declared, weight_of

Condition = Mapping[str, Any]  # as the daemon tells it: type, status, reason, message

MARKS = {
    Weight.WELL: ("✓", "green"),
    Weight.IDLE: ("-", "bright_black"),
    Weight.COMES: ("…", "yellow"),
    Weight.WRONG: ("✗", "red"),
}
REQUIRED = {kind.name for kind in KINDS if kind.required_on}
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_AS_IT_SAYS = "what the sentence says"  # to do, in the table of conditions


def weight_among(condition: Condition, conditions: Iterable[Condition]) -> Weight:
    """Return how much attention a condition wants beside the node's others.

    The silence of a head that has not started yet is as usual as the wait for its Ray.
    """
    if condition["reason"] == "PeerSilent" and any(one["reason"] == "HeadNotSeen" for one in conditions):
        return Weight.COMES
    return weight_of(condition["type"], condition["status"], condition["reason"])


def note(condition: Condition, weight: Weight, aside: str, width: int, *, indent: str = "") -> list[str]:
    """Return the message with ``aside`` in parentheses, and below it what to do about what is wrong."""
    found = marked(weight, "", f"{condition['message']} ({aside})", width, indent=indent)
    known = declared(condition["type"], condition["reason"])
    to_do = _LINK.sub(r"\1", known.to_do) if known is not None and weight is Weight.WRONG else ""
    # A message that names a command says already what to do.
    if to_do and "`" not in condition["message"] and not to_do.startswith(_AS_IT_SAYS):
        found += wrapped(f"{indent}  what to do: ", to_do, width, indent=len(indent) + 4)
    return found


def marked(weight: Weight, head: str, text: str, width: int, *, indent: str = "") -> list[str]:
    """Return ``head`` and ``text`` behind the mark of ``weight``."""
    mark, colour = MARKS[weight]
    return coloured(mark, colour, hanging(f"{indent}{mark} {head}", text, width))


def coloured(mark: str, colour: str, lines: list[str]) -> list[str]:
    """Return ``lines`` with the mark at their beginning in its colour."""
    return [lines[0].replace(mark, click.style(mark, fg=colour), 1), *lines[1:]]


def hanging(head: str, text: str, width: int) -> list[str]:
    """Return lines of which those after the first begin under ``text``, unless ``head`` takes half of the width."""
    return wrapped(head, text, width, indent=min(len(head), width // 2))
