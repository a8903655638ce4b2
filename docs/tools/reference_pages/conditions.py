"""Make ``docs/reference/conditions.md`` from the table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from edgelink.condition_table import COMMON, KINDS, REFUSED_ENROLMENT, ConditionKind, Place, Reason
from reference_pages.errors import reasons

_WIDTH = 118
_HEAD = """# Conditions and reasons

A condition is True, False or Unknown, with a reason, a sentence and the time of its last change. A node is *Ready* when
all its required conditions are True; *Starting* before that; *Degraded* when it was ready and is not; *Failed* when a
person has to mend something; *Stopping* at the end. Unknown is what nobody has been able to look at yet.

The sentence says what to do. Scripts may rely on the reasons. *Required on* and *informs on* are kinds of daemon; an
additional relay is one without the registry.

This page is generated (`make reference`).

| condition | required on | informs on | True means |
|---|---|---|---|
"""
_COMMON = """
## Any condition

"""
_ENROLMENT = """## Why an enrolment is refused

`edgelink join` ends with it, and so does a daemon that was to enrol by itself.

| reason | what it is | what to do |
|---|---|---|
"""
_TABLE = "| reason | status | what it is | what to do |\n|---|---|---|---|"


def render() -> str:
    """The page."""
    lines = [_HEAD + "\n".join(map(_kind_row, KINDS)), _COMMON + _TABLE, *_rows(COMMON), ""]
    for kind in KINDS:
        lines += [f"## {kind.name}", "", *_told(kind), _TABLE, *_rows(kind.reasons), ""]
    rows = [f"| `{reason.name}` | {reason.meaning} | {to_do(reason)} |" for reason in REFUSED_ENROLMENT]
    return "\n".join([*lines, _ENROLMENT + "\n".join(rows)]) + "\n"


def to_do(reason: Reason) -> str:
    """What a person is to do about it; "" where neither the table nor an error of that name says so."""
    if reason.to_do or reason.name not in reasons():
        return reason.to_do
    return f"[what the error says](errors.md#{reason.name.lower()})"


def _kind_row(kind: ConditionKind) -> str:
    name = f"[`{kind.name}`](#{kind.name.lower()})"
    return f"| {name} | {_where(kind.required_on)} | {_where(kind.informs_on)} | {kind.means} |"


def _where(places: Iterable[Place]) -> str:
    found = list(places)
    return "all" if found == list(Place) else ", ".join(found)


def _told(kind: ConditionKind) -> Iterator[str]:
    easytier = "Only where EdgeLink runs an EasyTier (`overlay.kind: easytier`)." if kind.needs_easytier else ""
    for text in (f"True: {kind.means}. {easytier}", kind.note):
        if text.strip():
            yield textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
            yield ""


def _rows(found: Iterable[Reason]) -> Iterator[str]:
    for reason in found:
        yield f"| `{reason.name}` | {reason.status} | {reason.meaning} | {to_do(reason)} |"
