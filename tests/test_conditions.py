"""Conditions: when they change, and the phase they add up to."""

from __future__ import annotations

import pytest

from edgelink.conditions import Condition, Conditions, ConditionSet, Phase, Status, derive_phase
from edgelink.errors import ConfigError, RegistryUnavailableError
from edgelink.testing import FakeClock


def condition(status: Status, *, final: bool = False) -> Condition:
    return Condition("Any", status, "Why", "because", FakeClock().now(), final)


@pytest.mark.parametrize(
    ("required", "was_ready", "is_stopping", "phase"),
    [
        ([condition(Status.TRUE)], False, False, Phase.READY),
        ([condition(Status.TRUE), condition(Status.UNKNOWN)], False, False, Phase.STARTING),
        ([condition(Status.FALSE)], False, False, Phase.STARTING),
        ([condition(Status.FALSE)], True, False, Phase.DEGRADED),
        ([condition(Status.FALSE, final=True)], True, False, Phase.FAILED),
        ([condition(Status.UNKNOWN, final=True)], False, False, Phase.STARTING),
        ([condition(Status.TRUE)], True, True, Phase.STOPPING),
    ],
)
def test_phase_follows_from_the_required_conditions(
    required: list[Condition], was_ready: bool, is_stopping: bool, phase: Phase
) -> None:
    """The phase is a function of what is observed, nothing else."""
    assert derive_phase(Conditions(tuple(required), was_ready=was_ready), is_stopping=is_stopping) is phase


async def test_since_moves_only_when_the_status_changes() -> None:
    """A new reason for the same status does not reset the time people judge by."""
    clock = FakeClock()
    conditions = ConditionSet(clock, ["OverlayUp"])
    conditions.set_false("OverlayUp", "NoDevice", "no device")
    first = conditions.get("OverlayUp").since
    await clock.advance(5)
    conditions.set_false("OverlayUp", "NoAddress", "no address")
    assert conditions.get("OverlayUp").since == first
    conditions.set_true("OverlayUp", "Up", "up")
    assert (conditions.get("OverlayUp").since - first).total_seconds() == 5


def test_on_change_is_called_for_news_only() -> None:
    """Repeating an observation is not news."""
    seen: list[str] = []
    conditions = ConditionSet(FakeClock(), ["OverlayUp"], on_change=lambda c: seen.append(c.reason))
    conditions.set_true("OverlayUp", "Up", "up")
    conditions.set_true("OverlayUp", "Up", "up")
    conditions.set_false("OverlayUp", "Down", "down")
    assert seen == ["Up", "Down"]


def test_a_message_commands_no_terminal() -> None:
    """It may quote a program of another user's, and is shown to root."""
    conditions = ConditionSet(FakeClock(), ["RayJoined"])
    conditions.set_error("RayJoined", RegistryUnavailableError("it says \x1b]52;c;cm0gLXJm\x07", hint="wait\x9b2J"))
    message = conditions.get("RayJoined").message
    assert "it says" in message
    assert not [each for line in message.splitlines() for each in line if not each.isprintable()]


def test_an_informative_condition_does_not_decide_readiness() -> None:
    """A warning must not keep a node from being ready."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp"], ["OverlayCpuNormal"])
    conditions.set_true("OverlayUp", "Up", "up")
    conditions.set_false("OverlayCpuNormal", "EasyTierSpinning", "spinning")
    assert conditions.is_ready
    assert derive_phase(conditions.now, is_stopping=False) is Phase.READY
    assert [condition.type for condition in conditions.now] == ["OverlayUp", "OverlayCpuNormal"]


def test_a_final_error_makes_the_node_failed_and_a_retryable_one_does_not() -> None:
    """Only what a person has to mend counts as failure."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp"])
    conditions.set_error("OverlayUp", RegistryUnavailableError("relay away"))
    assert derive_phase(conditions.now, is_stopping=False) is Phase.STARTING
    conditions.set_error("OverlayUp", ConfigError("bad", hint="mend it"))
    assert derive_phase(conditions.now, is_stopping=False) is Phase.FAILED
    assert conditions.get("OverlayUp").message == "bad. mend it"


def test_a_node_that_was_ready_is_degraded_afterwards() -> None:
    """Losing a condition after Ready is not the same as never having had it."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp"])
    conditions.set_true("OverlayUp", "Up", "up")
    conditions.set_false("OverlayUp", "Down", "down")
    assert derive_phase(conditions.now, is_stopping=False) is Phase.DEGRADED
