"""What the page shows: one snapshot, and what has changed from one to the next. JSON as it is, and pure.

Lists only grow at their end and are cut at their beginning; each item has a number ``n`` that grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Health = Literal["ok", "warning", "paused", "coming", "trouble", "away", "off"]
Severity = Literal["ok", "info", "warning", "paused", "trouble"]
_LISTS = ("events", "points", "traffic")
_TABLES = ("nodes", "measures", "bars", "outages")


class Placed(TypedDict):
    """Processes of one component of the run on one node."""

    component: str
    processes: int
    accelerators: list[str]


class NodeRow(TypedDict):
    """One node, as the head knows it. What it does not know is None."""

    node_id: str
    hostname: str
    role: str
    is_relay: bool
    overlay_ip: str
    node_rank: int | None
    health: Health
    phase: str | None
    brief: str  # how far it is, in some words
    wrong: list[str]  # what a person should look at
    path: str | None  # self, direct, relayed
    via: str | None
    protocol: str | None
    loses_full_packets: bool
    cpus: float
    gpus: int
    labels: dict[str, str]
    open_ports: list[str]  # by access rules, in words
    versions: dict[str, str | None]
    placed: list[Placed]
    since: str | None  # of its health, as far as this daemon has seen it
    silent_since: str | None  # while it is paused
    given_up_at: str | None  # by Ray, unless it answers before; while it is paused, where that is known


class Rate(TypedDict):
    """What a link carries now."""

    bytes_per_s: float
    is_less: bool  # than that: more cannot be told


class Measure(TypedDict):
    """What is measured of the way to one node all the time."""

    rtt_ms: float | None  # of the newest answer; None: no answer to the newest few pings
    loss: float | None  # of the newest 40 pings: 0 to 1, and 0 below three lost ones; None: none was sent yet
    received: str | None  # of the link to a neighbour, in EasyTier's rounded words
    sent: str | None
    received_now: Rate | None  # None: no such link, or not known yet
    sent_now: Rate | None


class Head(TypedDict):
    """The daemon that serves the page."""

    node_id: str
    hostname: str
    overlay_ip: str | None
    network_id: str | None
    version: str
    phase: str
    is_connected: bool  # with the registry: if not, what other nodes say of themselves is not heard
    ray_auth: str | None
    ray_dashboard_port: int
    ride_through_s: int
    goes_on: list[str]  # while it is degraded
    waits: list[str]
    notes: list[str]  # what belongs to no node: strangers in Ray, nodes left out
    nodes: int
    alive: int
    cpus: float
    gpus: float


class RunView(TypedDict):
    """The run in progress, else the last one."""

    run_id: str
    command: str
    in_progress: bool
    attempts: list[dict[str, Any]]
    metric_names: list[str]
    step: float | None
    total_steps: float | None  # None: its driver does not say
    steps_per_s: float | None  # in the last ten minutes


class Event(TypedDict):
    """Something happened."""

    n: int
    at: str
    severity: Severity
    node_id: str | None
    what: str  # condition, path, node, ray, run
    text: str
    detail: str


class Point(TypedDict):
    """What a driver said of one of its steps."""

    n: int
    run_id: str
    at: str
    step: float
    values: dict[str, float]


class TrafficSample(TypedDict):
    """Of the overlay's device on the head, since the sample before."""

    n: int
    at: str
    received_bytes_per_s: float
    sent_bytes_per_s: float


class Bar(TypedDict):
    """How a node was in the last day, in steps of ten minutes; see :mod:`edgelink.api.web.timeline`."""

    step: int  # the newest, since 1970
    marks: str  # a letter a step


class Outage(TypedDict):
    """A node was silent."""

    hostname: str
    kind: Health  # paused, or away
    since: str
    until: str | None  # None: it still is


class Snapshot(TypedDict):
    """All of it."""

    head: Head
    nodes: dict[str, NodeRow]  # by node id
    measures: dict[str, Measure]
    bars: dict[str, Bar]  # by node id
    outages: dict[str, Outage]  # by number
    run: RunView | None
    events: list[Event]
    points: list[Point]
    traffic: list[TrafficSample]


def changes(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What makes ``after`` of ``before``; empty where they are the same.

    Of a table the rows that are new or other, and ``gone``; of a list what was added and the first that is left, or
    all of it; of anything else the whole.
    """
    was, now = _plain(before), _plain(after)
    found: dict[str, Any] = {}
    for name, value in now.items():
        if value == was[name]:
            continue
        if name in _TABLES:
            changed = {key: row for key, row in value.items() if was[name].get(key) != row}
            found[name] = {"set": changed, "gone": [key for key in was[name] if key not in value]}
        elif name in _LISTS:
            found[name] = _list_changes(was[name], value)
        else:
            found[name] = value
    return found


def apply(before: Snapshot, found: Mapping[str, Any]) -> Snapshot:
    """The page's own way from one snapshot to the next: ``apply(a, changes(a, b)) == b``."""
    after: dict[str, Any] = dict(before)
    for name, change in found.items():
        if name in _TABLES:
            kept = {key: row for key, row in after[name].items() if key not in change["gone"]}
            after[name] = kept | change["set"]
        elif name in _LISTS and "all" not in change:
            kept_items = [item for item in after[name] if item["n"] >= change["first"]]
            after[name] = kept_items + change["add"]
        else:
            after[name] = change["all"] if name in _LISTS else change
    return after  # type: ignore[return-value]


def _list_changes(was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = was[-1]["n"] if was else -1
    added = [item for item in now if item["n"] > last]
    kept = now[: len(now) - len(added)]
    if kept != was[len(was) - len(kept) :] or (was and not now):  # thinned out, or begun anew
        return {"all": list(now)}
    return {"first": now[0]["n"] if now else 0, "add": added}


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    return snapshot  # type: ignore[return-value]
