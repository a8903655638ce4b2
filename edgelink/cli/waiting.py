"""The live list of who is missing: redrawn on a terminal, one line a change elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TextIO

import click


class WaitingList:
    """Shows the nodes that a command waits for; ``goal``: what they are when they are ready for it."""

    def __init__(self, stream: TextIO, goal: str = "ready") -> None:
        self._goal = goal
        self._stream = stream
        self._live = stream.isatty()
        self._drawn_lines = 0
        self._said: dict[int, str] = {}

    def __enter__(self) -> WaitingList:
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stream.flush()

    def show(self, nodes: list[dict[str, Any]], left_s: float | None) -> None:
        """Show the present state; ``left_s`` is the time until the deadline."""
        if self._live:
            self._redraw(nodes, left_s)
            return
        for node in nodes:
            line = _line(node)
            if self._said.get(node["node_rank"]) != line:
                self._said[node["node_rank"]] = line
                click.echo(line, file=self._stream)

    def _redraw(self, nodes: list[dict[str, Any]], left_s: float | None) -> None:
        ready = sum(node["ready"] for node in nodes)
        left = "" if left_s is None else f", {left_s:.0f} s left"
        width = click.get_current_context(silent=True)
        columns = (width.terminal_width if width else None) or 110
        lines = [f"{ready}/{len(nodes)} nodes {self._goal}{left}", *(_line(node)[:columns] for node in nodes)]
        if self._drawn_lines:
            self._stream.write(f"\x1b[{self._drawn_lines}F\x1b[J")
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()
        self._drawn_lines = len(lines)


def _line(node: dict[str, Any]) -> str:
    mark = "✓" if node["ready"] else "…"
    name = node["hostname"] or "(nobody)"
    return (
        f"{mark} rank {node['node_rank']}  {name:<16} {node['overlay_ip'] or '-':<15} {node['step']}: {node['message']}"
    )
