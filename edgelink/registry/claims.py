"""Which of several machines with one node's key is that node: the decision, pure (ADR 0023).

A copied disk brings a node's key along, so that nothing a copy signs tells it from the original. What differs is the
machine, and the life of the daemon: each start draws an ``instance`` at random.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from edgelink.registry.records import FROM_JSON
from edgelink.registry.statuses import METERED_SILENCE_S

HEARD_S = 60.0  # who was heard within that may be there: a link may be away for as long
PROVEN_S = 10.0  # who spoke within that, and since the other one claims, is there beyond doubt
ASKED_S = 1.0  # for the recorded machine to speak when it is asked to
ANNOUNCED_S = 5.0  # between two looks whether somebody still has the node's address in the overlay
RETURN_S = 30.0  # after the registry's start: whoever is there comes back within that
ALTERNATION_S = 300.0
_REMEMBERED = 8  # lives of a node


@dataclass(frozen=True)
class Life:
    """One life of a node's daemon. ``machine``: keyed hashes of what a copy of its disk does not carry."""

    machine: tuple[str, ...] = ()
    instance: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class Admission:
    """What this machine may do before, and after, the registry has said that it is the node.

    Attributes:
        may_start: EasyTier may be started.
        is_accepted: the registry has said so in this life of the daemon.
        is_doubted: another machine may be the node, as the registry said last.
        settled_in: the number of the last session in which the registry answered, or did not in time.
    """

    may_start: bool = False
    is_accepted: bool = False
    is_doubted: bool = False
    settled_in: int = 0

    def may_report(self, session: int) -> bool:
        """Whether this machine has a voice in the session of that number."""
        return self.is_accepted or self.settled_in >= session


class Outcome(StrEnum):
    """What a claim comes to."""

    ACCEPTED = "accepted"
    CHANGED = "changed"  # accepted, on another machine than before
    WAIT = "wait"
    REFUSED = "refused"


@dataclass(frozen=True)
class Recorded:
    """Who is the node, by the last claim that was accepted; ``since``: of this life, by the relay's clock."""

    instance: str
    machine: Annotated[tuple[str, ...], FROM_JSON]
    since: datetime


@dataclass(frozen=True)
class Presence:
    """What is known of the recorded life. ``is_online``: by its last status; ``silent_s``: since it spoke or was lost,
    None when it was not heard by this registry since that began. ``is_metered``: by its last status, too."""

    is_online: bool = False
    silent_s: float | None = None
    is_metered: bool = False


@dataclass(frozen=True)
class Judgement:
    """``again_s``: after how long one that has to wait is to claim again; ``asks_recorded``: whether the recorded life
    is to be asked meanwhile to say that it is there."""

    outcome: Outcome
    again_s: float = 0.0
    asks_recorded: bool = False


def is_same_machine(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two claims may come from one machine: they share a part of the kind that tells most.

    Network devices decide where both have some: containers share their host's board. One in common is enough:
    adapters are plugged in and out. Where there is nothing to compare nothing speaks against it.
    """
    for kind in ("mac:", "board:"):
        first, second = ({part for part in machine if part.startswith(kind)} for machine in (one, other))
        if first and second:
            return bool(first & second)
    return True


def merged(recorded: Sequence[str], claimed: Sequence[str]) -> tuple[str, ...]:
    """What is to be recorded of one machine: what it says now, and of what it cannot see this time what it said before.

    Early in a boot the cards may not be there yet; a copy is not to slip in because of that.
    """
    kinds = {part.partition(":")[0] for part in claimed}
    kept = [part for part in recorded if part.partition(":")[0] not in kinds]
    return (*claimed, *kept)


def judge(
    recorded: Recorded | None,
    instance: str,
    machine: Sequence[str],
    presence: Presence,
    registry_age_s: float,
    *,
    is_announced: bool = False,
    claimed_s: float = 0.0,
) -> Judgement:
    """May this life of a daemon be the node?

    Args:
        recorded: who is the node so far; None: nobody has claimed to be.
        instance, machine: of the claim.
        presence: of the recorded life.
        registry_age_s: for how long the registry has been listening.
        is_announced: whether somebody else than the claimant has the node's address in the overlay.
        claimed_s: for how long this life has been claiming. What the recorded one said before proves nothing: a
            machine whose power was cut a moment ago comes back, in a container with other network devices.
    """
    if recorded is None or recorded.instance == instance or is_same_machine(recorded.machine, machine):
        return Judgement(Outcome.ACCEPTED)
    silent_s = presence.silent_s
    if presence.is_online:
        if silent_s is not None and silent_s < min(PROVEN_S, claimed_s):
            return Judgement(Outcome.REFUSED)
        return Judgement(Outcome.WAIT, ASKED_S, asks_recorded=True)  # its connection may be a dead one
    heard_s = METERED_SILENCE_S if presence.is_metered else HEARD_S
    if silent_s is not None and silent_s < heard_s:
        return Judgement(Outcome.WAIT, heard_s - silent_s)
    if silent_s is None and registry_age_s < RETURN_S:
        return Judgement(Outcome.WAIT, RETURN_S - registry_age_s)
    if is_announced:  # a daemon that died leaves its EasyTier behind
        return Judgement(Outcome.WAIT, ANNOUNCED_S)
    return Judgement(Outcome.CHANGED)


@dataclass
class _Lives:
    """From when on each of a node's lives spoke, oldest first."""

    turns: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    alternated_s: float | None = None


def cloned(alternations: Iterable[tuple[str, float]], now_s: float) -> list[str]:
    """The names of those that spoke in turns in the last five minutes; pure."""
    return sorted(name for name, at_s in alternations if now_s - at_s < ALTERNATION_S)


class Alternation:
    """Which nodes speak in turns: one life, another one, and the first again. A daemon is over when the next one of its
    machine begins, so these are two machines, or two copies of a state directory on one."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Lives] = {}

    def note(self, node_id: str, instance: str, now_s: float) -> bool:
        """This life has spoken; whether another one had taken its place, less than five minutes ago."""
        lives = self._nodes.setdefault(node_id, _Lives())
        if lives.turns and lives.turns[-1][0] == instance:
            return False
        is_back = any(
            life == instance and now_s - ended_s < ALTERNATION_S for (life, _), (_, ended_s) in pairwise(lives.turns)
        )
        lives.turns.append((instance, now_s))
        if is_back:
            lives.alternated_s = now_s
        return is_back

    def alternated(self) -> dict[str, float]:
        """When each node that did so did so last, in seconds on the monotonic clock, by node id."""
        return {n: lives.alternated_s for n, lives in self._nodes.items() if lives.alternated_s is not None}

    def forget_others(self, node_ids: Iterable[str]) -> None:
        """Keep what is known of these nodes only."""
        wanted = set(node_ids)
        self._nodes = {node_id: lives for node_id, lives in self._nodes.items() if node_id in wanted}
