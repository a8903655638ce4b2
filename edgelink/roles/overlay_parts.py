"""The overlay's parts, put together the same way for relay, head and edge.

Relay and head on one machine share one EasyTier: both derive the same specification from the same state directory,
and the holder of one lock runs the process while the other only watches the device.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from edgelink.api.server import Caller, LocalApi
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config, OverlayConfig, Paths
from edgelink.errors import ConfigError, EasyTierNotFoundError, OverlayError
from edgelink.overlay.acquisition import EasyTierBinary, default_cache_dir, find_easytier
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor, LinkState
from edgelink.overlay.reconciler import LoadReconciler, OverlayReconciler
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.overlay.status import Peer, peers
from edgelink.process.launcher import SessionLauncher
from edgelink.process.supervised import SupervisedProcess
from edgelink.reconcile import run_reconciler
from edgelink.registry.membership import Membership


class OverlayParts:
    """Device monitor, EasyTier process and the two reconcilers that keep them right."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        conditions: ConditionSet,
        clock: Clock,
        membership: Callable[[], Membership | None],
    ) -> None:
        self._config = config
        self._membership = membership
        self._conditions = conditions
        self._clock = clock
        self._binary: EasyTierBinary | None = None
        self.process = SupervisedProcess("easytier", paths.processes / "easytier.json", SessionLauncher(), clock)
        self.links = LinkMonitor()
        self.overlay = OverlayReconciler(
            spec=self._spec,
            binary=self.binary,
            config=config.overlay,
            paths=paths,
            process=self.process,
            links=self.links,
            conditions=conditions,
            clock=clock,
            owner_lock=paths.runtime / "overlay.lock",
            guard=rpc_guard(config.overlay.rpc_port) if config.firewall.enabled else None,
        )
        self.load = LoadReconciler(
            process=self.process, links=self.links, device=config.overlay.device, conditions=conditions, clock=clock
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self.links.run(), name="links")
        tasks.create_task(self.overlay.run(), name="easytier")
        tasks.create_task(run_reconciler(self.overlay, self._conditions, self._clock), name="overlay")
        if self._config.overlay.kind == "easytier":
            tasks.create_task(run_reconciler(self.load, self._conditions, self._clock), name="load")

    def binary(self) -> EasyTierBinary:
        """easytier-core on this machine, looked for once. Raises EasyTierNotFoundError."""
        if self._binary is None:
            self._binary = find_easytier(self._config.overlay.easytier_core, default_cache_dir())
        return self._binary

    def add_route(self, api: LocalApi) -> None:
        """Answer ``GET /paths``: on what way EasyTier reaches each other node, asked of it at that moment."""

        async def paths(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
            return {"paths": await self._paths()}

        api.add("GET", "/paths", paths)

    async def _paths(self) -> list[dict[str, Any]]:
        if self._config.overlay.kind == "existing":
            return []
        try:
            rows = await peers(self.binary(), self._config.overlay.rpc_port)
        except (EasyTierNotFoundError, OverlayError):
            return []  # OverlayUp says why
        return [path_of(row) for row in rows if row.ipv4 is not None and not row.is_self]

    def _spec(self) -> OverlaySpec | None:
        membership = self._membership()
        return None if membership is None else overlay_spec(membership, self._config)


def overlay_spec(membership: Membership, config: Config) -> OverlaySpec:
    """What EasyTier has to be on this node; pure."""
    lease, secrets = membership.lease, membership.secrets
    return OverlaySpec(
        hostname=lease.hostname,
        network_name=secrets.network_name,
        network_secret=secrets.network_secret,
        overlay_ip=IPv4Interface(f"{lease.overlay_ip}/{lease.cidr.prefixlen}"),
        peers=() if lease.is_relay else secrets.overlay_peers,
        listeners=config.relay.easytier_listeners if lease.is_relay else config.overlay.listeners,
        device=config.overlay.device,
        mtu=config.overlay.mtu,
        rpc_port=config.overlay.rpc_port,
        # Fixed for the node's life, so that the same node is the same instance to its peers.
        instance_id=uuid.uuid5(uuid.NAMESPACE_OID, f"edgelink/{lease.network_id}/{lease.node_id}"),
    )


def path_of(peer: Peer) -> dict[str, Any]:
    """How ``edgelink status`` tells the way to one node; pure."""
    return {
        "hostname": peer.hostname,
        "overlay_ip": str(peer.ipv4),
        "path": "direct" if peer.is_direct else "relayed",
        "protocol": peer.tunnel_proto or None,
        "latency_ms": peer.lat_ms,
    }


def informative_conditions(overlay: OverlayConfig) -> tuple[str, ...]:
    """Conditions that only inform, and only where there is an EasyTier to tell of."""
    return ("OverlayCpuNormal",) if overlay.kind == "easytier" else ()


async def existing_address(device: str) -> IPv4Address:
    """The one address of a device that something else made. Raises ConfigError as :func:`only_address` does."""
    return only_address(device, await LinkMonitor().observe(device))


def only_address(device: str, state: LinkState) -> IPv4Address:
    """The one address of a device that was observed; pure. Raises ConfigError when there is not exactly one."""
    if len(state.addresses) != 1:
        found = ", ".join(map(str, state.addresses)) or "none"
        raise ConfigError(
            f"overlay.device {device}: needs exactly one IPv4 address, found {found}",
            hint="name the device that the other nodes reach this machine by",
        )
    return state.addresses[0].ip
