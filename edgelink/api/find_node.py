"""Find the node that somebody names among those that are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgelink.errors import UsageError
from edgelink.wording import few

_MOST_NAMED = 20


def find(wanted: str, nodes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the node of that hostname, overlay address or node rank; pure.

    Raises:
        UsageError: there is none. It names those that are known.
    """
    nodes = list(nodes)
    for key in ("hostname", "overlay_ip", "node_rank"):
        for node in nodes:
            if node[key] is not None and str(node[key]) == wanted:
                return node
    told = few([node["hostname"] for node in nodes], most=_MOST_NAMED)
    raise UsageError(
        f"{wanted!r} is no node of this network",
        hint=f"name one by hostname, rank or overlay address; known are: {told or 'none yet, see `edgelink status`'}",
        reason="NoSuchNode",
    )
