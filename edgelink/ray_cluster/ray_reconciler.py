"""What the reconcilers of edge and head share; see :mod:`edgelink.ray_cluster.reconcilers`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import ClassVar

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import EdgelinkError, RayClusterError
from edgelink.log import get_logger
from edgelink.process import Launcher
from edgelink.ray_cluster import environment
from edgelink.ray_cluster.local_ray import LocalRay, RayTools
from edgelink.ray_cluster.node import RayRecord
from edgelink.reconcile import Wakeup
from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import Lease

_LOOK_S = 10.0
_WAIT_S = 30.0  # for something that wakes us when it comes
_VERIFY_S = 20.0
_log = get_logger("ray")


@dataclass(frozen=True)
class RayInputs:
    """What a node gives to the reconciler of its Ray, whatever its part in the cluster."""

    config: Config
    paths: Paths
    conditions: ConditionSet
    clock: Clock
    key: NodeKey
    lease: Callable[[], Lease | None]
    overlay_ready: Callable[[], bool]
    launcher: Launcher | None = None


class RayReconciler:
    """What edge and head have in common: Ray runs here, is confirmed, watched, replaced and stopped."""

    name: ClassVar[str] = "ray"
    condition: ClassVar[str] = "RayJoined"

    def __init__(self, inputs: RayInputs) -> None:
        self.wakeup = Wakeup()
        self.ray = LocalRay(inputs.config, inputs.paths, inputs.clock, inputs.key.node_id, inputs.launcher)
        self._config = inputs.config
        self._paths = inputs.paths
        self._conditions = inputs.conditions
        self._clock = inputs.clock
        self._key = inputs.key
        self._lease = inputs.lease
        self._overlay_ready = inputs.overlay_ready
        self._verified: RayRecord | None = None

    @property
    def versions(self) -> tuple[str | None, str | None]:
        """Of Ray and of Python, once they are known."""
        return self.ray.versions

    @property
    def user_uid(self) -> int:
        """The user that Ray runs as; root while that is not known."""
        return self.ray.tools.user.uid if self.ray.tools else 0

    def command_environment(self) -> dict[str, str]:
        """Variables for Ray's own commands.

        Raises:
            RayClusterError: Ray is not running here.
        """
        tools, ip, port = self._running()
        return environment.command_environment(
            python=tools.python,
            capabilities=tools.capabilities,
            head_ip=ip,
            ray_port=port,
            token_path=self._token_path(tools),
        )

    async def run(self) -> None:
        """Wake the reconciler when raylet or GCS ends; ends by cancellation only."""
        with suppress(EdgelinkError):  # the reconciler meets it again and reports it
            await self.ray.prepare()  # 0.1 s that are over before the overlay is up
        while True:
            record = self.ray.node.record
            if record is not None:
                await self.ray.node.wait_for_end()
                self.wakeup.set()
            await self.ray.node.wait_for_change(record)

    async def stop(self) -> None:
        """End this node's Ray, and nothing else; then the firewall."""
        await self.ray.stop()

    def _wait(self, reason: str, message: str) -> float:
        """Nothing is wrong, but something has not come yet; it wakes us when it does."""
        self._conditions.set_false(self.condition, reason, message)
        return _WAIT_S

    def _running(self) -> tuple[RayTools, IPv4Address, int]:
        record, tools = self.ray.node.record, self.ray.tools
        if record is None or tools is None or not self.ray.node.is_running:
            raise RayClusterError(
                "Ray does not run on this node yet",
                hint="`edgelink status` says what it waits for",
                reason="RayNotRunning",
            )
        ip, _, port = record.head.rpartition(":")
        return tools, IPv4Address(ip), int(port)

    def _token_path(self, tools: RayTools) -> Path | None:
        return self.ray.token_path if tools.capabilities.token_auth else None

    async def _clear_away_dead(self) -> None:
        """A Ray of which a part has died is no Ray: end the rest of it."""
        node = self.ray.node
        if node.record is not None and not node.is_running:
            self._conditions.set_false(
                self.condition, "RayExited", "raylet or GCS has ended; Ray is started again (see Ray's raylet.out)"
            )
            _log.warning("ray.exited", raylet=node.record.raylet.pid)
            await node.stop()

    async def _replace(self, record: RayRecord, why: str, *, farewell: bool = True) -> None:
        _log.info("ray.replaced", raylet=record.raylet.pid, why=why)
        self._conditions.set_false(self.condition, "RayReplaced", f"Ray is started anew: {why}")
        await self.ray.node.stop(farewell=farewell)

    async def _confirm(self, tools: RayTools, lease: Lease, record: RayRecord, *, token_auth: bool) -> float:
        """Once in the life of a raylet, ask Ray whether it lists us; from then on the processes are watched."""
        if self._verified is not record:
            ray_id = await self.ray.verify(
                tools,
                token_auth=token_auth,
                head=record.head,
                ip=lease.overlay_ip,
                node_rank=record.node_rank,
                timeout_s=_VERIFY_S,
            )
            self._verified = record
            _log.info("ray.joined", ray_node_id=ray_id, node_rank=record.node_rank)
        self._conditions.set_true(
            self.condition,
            "AliveInRay",
            f"alive in Ray at {record.head} as {lease.overlay_ip} with node rank {record.node_rank}",
        )
        return _LOOK_S
