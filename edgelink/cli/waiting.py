"""What is waited for, then who is missing and why in a line that changes: redrawn on a terminal, else a new line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

import click

from edgelink.cli.layout import UNLIMITED, can_be_redrawn, columns, wrapped
from edgelink.duration import in_words
from edgelink.wording import few, node_name


@dataclass(frozen=True)
class GangWishes:
    """Which nodes a run asks for (by name or label; none: all), how long it waits for them, and how that is told."""

    timeout_s: float
    nodes: tuple[str, ...] = ()
    as_json: bool = False


class WaitingList:
    """Shows the nodes that a command waits for.

    Args:
        goal: what they are when they are ready for it.
        what: what is waited for. "": all these nodes.
        as_json: write each state as a JSON line instead, with all that is known of each node.
    """

    def __init__(self, stream: TextIO, goal: str = "ready", *, what: str = "", as_json: bool = False) -> None:
        self._goal = goal
        self._what = what
        self._stream = stream
        self._as_json = as_json
        self._live = can_be_redrawn(stream) and not as_json
        self._drawn_lines = 0
        self._said = ""
        self._warned: set[str] = set()

    def __enter__(self) -> WaitingList:
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stream.flush()

    def show(self, event: dict[str, Any]) -> None:
        """Show a ``waiting`` item of the daemon: the nodes, and the time that is left until the deadline."""
        if self._as_json:
            click.echo(json.dumps(event), file=self._stream)
            return
        nodes, left_s = event["nodes"], event["left_s"]
        is_done = all(node["ready"] for node in nodes)
        if not self._said and not is_done:
            self._write(_first_line(self._what, nodes, left_s))
        self._warn(nodes, event.get("notes", ()))
        line = summary(nodes, self._goal)
        if self._live:
            self._redraw(line if is_done or left_s is None else f"{line} (gives up in {left_s:.0f} s)")
        elif line != self._said:
            self._write(line)
        self._said = line

    def _write(self, line: str) -> None:
        """Write a line that stays; in a log it is one line, however long."""
        width = columns(self._stream) if self._stream.isatty() else UNLIMITED
        click.echo("\n".join(wrapped("", line, width, indent=0)), file=self._stream)

    def _warn(self, nodes: list[dict[str, Any]], notes: Iterable[str]) -> None:
        """Each warning once, on a line that stays."""
        said = [f"{node['hostname']}: {warning}" for node in nodes for warning in node.get("warnings", ())]
        for text in (*said, *notes):
            if text not in self._warned:
                self._warned.add(text)
                self._erase()
                click.echo("\n".join(wrapped("edgelink: warning: ", text, columns(self._stream))), file=self._stream)

    def _redraw(self, line: str) -> None:
        lines = wrapped("", line, columns(self._stream) - 1, indent=0)
        self._erase()
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()
        self._drawn_lines = len(lines)

    def _erase(self) -> None:
        if self._drawn_lines:
            self._stream.write(f"\x1b[{self._drawn_lines}F\x1b[J")
            self._drawn_lines = 0


def _first_line(what: str, nodes: list[dict[str, Any]], left_s: float | None) -> str:
    """``waiting for 2 nodes: cloud, robot (at most 10 min)``."""
    these = f"{len(nodes)} nodes" if len(nodes) > 1 else "1 node"
    names = few([node_name(node) for node in nodes])
    at_most = "" if left_s is None else f" (at most {in_words(round(left_s))})"
    return f"waiting for {f'{these}: {names}' if what in ('', these) else what}{at_most}"


def summary(nodes: list[dict[str, Any]], goal: str = "ready") -> str:
    """``2/4: cloud, edge-1 ready; edge-2 overlay up, Ray refused (…); edge-3 never seen``."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        said = goal if node["ready"] else node.get("brief") or f"{node['step']}: {node['message']}"
        groups.setdefault(said, []).append(node_name(node))
    ready = sum(node["ready"] for node in nodes)
    return f"{ready}/{len(nodes)}: " + "; ".join(f"{few(names)} {said}" for said, names in groups.items())
