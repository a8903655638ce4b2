"""On what way each other node is reached: directly, or through whom; a change is logged.

EasyTier changes the way by itself, without a word that could be relied on: a hole is punched, a relay dies. So its
easytier-cli is asked now and then, at the cost of one or two processes of 3 ms.

A direct path by UDP may lose every full packet while small ones pass, and EasyTier calls it good: so each new one is
tried with a full packet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import EasyTierNotFoundError, OverlayError
from edgelink.log import get_logger
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.status import Peer, next_hops, peers

_LOOK_S = 15.0
_FRESH_S = 1.0  # every local user may ask the daemon, and each question is a process or two
_FULL_TRIES = 3
_log = get_logger("overlay")


@dataclass(frozen=True)
class Way:
    """How one node is reached. ``via`` is a hostname; None for a direct one, or where EasyTier does not say."""

    hostname: str
    overlay_ip: IPv4Address
    path: str  # "direct" or "relayed"
    via: str | None
    protocol: str | None  # of a direct one: tcp, udp …
    latency_ms: float | None
    loses_full_packets: bool = False
    loss: float | None = None  # of EasyTier's pings on a direct one
    received: str = ""  # over the link to a neighbour, since it was made, in EasyTier's rounded words
    sent: str = ""

    @property
    def in_words(self) -> str:
        """What tells one way from another; the latency does not."""
        if self.path == "direct":
            return f"direct, {self.protocol}" if self.protocol else "direct"
        return f"through {self.via}" if self.via else "relayed"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"overlay_ip": str(self.overlay_ip)}


def ways(rows: list[Peer], hops: dict[IPv4Address, str]) -> list[Way]:
    """One way a node, from EasyTier's rows and next hops; pure.

    A node that has just restarted has two rows for a while: then the direct one counts, as it does for EasyTier.
    """
    found: dict[IPv4Address, Way] = {}
    for row in rows:
        if row.ipv4 is None or row.is_self or (row.ipv4 in found and not row.is_direct):
            continue
        found[row.ipv4] = Way(
            hostname=row.hostname,
            overlay_ip=row.ipv4,
            path="direct" if row.is_direct else "relayed",
            via=None if row.is_direct else hops.get(row.ipv4),
            protocol=row.tunnel_proto or None,
            latency_ms=row.lat_ms or None,  # EasyTier says 0 of what it has not measured yet
            loss=row.loss if row.is_direct else None,
            received=row.received.strip("-") if row.is_direct else "",
            sent=row.sent.strip("-") if row.is_direct else "",
        )
    return list(found.values())


class PathWatch:
    """Asks EasyTier every 15 s, and whenever somebody wants to know."""

    def __init__(
        self, binary: Callable[[], EasyTierBinary], rpc_port: int, clock: Clock, answers: Callable[..., Awaitable[bool]]
    ) -> None:
        """``answers`` says whether an overlay address answers a ping, with ``full=True`` one as large as the device's
        MTU."""
        self._answers = answers
        self._carrying: set[IPv4Address] = set()  # tried with a full packet since its way last changed
        self._losing: set[IPv4Address] = set()
        self._binary = binary
        self._rpc_port = rpc_port
        self._clock = clock
        self._known: dict[IPv4Address, str] = {}
        self._question: asyncio.Future[list[Way]] | None = None
        self._asked_s = 0.0

    async def run(self) -> None:
        """Ends by cancellation only."""
        while True:
            await self._clock.sleep(_LOOK_S)
            for way in await self.look():
                await self._try(way)

    async def latest(self) -> list[Way]:
        """The ways as they were a second ago at most: any number of callers costs one question a second."""
        now_s = self._clock.monotonic_s()
        if self._question is None or (self._question.done() and now_s - self._asked_s >= _FRESH_S):
            self._question, self._asked_s = asyncio.ensure_future(self.look()), now_s
        return await asyncio.shield(self._question)  # one who goes away leaves the question to the others

    async def look(self) -> list[Way]:
        """The ways at this moment; none while EasyTier does not say."""
        try:
            rows = await peers(self._binary(), self._rpc_port)
            is_relayed = any(row.ipv4 and not (row.is_self or row.is_direct) for row in rows)
            hops = await next_hops(self._binary(), self._rpc_port) if is_relayed else {}
        except (EasyTierNotFoundError, OverlayError):
            return []  # OverlayUp says why
        found = [replace(way, loses_full_packets=way.overlay_ip in self._losing) for way in ways(rows, hops)]
        for way in found:
            if (was := self._known.get(way.overlay_ip)) != way.in_words:
                _log.info("overlay.path_changed", node=way.hostname, was=was, now=way.in_words)
                self._known[way.overlay_ip] = way.in_words
                self._losing.discard(way.overlay_ip)
                self._carrying.discard(way.overlay_ip)
        return found

    async def _try(self, way: Way) -> None:
        """Send full packets over a direct UDP path until one was answered."""
        if way.protocol is None or "udp" not in way.protocol or way.overlay_ip in self._carrying:
            return
        for _ in range(_FULL_TRIES):
            if await self._answers(way.overlay_ip, full=True):
                self._carrying.add(way.overlay_ip)
                self._losing.discard(way.overlay_ip)
                return
        if way.overlay_ip not in self._losing and await self._answers(way.overlay_ip, full=False):
            self._losing.add(way.overlay_ip)
            _log.warning(
                "overlay.full_packets_lost",
                node=way.hostname,
                way=way.in_words,
                hint="set a smaller overlay.mtu on both nodes, or overlay.p2p: false",
            )
