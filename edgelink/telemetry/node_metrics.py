"""What this node tells Prometheus, put together from what its daemon knows, and where that is served."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.metrics_server import MetricsServer
from edgelink.api.sites import LOOPBACK, Place
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.member.registry_client import RegistryClient
from edgelink.overlay.pairs import PairFigures
from edgelink.overlay.peers import Peers
from edgelink.process import identity
from edgelink.protocol.membership import Membership
from edgelink.roles.overlay_parts import OverlayParts


class NodeMetrics:
    """One daemon's.

    Args:
        more: the samples that only this kind of daemon has.
        named: the nodes to which the way is told one by one. None: all.
    """

    def __init__(
        self,
        *,
        config: Config,
        is_relays: bool,
        status: Callable[[], dict[str, Any]],
        membership: Callable[[], Membership | None],
        parts: OverlayParts,
        conditions: ConditionSet,
        clock: Clock,
        more: Callable[[], Iterable[Sample]],
        named: Callable[[], Collection[str] | None],
    ) -> None:
        self._more = more
        self._named = named
        self._config = config
        self._status = status
        self._membership = membership
        self._parts = parts
        self._conditions = conditions
        port = config.metrics.relay_port if is_relays else config.metrics.port
        self.server = MetricsServer(port=port, places=self.places, samples=self.samples, clock=clock)

    async def places(self) -> list[Place]:
        """Where to listen now: on the overlay's address only while its device is confirmed."""
        listen, membership = self._config.metrics.listen, self._membership()
        if listen == "nowhere":
            return []
        found = [Place(LOOPBACK)]
        if listen == "overlay" and membership is not None and self._conditions.is_true("OverlayUp"):
            device = self._config.overlay.device
            state = await self._parts.links.observe(device)
            if state.exists:
                found.append(Place(membership.lease.overlay_ip, device, state.index))
        return found

    async def samples(self) -> list[Sample]:
        """Everything, as of now."""
        found = [*metrics.of_status(self._status())]
        found += metrics.of_paths(await self._parts.ways(), self._named())
        found += await self._overlay()
        own = identity.usage(os.getpid())
        found += [metrics.CPU(own.cpu_s), metrics.RSS(own.rss_bytes)]
        membership = self._membership()
        if membership is not None:
            found.append(metrics.LEASE(membership.lease.granted_at.timestamp()))
        return [*found, *self._more()]

    async def _overlay(self) -> list[Sample]:
        device = self._config.overlay.device
        state = await self._parts.links.observe(device)
        found = []
        if state.exists:
            found += [metrics.RX(state.rx_bytes, device), metrics.TX(state.tx_bytes, device)]
            found.append(metrics.MTU(state.mtu, device))
        if self._config.overlay.kind == "easytier":
            process = self._parts.process
            found += [metrics.EASYTIER(process.is_running), metrics.EASYTIER_STARTS(process.starts)]
            found += [metrics.DROPPED(count, kind) for kind, count in self._parts.overlay.guard.drops.totals.items()]
            with suppress(ProcessLookupError):
                if process.identity is not None:
                    found.append(metrics.EASYTIER_CPU(identity.usage(process.identity.pid).cpu_s))
        return found


def member_samples(registry: RegistryClient | None, peers: Peers, pairs: PairFigures) -> Iterator[Sample]:
    """What a member of a network with a registry elsewhere tells beside that."""
    yield metrics.CONNECTED(registry is not None and registry.is_connected)
    yield from metrics.of_pings(peers.rtt_ms, peers.asked, peers.lost)
    yield from metrics.of_pairs(pairs.lost, pairs.healed)
