"""Whether EasyTier still talks through an uplink that this machine has.

EasyTier notices only after 16 to 31 s that its machine has another address (measured on 2.6.4). So the daemon compares,
at each change that the kernel tells of, where EasyTier's connections come from with the addresses and routes that
there are:

- all connections from addresses that are gone, and another way to a peer: certain, EasyTier is to be started anew;
- some of them, and another way to a peer: likely, when nobody answers for a while;
- gone, and no way at all: nothing can be done until there is one;
- another way than before, none of the connections goes there, and nobody answers for a while: likely.

Anything else is left alone: an address that is taken away and given back, a second network card that comes and goes,
a lease that is renewed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Any, Final
from urllib.parse import urlsplit

from edgelink.clock import Clock
from edgelink.facts.board import Board, Fact
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor, Way
from edgelink.process.ports import Connection

_SETTLES_S = 0.5  # an address may be taken away to be given back
_PATIENCE_S = 2.5  # EasyTier dials again by itself every second
_DIALLED_PATIENCE_S = 10.0  # where EasyTier has connected over the new way: it may have lost the relay all the same
# TEST-NET-1 (RFC 5737): goes where the default route leads; only looked up, never sent to.
_ANYWHERE = IPv4Address("192.0.2.1")

ECHO_WISHES: Final[Fact[int]] = Fact("echo_wishes")

Connections = Callable[[int], list[Connection]]


@dataclass(frozen=True)
class Finding:
    """What :meth:`Uplink.look` found.

    ``redial``: why EasyTier is to be started anew; empty as a rule. ``caveat``: what is wrong and cannot be helped.
    ``look_again_s``: when to look again, None: at the next change.
    """

    redial: str = ""
    caveat: str = ""
    look_again_s: float | None = None


@dataclass(frozen=True)
class Heard:
    """What is known of the other nodes' answers.

    ``last_answer_s`` says when the question was asked, not when the answer came: that may have been on its way before
    the uplink changed.
    """

    last_answer_s: float | None


class Uplink:
    """The ways that one EasyTier's connections take. Where they are in doubt, it wishes the other nodes asked."""

    def __init__(self, board: Board[Any], links: LinkMonitor, clock: Clock, connections: Connections) -> None:
        self._links = links
        self._clock = clock
        self._board = board
        self._put_echo_wishes = board.claim(ECHO_WISHES, "overlay")
        board.read(Heard, "overlay", None)
        self._connections = connections
        self._ways: dict[IPv4Address, Way | None] = {}  # those that EasyTier is known to use
        self._stale_since_s: dict[Connection, float] = {}  # those that have another way by now
        self._doubt_since_s: float | None = None
        self._stood_still = False

    async def starting(self, spec: OverlaySpec) -> None:
        """EasyTier is about to be started: the ways that there are now are those that it will use."""
        self._ways = await self._ways_to(spec)
        self._stale_since_s, self._doubt_since_s = {}, None
        self._stood_still = False

    def stood_still(self) -> None:
        """The machine slept, or stood still: its connections may have been cut without a trace."""
        self._stood_still, self._doubt_since_s = True, self._clock.monotonic_s()
        self._ask()  # what was asked at the standstill's end was asked before this moment, and proves nothing after it

    async def look(self, pid: int, spec: OverlaySpec) -> Finding:
        """Compare EasyTier's connections with the machine's addresses and routes."""
        if not spec.peers:
            return Finding()
        now_s = self._clock.monotonic_s()
        own = await self._links.own_addresses(spec.device)
        dialled = dialled_connections(self._connections(pid), spec)
        stale = [c for c in dialled if c.local not in own]
        elsewhere = [(c, way) for c in stale if (way := await self._links.way_to(c.remote)) and way.source != c.local]
        if any(c not in self._stale_since_s for c, _ in elsewhere):
            self._ask()
        self._stale_since_s = {c: self._stale_since_s.get(c, now_s) for c, _ in elsewhere}
        if stale and not elsewhere:
            gone = stale[0]
            return Finding(caveat=f"this machine has lost {gone.local}, and has no other way to {gone.remote}")
        if elsewhere and len(stale) == len(dialled):
            return self._stale(*elsewhere[0], now_s, _SETTLES_S)
        if elsewhere and not self._is_heard_since(max(self._stale_since_s.values())):
            return self._stale(*elsewhere[0], now_s, _PATIENCE_S, f", {_silence()}")
        return await self._doubtful(spec, dialled, now_s)

    def _ask(self) -> None:
        """Have the other nodes asked, without waiting for them."""
        self._put_echo_wishes(self._board.facts.echo_wishes + 1)

    @property
    def _heard_s(self) -> float | None:
        return self._board.select(Heard).last_answer_s

    def _is_heard_since(self, since_s: float) -> bool:
        """Whether somebody has answered what was asked since then, or there is nobody who could be asked."""
        heard_s = self._heard_s
        return heard_s is None or heard_s > since_s

    def _stale(self, connection: Connection, way: Way, now_s: float, patience_s: float, silence: str = "") -> Finding:
        if (left_s := max(self._stale_since_s.values()) + patience_s - now_s) > 0:
            return Finding(look_again_s=left_s)
        return Finding(
            redial=f"EasyTier's connection to {connection.remote} comes from {connection.local}, an address that is "
            f"gone; the way there is now {way.device} from {way.source}{silence}"
        )

    async def _doubtful(self, spec: OverlaySpec, dialled: list[Connection], now_s: float) -> Finding:
        ways = await self._ways_to(spec)
        self._ways = self._ways or ways  # of one that was adopted
        moved = [(self._ways.get(host), way) for host, way in ways.items() if way and way != self._ways.get(host)]
        if not (moved or (self._stood_still and any(ways.values()))):
            self._doubt_since_s = now_s if self._stood_still else None
            return Finding()
        if self._doubt_since_s is None:
            self._doubt_since_s = now_s
            self._ask()
        heard_s = self._heard_s
        if heard_s > self._doubt_since_s if heard_s is not None else bool(dialled):  # who has nobody to ask is content
            self._ways, self._doubt_since_s, self._stood_still = ways, None, False
            return Finding()
        patience_s = _DIALLED_PATIENCE_S if self._has_dialled_anew(ways, dialled) else _PATIENCE_S
        if (left_s := self._doubt_since_s + patience_s - now_s) > 0:
            return Finding(look_again_s=left_s)
        silence = _silence(patience_s)
        if not moved:
            return Finding(redial=f"this machine stood still, {silence}")
        before, after = moved[0]
        return Finding(redial=f"the way out is now {_in_words(after)}, before it was {_in_words(before)}, {silence}")

    async def _ways_to(self, spec: OverlaySpec) -> dict[IPv4Address, Way | None]:
        return {host: await self._links.way_to(host) for host in _hosts(spec)}

    def _has_dialled_anew(self, ways: dict[IPv4Address, Way | None], dialled: list[Connection]) -> bool:
        """Whether EasyTier has moved to these ways by itself."""
        sources = {way.source for way in ways.values() if way}
        return not self._stood_still and any(connection.local in sources for connection in dialled)


def dialled_connections(connections: list[Connection], spec: OverlaySpec) -> list[Connection]:
    """Return those that EasyTier made to other nodes: not to its listeners, its RPC or through the overlay itself."""
    listening = {urlsplit(url).port for url in spec.listeners} | {spec.rpc_port}
    return [
        connection
        for connection in connections
        if connection.local_port not in listening
        and not connection.remote.is_loopback
        and connection.remote not in spec.overlay_ip.network
    ]


def _hosts(spec: OverlaySpec) -> list[IPv4Address]:
    """The peers' addresses where the URL has one; a name goes where everything goes."""
    hosts = []
    for peer in spec.peers:
        try:
            hosts.append(IPv4Address(urlsplit(peer).hostname or ""))
        except AddressValueError:
            hosts.append(_ANYWHERE)
    return hosts


def _silence(patience_s: float = _PATIENCE_S) -> str:
    return f"and for {patience_s:g} s nobody has answered over the overlay"


def _in_words(way: Way | None) -> str:
    return f"{way.device} from {way.source}" if way else "none"
