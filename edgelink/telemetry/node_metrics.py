"""What this node tells Prometheus, put together from what its daemon knows, and where that is served."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Protocol

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.metrics_server import MetricsServer
from edgelink.api.sites import LOOPBACK, Place
from edgelink.clock import Clock
from edgelink.config import Config
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.link import LinkMonitor
from edgelink.overlay.overlay_keeper import OverlayKeeper
from edgelink.process import SupervisedProcess, identity


class MeasuredOverlay(Protocol):
    """What is needed of this node's overlay."""

    links: LinkMonitor
    process: SupervisedProcess
    overlay: OverlayKeeper

    async def ways(self) -> list[dict[str, Any]]:
        """Return on what way each other node is reached."""


class NodeMetrics:
    """One daemon's.

    Args:
        samples: makes what the other parts tell.
        named: the nodes to which the way is told one by one. None: all.
    """

    def __init__(
        self,
        *,
        config: Config,
        board: Board[Facts],
        overlay: MeasuredOverlay,
        clock: Clock,
        port: int,
        status: Callable[[], dict[str, Any]],
        samples: Callable[[], Iterable[Sample]],
        named: Callable[[], Collection[str] | None],
    ) -> None:
        self._samples = samples
        self._named = named
        self._config = config
        self._status = status
        self._board = board
        self._parts = overlay
        self.server = MetricsServer(port=port, places=self.places, samples=self.samples, clock=clock)

    async def places(self) -> list[Place]:
        """Where to listen now: on the overlay's address only while its device is confirmed."""
        listen, facts = self._config.metrics.listen, self._board.facts
        if listen == "nowhere":
            return []
        found = [Place(LOOPBACK)]
        if listen == "overlay" and facts.running is not None and facts.overlay_is_up:
            device = self._config.overlay.device
            state = await self._parts.links.observe(device)
            if state.exists:
                found.append(Place(facts.running.lease.overlay_ip, device, state.index))
        return found

    async def samples(self) -> list[Sample]:
        """Everything, as of now."""
        found = [*metrics.of_status(self._status())]
        found += metrics.of_paths(await self._parts.ways(), self._named())
        found += await self._overlay()
        own = identity.usage(os.getpid())
        found += [metrics.CPU(own.cpu_s), metrics.RSS(own.rss_bytes)]
        running = self._board.facts.running
        if running is not None:
            found.append(metrics.LEASE(running.lease.granted_at.timestamp()))
        return [*found, *self._samples()]

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
