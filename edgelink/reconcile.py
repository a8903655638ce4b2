"""The reconcile loop that every resource of a node runs in.

A reconciler observes, decides, acts and sets its condition in one ``reconcile()`` call, and answers after how many
seconds it wants to look again. Events (netlink, MQTT, a child's end) only *wake* it and carry no decision, so that
running it once more is always harmless. A retryable error is retried with back-off and jitter; a final one is
looked at again only when something wakes the loop, or after a long pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.errors import EdgelinkError, first_failure
from edgelink.files import NO_ROOM, not_recorded
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.tasks import apart
from edgelink.timeouts import timeout

FINAL_ERROR_RETRY_S = 30.0  # a person may have mended the cause (installed a package, freed a port)


class Wakeup:
    """Coalescing wake-up: any number of ``set`` calls before the next look count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Forget it without a wait: somebody has seen to it."""
        self._event.clear()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Return when woken or after ``timeout_s``, None waits for a wake-up only; whether it was one."""
        try:
            async with timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


class Nudge(Wakeup):
    """A wake-up that calls its owner at once, so that a part hears of something that is no fact."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        self._tell()


class Reconciler(Protocol):
    """One resource of a node."""

    name: ClassVar[str]
    condition: ClassVar[str]
    wakeup: Wakeup

    async def reconcile(self) -> float:
        """Bring the resource one step nearer to what is wanted; idempotent.

        Returns:
            Seconds until the next unprompted look.

        Raises:
            EdgelinkError: the step failed; the loop records it as the condition and tries again.
        """


class Tries:
    """Tells of failures and of their end, and says when to try again. For the loops that never end."""

    def __init__(self, name: str, condition: str, conditions: ConditionSet, clock: Clock) -> None:
        self._name = name
        self._condition = condition
        self._conditions = conditions
        self._log = get_logger(name)
        self._backoff = Backoff(first_s=0.2, cap_s=15.0)
        self._outage = Outage(clock)

    def went_well(self) -> None:
        """Log the end of an outage, if there was one."""
        lasted_s = self._outage.over()
        if lasted_s is not None:
            self._log.info(f"{self._name}.recovered", lasted_s=lasted_s)
        self._backoff.reset()

    def failed(self, failure: Exception) -> float:
        """Say it in the condition, log it once an outage, and return after how many seconds to try again."""
        error = first_failure(failure)
        known = _known(error)
        if known is None and self._outage.is_news(type(error).__name__):
            self._log.exception(f"{self._name}.crashed")
        elif known is not None and self._outage.is_news(known.condition_reason):
            self._log.warning(f"{self._name}.failed", reason=known.condition_reason, error=str(known))
        self._conditions.set_error(self._condition, known or _unexpected(self._name, error))
        return self._backoff.next_s() if known is None or known.retryable else FINAL_ERROR_RETRY_S


async def run_reconciler(reconciler: Reconciler, conditions: ConditionSet, clock: Clock) -> None:
    """Run ``reconciler`` for ever; ends only by cancellation."""
    tries = Tries(reconciler.name, reconciler.condition, conditions, clock)
    while True:
        try:
            requeue_after_s = await apart(reconciler.reconcile())
            tries.went_well()
        except Exception as failure:  # the loop is the one place where the unexpected ends
            requeue_after_s = tries.failed(failure)
        await reconciler.wakeup.wait(requeue_after_s)


def _known(error: Exception) -> EdgelinkError | None:
    """What people can be told of; a full disk is nobody's defect, wherever it is met. None: a defect of ours."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return not_recorded(Path(error.filename or "a file"), error)
    return error if isinstance(error, EdgelinkError) else None


def _unexpected(name: str, error: Exception) -> EdgelinkError:
    return EdgelinkError(
        f"{name}: unexpected {type(error).__name__}: {error}",
        hint="this is a defect of EdgeLink; its log has the details",
        reason="InternalError",
    )
