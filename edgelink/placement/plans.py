"""A plan: groups, placements and all that follows from them. Frozen; ``to_dict`` is what files and scripts see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgelink.placement.nodes import Node
from edgelink.placement.problems import Notice

if TYPE_CHECKING:
    from edgelink.placement.environment import Environments

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


@dataclass(frozen=True)
class Plan:
    """A resolved cluster section."""

    nodes: tuple[Node, ...]  # in rank order
    groups: tuple[Group, ...]  # as written, then the implicit ``cluster`` and ``node``
    placements: Mapping[str, tuple[Placement, ...]]
    component_ranks: Mapping[str, tuple[int, ...]]
    environments: Environments = field(repr=False, compare=False)
    notices: tuple[Notice, ...] = field(default=())

    def env(self, component: str, process_rank: int) -> dict[str, str]:
        """The environment of a process after the start of its worker, but for MASTER_PORT.

        Of a node whose environment is not known, only what RLinf and the cluster file set.
        """
        return self.environments.of(component, self.placements[component], process_rank)

    def py_executable(self, component: str, process_rank: int) -> str | None:
        """The interpreter (with a profiler before it, if one is configured); None: the node's own, not known."""
        return self.environments.py_executable(component, self.placements[component][process_rank])

    def to_dict(self, *, env: bool = True) -> dict[str, Any]:
        """Plain data for JSON.

        Args:
            env: with the environment and the interpreter of each process.
        """
        return {
            "nodes": [node.to_dict() for node in self.nodes],
            "groups": [group.to_dict() for group in self.groups],
            "world_size": {name: len(placements) for name, placements in self.placements.items()},
            "component_ranks": {name: list(ranks) for name, ranks in self.component_ranks.items()},
            "cluster_accelerator_ranks": self._cluster_accelerator_ranks(),
            "warnings": [notice.code for notice in self.notices if notice.from_rlinf],
            "notices": [notice.to_dict() for notice in self.notices],
            "placements": {
                name: [item.to_dict() | (self._process(name, item.process_rank) if env else {}) for item in placements]
                for name, placements in self.placements.items()
            },
        }

    def _process(self, component: str, process_rank: int) -> dict[str, Any]:
        return {
            "py_executable": self.py_executable(component, process_rank),
            "env": self.env(component, process_rank),
        }

    def _cluster_accelerator_ranks(self) -> list[list[int]]:
        ranks, start = [], 0
        for node in self.nodes:
            ranks.append(list(range(start, start + node.accelerator_count)))
            start += node.accelerator_count
        return ranks
