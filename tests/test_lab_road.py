"""The lab's road: what is said while a node is waited for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgelink.clock import SystemClock
from edgelink.errors import DeadlineError
from edgelink.lab import Lab
from edgelink.lab.ray_slots import RaySlots
from edgelink.lab.road import Road
from edgelink.testing import FakeClock

BROKER = {"type": "BrokerUp", "status": "False", "reason": "MissingDependency", "message": "no user mosquitto"}
MEMBERS = {"type": "Members", "status": "Unknown", "reason": "NotAsked", "message": "the broker is not up"}
READY = {"type": "OverlayUp", "status": "True", "reason": "Up", "message": "et0 is up"}


def road(clock: FakeClock, said: list[str], *conditions: dict[str, str], ready_after_s: float) -> Road:
    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            return {"ready": clock.monotonic_s() > ready_after_s, "conditions": list(conditions)}

    lab = SimpleNamespace(daemon=lambda _name: object(), directory=Path("/nowhere/lab"))
    return Walked(cast("Lab", lab), cast("SystemClock", clock), said.append)


def test_a_node_that_is_quick_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    assert road(FakeClock(), said, BROKER, ready_after_s=9).wait_ready("relay")["ready"]
    assert said == []


def test_what_a_node_waits_for_is_said_once_while_it_lasts() -> None:
    """Long before the time is up: it may be something that nobody but the user can change."""
    said: list[str] = []
    assert road(FakeClock(), said, READY, BROKER, MEMBERS, ready_after_s=45).wait_ready("relay")["ready"]
    assert said == ["  relay waits: BrokerUp MissingDependency: no user mosquitto"]


def test_when_the_time_is_up_all_that_is_missing_is_named() -> None:
    with pytest.raises(
        DeadlineError, match=r"after 120 s: BrokerUp .*no user mosquitto; Members NotAsked: the broker is"
    ):
        road(FakeClock(), [], READY, BROKER, MEMBERS, ready_after_s=600).wait_ready("relay")


def test_no_more_nodes_start_at_once_than_there_are_slots(tmp_path: Path) -> None:
    """The next one starts when an earlier one is ready. A lab that has a slot never waits for another lab's."""
    clock, done = FakeClock(), list[str]()
    theirs = RaySlots(tmp_path, cast("SystemClock", clock), print)
    taken = []
    while (slot := theirs.take_free("cloud of lab theirs")) is not None:
        taken.append(slot)
    os.close(taken.pop())  # one is left for us

    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            done.append(f"{name} is ready")
            return {"ready": True, "conditions": []}

    lab = SimpleNamespace(
        name="ours",
        directory=tmp_path / "ours",
        daemon=lambda _name: object(),
        start=lambda name: done.append(f"{name} starts"),
    )
    Walked(cast("Lab", lab), cast("SystemClock", clock), print).start("cloud", "edge-1", "edge-2")
    assert done == [f"{node} {what}" for node in ("cloud", "edge-1", "edge-2") for what in ("starts", "is ready")]
    given_back = theirs.take_free("edge-1 of lab theirs")
    assert given_back is not None
    for each in (given_back, *taken):
        os.close(each)
