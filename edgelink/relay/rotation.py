"""What comes next in a change of the network's secret, and what a node makes of what it is told; pure.

::

    idle ──begin──▶ prepare ──all prepared and nobody holds, or the deadline──▶ committed ──all run on it──▶ idle
                       │ the deadline, without force: aborted

A number is never given to two secrets: what a node kept of a change that was aborted fits nothing that comes later
(ADR 0020).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Literal

COMMITTED_S = 60.0  # for the nodes to be seen on the new secret; who comes later follows all the same
_EPOCHS_A_GENERATION = 1000
_GENERATIONS_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Progress:
    """How far one node is. ``is_expected``: it was online when the change began, and is waited for."""

    node_id: str
    is_expected: bool
    prepared_epoch: int = 0
    running_epoch: int = 0
    hold_until: datetime | None = None


@dataclass(frozen=True)
class RotationRecord:
    """A change that is under way. ``phase_until``: how long its phase waits; ``hold_until``: the longest patience with
    nodes that ask for it; ``force``: the deadline commits instead of giving up."""

    rotation_id: str
    from_epoch: int
    to_epoch: int
    next_secret: str = field(repr=False)
    why: str
    phase: Literal["prepare", "committed"]
    started_at: datetime
    phase_until: datetime
    hold_until: datetime
    force: bool


class Step(Enum):
    """What is to be done with a change now."""

    WAIT = "wait"
    COMMIT = "commit"
    ABORT = "abort"
    FINISH = "finish"


def next_step(record: RotationRecord, progress: Iterable[Progress], now: datetime) -> Step:
    """``progress`` of the nodes that hold a lease; ``now`` by the relay's clock.

    A clock that was set back by more than a phase takes tells no deadline any more: nobody is waited for then, or who
    was put out would be in for as long as it was set back.
    """
    is_over = now >= record.phase_until or _is_set_back(record, now)
    expected = [node for node in progress if node.is_expected]
    if record.phase == "committed":
        is_done = all(node.running_epoch >= record.to_epoch for node in expected)
        return Step.FINISH if is_done or is_over else Step.WAIT
    if any(is_holding(record, node, now) for node in expected):
        return Step.WAIT
    if all(node.prepared_epoch >= record.to_epoch for node in expected):
        return Step.COMMIT
    if not is_over:
        return Step.WAIT
    return Step.COMMIT if record.force else Step.ABORT


def is_holding(record: RotationRecord, node: Progress, now: datetime) -> bool:
    """Whether the node asked for patience that it still gets."""
    until = None if node.hold_until is None else min(node.hold_until, record.hold_until)
    return until is not None and now < until and not _is_set_back(record, now)


def _is_set_back(record: RotationRecord, now: datetime) -> bool:
    return record.started_at - now > record.phase_until - record.started_at


def next_look(record: RotationRecord, progress: Iterable[Progress], now: datetime) -> timedelta:
    """After how long the answer of :func:`next_step` may be another one without anybody's saying anything."""
    moments = [record.phase_until, record.hold_until]
    moments += [node.hold_until for node in progress if node.hold_until is not None]
    return min((moment - now for moment in moments if moment > now), default=timedelta(seconds=1))


def epoch_after(secret_epoch: int, generation: int, running: RotationRecord | None) -> int:
    """The number of a new secret: above all that were ever given out.

    A registry that was restored from a backup does not know what its predecessor gave out since: it counts from
    another thousand on.
    """
    return max(secret_epoch, running.to_epoch if running else 0, generation * _EPOCHS_A_GENERATION, 1) + 1


def lease_epoch_after(lease_epoch: int, generation: int) -> int:
    """The number of a changed lease: above all that its node was ever given, also by a registry from whose backup
    this one, of this generation, was restored; that knew of changes of which this one does not."""
    return max(lease_epoch, generation) + 1


def generation_after(generation: int, now: datetime) -> int:
    """The generation of a registry that is restored ``now``: no two have the same.

    Counting from what the backup says would give one generation, and so one epoch, to two registries that were
    restored from the same backup.
    """
    return max(generation + 1, int((now - _GENERATIONS_BEGIN).total_seconds()))
