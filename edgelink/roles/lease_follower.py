"""A running node takes up the lease that the operator has given it by `edgelink registry set`.

::

    told of a newer lease ──▶ somebody has workers here? wait ──▶ on disk ──▶ Ray ends, while its address still works
    ──▶ EasyTier on the new address ──▶ Ray on it

EasyTier and Ray follow by themselves: what they were started with has another hash then. A daemon that is killed on the
way finds the new lease on its disk, and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board, Fact
from edgelink.log import get_logger
from edgelink.reconcile import Wakeup
from edgelink.registry.lease_watch import LEASED, WAITS, HeardLease
from edgelink.registry.membership import Membership
from edgelink.registry.membership_store import MembershipStore
from edgelink.registry.payloads import Envelope, Lease

LEASE_IN_USE: Final[Fact[Envelope | None]] = Fact("lease_in_use")
COMING_LEASE: Final[Fact[Lease | None]] = Fact("coming_lease")

_LOOK_S = 30.0
_IN_USE_LOOK_S = 5.0
_FULL_DISK_S = 5.0
_RAY_LOOK_S = 0.2
_RAY_PATIENCE_S = 30.0  # raylet says goodbye in 2 s; workers that do not end are killed after 15 s

log = get_logger("node")


def lease_in_words(lease: Lease) -> str:
    rank = "no rank" if lease.preferred_rank is None else f"preferred rank {lease.preferred_rank}"
    return f"{lease.hostname} holds {lease.overlay_ip} and {rank}"


@dataclass(frozen=True)
class Inputs:
    """What a node that follows its lease depends on."""

    membership: Membership | None
    running: Membership | None
    next_lease: HeardLease | None
    coming_lease: Lease | None


class Occupants(Protocol):
    """Who works under this node's overlay address."""

    @property
    def has_ended(self) -> bool:
        """It is certain that no Ray runs here."""

    def in_use(self) -> list[str]:
        """Who would lose their work if the address went, in words."""


class NoOccupants:
    """Nobody: no Ray runs on a relay."""

    has_ended = True

    def in_use(self) -> list[str]:
        return []


class LeaseFollower:
    """Keeps ``Leased`` in step with the lease that counts."""

    name: ClassVar[str] = "lease"
    condition: ClassVar[str] = LEASED

    def __init__(
        self,
        *,
        board: Board[Any],
        store: MembershipStore,
        occupants: Occupants,
        conditions: ConditionSet,
        clock: Clock,
    ) -> None:
        self.wakeup = Wakeup()
        self._board = board
        self._store = store
        self._occupants = occupants
        self._conditions = conditions
        self._clock = clock
        self._since_s = 0.0
        self._told: Lease | None = None
        self._use = board.claim(LEASE_IN_USE, self.name)
        self._expect = board.claim(COMING_LEASE, self.name)
        board.read(Inputs, self.name, self.wakeup)

    def begin(self) -> None:
        """Run with the lease on disk, and with no other one before this says so."""
        membership = self._board.select(Inputs).membership
        assert membership is not None
        self._use(membership.lease_envelope)

    async def reconcile(self) -> float:
        now = self._board.select(Inputs)
        if now.running is None or now.next_lease is None or not now.next_lease.is_newer_than(now.running.lease):
            return _LOOK_S
        if not self._conditions.is_true(self.condition):
            return _IN_USE_LOOK_S  # whether this machine is the node at all is not settled yet
        present, lease, envelope = now.running.lease, now.next_lease.lease, now.next_lease.envelope
        if not _is_same_place(present, lease):
            if self._told != lease:
                self._told = lease
                log.warning("node.lease_not_taken_up", why="it is for another role: start this daemon anew")
            return _LOOK_S
        moves = (present.hostname, present.overlay_ip) != (lease.hostname, lease.overlay_ip)
        if moves and now.coming_lease is None and (users := self._occupants.in_use()):
            self._conditions.set_true(
                self.condition,
                WAITS,
                f"{lease_in_words(present)}; by the operator's word {lease_in_words(lease)} once nobody works here any "
                f"more: {', '.join(users)}",
            )
            return _IN_USE_LOOK_S
        if now.coming_lease != lease:
            try:
                self._store.change(lambda on_disk: on_disk.with_lease(envelope))
            except NotRecordedError:  # StateRecorded tells of it; the present lease goes on working
                return _FULL_DISK_S
            self._since_s = self._clock.monotonic_s()
            self._expect(lease)
        if moves and not self._occupants.has_ended and self._clock.monotonic_s() < self._since_s + _RAY_PATIENCE_S:
            return _RAY_LOOK_S
        self._use(envelope)
        self._expect(None)
        self._conditions.set_true(self.condition, "Leased", lease_in_words(lease))
        log.info(
            "node.lease_changed", hostname=lease.hostname, overlay_ip=str(lease.overlay_ip), epoch=lease.lease_epoch
        )
        return _LOOK_S


def _is_same_place(one: Lease, other: Lease) -> bool:
    """Whether a daemon that was started with one can go on with the other; pure."""
    return (one.role, one.is_relay, one.cidr, one.verify_key) == (
        other.role,
        other.is_relay,
        other.cidr,
        other.verify_key,
    )
