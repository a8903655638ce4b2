"""Bound EasyTier's search for direct paths: a while after each change, then no more until the next one.

EasyTier never gives up by itself: for each node that it reaches through a relay it asks STUN servers and sends punching
packets every few seconds, 30 MB a day with two such nodes (measured), and no RPC of its can stop that. So two sets of
nftables refuse these packets. Their elements expire: when no daemon renews them, EasyTier searches again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import RELAYS_DIALLED
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.relay_names import ipv4_addresses
from edgelink.overlay.rpc_guard import PUNCHING_OVER, STUN_OVER
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.overlay.uplink import dialled_connections
from edgelink.process import SupervisedProcess
from edgelink.process.ports import connections_of

_LOOK_S = 5.0
_RENEW_S = 300.0  # also when somebody flushed the sets meanwhile
_EXPIRES_S = 1200
_RESOLVE_TIMEOUT_S = 3.0
_log = get_logger("overlay")


@dataclass(frozen=True)
class Search:
    """How long EasyTier may look for direct paths, in seconds.

    Attributes:
        after_change_s: after the last change. EasyTier tries a node some 15 times in three minutes.
        again_every_s: without any change; both ends have to search at once, so by the wall clock. None: not at all.
        again_for_s: how long then.
    """

    after_change_s: float = 180.0
    again_every_s: float | None = 6 * 3600.0
    again_for_s: float = 120.0

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a search although nothing has changed; ``now_s`` is the Unix time."""
        return self.again_every_s is not None and now_s % self.again_every_s < self.again_for_s


METERED_SEARCH = Search(after_change_s=60.0, again_every_s=None)


@dataclass(frozen=True)
class Looked:
    """What the part itself has seen and done.

    Attributes:
        at_s: when it looked last, on the monotonic clock. Long ago: it has not.
        unix_s: the Unix time then.
        found: EasyTier and all that makes it search anew. None: there is nothing to bound.
        found_s: since when that is so.
        is_over: the search is over. None: as a predecessor left it.
        set_s: when the part wrote the sets last, or tried to. Long ago: it has not.
    """

    at_s: float = float("-inf")
    unix_s: float = 0.0
    found: Hashable = None
    found_s: float = 0.0
    is_over: bool | None = None
    set_s: float = float("-inf")


@dataclass(frozen=True)
class Inputs:
    """What tells whether EasyTier may search: it begins anew when other nodes come and go, or are reached otherwise."""

    overlay_spec: OverlaySpec | None
    is_metered: bool
    listing: frozenset[tuple[str, bool]]
    online: frozenset[str]
    own: Looked


@dataclass(frozen=True)
class Look(Action):
    """See whether anything has changed that makes EasyTier search anew."""


@dataclass(frozen=True)
class Bound(Action):
    """End the search or open it. ``stun_servers``: those that EasyTier cannot ask after its end."""

    is_over: bool
    stun_servers: tuple[str, ...]


class PunchLimit(Part[Inputs, Look | Bound]):
    """Opens and closes EasyTier's search for direct paths.

    Args:
        process: EasyTier.
        guard: keeps the table around EasyTier (:func:`edgelink.overlay.rpc_guard.rpc_guard`).
        search: how long EasyTier may search on an uplink that is not metered.
        uplinks: EasyTier's connections to relays; another one means another address of ours, or of our router's.
    """

    name: ClassVar[str] = "punch-limit"
    condition: ClassVar[str] = RELAYS_DIALLED.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        process: SupervisedProcess,
        guard: TableKeeper,
        clock: Clock,
        search: Search = Search(),
        uplinks: Callable[[int, OverlaySpec], Hashable],
    ) -> None:
        super().__init__(board, own=Looked())
        self.own: Looked
        self._board = board
        self._process = process
        self._guard = guard
        self._search = search
        self._clock = clock
        self._uplinks = uplinks
        self._outage = Outage(clock)

    def plan(self, now: Inputs, at_s: float) -> Decision[Look | Bound]:
        own, spec = now.own, now.overlay_spec
        again_s = own.at_s + _LOOK_S - at_s
        if again_s <= 0:
            return Decision(does=Look())
        search = METERED_SEARCH if now.is_metered else self._search
        is_over = own.at_s >= own.found_s + search.after_change_s and not search.is_due(own.unix_s)
        is_set = is_over == own.is_over and (not is_over or own.at_s < own.set_s + _RENEW_S)
        if spec is None or own.found is None or is_set or own.set_s >= own.at_s:
            return Decision(again_s=again_s)
        return Decision(does=Bound(is_over, spec.stun_servers))

    async def act(self, action: Look | Bound) -> None:
        match action:
            case Look():
                self._look()
            case Bound(is_over, stun_servers):
                self.own = replace(self.own, set_s=self._clock.monotonic_s())
                try:
                    await self._set(stun_servers, is_over=is_over)
                except EdgelinkError as error:
                    if self._outage.is_news(error.condition_reason):
                        _log.warning("overlay.search_not_bounded", error=str(error))
                    return
                self._outage.over()
                if is_over != self.own.is_over:
                    _log.info("overlay.search_over" if is_over else "overlay.search_begins")
                self.own = replace(self.own, is_over=is_over)

    def _look(self) -> None:
        now, at_s, easytier = self._board.select(Inputs, self.own), self._clock.monotonic_s(), self._process.identity
        found: Hashable = None
        if now.overlay_spec is not None and now.overlay_spec.punching and easytier is not None:
            found = (easytier.pid, self._uplinks(easytier.pid, now.overlay_spec), now.listing, now.online)
        found_s = self.own.found_s if found == self.own.found else at_s
        unix_s = self._clock.now().timestamp()
        self.own = replace(self.own, at_s=at_s, unix_s=unix_s, found=found, found_s=found_s)

    async def _set(self, stun_servers: tuple[str, ...], *, is_over: bool) -> None:
        expires = f"timeout {_EXPIRES_S}s"
        servers = await _elements(stun_servers) if is_over else []
        await self._guard.hold(STUN_OVER, [f"{server} {expires}" for server in servers])
        await self._guard.hold(PUNCHING_OVER, [f"udp {expires}"] if is_over else [])


async def _elements(stun_servers: tuple[str, ...]) -> list[str]:
    """Return the STUN servers as elements of the set; a name that cannot be resolved has none."""
    found: list[str] = []
    for server in stun_servers:
        host, _, port = server.rpartition(":")
        found += [f"{address} . {port}" for address in await ipv4_addresses(host, _RESOLVE_TIMEOUT_S)]
    return list(dict.fromkeys(found))


def uplinks_of(pid: int, spec: OverlaySpec) -> Hashable:
    """EasyTier's TCP connections to other machines."""
    return frozenset(dialled_connections(connections_of(pid), spec))
