"""What head and edge have in common: enrolment, registry session, overlay, peers, local API.

The life of a node is told in :meth:`Node.live`, top to bottom; the rest answers questions of the reconcilers.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Protocol

from edgelink import __version__
from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.conditions import Condition
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, EdgelinkError
from edgelink.files import private_directory
from edgelink.log import get_logger
from edgelink.overlay.reach import ping
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.reconcile import Reconciler, run_reconciler
from edgelink.registry.client import RegistryClient
from edgelink.registry.enrol import request_membership
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import NodeStatus, Role
from edgelink.registry.token import Token
from edgelink.roles.daemon import Daemon
from edgelink.roles.lifecycle import end_all, run_until_stopped
from edgelink.roles.overlay_parts import existing_address, informative_conditions
from edgelink.roles.peers import PeersReconciler

log = get_logger("node")

READY_CONDITIONS = ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined")


@dataclass(frozen=True)
class Enrolment:
    """How this machine becomes a member, when it is not one yet."""

    token: Token
    hostname: str
    labels: dict[str, str] = field(default_factory=dict)


class RayReconciler(Reconciler, Protocol):
    """What a node needs of its Ray."""

    async def run(self) -> None:
        """Watch the processes; ends by cancellation only."""

    async def stop(self) -> None:
        """End this node's Ray, and nothing else."""


class Node(Daemon):
    """One member of the network that takes part in Ray."""

    def __init__(
        self,
        *,
        role: Role,
        config: Config,
        paths: Paths,
        clock: Clock,
        enrolment: Enrolment | None,
        informative: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            role=role.value,
            config=config,
            paths=paths,
            clock=clock,
            socket=paths.node_socket,
            required=READY_CONDITIONS,
            informative=(*informative_conditions(config.overlay), *informative),
        )
        self.role = role
        private_directory(paths.state)
        self.key = NodeKey.load_or_create(paths.node_key)
        self.membership = Membership.load(paths)
        self.registry: RegistryClient | None = None
        self.peers = PeersReconciler(
            own_ip=lambda: self.membership.lease.overlay_ip if self.membership else None,
            targets=self._peers_that_must_answer,
            conditions=self.conditions,
            clock=clock,
            ping=ping,
            on_change=self.wake,
        )
        self.ray: RayReconciler | None = None
        self.on_registry_change: Callable[[], None] = lambda: None
        self.versions: Callable[[], tuple[str | None, str | None]] = lambda: (None, None)
        self._enrolment = enrolment

    async def run(self, ray: RayReconciler) -> None:
        """Live until a signal or ``/stop``; then end Ray and EasyTier, in that order.

        Raises:
            EdgelinkError: enrolment was refused, or another daemon is already here.
        """
        self.ray = ray
        self.stop_request.listen_to_signals()
        async with self.api.serving():
            await run_until_stopped(self.stop_request, self.live, self._stop_children)

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        """Lease → overlay and registry session → peers → Ray; each waits for what it needs by its condition."""
        assert self.ray is not None
        membership = await self._become_member()
        self.conditions.set_true("Leased", "Leased", self._lease_in_words(membership))
        self.registry = RegistryClient(
            membership,
            self.key,
            self.clock,
            self._registry_changed,
            cache=self.paths.state,
            reload=lambda: Membership.load(self.paths),
        )
        self.parts.start(tasks)
        tasks.create_task(self.registry.run(), name="registry")
        tasks.create_task(self.ray.run(), name="ray-watch")
        for reconciler in (self.peers, self.ray):
            tasks.create_task(run_reconciler(reconciler, self.conditions, self.clock), name=reconciler.name)
        self.publish_status()

    def wake(self) -> None:
        """Something changed: have peers and Ray looked at again."""
        self.peers.wakeup.set()
        if self.ray is not None:
            self.ray.wakeup.set()

    def ray_inputs(self) -> RayInputs:
        """What the reconciler of this node's Ray is made of."""
        return RayInputs(
            config=self.config,
            paths=self.paths,
            conditions=self.conditions,
            clock=self.clock,
            key=self.key,
            lease=lambda: self.membership.lease if self.membership else None,
            overlay_ready=lambda: self.overlay_ready,
        )

    @property
    def overlay_ready(self) -> bool:
        """Device confirmed and peers answering: from here on Ray may start."""
        return self.conditions.is_true("OverlayUp") and self.conditions.is_true("PeersReachable")

    def publish_status(self) -> None:
        """Tell the network how we are; the client coalesces."""
        if self.registry is None:
            return
        ray_version, python_version = self.versions()
        self.registry.publish_status(
            NodeStatus(
                node_id=self.key.node_id,
                online=not self.conditions.stopping,
                phase=self.conditions.phase.value,
                conditions=tuple(self.conditions.to_list()),
                edgelink_version=__version__,
                ray_version=ray_version,
                python_version=python_version or platform.python_version(),
                reported_at=self.clock.now(),
            )
        )

    def details(self) -> dict[str, Any]:
        lease = self.membership.lease if self.membership else None
        spec = self.registry.cluster_spec if self.registry else None
        directory = self.registry.directory if self.registry else None
        head = directory.head if directory else None
        member = spec.member(self.key.node_id) if spec else None
        return {
            "preferred_rank": lease.preferred_rank if lease else None,
            "node_rank": member.node_rank if member else None,
            "head": {"hostname": head.hostname, "overlay_ip": str(head.overlay_ip)} if head else None,
            "rtt_ms": self.peers.rtt_ms,
        }

    async def _become_member(self) -> Membership:
        """The membership on disk, or a new one by the token; waits for a relay that does not answer."""
        backoff = Backoff(first_s=1.0, cap_s=15.0)
        while self.membership is None:
            if self._enrolment is None:
                raise ConfigError(
                    f"this machine has not joined a network ({self.paths.membership} does not exist)",
                    hint="get a token from the operator and run `edgelink join TOKEN`",
                    reason="NotJoined",
                )
            try:
                self.membership = await enrol(self._enrolment, self.role, self.key, self.paths, self.config, self.clock)
            except EdgelinkError as error:
                self.conditions.set_error("Leased", error)
                if not error.retryable:
                    raise
                log.warning("node.enrolment_failed", error=str(error))
                await self.clock.sleep(backoff.next_s())
        require_role(self.membership, self.role)
        return self.membership

    def _lease_in_words(self, membership: Membership) -> str:
        lease = membership.lease
        return f"{lease.hostname} holds {lease.overlay_ip} and preferred rank {lease.preferred_rank}"

    def _peers_that_must_answer(self) -> dict[str, IPv4Address] | None:
        """Relay and head; an existing overlay needs no relay to carry its traffic. None: not known yet."""
        directory = self.registry.directory if self.registry else None
        if directory is None:
            return None
        wanted = [directory.head]
        if self.config.overlay.kind == "easytier":
            wanted.append(directory.relay)
        return {entry.hostname: entry.overlay_ip for entry in wanted if entry and entry.node_id != self.key.node_id}

    def _registry_changed(self) -> None:
        registry = self.registry
        assert registry is not None
        if registry.is_connected:
            self.conditions.set_true(
                "RegistryConnected", "Connected", f"the relay's broker answers at {registry.address}"
            )
        elif registry.last_error is not None:
            self.conditions.set_error("RegistryConnected", registry.last_error)
        self.on_registry_change()
        self.wake()

    def condition_changed(self, condition: Condition) -> None:
        super().condition_changed(condition)
        if condition.type == "OverlayUp":
            self.wake()
        self.publish_status()

    async def _stop_children(self) -> None:
        assert self.ray is not None
        self.conditions.stopping = True
        await end_all(self.ray.stop, self.parts.overlay.stop)


