"""What the daemon sets on its machine around the overlay and Ray: the host's TCP and the firewall's tables."""

from __future__ import annotations

import asyncio

from edgelink.condition_table import Place
from edgelink.daemon.base import Base
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.ray_cluster.host_ride_through import RideThroughReconciler
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.shield.exposure import Exposure
from edgelink.shield.inside import LeftOpenPorts


class Host:
    """Keeps connections through an outage, and strangers out. ``ray`` is None on a relay."""

    def __init__(self, base: Base, overlay: OverlayParts, ray: LocalRay | None) -> None:
        self._base = base
        self._tables = base.machine.tables()
        self.exposure = Exposure(
            base.board,
            base.config,
            overlay.set_rules,
            self._tables,
            base.machine,
            LeftOpenPorts(base.paths.left_open_of(base.api.name), base.files, base.clock),
            base.clock,
            easytier=overlay.overlay.guard,
            ray=ray,
        )
        self._ride_through = RideThroughReconciler(
            config=base.config,
            paths=base.paths,
            conditions=base.conditions,
            clock=base.clock,
            board=base.board,
            is_heads=base.place is Place.HEAD,
            proc_sys=base.machine.proc_sys,
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Adjust TCP before EasyTier and Ray open sockets, which keep the settings they were opened with."""
        base = self._base
        self._ride_through.apply()
        self.exposure.begin()
        base.run_reconcilers(tasks, [self._ride_through, base.files])
        if Exposure.condition in {condition.type for condition in base.conditions}:
            tasks.create_task(self._tables.run(), name="nft-watch")
            base.run_parts(tasks, [self.exposure])
