"""Who is heard on the overlay while nothing gets an answer: tells a one-way block from a dead node."""

from __future__ import annotations

from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.errors import OverlayError
from edgelink.overlay.reach import heard_echoes
from edgelink.roles.ray_commands import RayAccess, require_ray_user

_LISTENING_S = 4.0  # an edge that gets no answer asks its head again within 2 s


def heard_route(ray: RayAccess) -> Route:
    """``GET /heard``: see :func:`listen`."""

    async def heard(caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return await listen(caller, ray)

    return route("GET", "/heard", heard)


async def listen(caller: Caller, ray: RayAccess) -> dict[str, Any]:
    """Tell root and Ray's user the addresses whose echoes come in the next 4 s."""
    await require_ray_user(caller, ray)
    try:
        return {"heard": sorted(str(address) for address in await heard_echoes(_LISTENING_S))}
    except OSError as error:
        raise OverlayError(
            f"echoes cannot be listened for: {error.strerror}", hint="the daemon needs CAP_NET_RAW"
        ) from error
