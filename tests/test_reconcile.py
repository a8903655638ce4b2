"""The reconcile loop: retries, wake-ups, and what it does with errors."""

from __future__ import annotations

import asyncio
import errno
from typing import ClassVar

import pytest
from old_timeouts import mark_this_task, old_timeouts  # noqa: F401

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet, Status
from edgelink.errors import EdgelinkError, RegistryUnavailableError
from edgelink.reconcile import Wakeup, run_reconciler
from edgelink.testing import FakeClock, eventually


class Scripted:
    """Does what its script says, one entry a call."""

    name: ClassVar[str] = "scripted"
    condition: ClassVar[str] = "Done"

    def __init__(self, conditions: ConditionSet, script: list[Exception | float]) -> None:
        self.wakeup = Wakeup()
        self.calls = 0
        self._conditions = conditions
        self._script = script

    async def reconcile(self) -> float:
        step = self._script[min(self.calls, len(self._script) - 1)]
        self.calls += 1
        if isinstance(step, Exception):
            raise step
        self._conditions.set_true("Done", "Done", "done")
        return step


async def run_with(script: list[Exception | float]) -> tuple[Scripted, ConditionSet, asyncio.Task[None]]:
    conditions = ConditionSet(FakeClock(), ["Done"])
    scripted = Scripted(conditions, script)
    task = asyncio.ensure_future(run_reconciler(scripted, conditions, SystemClock()))
    return scripted, conditions, task


async def test_a_retryable_failure_is_tried_again_and_recovers() -> None:
    """Nobody has to restart anything after a fault that ends."""
    _, conditions, task = await run_with([RegistryUnavailableError("away"), RegistryUnavailableError("away"), 60.0])
    await eventually(lambda: conditions.is_true("Done"))
    task.cancel()


async def test_a_final_failure_waits_for_a_wake_up() -> None:
    """What no retry can mend is not hammered, but looked at again when something changed."""
    scripted, conditions, task = await run_with([EdgelinkError("broken", hint="mend"), 60.0])
    await eventually(lambda: conditions.get("Done").final)
    calls = scripted.calls
    scripted.wakeup.set()
    await eventually(lambda: conditions.is_true("Done"))
    assert scripted.calls == calls + 1
    task.cancel()


async def test_a_defect_becomes_a_condition_and_does_not_end_the_loop() -> None:
    """An unexpected exception is shown and retried; the daemon lives."""
    scripted, conditions, task = await run_with([ZeroDivisionError("oops")])
    await eventually(lambda: conditions.get("Done").reason == "InternalError")
    assert conditions.get("Done").status is Status.FALSE
    scripted._script = [60.0]
    scripted.wakeup.set()
    await eventually(lambda: conditions.is_true("Done"))
    task.cancel()


async def test_of_what_fails_in_a_task_group_the_failure_is_told() -> None:
    """A full disk is no defect of ours, wherever it is met, and nobody can read "1 sub-exception"."""
    full = ExceptionGroup("unhandled errors in a TaskGroup", [OSError(errno.ENOSPC, "No space left", "/var/x")])
    _, conditions, task = await run_with([full, ExceptionGroup("again", [ZeroDivisionError("oops")])])
    await eventually(lambda: conditions.get("Done").reason == "NotRecorded")
    assert "/var/x" in conditions.get("Done").message
    await eventually(lambda: conditions.get("Done").reason == "InternalError")
    assert "ZeroDivisionError: oops" in conditions.get("Done").message
    task.cancel()


async def test_a_step_that_forgets_its_cancellation_does_not_hold_up_the_end() -> None:
    """As a failed task group may before Python 3.13: a daemon that is stopped would go on for ever."""
    begun = asyncio.Event()

    class Deaf(Scripted):
        async def reconcile(self) -> float:
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise EdgelinkError("broken") from None
            return 60.0

    conditions = ConditionSet(FakeClock(), ["Done"])
    task = asyncio.ensure_future(run_reconciler(Deaf(conditions, []), conditions, SystemClock()))
    await begun.wait()
    task.cancel()
    await eventually(task.done)
    assert task.cancelled()


@pytest.mark.usefixtures("old_timeouts")
async def test_a_step_that_leaves_its_task_marked_does_not_end_the_loop() -> None:
    """As a failed task group does before Python 3.13; before 3.11.3 the next pause then ended the loop in silence."""

    class Marking(Scripted):
        async def reconcile(self) -> float:
            await mark_this_task()
            return await super().reconcile()

    conditions = ConditionSet(FakeClock(), ["Done"])
    marking = Marking(conditions, [0.001])
    task = asyncio.ensure_future(run_reconciler(marking, conditions, SystemClock()))
    await eventually(lambda: marking.calls >= 3 or task.done())
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_wake_ups_coalesce() -> None:
    """A burst of events is one look."""
    wakeup = Wakeup()
    for _ in range(5):
        wakeup.set()
    await wakeup.wait(1.0)
    waiting = asyncio.ensure_future(wakeup.wait(None))
    await asyncio.sleep(0)
    assert not waiting.done()
    wakeup.set()
    await waiting
