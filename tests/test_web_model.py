"""The page's snapshot, what changes from one to the next, and a past that stays bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.api.web.history import (
    MOST_CHANGES,
    MOST_EVENTS,
    MOST_POINTS,
    MOST_SAMPLES,
    RECORDED,
    History,
    metric_names,
)
from edgelink.api.web.model import Health, NodeRow, Snapshot, apply, changes
from edgelink.api.web.pace import Pace, step_of
from edgelink.api.web.timeline import MOST_OUTAGES, MOST_STEPS, Timeline
from edgelink.conditions import Status
from edgelink.protocol.payloads import ConditionReport
from edgelink.telemetry.recorder import noted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = {"a": "edge-1"}


def row(**values: Any) -> NodeRow:
    known: dict[str, Any] = {"hostname": "edge-1", "health": "ok", "wrong": [], "since": None, "silent_since": None}
    known |= {"path": "direct", "via": None, "protocol": "udp"}
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
        "bars": _TABLES,
        "outages": _TABLES,
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
    before |= {"points": [], "traffic": [], "bars": {}, "outages": {}}
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


def test_how_a_node_starts_is_no_event() -> None:
    """Neither its conditions, which become True for the first time, nor that it is on its way; that it works is."""
    history = History()
    unknown, false, true = condition(Status.UNKNOWN), condition(Status.FALSE), condition(Status.TRUE)
    for was, now in pairwise([unknown, false, unknown, true]):
        history.compare_conditions({"a": (was,)}, {"a": (now,)}, NAMES, ["RayJoined"], NOW)
    history.compare_conditions(
        {"a": (condition(Status.TRUE, kind="DriverRunning"),)},
        {"a": (condition(Status.FALSE, kind="DriverRunning"),)},
        NAMES,
        [],
        NOW,
    )
    assert not history.events
    for earlier, later in pairwise(("away", "coming", "ok", "coming")):
        history.compare({"a": row(health=earlier)}, {"a": row(health=later)}, NOW)
    assert [(event["severity"], event["text"]) for event in history.events] == [
        ("ok", "edge-1 works"),
        ("info", "edge-1 starts again"),
    ]


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
    for step in range(10_000):
        history.add_points("r", [(float(step), {"return": float(step)})], NOW)
    steps = [point["step"] for point in history.points]
    assert MOST_POINTS / 2 <= len(steps) <= MOST_POINTS
    assert steps[0] < 50
    assert steps[-1] > 9900
    assert len({second - first for first, second in pairwise(steps)}) == 1
    history.add_points("another", [(0.0, {"loss": 1.0, "total_steps": 9.0})], NOW)
    assert [point["run_id"] for point in history.points] == ["another"]
    assert metric_names(history.points) == ["loss"]


def test_points_that_are_told_together_lie_between_the_moments_they_are_told() -> None:
    """A driver's file is looked at now and then only."""
    history = History()
    history.add_points("r", [(1.0, {"loss": 1.0})], NOW)
    history.add_points("r", [(2.0, {"loss": 1.0}), (3.0, {"loss": 1.0})], NOW + timedelta(seconds=4))
    assert [datetime.fromisoformat(point["at"]) - NOW for point in history.points] == [
        timedelta(),
        timedelta(seconds=2),
        timedelta(seconds=4),
    ]


@pytest.mark.parametrize(
    ("states", "outages", "marks"),
    [
        ("ok ok", [], "oo"),
        ("ok warning coming off trouble", [], "owcft"),
        ("ok paused ok", [("paused", 1, 2)], "opo"),
        ("ok paused away coming ok", [("away", 1, 3)], "opaco"),
        ("ok away paused", [("paused", 1, None)], "oap"),
        ("away coming ok", [], "aco"),  # since when is not known
        ("paused ok", [("paused", 0, 1)], "po"),
    ],
)
def test_silences_are_outages_and_everything_is_in_the_bar(
    states: str, outages: list[tuple[str, int, int | None]], marks: str
) -> None:
    """A step is ten minutes here."""
    timeline = Timeline()
    moments = [NOW + timedelta(minutes=10 * number) for number in range(len(states.split()))]
    for at, health in zip(moments, states.split(), strict=True):
        timeline.note("edge-1", cast(Health, health), at)
    told = [(each["kind"], each["since"], each["until"]) for each in timeline.outages.values()]
    text = [moment.isoformat(timespec="seconds") for moment in moments]
    assert told == [(kind, text[since], None if until is None else text[until]) for kind, since, until in outages]
    assert timeline.bars["edge-1"]["marks"] == marks


