"""``--watch``: what a command shows, drawn anew in place on a terminal; elsewhere a line for each change.

Ctrl-C is how it is meant to end, and so exit status 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from edgelink.api.client import DaemonNotRunningError
from edgelink.api.json_version import VERSION
from edgelink.cli.layout import UNLIMITED, can_be_redrawn, columns, wrapped
from edgelink.clock import SystemClock
from edgelink.errors import ExitCode

LOOK_S = 1.0


class Fact(NamedTuple):
    """One thing that may change. ``token`` is what makes it another one, ``text`` tells it to people."""

    token: str
    text: str


Facts = Mapping[str, Fact]


watch_option = click.option(
    "--watch", "is_watching", is_flag=True, help="go on until Ctrl-C; where it is no terminal, tell each change"
)


def watch(
    look: Callable[[], Any],
    *,
    draw: Callable[[Any, int], list[str]],
    facts: Callable[[Any], Facts],
    as_json: bool,
    clock: SystemClock | None = None,
) -> int:
    """Look once a second until Ctrl-C. A daemon that ends is waited for, and told.

    Args:
        look: asks the daemons; may raise DaemonNotRunningError.
        draw: the lines for people, for so many columns.
        facts: what may change, by what it is about.
        as_json: one JSON document a line, whenever a fact has changed.
    """
    clock = clock or SystemClock()
    is_live = can_be_redrawn(sys.stdout) and not as_json
    showing = _redrawing(draw, clock) if is_live else _telling(facts, clock, as_json=as_json)
    try:
        with showing as show:
            while True:
                started_s = clock.monotonic_s()
                show(_seen(look))
                clock.block(max(0.0, LOOK_S - (clock.monotonic_s() - started_s)))
    except KeyboardInterrupt:
        return ExitCode.OK


def changes(before: Facts, now: Facts) -> list[str]:
    """A line for each fact that is new or another one, and for each that is gone; pure."""
    told = [f"{name}: {fact.text}" for name, fact in now.items() if name not in before or before[name][0] != fact[0]]
    return [*told, *(f"{name}: gone" for name in before if name not in now)]


def _seen(look: Callable[[], Any]) -> Any:
    """What is seen now; an exception where no daemon answers."""
    try:
        return look()
    except DaemonNotRunningError as error:
        return error


@contextmanager
def _redrawing(draw: Callable[[Any, int], list[str]], clock: SystemClock) -> Iterator[Callable[[Any], None]]:
    """On a terminal: always the same lines, as far as they fit in its height; they stay when it ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis") as live:

        def show(seen: Any) -> None:
            width = columns()
            is_away = isinstance(seen, DaemonNotRunningError)
            lines = wrapped("edgelink: ", seen.message, width) if is_away else draw(seen, width)
            foot = click.style(f"{_time(clock)}, looked at every {LOOK_S:g} s; Ctrl-C ends", dim=True)
            live.update(Text.from_ansi("\n".join([*lines, foot])), refresh=True)

        yield show


@contextmanager
def _telling(facts: Callable[[Any], Facts], clock: SystemClock, *, as_json: bool) -> Iterator[Callable[[Any], None]]:
    """Elsewhere: what has changed, one line each, or all of it as JSON."""
    before: Facts = {}
    is_away = False

    def show(seen: Any) -> None:
        nonlocal before, is_away
        if isinstance(seen, DaemonNotRunningError):
            told = [] if is_away else [seen.message]
            is_away, what = True, {"schema": VERSION, "error": seen.message}
        else:
            now = facts(seen)
            told = (["the daemon answers"] if is_away else []) + changes(before, now)
            before, is_away, what = now, False, seen
        if told:
            width = columns() if sys.stdout.isatty() else UNLIMITED  # in a file a line is a change
            lines = [part for line in told for part in wrapped(f"{_time(clock)} ", line, width)]
            click.echo(json.dumps(what) if as_json else "\n".join(lines))

    yield show


def _time(clock: SystemClock) -> str:
    return f"{clock.now().astimezone():%H:%M:%S}"
