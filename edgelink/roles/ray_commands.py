"""The route behind ``edgelink env`` and ``edgelink exec``."""

from __future__ import annotations

from typing import Any, Protocol

from edgelink.api.server import Caller
from edgelink.roles.node import Node


class RayAccess(Protocol):
    """What of a node's Ray its users need."""

    @property
    def user_uid(self) -> int:
        """The user that Ray runs as: next to root, the one who may talk to it."""

    def command_environment(self) -> dict[str, str]:
        """Variables for Ray's own commands; raises RayClusterError while Ray is not joined."""


def add_environment_route(node: Node, ray: RayAccess) -> None:
    """Answer ``GET /environment`` to root and to Ray's user."""

    async def environment(caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require(ray.user_uid)
        return {"environment": ray.command_environment()}

    node.api.add("GET", "/environment", environment)