def test_a_step_of_a_bar_shows_the_worst_and_nothing_where_nobody_looked() -> None:
    """A silence of some seconds is seen a day later; and the bar is a day long."""
    timeline = Timeline()
    for minute, health in ((0, "ok"), (1, "paused"), (2, "ok"), (25, "ok")):
        timeline.note("edge-1", cast(Health, health), NOW + timedelta(minutes=minute))
    assert timeline.bars["edge-1"]["marks"] == "p o"
    timeline.note("edge-1", "ok", NOW + timedelta(days=3))
    assert timeline.bars["edge-1"]["marks"] == " " * (MOST_STEPS - 1) + "o"
    timeline.note("edge-1", "away", NOW + timedelta(days=3, minutes=-15))  # a clock that was set back a little
    assert timeline.bars["edge-1"]["marks"] == " " * (MOST_STEPS - 3) + "a o"
    timeline.note("edge-1", "ok", NOW)
    assert timeline.bars["edge-1"]["marks"] == "o"
    for second in range(3 * MOST_OUTAGES):
        timeline.note("edge-1", ("paused", "ok")[second % 2], NOW + timedelta(seconds=second))
    assert len(timeline.outages) == MOST_OUTAGES
    timeline.forget("edge-1")
    assert timeline.bars == {}


def test_what_was_recorded_is_known_after_a_restart(tmp_path: Path) -> None:
    """The bars, the outages and the events; of the time without a daemon nothing."""

    def line(minute: float, what: str, **fields: Any) -> str:
        return json.dumps({"at": (NOW + timedelta(minutes=minute)).isoformat(), "what": what, **fields})

    silent: dict[str, Any] = {"node_id": "a", "node": "edge-1", "why": "w", "lasted_s": None}
    silent |= {"was": "ok", "health": "paused", "is_event": True}
    back = silent | {"health": "ok", "was": "paused", "why": "", "lasted_s": 130.0}
    run = {"command": "train.py", "attempt": 1, "ended": True, "exit_status": 1, "why": "edge-1 was lost"}
    lines = [
        line(-9999, "nodes", health={"paused": ["long-gone"]}),
        line(0, "started", pid=1),
        line(0, "nodes", health={"ok": ["cloud", "edge-1"]}),
        line(21, "node", **silent, since=(NOW + timedelta(minutes=20.5)).isoformat()),
        line(23, "node", **back, since=(NOW + timedelta(minutes=23)).isoformat()),
        line(24, "run", **run),
        line(31, "sample"),
        line(55, "started", pid=2),
        line(55, "nodes", health={"coming": ["cloud"]}),
        line(55, "node", **silent | {"node": "cloud", "health": "ok", "was": "coming", "is_event": False}, since="x"),
        line(55, "node", written_by="another version"),
    ]
    (tmp_path / "flight.jsonl").write_text("\n".join([*lines, '{"at": "20']))
    history = History()
    history.restore(noted(tmp_path, NOW - timedelta(days=1), RECORDED))
    assert {name: bar["marks"] for name, bar in history.timeline.bars.items()} == {"cloud": "oooo c", "edge-1": "oopo"}
    assert [(event["text"], event["detail"]) for event in history.events] == [
        ("edge-1 is paused", "w"),
        ("edge-1 is back after 2m10s", ""),
        ("train.py ended with status 1", "edge-1 was lost"),
    ]
    [outage] = history.timeline.outages.values()
    assert (outage["hostname"], outage["until"]) == ("edge-1", (NOW + timedelta(minutes=23)).isoformat())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("142", (142, None)),
        ("142/400", (142, 400)),
        ("iteration 142 of 400", (142, 400)),
        ("epoch 3, batch 7", (None, None)),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_step_and_total_are_read(words: str | None, expected: tuple[float | None, float | None]) -> None:
    """As a driver may write them; of other words neither is known."""
    assert step_of(words) == expected


def test_the_pace_is_of_the_last_ten_minutes() -> None:
    """Of one attempt: what an attempt before did says nothing. A stall makes it slower."""
    pace = Pace()

    def note(attempt: str, second: float, step: float) -> float | None:
        pace.note(attempt, NOW + timedelta(seconds=second), step)
        return pace.steps_per_s()

    assert note("one", 0, 100) is None
    assert note("one", 20, 110) == 0.5
    assert note("one", 40, 110) == 0.25
    assert note("two", 60, 50) is None
    for second in range(60, 4000, 10):
        note("two", second, 50 + second * (1 if second < 2000 else 3))
    assert pace.steps_per_s() == 3


def test_of_a_node_that_left_nothing_is_kept() -> None:
    """Else nodes that come and go fill the memory."""
    history = History()
    history.rtt("a", NOW, 1.0)
    history.compare({"a": row()}, {}, NOW)
    assert history.rtts == {}
