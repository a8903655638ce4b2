"""What every daemon has: conditions that are logged, a local API with /status and /stop, the overlay's parts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgelink import __version__
from edgelink.api.server import Caller, LocalApi
from edgelink.clock import Clock
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Config, Paths
from edgelink.log import get_logger
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership
from edgelink.roles.lifecycle import StopRequest
from edgelink.roles.overlay_parts import OverlayParts

log = get_logger("node")


class Daemon(ABC):
    """The common part of the relay's daemon and a node's. ``role`` is the verb that starts it."""

    key: NodeKey

    def __init__(
        self,
        *,
        role: str,
        config: Config,
        paths: Paths,
        clock: Clock,
        socket: Path,
        required: Iterable[str],
        informative: Iterable[str],
    ) -> None:
        self.config = config
        self.paths = paths
        self.clock = clock
        self.stop_request = StopRequest()
        self.conditions = ConditionSet(clock, required, informative, on_change=self.condition_changed)
        self.membership: Membership | None = None
        self.parts = OverlayParts(
            config=config, paths=paths, conditions=self.conditions, clock=clock, membership=lambda: self.membership
        )
        # Beside the state that only one may write; not in the runtime directory, which may be cleared under us.
        self.api = LocalApi(socket, paths.state / f"{socket.stem}.lock")
        self.api.add("GET", "/status", self._status)
        self.api.add("POST", "/stop", self._stop)
        self.parts.add_route(self.api)
        self._role = role

    def condition_changed(self, condition: Condition) -> None:
        """A condition has another status, reason or message."""
        log.info(
            "node.condition",
            condition=condition.type,
            status=condition.status.value,
            reason=condition.reason,
            message=condition.message,
        )

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What only this kind of daemon tells in its status; no secret."""

    def status(self) -> dict[str, Any]:
        """What ``edgelink status`` shows; holds no secret."""
        lease = self.membership.lease if self.membership else None
        easytier = self.parts.process.identity
        return {
            "role": self._role,
            "version": __version__,
            "pid": os.getpid(),
            "node_id": self.key.node_id,
            "network_id": lease.network_id if lease else None,
            "hostname": lease.hostname if lease else None,
            "overlay_ip": str(lease.overlay_ip) if lease else None,
            "device": self.config.overlay.device,
            "phase": self.conditions.phase.value,
            "ready": self.conditions.is_ready,
            "conditions": self.conditions.to_list(),
            "easytier_pid": easytier.pid if easytier else None,
            **self.details(),
        }

    async def _status(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return self.status()

    async def _stop(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        self.stop_request.request()
        return {}
