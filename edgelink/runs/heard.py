"""Who is heard on the overlay while nothing gets an answer: tells a one-way block from a dead node."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.errors import OverlayError
from edgelink.overlay.reach import heard_echoes
from edgelink.ray_cluster.ray_reconciler import RayReconciler
from edgelink.runs.ray_commands import require_ray_user

# An edge that is content asks its head every 10 s; one that gets no answer, twice a second. On a metered uplink it asks
# once a minute, but at once when a connection with its head is not acknowledged, as Ray's is not.
_LISTENING_S = 12.0


def heard_route(ray: RayReconciler) -> Route:
    """``GET /heard``: see :func:`listen`."""

    async def heard(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        return await listen(caller, ray, body)

    return route("GET", "/heard", heard)


async def listen(caller: Caller, ray: RayReconciler, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return which of the addresses in ``body["wanted"]`` send an echo within 12 s. It serves root and Ray's user."""
    await require_ray_user(caller, ray)
    wanted = {IPv4Address(address) for address in body["wanted"]}
    try:
        return {"heard": sorted(str(address) for address in await heard_echoes(wanted, _LISTENING_S))}
    except OSError as error:
        raise OverlayError(
            f"echoes cannot be listened for: {error.strerror}", hint="the daemon needs CAP_NET_RAW"
        ) from error
