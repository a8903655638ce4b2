"""A daemon's log as a person reads it on a terminal: a line a step, ``Ready``, and whatever goes wrong, in words."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click
import structlog

from edgelink import log
from edgelink.cli.condition_lines import REQUIRED, Condition, coloured, note, weight_among
from edgelink.cli.layout import columns, wrapped
from edgelink.cli.patience import EXPECTED_S
from edgelink.condition_table import Weight
from edgelink.conditions import Phase
from edgelink.wording import printable

_STEPS = {
    "node.enrolled": "✓ joined the network as {hostname}, with the overlay IP {overlay_ip}",
    "runs.granted": "a run begins: {holder}",
    "runs.ended": "the run has ended",
    "runs.node_paused": "{node} does not answer: paused, says {told_by}",
    "runs.node_answers_again": "{node} answers again, after {after}",
    "daemon.stopping": "stopping …",
    "daemon.leaving_children": "EasyTier and Ray go on: {why}",
}
_SAID_BY_CONDITIONS = {"ways.elsewhere"}  # which judge it once the overlay is up
_NO_DETAIL = {"event", "level", "timestamp", "component", "exception", "reason", "error"}
_SENTENCES = {"what", "why", "message", "hint"}  # keys whose values say all


def show_warnings(*, verbose: bool = False) -> None:
    """Show the warnings of a command that ends soon as sentences. ``verbose`` shows the whole log."""
    log.configure(verbose=verbose, quiet=True, renderer=None if verbose else Steps(sys.stderr))


class Steps:
    """A last processor of structlog that writes for people, and leaves nothing to be printed.

    What is not well is told once it has lasted as long as a person waits without a question. A fault of a node that
    was ready is told at once. What only informs is told once the node is ready.
    """

    def __init__(self, stream: TextIO, timer: type[threading.Timer] = threading.Timer) -> None:
        self._stream = stream
        self._timer = timer
        context = click.get_current_context(silent=True)
        self._color = context.color if context else None
        self._lock = threading.RLock()  # timers have threads of their own
        self._conditions: dict[str, Condition] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._told_well: set[str] = set()
        self._told_else: set[str] = set()
        self._latest: deque[str] = deque(maxlen=8)  # a fault is logged where it happens, and is a condition, too
        self._was_ready = False
        self._is_quiet = True  # nothing was told as not well since the last Ready
        self._is_stopping = False

    def __call__(self, _logger: Any, method: str, event: Mapping[str, Any]) -> NoReturn:
        with self._lock:
            name = event["event"]
            if name == "node.condition":
                self._take({**event, "type": event["condition"]})
            elif name == "node.phase" and event["phase"] == Phase.READY and not (self._was_ready and self._is_quiet):
                self._write([click.style("Ready", bold=True)])
                self._was_ready, self._is_quiet = True, True
                for kind in self._conditions.keys() - self._told_else:
                    self._tell_later(kind)
            elif name in _STEPS:
                self._is_stopping = self._is_stopping or name == "daemon.stopping"
                self._write(wrapped("", _STEPS[name].format_map(event), self._width, indent=2))
            elif method not in ("debug", "info") and name not in _SAID_BY_CONDITIONS:
                self._warn(method, event)
        raise structlog.DropEvent

    @property
    def _width(self) -> int:
        return columns(self._stream)

    def _take(self, condition: Condition) -> None:
        kind = condition["type"]
        if waiting := self._timers.pop(kind, None):
            waiting.cancel()
        self._conditions[kind] = condition
        weight = weight_among(condition, self._conditions.values())
        if weight is Weight.WRONG and self._was_ready:
            self._tell(kind)
        elif weight is not Weight.WELL:
            self._tell_later(kind)
        elif not self._is_stopping and (kind in self._told_else or kind in REQUIRED - self._told_well):
            self._told_else.discard(kind)
            self._told_well.add(kind)
            after = f" (after {condition['lasted_s']:.0f} s)" if condition.get("lasted_s") else ""
            self._write(wrapped("✓ ", f"{condition['message']}{after}", self._width, indent=2))

    def _tell_later(self, kind: str) -> None:
        timer = self._timers[kind] = self._timer(EXPECTED_S, self._tell, [kind])
        timer.daemon = True
        timer.start()

    def _tell(self, kind: str) -> None:
        """Tell why a condition is not well, where a person wants to know it by now."""
        with self._lock:
            condition = self._conditions[kind]
            weight = weight_among(condition, self._conditions.values())
            is_news = weight is Weight.WRONG and self._was_ready
            is_news = is_news or (weight in (Weight.COMES, Weight.WRONG) and kind in REQUIRED)
            if self._is_stopping or not is_news:
                return
            self._told_else.add(kind)
            self._is_quiet = False
            if condition["message"] not in self._latest:
                self._latest.append(condition["message"])
                self._write(note(condition, weight, condition["reason"], self._width))

    def _warn(self, method: str, event: Mapping[str, Any]) -> None:
        details = [
            str(value) if key in _SENTENCES else f"{key} {value}"
            for key, value in event.items()
            if key not in _NO_DETAIL
        ]
        if "exception" in event:
            details.append(f"{event['exception'].strip().splitlines()[-1]}: a defect; `edgelink logs` shows where")
        text = event.get("error") or ""
        if text and text in self._latest:
            return
        self._latest.append(text)
        what = "" if "message" in event else event["event"].replace(".", ": ", 1).replace("_", " ") + ": "
        mark, colour = ("!", "yellow") if method == "warning" else ("✗", "red")
        told = printable(f"{what}{'; '.join(filter(None, [text, *details]))}".removesuffix(": "))
        self._write(coloured(mark, colour, wrapped(f"{mark} ", told, self._width, indent=2)))

    def _write(self, lines: list[str]) -> None:
        with suppress(OSError):  # whose terminal is gone loses the line, not the daemon
            click.echo("\n".join(lines), file=self._stream, color=self._color)
