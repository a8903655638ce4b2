"""Conditions: the observable facts of a node, and the phase derived from them.

A condition is True, False or Unknown, with a CamelCase reason, a sentence for people, and the time of its last
change of status. Each has one writer (a reconciler). The node's phase is derived, never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError
from edgelink.wording import printable


class Status(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Phase(StrEnum):
    STARTING = "Starting"
    READY = "Ready"
    DEGRADED = "Degraded"
    STOPPING = "Stopping"
    FAILED = "Failed"


@dataclass(frozen=True)
class Condition:
    """One fact. ``final`` marks a False that no retry can mend: a person has to act."""

    type: str
    status: Status
    reason: str
    message: str
    since: datetime
    final: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "status": self.status.value,
            "reason": self.reason,
            "message": self.message,
            "since": self.since.isoformat(timespec="milliseconds"),
            "final": self.final,
        }


@dataclass(frozen=True)
class Conditions:
    """The conditions of a node at one moment, in the order they were declared.

    Attributes:
        required: they decide readiness, in the order of the node's start.
        informing: the others.
        was_ready: all that are required have been True in this daemon's life.
    """

    required: tuple[Condition, ...] = ()
    informing: tuple[Condition, ...] = ()
    was_ready: bool = False

    def __iter__(self) -> Iterator[Condition]:
        yield from self.required
        yield from self.informing


@dataclass(frozen=True)
class Said:
    """One condition as a part says it. :meth:`ConditionSet.say` records it."""

    type: str
    status: Status
    reason: str
    message: str
    final: bool = False


def is_so(kind: str, reason: str, message: str) -> Said:
    """Say that the condition is True."""
    return Said(kind, Status.TRUE, reason, message)


def is_not_so(kind: str, reason: str, message: str) -> Said:
    """Say that the condition is False."""
    return Said(kind, Status.FALSE, reason, message)


def failed(kind: str, error: EdgelinkError) -> Said:
    """Say that the condition is False because of an error. It is final where no retry can help."""
    return Said(kind, Status.FALSE, error.condition_reason, str(error), final=not error.retryable)


def is_unknown(kind: str, reason: str, message: str) -> Said:
    """Say that the condition is Unknown."""
    return Said(kind, Status.UNKNOWN, reason, message)


class ConditionSet:
    """The conditions of one node, in the order they were declared.

    ``ready_types`` decide readiness; the others only inform. ``on_change`` is called after a status, reason or
    message has changed.
    """

    def __init__(
        self,
        clock: Clock,
        ready_types: Iterable[str],
        informative_types: Iterable[str] = (),
        on_change: Callable[[Condition], None] | None = None,
    ) -> None:
        self._clock = clock
        self._ready_types = tuple(ready_types)
        self._on_change = on_change
        self._conditions = {
            kind: Condition(kind, Status.UNKNOWN, "NotObserved", "not observed yet", clock.now())
            for kind in (*self._ready_types, *informative_types)
        }
        self._was_ready = False

    def set(self, kind: str, status: Status, reason: str, message: str, *, final: bool = False) -> None:
        """Record an observation; ``since`` moves only when the status changes.

        A message may quote what other users' programs wrote: it is shown on root's terminal, and told to other nodes.
        """
        old = self._conditions[kind]
        since = old.since if old.status == status else self._clock.now()
        new = Condition(kind, status, reason, printable(message), since, final)
        self._conditions[kind] = new
        self._was_ready = self._was_ready or self.is_ready
        if new == old:
            return
        if self._on_change is not None:
            self._on_change(new)

    def say(self, said: Said) -> None:
        """Record what a part says."""
        self.set(said.type, said.status, said.reason, said.message, final=said.final)

    def set_true(self, kind: str, reason: str, message: str) -> None:
        self.set(kind, Status.TRUE, reason, message)

    def set_false(self, kind: str, reason: str, message: str) -> None:
        self.set(kind, Status.FALSE, reason, message)

    def set_error(self, kind: str, error: EdgelinkError) -> None:
        """Record a failure; a non-retryable error makes the condition final."""
        self.say(failed(kind, error))

    def get(self, kind: str) -> Condition:
        return self._conditions[kind]

    def __iter__(self) -> Iterator[Condition]:
        return iter(self._conditions.values())

    def is_true(self, kind: str) -> bool:
        return self._conditions[kind].status is Status.TRUE

    @property
    def is_ready(self) -> bool:
        return all(self.is_true(kind) for kind in self._ready_types)

    @property
    def now(self) -> Conditions:
        """All of them as of this moment."""
        number = len(self._ready_types)
        found = tuple(self._conditions.values())
        return Conditions(found[:number], found[number:], self._was_ready)

    @property
    def unmet(self) -> list[Condition]:
        """What this node still waits for, in the order of its start."""
        required = (self._conditions[kind] for kind in self._ready_types)
        return [condition for condition in required if condition.status is not Status.TRUE]

    def to_list(self) -> list[dict[str, Any]]:
        return [condition.to_dict() for condition in self._conditions.values()]


def derive_phase(conditions: Conditions, *, is_stopping: bool) -> Phase:
    """Return the phase that follows from a node's conditions."""
    if is_stopping:
        return Phase.STOPPING
    if all(c.status is Status.TRUE for c in conditions.required):
        return Phase.READY
    if any(c.final and c.status is Status.FALSE for c in conditions.required):
        return Phase.FAILED
    return Phase.DEGRADED if conditions.was_ready else Phase.STARTING
