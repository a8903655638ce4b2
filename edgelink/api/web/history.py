"""What happened, as far as this daemon has seen it: bounded lists, and what two views of a node tell when compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypedDict

from edgelink.api.web.model import Event, Health, NodeRow, Point, Severity, TrafficSample
from edgelink.api.web.timeline import MOST_STEPS, STEP_S, Timeline
from edgelink.conditions import Status
from edgelink.duration import brief
from edgelink.protocol.payloads import ConditionReport

MOST_EVENTS = 500
MOST_POINTS = 600
MOST_SAMPLES = 150
MOST_CHANGES = 60  # of a node's conditions
RECORDED = ("nodes", "node", "run")  # in the flight recorder, by the page
TOTAL_STEPS = "total_steps"  # among a driver's figures: how many steps there will be, and no curve
_UNTOLD = ("DriverRunning", "NodesReady")  # runs and nodes have events of their own
Conditions = Mapping[str, tuple[ConditionReport, ...]]  # by node id

_HEALTH_WORDS: dict[Health, tuple[Severity, str]] = {
    "ok": ("ok", "works"),
    "warning": ("warning", "works, with something to look at"),
    "paused": ("paused", "is paused"),
    "coming": ("info", "starts again"),
    "trouble": ("trouble", "does not work"),
    "away": ("trouble", "is away"),
    "off": ("info", "was switched off"),
}


class NodeChange(TypedDict):
    """A node is in another state. The flight recorder has it as ``node``."""

    node_id: str
    node: str
    health: Health
    was: Health
    lasted_s: float | None  # what was
    since: str  # what is: of a silent node, its last answer
    why: str
    is_event: bool  # not where a head that starts finds out who works


class RunChange(TypedDict):
    """An attempt of a run was started, or has ended. The flight recorder has it as ``run``."""

    command: str
    attempt: int
    ended: bool
    exit_status: int | None
    why: str  # what followed


class History:
    """All that the page shows of the past."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.traffic: deque[TrafficSample] = deque(maxlen=MOST_SAMPLES)
        self.points: list[Point] = []
        self.conditions: dict[str, deque[dict[str, Any]]] = {}  # changes, by node id
        self.rtts: dict[str, deque[tuple[float, float | None]]] = {}  # time and round trip, by node id
        self._told_false: set[tuple[str, str]] = set()  # node id, and type of a condition that an event says is False
        self._n = 0
        self._stride = 1  # of the points that are kept
        self._points_seen = 0

    def next_n(self) -> int:
        self._n += 1
        return self._n

    def event(
        self, at: datetime, severity: Severity, what: str, text: str, *, node_id: str | None = None, detail: str = ""
    ) -> None:
        """Keep it; the oldest of too many is forgotten."""
        self.events.append(
            Event(
                n=self.next_n(),
                at=at.isoformat(timespec="milliseconds"),
                severity=severity,
                node_id=node_id,
                what=what,
                text=text,
                detail=detail,
            )
        )

    def compare(
        self, was: Mapping[str, NodeRow], now: Mapping[str, NodeRow], at: datetime, *, is_starting: bool = False
    ) -> list[NodeChange]:
        """Take in what the rows tell. Return which nodes are in another state. ``is_starting``: the head is."""
        found = []
        for node_id, row in now.items():
            self.timeline.note(row["hostname"], row["health"], at, row["silent_since"])
            before = was.get(node_id)
            if before is None:
                if was:
                    self.event(at, "info", "node", f"{row['hostname']} joined the network", node_id=node_id)
                continue
            if before["health"] != row["health"]:
                began = before["silent_since"] or before["since"]
                change = NodeChange(
                    node_id=node_id,
                    node=row["hostname"],
                    health=row["health"],
                    was=before["health"],
                    lasted_s=(at - datetime.fromisoformat(began)).total_seconds() if began else None,
                    since=row["silent_since"] or at.isoformat(timespec="seconds"),
                    why=row["wrong"][0] if row["wrong"] else "",
                    is_event=not (is_starting and before["health"] == "coming"),
                )
                self.node_changed(at, change)
                found.append(change)
            if _way(before) != _way(row) and row["path"] not in (None, "self") and before["path"] is not None:
                text = f"{row['hostname']} is reached {_way(row)}, was {_way(before)}"
                self.event(at, "info", "path", text, node_id=node_id)
        names = {row["hostname"] for row in now.values()}
        for node_id, row in was.items():
            if node_id not in now:
                self.event(at, "info", "node", f"{row['hostname']} left the network")
                if row["hostname"] not in names:  # else it was enrolled anew
                    self.timeline.forget(row["hostname"])
                self.conditions.pop(node_id, None)
                self._told_false = {told for told in self._told_false if told[0] != node_id}
                self.rtts.pop(node_id, None)
        return found

    def node_changed(self, at: datetime, change: NodeChange) -> None:
        """The event of a change. How a node starts is none before it works, or does not."""
        health, was = change["health"], change["was"]
        if not change["is_event"] or (health == "coming" and was not in ("ok", "warning", "paused")):
            return
        (severity, words), why = _HEALTH_WORDS[health], change["why"]
        if health == "off":  # it was switched off, or has left; and what to do
            said, _, why = why.partition(": ")
            words = said if said.startswith("has ") else words
        if was in ("paused", "away") and health in ("ok", "warning") and change["lasted_s"]:
            words = f"is back after {brief(change['lasted_s'])}"
        self.event(at, severity, "node", f"{change['node']} {words}", node_id=change["node_id"], detail=why)

    def run_changed(self, at: datetime, change: RunChange) -> None:
        status = change["exit_status"]
        if not change["ended"]:
            self.event(at, "info", "run", f"{change['command']} was started, attempt {change['attempt']}")
            return
        how = "ended" if status is None else f"ended with status {status}"
        severity: Severity = "ok" if status == 0 else "trouble"
        self.event(at, severity, "run", f"{change['command']} {how}", detail=change["why"])

    def restore(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take in what former daemons recorded: entries of the kinds :data:`RECORDED`, oldest first."""
        states: dict[str, Health] = {}
        step = 0
        for entry in entries:
            at = datetime.fromisoformat(entry["at"])
            if entry["what"] == "started":  # nobody looked since the line before it
                states.clear()
            before, step = step, int(at.timestamp()) // STEP_S
            for passed in range(max(before + 1, step - MOST_STEPS), step + 1):
                for name, health in states.items():
                    self.timeline.note(name, health, datetime.fromtimestamp(passed * STEP_S, UTC))
            with suppress(LookupError, TypeError, ValueError):  # another version's line
                states = self._restore(entry, at, states)

    def _restore(self, entry: Mapping[str, Any], at: datetime, states: dict[str, Health]) -> dict[str, Health]:
        """Returns how each node is after this line."""
        match entry["what"]:
            case "nodes":
                states = {name: health for health, names in entry["health"].items() for name in names}
                for name, health in states.items():
                    self.timeline.note(name, health, at)
            case "node":
                self.timeline.note(entry["node"], entry["health"], at, entry["since"])
                self.node_changed(at, entry)  # type: ignore[arg-type]
                return states | {entry["node"]: entry["health"]}
            case "run":
                self.run_changed(at, entry)  # type: ignore[arg-type]
        return states

    def compare_conditions(
        self, was: Conditions, now: Conditions, names: Mapping[str, str], required: Iterable[str], at: datetime
    ) -> None:
        """What their conditions tell; a node's first word is no change, and how it starts is no event.

        Args:
            names: hostnames by node id; of others nothing is kept.
            required: the conditions without which a node does not work.
        """
        needed = frozenset(required)
        for node_id, conditions in now.items():
            if node_id not in names or was.get(node_id, ()) == conditions:
                continue
            kept = self.conditions.setdefault(node_id, deque(maxlen=MOST_CHANGES))
            before = {condition.type: condition for condition in was.get(node_id, ())}
            for condition in conditions:
                former = before.get(condition.type)
                if former is not None and (former.status, former.reason) == (condition.status, condition.reason):
                    continue
                kept.append(condition.model_dump(mode="json") | {"at": at.isoformat(timespec="milliseconds")})
                told = node_id, condition.type
                if former is None or former.status == condition.status or condition.type in _UNTOLD:
                    continue
                if former.status is Status.TRUE and condition.status is Status.FALSE:
                    self._told_false.add(told)
                elif condition.status is Status.TRUE and told in self._told_false:
                    self._told_false.discard(told)
                else:
                    continue
                again = " again" if condition.status is Status.TRUE else ""
                text = f"{names[node_id]}: {condition.type} is {condition.status.value}{again}"
                detail = f"{condition.reason}: {condition.message}"
                severity = _severity(condition, needed)
                self.event(at, severity, "condition", text, node_id=node_id, detail=detail)

    def rtt(self, node_id: str, at: datetime, rtt_ms: float | None) -> None:
        kept = self.rtts.setdefault(node_id, deque(maxlen=MOST_SAMPLES))
        kept.append((round(at.timestamp(), 1), rtt_ms))

    def add_points(self, run_id: str, points: Iterable[tuple[float, Mapping[str, float]]], at: datetime) -> None:
        """Keep what was told at ``at``: the steps since the last time, evenly.

        Of more than are kept, every second one goes, and from then on every second one is left out.
        """
        if self.points and self.points[-1]["run_id"] != run_id:
            self.points, self._stride, self._points_seen = [], 1, 0
        told = list(points)
        before = datetime.fromisoformat(self.points[-1]["at"]) if self.points else at
        for number, (step, values) in enumerate(told, 1):
            self._points_seen += 1
            if self._points_seen % self._stride:
                continue
            when = (before + (at - before) * number / len(told)).isoformat(timespec="milliseconds")
            self.points.append(Point(n=self.next_n(), run_id=run_id, at=when, step=step, values=dict(values)))
            if len(self.points) > MOST_POINTS:
                self.points = self.points[1::2]
                self._stride *= 2

    def of_node(self, node_id: str) -> dict[str, Any]:
        """The past of one node, oldest first."""
        return {
            "changes": list(self.conditions.get(node_id, ())),
            "rtts": [list(each) for each in self.rtts.get(node_id, ())],
        }


def metric_names(points: Iterable[Point]) -> list[str]:
    """In the order in which they were first told."""
    return [name for name in dict.fromkeys(_names(points)) if name != TOTAL_STEPS]


def _names(points: Iterable[Point]) -> Iterator[str]:
    for point in points:
        yield from point["values"]


def _severity(condition: ConditionReport, needed: frozenset[str]) -> Severity:
    if condition.status is Status.TRUE:
        return "ok"
    return "trouble" if condition.type in needed else "warning"


def _way(row: NodeRow) -> str:
    if row["path"] == "direct":
        return f"directly ({row['protocol']})" if row["protocol"] else "directly"
    if row["path"] == "relayed":
        return f"through {row['via'] or 'a relay'}"
    return "by no way"
