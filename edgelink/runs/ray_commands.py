"""The route behind ``edgelink env`` and ``edgelink exec``."""

from __future__ import annotations

from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.ray_cluster.ray_reconciler import RayReconciler


async def require_ray_user(caller: Caller, ray: RayReconciler) -> None:
    """Refuse everyone but root and the user that Ray runs as, also in a daemon's first moments.

    Raises:
        UsageError: it is somebody else.
        ConfigError, MissingDependencyError: nobody can say who that user is.
    """
    if ray.is_enabled and caller.uid not in (0, ray.user_uid):  # who that user is, is not known yet
        await ray.prepare()
    caller.require(ray.user_uid)


def environment_route(ray: RayReconciler) -> Route:
    """``GET /environment``: answer to root and to Ray's user."""

    async def environment(caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        await require_ray_user(caller, ray)
        of = ray.command_environment if ray.is_enabled else ray.program_environment
        return {"environment": of(caller.uid)}

    return route("GET", "/environment", environment)
