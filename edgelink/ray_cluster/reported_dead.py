"""Which Rays have ended, as their own nodes say. Ray itself finds that out minutes later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edgelink.errors import UntrustedError
from edgelink.facts.board import Fact
from edgelink.protocol.keys import Kind
from edgelink.protocol.payloads import Directory, NodeStatus, RayDeath
from edgelink.protocol.words import word_of

REPORTED_DEAD: Final[Fact[frozenset[tuple[str, str]]]] = Fact("reported_dead")


def reported_dead(
    directory: Directory | None, statuses: Mapping[str, NodeStatus]
) -> tuple[frozenset[tuple[str, str]], dict[str, str]]:
    """Return overlay address and Ray's id of every Ray whose end its node states, signed with the key of its lease.

    Pure. The second value has the node ids of those whose word is not signed so, and why it does not count.
    """
    dead, disbelieved = set(), {}
    if directory is None:
        return frozenset(), {}
    for entry in directory.entries:
        status = statuses.get(entry.node_id)
        if status is None or status.ray_death is None:
            continue
        try:
            death = word_of(entry, status.ray_death, Kind.RAY_DEATH, RayDeath, directory)
        except UntrustedError as error:
            disbelieved[entry.node_id] = str(error)
        else:
            dead.add((str(entry.overlay_ip), death.ray_node_id))
    return frozenset(dead), disbelieved
