"""The lab's road: what is said while a node is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgelink.clock import SystemClock
from edgelink.errors import DeadlineError
from edgelink.lab import Lab
from edgelink.lab.road import Road

BROKER = {"type": "BrokerUp", "status": "False", "reason": "MissingDependency", "message": "there is no user mosquitto"}
MEMBERS = {"type": "Members", "status": "Unknown", "reason": "NotAsked", "message": "the broker is not up"}
READY = {"type": "OverlayUp", "status": "True", "reason": "Up", "message": "et0 is up"}


class Clock(SystemClock):
    """Its time passes while somebody blocks."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def block(self, seconds: float) -> None:
        self.now_s += seconds


def road(clock: Clock, said: list[str], *conditions: dict[str, str], ready_after_s: float) -> Road:
    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            return {"ready": clock.now_s > 100.0 + ready_after_s, "conditions": list(conditions)}

    lab = SimpleNamespace(daemon=lambda _name: object())
    return Walked(cast("Lab", lab), clock, said.append)


def test_a_node_that_is_quick_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    assert road(Clock(), said, BROKER, ready_after_s=9).wait_ready("relay")["ready"]
    assert said == []


def test_what_a_node_waits_for_is_said_once_while_it_lasts() -> None:
    """Long before the time is up: it may be something that nobody but the user can change."""
    said: list[str] = []
    assert road(Clock(), said, READY, BROKER, MEMBERS, ready_after_s=45).wait_ready("relay")["ready"]
    assert said == ["  relay waits: BrokerUp MissingDependency: there is no user mosquitto"]


def test_when_the_time_is_up_all_that_is_missing_is_named() -> None:
    with pytest.raises(
        DeadlineError, match=r"after 120 s: BrokerUp .*no user mosquitto; Members NotAsked: the broker is"
    ):
        road(Clock(), [], READY, BROKER, MEMBERS, ready_after_s=600).wait_ready("relay")
