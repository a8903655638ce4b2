"""The overlay's parts, put together the same way for relay, head and edge.

Relay and head on one machine share one EasyTier: both derive the same specification from the same state directory,
and the holder of one lock runs the process while the other only watches the device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from typing import Any, Final

from edgelink.api.server import Caller, Route, route
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import end_all
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import EasyTierNotFoundError, OverlayError
from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.facts.part import Part, run_part
from edgelink.files import AT_ONCE, Files
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.dead_paths import close_paths
from edgelink.overlay.diagnosis import Diagnosis, diagnose
from edgelink.overlay.dialled import RelaysDialled
from edgelink.overlay.easytier_core import Core
from edgelink.overlay.easytier_load import LoadReconciler
from edgelink.overlay.echo import HEADERS_BYTES, Echo
from edgelink.overlay.echo_keeper import EchoKeeper, echo_users
from edgelink.overlay.echo_proof import Identity
from edgelink.overlay.identities import Identities
from edgelink.overlay.overlay_keeper import Around, OverlayKeeper
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.path_watch import PathWatch, Way
from edgelink.overlay.rpc_guard import OPEN_WITHOUT, rpc_guard
from edgelink.overlay.status import Peer, peers
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.overlay.traffic import Traffic
from edgelink.overlay.way_watch import WayWatch
from edgelink.process import Launcher
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.reconcile import run_reconciler

_PING_TIMEOUT_S = 1.0
_PROVOCATION_S = 0.2
_LISTED_S = 15.0
_WORDS_LINES = 60  # some ten seconds of an EasyTier that is not let in


LISTING: Final[Fact[frozenset[tuple[str, bool]]]] = Fact("listing")
EASYTIER_PEER_ID: Final[Fact[str]] = Fact("easytier_peer_id")
EASYTIER_VERSION: Final[Fact[str | None]] = Fact("easytier_version")


@dataclass(frozen=True)
class Built:
    """What those depend on who work on an overlay that is there."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool


