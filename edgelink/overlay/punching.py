"""Bound EasyTier's search for direct paths: a while after each change, then no more until the next one.

EasyTier never gives up by itself: for each node that it reaches through a relay it asks STUN servers and sends punching
packets every few seconds, 30 MB a day with two such nodes (measured), and no RPC of its can stop that. So two sets of
nftables refuse these packets. Their elements expire: when no daemon renews them, EasyTier searches again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.resolve import ipv4_addresses
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
class Inputs:
    """What tells whether EasyTier may search: it begins anew when other nodes come and go, or are reached otherwise."""

    overlay_spec: OverlaySpec | None
    is_metered: bool
    listing: frozenset[tuple[str, bool]]
    online: frozenset[str]


class PunchLimit:
    """Opens and closes EasyTier's search for direct paths.

    Args:
        process: EasyTier.
        guard: keeps the table around EasyTier (:func:`edgelink.overlay.rpc_guard.rpc_guard`).
        search: how long EasyTier may search on an uplink that is not metered.
        uplinks: EasyTier's connections to relays; another one means another address of ours, or of our router's.
    """

    name: ClassVar[str] = "punch-limit"

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
        self._board = board
        board.read(Inputs, self.name, None)
        self._process = process
        self._guard = guard
        self._search = search
        self._clock = clock
        self._uplinks = uplinks
        self._last: Hashable = None
        self._changed_s = 0.0
        self._is_over: bool | None = None  # None: as a predecessor left it
        self._renew_at_s = 0.0
        self._outage = Outage(clock)

    async def run(self) -> None:
        """Ends by cancellation only."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_S)

    async def look(self) -> None:
        """Open the search at a change, close it once it took long enough."""
        now, now_s = self._board.select(Inputs), self._clock.monotonic_s()
        spec, identity = now.overlay_spec, self._process.identity
        if spec is None or identity is None or not spec.punching:
            self._last = None
            return
        seen = (identity.pid, self._uplinks(identity.pid, spec), now.listing, now.online)
        search = METERED_SEARCH if now.is_metered else self._search
        if seen != self._last:
            self._last, self._changed_s = seen, now_s
        lasted = now_s - self._changed_s >= search.after_change_s
        is_over = lasted and not search.is_due(self._clock.now().timestamp())
        if is_over == self._is_over and (not is_over or now_s < self._renew_at_s):
            return
        self._renew_at_s = now_s + _RENEW_S
        try:
            await self._set(spec, is_over=is_over)
        except EdgelinkError as error:
            if self._outage.is_news(error.condition_reason):
                _log.warning("overlay.search_not_bounded", error=str(error))
            return
        self._outage.over()
        if is_over != self._is_over:
            _log.info("overlay.search_over" if is_over else "overlay.search_begins")
        self._is_over = is_over

    async def _set(self, spec: OverlaySpec, *, is_over: bool) -> None:
        table, expires = self._guard.table, f"timeout {_EXPIRES_S}s"
        if table is None:
            return
        servers = await _servers(spec) if is_over else []
        await table.replace_elements(STUN_OVER, [f"{server} {expires}" for server in servers])
        await table.replace_elements(PUNCHING_OVER, [f"udp {expires}"] if is_over else [])


async def _servers(spec: OverlaySpec) -> list[str]:
    """Return the STUN servers as elements of the set; a name that cannot be resolved has none."""
    found: list[str] = []
    for server in spec.stun_servers:
        host, _, port = server.rpartition(":")
        found += [f"{address} . {port}" for address in await ipv4_addresses(host, _RESOLVE_TIMEOUT_S)]
    return list(dict.fromkeys(found))


def uplinks_of(pid: int, spec: OverlaySpec) -> Hashable:
    """EasyTier's TCP connections to other machines."""
    return frozenset(dialled_connections(connections_of(pid), spec))
