"""Partial failure in words: what of a node goes on, and what waits, from its conditions; pure."""

from __future__ import annotations

from collections.abc import Iterable

from edgelink.conditions import Condition, Status

# What a condition that is True keeps going, and one that is not makes wait.
_WHAT = {
    "BrokerRunning": "the relay's broker",
    "RegistryConnected": "enrolment of new nodes, changes of members, status reports",
    "OverlayUp": "the overlay",
    "PeersReachable": "traffic with nodes that do not answer",
    "RayJoined": "Ray",
}
_OVER_THE_OVERLAY = ("PeersReachable", "RayJoined")  # whatever they still say: nothing gets through without a device


def impact(conditions: Iterable[Condition]) -> dict[str, list[str]]:
    """``goes_on`` and ``waits``, of the parts that people know."""
    found = {condition.type: condition.status is Status.TRUE for condition in conditions if condition.type in _WHAT}
    if not found.get("OverlayUp", True):
        found |= dict.fromkeys(found.keys() & set(_OVER_THE_OVERLAY), False)
    goes_on = [_WHAT[kind] for kind, is_true in found.items() if is_true]
    return {"goes_on": goes_on, "waits": [_WHAT[kind] for kind, is_true in found.items() if not is_true]}
