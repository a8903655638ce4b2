"""Text for people, no wider than their terminal."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

UNLIMITED = 1_000_000
_NARROWEST, _USUAL = 40, 80
_ELLIPSIS = "…"
_GAP = "  "


def columns(stream: TextIO | None = None) -> int:
    """How wide a line on ``stream`` (standard output) may be: as its terminal, or as the variable COLUMNS says.

    In a pipe or a file a line is as long as what it tells: whoever searches it finds together what belongs together.
    """
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal():
        return max(_NARROWEST, int(wanted))
    try:
        found = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    except (OSError, ValueError):  # no terminal; a stream that is no file
        return UNLIMITED
    return max(_NARROWEST, found or _USUAL)  # a serial line does not know its own


def can_be_redrawn(stream: TextIO) -> bool:
    """Whether a person sees it on a terminal that moves its cursor: Emacs's shell, or a line printer, does not."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def wrapped(head: str, text: str, width: int, *, indent: int = 4, breaks_words: bool = True) -> list[str]:
    """``head`` and ``text`` on one line, or on several, of which those after the first are indented; pure.

    Args:
        breaks_words: break also a word that is wider than a line.
    """
    return textwrap.wrap(
        head + text,
        width,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=breaks_words,
        drop_whitespace=True,
    ) or [head.rstrip()]


def tell(line: str, *, err: bool = False) -> None:
    """Write a sentence of a command's answer, no wider than the terminal. A path or a command's word stays whole."""
    width = columns(sys.stderr if err else sys.stdout)
    click.echo("\n".join(wrapped("", line, width, breaks_words=False)), err=err)


def told_as_json(answer: Any, *, as_json: bool) -> bool:
    """Write a command's whole answer as JSON where that was asked for. Return whether it was."""
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    return as_json


def say(line: str) -> None:
    """Write a notice of EdgeLink's own to stderr. Where that is full, or read by nobody, the command goes on."""
    with suppress(OSError):
        click.echo("\n".join(wrapped("edgelink: ", line, columns(sys.stderr))), err=True)


def cut(text: str, width: int) -> str:
    """``text``, or its beginning with an ellipsis; pure."""
    return text if len(text) <= width else text[: max(0, width - 1)] + _ELLIPSIS


def table(rows: Sequence[Sequence[str]], width: int, yielding: Iterable[int]) -> list[str]:
    """Columns with two spaces between them; pure.

    Args:
        yielding: the columns that are cut where all of it is wider than ``width``, the widest of them first.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    yielding = list(yielding)
    too_wide = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while too_wide > 0:
        widest = max(yielding, key=lambda column: widths[column])
        if widths[widest] <= 4:  # then it is wider than asked for
            break
        widths[widest] -= 1
        too_wide -= 1
    cells = ([cut(text, wide).ljust(wide) for text, wide in zip(row, widths, strict=True)] for row in rows)
    return [_GAP.join(row).rstrip() for row in cells]