class OverlayParts:
    """Device monitor, EasyTier process and the reconcilers that keep them right."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        conditions: ConditionSet,
        clock: Clock,
        machine: ThisMachine,
        board: Board[Facts],
        launcher: Launcher,
        files: Files = AT_ONCE,
        is_watchful: bool = False,
    ) -> None:
        """``is_watchful``: whether this is a machine that people ask how the network is, relay or head."""
        self._config = config
        self._board = board
        self._conditions = conditions
        self._clock = clock
        self._machine = machine
        self._binary: EasyTierBinary | None = None
        self._put_peer_id = board.claim(EASYTIER_PEER_ID, "overlay")
        self._others: tuple[set[IPv4Address], float] = set(), 0.0  # that EasyTier listed last, and when
        self._put_listing = board.claim(LISTING, "overlay")
        self._put_version = board.claim(EASYTIER_VERSION, "overlay")
        self.process = machine.process("easytier", paths.processes / "easytier.json", launcher, clock, files, uids=None)
        self.links = machine.links()
        self._guard = rpc_guard(config.overlay.rpc_port)
        self._congestion = machine.congestion(
            self.links, clock, config.overlay.device, is_wanted=config.host.tcp_congestion == "routes"
        )
        routes = machine.routes(clock, sets_bbr=config.host.tcp_congestion == "routes")
        self._way_watch = WayWatch(
            board=board,
            routes=routes,
            links=self.links,
            device=config.overlay.device,
            look=machine.ways,
            ray_uid=partial(noted_user_uid, paths),
            clock=clock,
        )
        guard = TableKeeper(self._guard, clock, open_without=OPEN_WITHOUT, enabled=config.firewall.enabled)
        self.overlay = OverlayKeeper(
            board=board,
            conditions=conditions,
            clock=clock,
            config=config.overlay,
            core=Core(self.process, self.binary, paths, machine.private_hosts(paths.state)),
            links=self.links,
            around=Around(guard, routes, self._congestion),
            machine=machine,
        )
        self.echo = EchoKeeper(
            board=board,
            paths=paths,
            process=machine.process("echo", paths.processes / "echo.json", launcher, clock, files, uids=echo_users()),
            clock=clock,
        )
        self._paths = PathWatch(self.binary, config.overlay.rpc_port, clock, self._answers)
        self.dialled = RelaysDialled(board=board, binary=self.binary, config_path=paths.easytier_config, clock=clock)
        self.identities = Identities(
            rows=self.rows,
            close_dead=self._close_dead,
            logs=paths.logs,
            clock=clock,
            board=board,
            is_watchful=is_watchful,
        )
        self.load = LoadReconciler(
            process=self.process, links=self.links, device=config.overlay.device, conditions=conditions, clock=clock
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self.links.run(), name="links")
        tasks.create_task(self.overlay.run(), name="easytier")
        tasks.create_task(self.echo.run(), name="echo-end")
        parts: list[Part[Any, Any]] = [self.overlay, self.echo, self._way_watch]
        if self._config.overlay.kind == "easytier":
            parts += [self.dialled, self.identities]
            tasks.create_task(self._congestion.run(), name="congestion")
            tasks.create_task(self._paths.run(), name="paths")
            tasks.create_task(self.overlay.bound_log(), name="easytier-log-size")
            tasks.create_task(self.identities.run(), name="easytier-log")
            tasks.create_task(run_reconciler(self.load, self._conditions, self._clock), name=self.load.name)
        for part in parts:
            tasks.create_task(run_part(part, self._board, self._conditions, self._clock), name=part.name)

    def binary(self) -> EasyTierBinary:
        """easytier-core on this machine, looked for anew when it is another file: what it is told differs by version.

        Raises:
            EasyTierNotFoundError: there is none that can be used.
        """
        if self._binary is None or not self._binary.is_unchanged:
            self._binary = self._machine.easytier(self._config.overlay.easytier_core)
            self._put_version(self._binary.version)
        return self._binary

    def set_rules(self, rules: OverlayRules) -> None:
        """Have EasyTier's table do this with the overlay's packets, from the next look at it on."""
        self._guard = rpc_guard(self._config.overlay.rpc_port, self._config.overlay.device, rules)
        self.overlay.guard.want(self._guard)

    def route(self) -> Route:
        """``GET /paths``: on what way EasyTier reaches each other node, as of a second ago at most."""

        async def paths(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
            return {"paths": await self.ways()}

        return route("GET", "/paths", paths)

    async def ways(self) -> list[dict[str, Any]]:
        """On what way each other node is reached at this moment, by name; empty while EasyTier does not say."""
        if self._config.overlay.kind == "existing":
            return []
        names = self._board.facts.holders
        taken = set(names.values())

        def name_of(way: Way) -> str:
            """By the directory: EasyTier tells what each node calls itself, which may be another's name."""
            return names.get(way.overlay_ip) or (str(way.overlay_ip) if way.hostname in taken else way.hostname)

        named = [way.to_dict() | {"hostname": name_of(way)} for way in await self._paths.latest()]
        return sorted(named, key=lambda way: str(way["hostname"]))

    async def _answers(self, target: IPv4Address, *, full: bool) -> bool:
        """Whether a node answers an echo, with ``full`` one as large as our device carries."""
        size = self.full_payload_bytes if full else 0
        return await self.ping(target, _PING_TIMEOUT_S, payload_bytes=size) is not None

    @property
    def full_payload_bytes(self) -> int:
        """The payload of an echo as large as our device carries; 0 while there is no overlay."""
        spec = self._board.facts.overlay_spec
        return 0 if spec is None else spec.device_mtu - HEADERS_BYTES

    async def ping(self, target: IPv4Address, timeout_s: float, *, payload_bytes: int) -> float | None:
        """The round trip of one echo from our own overlay address, in milliseconds; None without an answer."""
        spec = self._board.facts.overlay_spec
        echo = (
            None if spec is None else await self.ask(spec.overlay_ip.ip, target, timeout_s, payload_bytes=payload_bytes)
        )
        return None if echo is None else echo.rtt_ms

    async def ask(
        self,
        source: IPv4Address,
        target: IPv4Address,
        timeout_s: float,
        identity: Identity | None = None,
        *,
        payload_bytes: int = 0,
    ) -> Echo | None:
        """Ask another node for an echo, which has to leave by the overlay's device. ``identity`` has to prove it."""
        device = None if source == target else self._config.overlay.device  # to itself a machine speaks by lo
        return await self._machine.echo(
            source, target, timeout_s, device=device, payload_bytes=payload_bytes, identity=identity
        )

    async def traffic(self) -> Traffic:
        """What the kernel knows of the other nodes by their TCP connections."""
        spec, identity = self._board.facts.overlay_spec, self.process.identity
        if spec is None:
            return Traffic()
        pid = None if identity is None else identity.pid
        return await asyncio.to_thread(self._machine.traffic, spec.overlay_ip.network, pid)

    async def stop(self) -> None:
        """End EasyTier and the echo responder, unless another daemon of this machine needs them. Idempotent.

        Raises:
            ProcessStopError: one does not end.
        """
        await end_all(self.overlay.stop, self.echo.stop)

    async def rows(self) -> list[Peer]:
        """Whom EasyTier lists. Raises EasyTierNotFoundError, OverlayError."""
        rows = await peers(self.binary(), self._config.overlay.rpc_port)
        others = {row.ipv4 for row in rows if row.ipv4 is not None and not row.is_self}
        self._others = others, self._clock.monotonic_s()
        self._put_listing(frozenset((row.peer_id, row.is_direct) for row in rows if not row.is_self))
        if peer_id := next((row.peer_id for row in rows if row.is_self), ""):
            self._put_peer_id(peer_id)
        return rows

    def is_listed(self, overlay_ip: IPv4Address) -> bool:
        """Whether another EasyTier has this address, as of a moment ago; False where that is not known."""
        others, seen_s = self._others
        return overlay_ip in others and self._clock.monotonic_s() - seen_s < _LISTED_S

    async def lists_others(self) -> bool:
        """Whether EasyTier lists any node but this one. Raises as :meth:`rows` does."""
        return any(row.ipv4 is not None and not row.is_self for row in await self.rows())

    async def close_paths(self, peer_id: str, overlay_ip: IPv4Address) -> list[str]:
        """Close the UDP connections to this dead EasyTier of the node with that address; their other ends.

        Raises as :func:`edgelink.overlay.dead_paths.close_paths` does. Without a firewall of ours nothing is done.
        """
        spec = self._board.facts.overlay_spec
        if spec is None or self._config.overlay.kind == "existing" or not self._config.firewall.enabled:
            return []
        own_ip = spec.overlay_ip.ip
        return await close_paths(
            self.binary(),
            spec.rpc_port,
            self._guard,
            peer_id,
            overlay_ip,
            lambda: self.ask(own_ip, overlay_ip, _PROVOCATION_S),
        )

    async def why_silent(self, wanted: Iterable[IPv4Address]) -> Diagnosis | None:
        """The likeliest cause of nobody's answering; None where EasyTier is not there to be asked."""
        spec = self._board.facts.overlay_spec
        if elsewhere := self._board.facts.ways.in_words:
            return Diagnosis("RouteElsewhere", elsewhere)
        if self._config.overlay.kind == "existing" or spec is None:
            return None
        try:
            rows = await self.rows()
        except (EasyTierNotFoundError, OverlayError):
            return None
        identity = self.process.identity
        holes = [] if identity is None else await asyncio.to_thread(self._machine.black_holes, identity.pid)
        return diagnose(
            rows,
            self.process.last_words(_WORDS_LINES),
            spec.peers,
            wanted,
            holes,
            self._board.facts.broker_away,
            uplink_is_stuck=(await self.traffic()).uplink_is_stuck,
        )

    async def close_connections_to(self, relays: list[tuple[str, int]]) -> list[str]:
        """Close EasyTier's TCP connections to these addresses and ports; it dials again at once."""
        identity = self.process.identity
        return (
            []
            if identity is None
            else await asyncio.to_thread(self._machine.close_connections_to, identity.pid, relays)
        )

    async def close_connections_with(self, addresses: Collection[IPv4Address]) -> list[str]:
        """Close this machine's TCP connections with these overlay addresses; their other ends."""
        return await asyncio.to_thread(self._machine.close_connections_with, addresses)

    async def _close_dead(self) -> list[str]:
        identity = self.process.identity
        return [] if identity is None else await asyncio.to_thread(self._machine.close_dead_connections, identity.pid)
