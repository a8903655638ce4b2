"""The nodes that go into a plan, and the plan that comes out. Frozen; ``to_dict`` is what files and scripts see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NO_ACCELERATOR = "NO_ACCEL"


@dataclass(frozen=True)
class Node:
    """One alive Ray node. ``rank`` is its RLINF_NODE_RANK (a string is read as RLinf reads it); None: not set."""

    rank: int | str | None
    ip: str
    hostname: str = ""
    accelerator: str = NO_ACCELERATOR
    accelerator_count: int = 0


@dataclass(frozen=True)
class Group:
    """A node group with what its rank numbers stand for: accelerators, or (``hardware_type`` None) nodes."""

    label: str
    nodes: tuple[Node, ...]  # ascending rank; rank is an int here
    hardware_type: str | None

    @property
    def resources(self) -> list[tuple[Node, int]]:
        """Each resource as (node, node-local index), in the order of the group's rank numbers."""
        if self.hardware_type is None:
            return [(node, 0) for node in self.nodes]
        return [(node, index) for node in self.nodes for index in range(node.accelerator_count)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "node_ranks": [node.rank for node in self.nodes],
            "hardware_type": self.hardware_type,
            "resource_count": len(self.resources),
        }


@dataclass(frozen=True)
class Placement:
    """Where one process of a component runs and what it gets; field names as in RLinf's ``Placement``."""

    process_rank: int
    node_rank: int
    placement_node_rank: int  # counted over the nodes that this component uses
    node_group: str
    strategy: str  # FLEXIBLE: by hardware; NODE: whole nodes
    resource_ranks: tuple[int, ...]  # within the selected group(s)
    hardware_ranks: tuple[int, ...]  # node-local; empty for NODE
    accelerator_type: str
    accelerators: tuple[str, ...]
    local_accelerator_rank: int
    local_rank: int
    local_world_size: int
    visible_devices: str
    isolate: bool
    actor_name: str


@dataclass(frozen=True)
class Notice:
    """Something worth knowing that is no error; ``code`` is stable."""

    code: str
    message: str


@dataclass(frozen=True)
class Plan:
    """A resolved cluster section."""

    nodes: tuple[Node, ...]  # in rank order
    groups: tuple[Group, ...]  # as written, then the implicit ``cluster`` and ``node``
    placements: Mapping[str, tuple[Placement, ...]]
    component_ranks: Mapping[str, tuple[int, ...]]
    notices: tuple[Notice, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "nodes": [self._node_to_dict(node) for node in self.nodes],
            "groups": [group.to_dict() for group in self.groups],
            "world_size": {name: len(placements) for name, placements in self.placements.items()},
            "component_ranks": {name: list(ranks) for name, ranks in self.component_ranks.items()},
            "cluster_accelerator_ranks": self._cluster_accelerator_ranks(),
            "warnings": [notice.code for notice in self.notices],
            "notices": [notice.message for notice in self.notices],
            "placements": {
                name: [
                    {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(item).items()}
                    for item in placements
                ]
                for name, placements in self.placements.items()
            },
        }

    def _node_to_dict(self, node: Node) -> dict[str, Any]:
        implicit = self.groups[:-2]
        return {
            "rank": node.rank,
            "ip": node.ip,
            "hostname": node.hostname,
            "labels": [group.label for group in implicit if node in group.nodes],
            "accelerator": node.accelerator,
            "accelerator_count": node.accelerator_count,
            "hardware": {"Accelerator": node.accelerator_count} if node.accelerator_count else {},
        }

    def _cluster_accelerator_ranks(self) -> list[list[int]]:
        ranks, start = [], 0
        for node in self.nodes:
            ranks.append(list(range(start, start + node.accelerator_count)))
            start += node.accelerator_count
        return ranks
