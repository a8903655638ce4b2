"""The lab's road: what is said while a node is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgelink.clock import SystemClock
from edgelink.errors import DeadlineError
from edgelink.lab import Lab
from edgelink.lab.road import Road
from edgelink.testing import FakeClock

BROKER = {"type": "BrokerUp", "status": "False", "reason": "MissingDependency", "message": "there is no user mosquitto"}
MEMBERS = {"type": "Members", "status": "Unknown", "reason": "NotAsked", "message": "the broker is not up"}
READY = {"type": "OverlayUp", "status": "True", "reason": "Up", "message": "et0 is up"}


def road(clock: FakeClock, said: list[str], *conditions: dict[str, str], ready_after_s: float) -> Road:
    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            return {"ready": clock.monotonic_s() > ready_after_s, "conditions": list(conditions)}

    lab = SimpleNamespace(daemon=lambda _name: object())
    return Walked(cast("Lab", lab), cast("SystemClock", clock), said.append)


def test_a_node_that_is_quick_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    assert road(FakeClock(), said, BROKER, ready_after_s=9).wait_ready("relay")["ready"]
    assert said == []


def test_what_a_node_waits_for_is_said_once_while_it_lasts() -> None:
    """Long before the time is up: it may be something that nobody but the user can change."""
    said: list[str] = []
    assert road(FakeClock(), said, READY, BROKER, MEMBERS, ready_after_s=45).wait_ready("relay")["ready"]
    assert said == ["  relay waits: BrokerUp MissingDependency: there is no user mosquitto"]


def test_when_the_time_is_up_all_that_is_missing_is_named() -> None:
    with pytest.raises(
        DeadlineError, match=r"after 120 s: BrokerUp .*no user mosquitto; Members NotAsked: the broker is"
    ):
        road(FakeClock(), [], READY, BROKER, MEMBERS, ready_after_s=600).wait_ready("relay")
