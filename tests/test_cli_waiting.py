"""The line that says who is missing and why."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from edgelink.cli.waiting import WaitingList, summary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def node(rank: int, name: str | None, brief: str = "", *, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "node_rank": rank,
        "hostname": name,
        "overlay_ip": f"10.10.0.{rank + 2}",
        "ready": brief == "ready",
        "step": "RayJoined",
        "message": "all of it",
        "brief": brief,
        "warnings": warnings,
    }


def event(nodes: list[dict[str, Any]], left_s: float, *notes: str) -> dict[str, Any]:
    return {"event": "waiting", "nodes": nodes, "left_s": left_s, "notes": list(notes)}


REFUSED = "Ray refused (Python 3.10.12, head has 3.11.7)"
FOUR = [node(0, "cloud", "ready"), node(1, "edge-1", "ready"), node(2, "edge-2", REFUSED), node(3, None, "missing")]


def test_one_line_names_every_node_and_why() -> None:
    """Of whom the same is to be said are named together; a rank that nobody has is named by its number."""
    assert summary(FOUR) == f"2/4: cloud, edge-1 ready; edge-2 {REFUSED}; rank 3 missing"
    many = summary([node(rank, f"edge-{rank}", "never seen") for rank in range(40)])
    assert many.startswith("0/40: edge-0, edge-1")
    assert many.endswith("edge-7 and 32 more never seen")
    assert summary([node(0, "cloud")]) == "0/1: cloud RayJoined: all of it", "a daemon that says no more"


def test_without_a_terminal_a_line_is_written_when_something_changed() -> None:
    """The time that is left is no change; nothing is redrawn."""
    out = io.StringIO()
    with WaitingList(out) as waiting:
        waiting.show(event(FOUR[:2], 60.0))
        waiting.show(event(FOUR[:2], 55.0))
        waiting.show(event(FOUR, 50.0))
    assert out.getvalue().splitlines() == [summary(FOUR[:2]), summary(FOUR)]


def test_at_first_it_is_told_what_is_waited_for_and_how_long() -> None:
    """All nodes by name, where no other number of them was asked for."""
    for what, words in (("", ("4 nodes", "cloud", "edge-1")), ("4 nodes", ("cloud",)), ("8 GPUs", ("8 GPUs",))):
        out = io.StringIO()
        with WaitingList(out, what=what) as waiting:
            waiting.show(event(FOUR, 600.0))
            waiting.show(event(FOUR[2:], 595.0))
        first, *rest = out.getvalue().splitlines()
        assert all(word in first for word in (*words, "10 min"))
        assert rest == [summary(FOUR), summary(FOUR[2:])]
    assert "cloud" not in first


def test_a_terminal_without_a_cursor_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emacs's shell, for one."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    with WaitingList(out) as waiting:
        waiting.show(event(FOUR[:2], 60.0))
        waiting.show(event(FOUR, 50.0))
    assert out.getvalue().splitlines() == [summary(FOUR[:2]), summary(FOUR)]


def test_on_a_terminal_the_line_is_redrawn_with_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn before is erased, however many lines of the terminal it took; a warning stays, and comes once."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    warned = [node(1, "edge-1", "ready", warnings=("torch 2.4.0, head has 2.5.1",))]
    with WaitingList(out) as waiting:
        waiting.show(event(FOUR, 60.0))
        drawn = out.getvalue().count("\n") - 1  # what is waited for stays
        waiting.show(event(warned, 55.0))
        waiting.show(event(warned, 50.0))
    assert "60 s" in out.getvalue()
    assert "50 s" not in out.getvalue(), "what is there is not counted down"
    assert f"\x1b[{drawn}F\x1b[J" in out.getvalue()
    assert out.getvalue().count("edgelink: warning: edge-1: torch 2.4.0, head has 2.5.1\n") == 1


def test_json_holds_all_that_is_known() -> None:
    """For scripts: a line for each state, on any stream."""
    out = Terminal()
    with WaitingList(out, as_json=True) as waiting:
        waiting.show(event(FOUR, 60.0))
    assert json.loads(out.getvalue()) == json.loads(json.dumps(event(FOUR, 60.0)))
