"""A plan: groups, placements and all that follows from them. Frozen; ``to_dict`` is what files and scripts see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgelink.placement.groups import Group, Placement
from edgelink.placement.nodes import Node
from edgelink.placement.problems import Notice
from edgelink.placement.worker_environment import Environments


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
