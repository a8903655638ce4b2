"""The route behind ``edgelink env`` and ``edgelink exec``."""

from __future__ import annotations

from typing import Any, Protocol

from edgelink.api.server import Caller, Route, route


class RayAccess(Protocol):
    """What of a node's Ray its users need."""

    @property
    def user_uid(self) -> int:
        """The user that Ray runs as: next to root, the one who may talk to it."""

    @property
    def is_enabled(self) -> bool:
        """Whether this node has a Ray, by its configuration."""

    async def prepare(self) -> object:
        """Find that user; raises ConfigError or MissingDependencyError."""

    def program_environment(self, uid: int) -> dict[str, str]:
        """Variables for a program of that user that needs no Ray."""

    def command_environment(self, uid: int) -> dict[str, str]:
        """Variables for Ray's own commands, run by that user; raises RayClusterError while Ray is not joined."""


async def require_ray_user(caller: Caller, ray: RayAccess) -> None:
    """Refuse everyone but root and the user that Ray runs as, also in a daemon's first moments.

    Raises:
        UsageError: it is somebody else.
        ConfigError, MissingDependencyError: nobody can say who that user is.
    """
    if ray.is_enabled and caller.uid not in (0, ray.user_uid):  # who that user is, is not known yet
        await ray.prepare()
    caller.require(ray.user_uid)


def environment_route(ray: RayAccess) -> Route:
    """``GET /environment``: answer to root and to Ray's user."""

    async def environment(caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        await require_ray_user(caller, ray)
        of = ray.command_environment if ray.is_enabled else ray.program_environment
        return {"environment": of(caller.uid)}

    return route("GET", "/environment", environment)
