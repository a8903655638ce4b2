"""Groups of nodes, and the place of each process: what plans are made of. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgelink.placement.nodes import Node

ACCELERATOR = "Accelerator"  # the hardware type that RLinf finds by itself


@dataclass(frozen=True)
class Group:
    """A node group with what its rank numbers stand for: hardware, or (``hardware_type`` None) nodes."""

    label: str
    nodes: tuple[Node, ...]  # ascending rank; rank is an int here
    hardware_type: str | None
    env_vars: Mapping[int, Mapping[str, str]] = field(default_factory=dict, hash=False)  # by node rank
    interpreters: Mapping[int, str] = field(default_factory=dict, hash=False)  # by node rank

    @cached_property
    def resources(self) -> list[tuple[Node, int]]:
        """Each resource as (node, node-local index), in the order of the group's rank numbers."""
        kind = self.hardware_type
        if kind is None:
            return [(node, 0) for node in self.nodes]
        return [(node, index) for node in self.nodes for index in range(node.hardware.get(kind, 0))]

    @property
    def numbers_mean(self) -> str:
        """What one rank number stands for, in words."""
        if self.hardware_type is None:
            return "node"
        return "accelerator" if self.hardware_type == ACCELERATOR else self.hardware_type

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.label,
            "node_ranks": [node.rank for node in self.nodes],
            "hardware_type": self.hardware_type,
            "resource_count": len(self.resources),
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one process of a component runs and what it gets; field names as in RLinf's ``Placement``."""

    process_rank: int
    node_rank: int
    placement_node_rank: int  # counted over the nodes that this component uses
    node_group: str
    strategy: str  # FLEXIBLE: by hardware; NODE: whole nodes; PACKED: by hardware, as the program itself says
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "process_rank": self.process_rank,
            "node_rank": self.node_rank,
            "placement_node_rank": self.placement_node_rank,
            "node_group": self.node_group,
            "strategy": self.strategy,
            "resource_ranks": list(self.resource_ranks),
            "hardware_ranks": list(self.hardware_ranks),
            "accelerator_type": self.accelerator_type,
            "accelerators": list(self.accelerators),
            "local_accelerator_rank": self.local_accelerator_rank,
            "local_rank": self.local_rank,
            "local_world_size": self.local_world_size,
            "visible_devices": self.visible_devices,
            "isolate": self.isolate,
            "actor_name": self.actor_name,
        }
