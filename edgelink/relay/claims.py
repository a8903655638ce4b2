"""Which of several machines with one node's key is that node: the decision, pure (ADR 0023).

A copied disk brings a node's key along, so that nothing a copy signs tells it from the original. What differs is the
machine, and the life of the daemon: each start draws an ``instance`` at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from edgelink.protocol.statuses import METERED_SILENCE_S
from edgelink.relay.records import FROM_JSON

HEARD_S = 60.0  # who was heard within that may be there: a link may be away for as long
PROVEN_S = 10.0  # who spoke within that, and since the other one claims, is there beyond doubt
ASKED_S = 1.0  # for the recorded machine to speak when it is asked to
ANNOUNCED_S = 5.0  # between two looks whether somebody still has the node's address in the overlay
RETURN_S = 30.0  # after the registry's start: whoever is there comes back within that


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
