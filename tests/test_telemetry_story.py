"""The last night in ten lines: which of them a flight recorder's lines make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from telling import Words

from edgelink.telemetry.story import story

EVENING = datetime(2026, 1, 1, 20, tzinfo=UTC)
MORNING = EVENING + timedelta(hours=12)


def at(clock: str) -> datetime:
    hour, minute = map(int, clock.split(":"))
    moment = EVENING.replace(hour=hour, minute=minute)
    return moment if moment >= EVENING else moment + timedelta(days=1)


def line(clock: str, what: str, **fields: Any) -> dict[str, Any]:
    return {"at": at(clock).isoformat(), "what": what, **fields}


def nodes(clock: str, **names: str) -> dict[str, Any]:
    return line(clock, "nodes", health={health: each.split() for health, each in names.items()})


def becomes(clock: str, name: str, health: str, why: str = "", *, since: str | None = None) -> dict[str, Any]:
    return line(clock, "node", node=name, health=health, why=why, since=at(since or clock).isoformat())


def run(clock: str, *, ended: bool = False, exit_status: int | None = None, why: str = "") -> dict[str, Any]:
    return line(clock, "run", command="train.py", attempt=1, ended=ended, exit_status=exit_status, why=why)


def condition(clock: str, kind: str, status: str, reason: str = "R") -> dict[str, Any]:
    return line(clock, "condition", type=kind, status=status, reason=reason, message="m")


def told(*entries: Mapping[str, Any]) -> list[str]:
    return story(entries, EVENING, MORNING, "cloud", UTC)


ALL = nodes("20:00", ok="cloud edge-1 edge-2")


@pytest.mark.parametrize(
    ("entries", "values"),
    [
        ([ALL], ["", "3"]),
        (
            [ALL, becomes("20:49", "edge-2", "paused", since="20:48"), becomes("20:58", "edge-2", "ok")],
            ["20:48 edge-2 10m00s", "3"],
        ),
        (  # one silence, whatever became of it
            [ALL, becomes("20:48", "edge-2", "paused"), becomes("20:58", "edge-2", "away", "offline")],
            ["20:48 edge-2 offline", "2 3 edge-2"],
        ),
        (  # a head that is started anew finds it as it was
            [ALL, becomes("20:48", "edge-2", "away"), nodes("21:00", coming="cloud edge-1 edge-2")],
            ["20:48 edge-2 since", "0 3 cloud edge-1 edge-2"],
        ),
        (  # it came back while no daemon looked
            [ALL, becomes("20:48", "edge-2", "away"), nodes("21:00", ok="cloud edge-1 edge-2")],
            ["20:48 edge-2 12m00s", "3"],
        ),
        (
            [ALL, run("22:00"), run("01:00", ended=True, exit_status=0), run("02:00")],
            ["01:00 train.py ended 3h00m", "02:00 train.py started", "3"],
        ),
        (
            [ALL, run("22:00"), run("22:03", ended=True, exit_status=1, why="edge-1 was lost; run again")],
            ["22:03 train.py failed 1 3m00s edge-1", "3"],
        ),
        (  # a head's own view of its peers says less than what it says of them
            [
                ALL,
                condition("20:01", "PeersReachable", "True"),
                condition("20:48", "PeersReachable", "False"),
                condition("20:58", "PeersReachable", "True"),
            ],
            ["", "3"],
        ),
        (  # an edge; how it starts is no news
            [
                line("20:00", "started", pid=1),
                condition("20:00", "RayJoined", "False", "HeadNotSeen"),
                condition("20:01", "RayJoined", "True"),
                condition("03:10", "OverlayUp", "Unknown"),
                condition("03:10", "RayJoined", "False", "OverlayDown"),
                condition("03:12", "Shielded", "False"),
                condition("03:14", "RayJoined", "True"),
                line("03:15", "sample", phase="Ready"),
            ],
            ["03:10 cloud 4m00s OverlayDown", "cloud Ready"],
        ),
        (
            [
                line("20:00", "sample", phase="Ready"),
                line("20:00", "started", pid=1),
                line("20:30", "sample", phase="Ready"),
                line("21:00", "started", pid=2),
                line("21:01", "sample", phase="Starting"),
            ],
            ["20:30 off 30m00s", "cloud Starting"],
        ),
    ],
)
def test_what_is_told(entries: list[dict[str, Any]], values: list[str], words: Words) -> None:
    """Each incident once, with its length; and how it is in the end."""
    head, *rest = told(*entries)
    assert head.startswith("cloud, Thu 20:00 to Fri 08:00, ")
    assert len(rest) == len(values)
    for line, of_it in zip(rest, values, strict=True):
        assert set(of_it.split()) <= set(re.findall(r"[\w.:-]*\w", line)), line
        assert (line[2] == ":") == (of_it[2:3] == ":"), "an incident begins with its time, and nothing else does"
    words.on("story", "\n".join([head, *rest]))


def test_it_says_since_when_there_are_records(words: Words) -> None:
    """Nothing is known of the time before."""
    assert told(nodes("02:13", ok="cloud"))[0].startswith("cloud, Fri 02:13 to")
    (line,) = told()
    assert line.startswith("cloud, Fri 08:00 to Fri 08:00, ")
    words.on("story", line)


def test_a_bad_night_has_ten_lines_as_well() -> None:
    """What happened often is told together, what is left out is counted, and the worst is never left out."""
    flaps = [
        becomes(f"{hour:02}:{minute:02}", "edge-1", health)
        for hour in (21, 22, 23)
        for minute, health in ((10, "paused"), (11, "ok"), (30, "paused"), (35, "ok"))
    ]
    lines = told(ALL, *flaps[:4], run("21:50"), run("21:55", ended=True, exit_status=1), *flaps[4:])
    assert len(lines) <= 10
    assert "21:10  edge-1 was silent 6 times, 18m00s in all, 5m00s at most." in lines
    many = [
        entry
        for number in range(30)
        for entry in (becomes("22:10", f"sim-{number}", "off"), becomes("22:20", f"sim-{number}", "ok"))
    ]
    lines = told(ALL, *many, becomes("23:00", "edge-2", "away"), becomes("23:01", "edge-2", "ok"))
    assert len(lines) == 10
    assert max(map(len, lines)) <= 80
    assert any("edge-2 was away" in each for each in lines)
    assert lines[-2].startswith("24 more")