async def enrol(
    enrolment: Enrolment, role: Role | None, key: NodeKey, paths: Paths, config: Config, clock: Clock
) -> Membership:
    """Ask the relay for this machine's lease and write it down before anything uses it.

    Raises:
        RegistryUnavailableError: no address in the token answers.
        TokenError, LeaseConflictError, AddressPoolExhaustedError, UntrustedError: refused.
    """
    overlay_ip = None
    if config.overlay.kind == "existing":
        overlay_ip = await existing_address(config.overlay.device)
    membership = await request_membership(
        enrolment.token,
        key,
        hostname=enrolment.hostname,
        role=role,
        labels=enrolment.labels,
        overlay_ip=overlay_ip,
        clock=clock,
    )
    membership.save(paths)
    lease = membership.lease
    log.info(
        "node.enrolled",
        hostname=lease.hostname,
        overlay_ip=str(lease.overlay_ip),
        preferred_rank=lease.preferred_rank,
    )
    return membership


def require_role(membership: Membership, role: Role) -> None:
    """Refuse to run as what the lease does not say."""
    leased = membership.lease.role
    if leased is not role:
        verb = "bootstrap" if leased is Role.RELAY else leased.value
        raise ConfigError(
            f"this machine is enrolled as {leased.value}, not as {role.value}",
            hint=f"run `edgelink {verb}` here, or join with a token of --role {role.value}",
            reason="WrongRole",
        )
