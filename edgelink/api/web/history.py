"""What happened, as far as this daemon has seen it: bounded lists, and what two views of a node tell when compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from edgelink.api.web.model import Event, Health, NodeRow, Point, Severity, TrafficSample
from edgelink.conditions import Status
from edgelink.registry.payloads import ConditionReport

MOST_EVENTS = 500
MOST_POINTS = 600
MOST_SAMPLES = 150
MOST_CHANGES = 60  # of a node's conditions
Conditions = Mapping[str, tuple[ConditionReport, ...]]  # by node id

_HEALTH_WORDS: dict[Health, tuple[Severity, str]] = {
    "ok": ("ok", "works"),
    "warning": ("warning", "works, with something to look at"),
    "trouble": ("trouble", "does not work"),
    "away": ("trouble", "is away"),
}


class History:
    """All that the page shows of the past."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.traffic: deque[TrafficSample] = deque(maxlen=MOST_SAMPLES)
        self.points: list[Point] = []
        self.conditions: dict[str, deque[dict[str, Any]]] = {}  # changes, by node id
        self.rtts: dict[str, deque[tuple[float, float | None]]] = {}  # time and round trip, by node id
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

    def compare(self, was: Mapping[str, NodeRow], now: Mapping[str, NodeRow], at: datetime) -> None:
        """What the rows tell."""
        for node_id, row in now.items():
            before = was.get(node_id)
            if before is None:
                if was:
                    self.event(at, "info", "node", f"{row['hostname']} joined the network", node_id=node_id)
                continue
            if before["health"] != row["health"]:
                severity, words = _HEALTH_WORDS[row["health"]]
                detail = row["wrong"][0] if row["wrong"] else ""
                self.event(at, severity, "node", f"{row['hostname']} {words}", node_id=node_id, detail=detail)
            if _way(before) != _way(row) and row["path"] not in (None, "self") and before["path"] is not None:
                text = f"{row['hostname']} is reached {_way(row)}, was {_way(before)}"
                self.event(at, "info", "path", text, node_id=node_id)
        for node_id, row in was.items():
            if node_id not in now:
                self.event(at, "info", "node", f"{row['hostname']} left the network")
                self.conditions.pop(node_id, None)
                self.rtts.pop(node_id, None)

    def compare_conditions(
        self, was: Conditions, now: Conditions, names: Mapping[str, str], required: Iterable[str], at: datetime
    ) -> None:
        """What their conditions tell; a node's first word is no change.

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
                if former is not None and former.status != condition.status:
                    text = f"{names[node_id]}: {condition.type} is {condition.status.value}"
                    detail = f"{condition.reason}: {condition.message}"
                    severity = _severity(condition, needed)
                    self.event(at, severity, "condition", text, node_id=node_id, detail=detail)

    def rtt(self, node_id: str, at: datetime, rtt_ms: float | None) -> None:
        kept = self.rtts.setdefault(node_id, deque(maxlen=MOST_SAMPLES))
        kept.append((round(at.timestamp(), 1), rtt_ms))

    def add_points(self, run_id: str, points: Iterable[tuple[float, Mapping[str, float]]]) -> None:
        """Of more than are kept, every second one goes, and from then on every second one is left out."""
        if self.points and self.points[-1]["run_id"] != run_id:
            self.points, self._stride, self._points_seen = [], 1, 0
        for step, values in points:
            self._points_seen += 1
            if self._points_seen % self._stride:
                continue
            self.points.append(Point(n=self.next_n(), run_id=run_id, step=step, values=dict(values)))
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
    return list(dict.fromkeys(_names(points)))


def _names(points: Iterable[Point]) -> Iterator[str]:
    for point in points:
        yield from point["values"]


def _severity(condition: ConditionReport, needed: frozenset[str]) -> Severity:
    if condition.status is Status.TRUE:
        return "ok"
    if condition.status is Status.UNKNOWN or condition.type == "DriverRunning":
        return "info"
    return "trouble" if condition.type in needed else "warning"


def _way(row: NodeRow) -> str:
    if row["path"] == "direct":
        return f"directly ({row['protocol']})" if row["protocol"] else "directly"
    if row["path"] == "relayed":
        return f"through {row['via'] or 'a relay'}"
    return "by no way"
