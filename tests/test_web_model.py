"""The page's snapshot, what changes from one to the next, and a past that stays bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from edgelink.api.web.history import MOST_CHANGES, MOST_EVENTS, MOST_POINTS, MOST_SAMPLES, History
from edgelink.api.web.model import NodeRow, Snapshot, apply, changes
from edgelink.conditions import Status
from edgelink.registry.payloads import ConditionReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = {"a": "edge-1"}


def row(**values: Any) -> NodeRow:
    known = {"hostname": "edge-1", "health": "ok", "wrong": [], "path": "direct", "via": None, "protocol": "udp"}
    return cast(NodeRow, known | values)


def condition(status: Status, reason: str = "R", kind: str = "RayJoined") -> ConditionReport:
    return ConditionReport(type=kind, status=status, reason=reason, message="m")


_TABLES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3).map(lambda value: {"value": value}))
_LISTS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 2)).map(
    lambda cut: [{"n": n} for n in range(cut[0], cut[0] + cut[1], cut[2])]
)
_SNAPSHOTS = st.fixed_dictionaries(
    {
        "head": st.fixed_dictionaries({"phase": st.sampled_from(["Ready", "Degraded"])}),
        "nodes": _TABLES,
        "measures": _TABLES,
        "run": st.none() | st.just({"run_id": "r"}),
        "events": _LISTS,
        "points": _LISTS,
        "traffic": _LISTS,
    }
)


@given(_SNAPSHOTS, _SNAPSHOTS)
def test_what_is_told_makes_one_snapshot_of_another(before: Any, after: Any) -> None:
    """Whatever came, went, was cut off at its beginning or thinned out."""
    assert apply(cast(Snapshot, before), changes(before, after)) == after
    assert changes(after, after) == {}


def test_little_is_told_of_little() -> None:
    """One row of five hundred, one event; not all of them."""
    nodes = {str(number): {"value": 0} for number in range(500)}
    before: Any = {"head": {}, "nodes": nodes, "measures": {}, "run": None, "events": [{"n": 1}, {"n": 2}]}
    before |= {"points": [], "traffic": []}
    after = before | {"nodes": nodes | {"7": {"value": 1}}, "events": [{"n": 2}, {"n": 3}]}
    assert changes(before, after) == {
        "nodes": {"set": {"7": {"value": 1}}, "gone": []},
        "events": {"first": 2, "add": [{"n": 3}]},
    }


def test_changes_of_nodes_are_events() -> None:
    """Health, way, coming and going; the first look at a network is none."""
    history = History()
    history.compare({}, {"a": row()}, NOW)
    assert not history.events
    history.compare({"a": row()}, {"a": row(health="away", wrong=["offline: …"], path=None)}, NOW)
    history.compare({"a": row()}, {"a": row(path="relayed", via="relay", protocol=None)}, NOW)
    history.compare({"a": row()}, {"a": row(), "b": row(hostname="edge-2")}, NOW)
    history.compare({"a": row(), "b": row(hostname="edge-2")}, {"a": row()}, NOW)
    assert [(event["severity"], event["text"]) for event in history.events] == [
        ("trouble", "edge-1 is away"),
        ("info", "edge-1 is reached through relay, was directly (udp)"),
        ("info", "edge-2 joined the network"),
        ("info", "edge-2 left the network"),
    ]
    assert history.events[0]["detail"] == "offline: …"


def test_changes_of_conditions_are_kept_by_node() -> None:
    """Each with its reason; another message alone is none, and another reason no event."""
    history = History()
    false, other = condition(Status.FALSE), condition(Status.FALSE, "Other")
    steps = [(), (condition(Status.TRUE),), (false,), (other,), (false.model_copy(update={"message": "n"}),)]
    for was, now in zip(steps, [*steps[1:], steps[-1]], strict=True):
        history.compare_conditions({"a": was}, {"a": now, "stranger": now}, NAMES, ["RayJoined"], NOW)
    told = history.of_node("a")["changes"]
    assert [(each["status"], each["reason"]) for each in told] == [
        ("True", "R"),
        ("False", "R"),
        ("False", "Other"),
        ("False", "R"),
    ]
    assert [(event["text"], event["severity"]) for event in history.events] == [
        ("edge-1: RayJoined is False", "trouble")
    ]
    assert history.of_node("stranger")["changes"] == []
    history.compare_conditions({"a": (false,)}, {"a": (condition(Status.TRUE),)}, NAMES, [], NOW)
    assert history.events[-1]["severity"] == "ok"


def test_the_past_is_bounded() -> None:
    """A network that flaps for a month fills no memory; a long training's curve gets coarser, not shorter."""
    history = History()
    states = [(condition(Status.TRUE),), (condition(Status.FALSE),)]
    for number in range(600):
        history.compare_conditions({"a": states[number % 2]}, {"a": states[1 - number % 2]}, NAMES, [], NOW)
        history.rtt("a", NOW, 1.0)
    assert len(history.events) == MOST_EVENTS
    assert len(history.of_node("a")["changes"]) == MOST_CHANGES
    assert len(history.of_node("a")["rtts"]) == MOST_SAMPLES
    history.add_points("r", ((float(step), {"return": float(step)}) for step in range(10_000)))
    steps = [point["step"] for point in history.points]
    assert MOST_POINTS / 2 <= len(steps) <= MOST_POINTS
    assert steps[0] < 50
    assert steps[-1] > 9900
    assert len({second - first for first, second in pairwise(steps)}) == 1
    history.add_points("another", [(0.0, {"loss": 1.0})])
    assert [point["run_id"] for point in history.points] == ["another"]


def test_of_a_node_that_left_nothing_is_kept() -> None:
    """Else nodes that come and go fill the memory."""
    history = History()
    history.rtt("a", NOW, 1.0)
    history.compare({"a": row()}, {}, NOW)
    assert history.rtts == {}
