"""Hold back new connections with the head while it does not prove who it is; those that are there go on (ADR 0041).

Whoever takes the head's address gets no connection so, and no token, also where it answers no echo. In an outage no
connection can be made anyway, and after it the first proof comes within half a second. A set of EasyTier's table holds
the addresses. Its elements expire: when no daemon renews them, connections are made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import SHIELDED
from edgelink.facts.board import Board
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.overlay.rpc_guard import DOUBTED
from edgelink.overlay.table_keeper import TableKeeper

_EXPIRES_S = 30
_RENEW_S = 10.0  # somebody may have flushed the table meanwhile; two processes of nft each time


@dataclass(frozen=True)
class Held:
    """The addresses that were put into the set, and when, on the monotonic clock."""

    addresses: frozenset[IPv4Address]
    at_s: float


@dataclass(frozen=True)
class Inputs:
    """What decides whose connections are held back. ``own``: whose are, as far as this daemon knows."""

    doubted: frozenset[IPv4Address]
    own: Held


@dataclass(frozen=True)
class HoldBack(Action):
    """Have the set hold these addresses."""

    addresses: frozenset[IPv4Address]


class NewConnections(Part[Inputs, HoldBack]):
    """Keeps the set. Says nothing: a table that is not in place is told of by ``Shielded``."""

    name: ClassVar[str] = "new-connections"
    condition: ClassVar[str] = SHIELDED.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], guard: TableKeeper, clock: Clock) -> None:
        super().__init__(board, own=Held(frozenset(), float("-inf")))
        self.own: Held
        self._guard = guard
        self._clock = clock

    def plan(self, now: Inputs, at_s: float) -> Decision[HoldBack]:
        if now.own.addresses != now.doubted:
            return Decision(does=HoldBack(now.doubted))
        again_s = now.own.at_s + _RENEW_S - at_s
        if not now.doubted:
            return Decision(again_s=LOOK_S)
        return Decision(does=HoldBack(now.doubted)) if again_s <= 0 else Decision(again_s=again_s)

    async def act(self, action: HoldBack) -> None:
        """See :class:`Part`. Raises FirewallError where the set cannot be changed, as while the table is put back."""
        if self._guard.is_wanted:  # without EasyTier there is no table
            elements = [f"{address} timeout {_EXPIRES_S}s" for address in sorted(action.addresses)]
            await self._guard.hold(DOUBTED, elements)
        self.own = Held(action.addresses, self._clock.monotonic_s())
