"""The environment in which ROS 2 nodes and their Zenoh router meet those of other machines over the overlay."""

from __future__ import annotations

import json
from typing import Any

from edgelink.errors import OverlayError

RMW, OVERRIDE = "RMW_IMPLEMENTATION", "ZENOH_CONFIG_OVERRIDE"
ROUTER_PORT = 7447  # rmw_zenohd's own, where nodes look for it
_HINT = "`edgelink status` says what it waits for"
_LISTEN, _CONNECT = "listen/endpoints", "connect/endpoints"


def ros_environment(members: list[dict[str, Any]], own_override: str = "") -> dict[str, str]:
    """Return the variables for this machine, the first of ``members``; pure.

    Routers alone use the overlay, each with the head's; nodes speak to their machine's router, as by rmw_zenoh's own
    configuration. Both read the same variable, so it has a list for each. Other settings of ``own_override``, the
    caller's variable, stay.

    Raises:
        OverlayError: this machine has no overlay address yet, or nobody knows the head's.
    """
    here = members[0]
    head = next((row for row in members if row["role"] == "head"), None)
    if not here["overlay_ip"]:
        raise OverlayError("this machine has no overlay address yet", hint=_HINT)
    if head is None or not head["overlay_ip"]:
        raise OverlayError("this machine does not know the head's overlay address yet", hint=_HINT)
    near = _tcp("localhost")
    listens = {"router": [_tcp("127.0.0.1"), _tcp(here["overlay_ip"])], "peer": ["tcp/localhost:0"], "client": []}
    connects = {
        "router": [] if head is here else [_tcp(head["overlay_ip"])],
        "peer": [near],
        "client": [near],
    }
    kept = [pair for pair in own_override.split(";") if pair.partition("=")[0].strip() not in ("", _LISTEN, _CONNECT)]
    ours = [f"{key}={json.dumps(value)}" for key, value in ((_LISTEN, listens), (_CONNECT, connects))]
    return {RMW: "rmw_zenoh_cpp", OVERRIDE: ";".join([*kept, *ours])}


def _tcp(host: str) -> str:
    return f"tcp/{host}:{ROUTER_PORT}"
