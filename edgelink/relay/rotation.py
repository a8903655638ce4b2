"""The numbers of the network's secrets, and what a node makes of what it is told of them; pure.

::

    told of the next secret, and in how many seconds ──▶ on disk ──▶ the hour ──▶ told that it counts ──▶ EasyTier on it

A number is never given to two secrets: what a node kept of a change that another one has replaced fits nothing that
comes later (ADR 0050).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

SWITCH_S = 2.0  # for the nodes to hear of the next secret and have it on disk
_A_NODE_S = 0.002  # more for each node: the registry takes that long to seal and send its secret
_EPOCHS_A_GENERATION = 1000
_GENERATIONS_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RotationRecord:
    """The next secret, and when the network changes to it: both moments by the relay's wall clock."""

    to_epoch: int
    next_secret: str = field(repr=False)
    why: str
    started_at: datetime
    switch_at: datetime


def notice_s(nodes: int) -> float:
    """How long before a change ``nodes`` nodes have to be told of it."""
    return SWITCH_S + _A_NODE_S * nodes


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
