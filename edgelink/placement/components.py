"""``component_placement``: from each component's string to the node and the accelerators of each of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgelink.placement.grammar import parse_placement
from edgelink.placement.model import Group, Node, Placement
from edgelink.placement.problems import Problem, RuleBrokenError


@dataclass(frozen=True)
class _Process:
    """One process before it is known who else runs on its node."""

    node: Node
    group: Group
    resource_ranks: tuple[int, ...]
    hardware_ranks: tuple[int, ...]


def place_components(
    section: Any, groups: Sequence[Group], problems: list[Problem], *, isolate: bool
) -> tuple[dict[str, tuple[Placement, ...]], dict[str, tuple[int, ...]]]:
    """Placements and resource ranks of every component; mistakes are appended to ``problems``."""
    placements: dict[str, tuple[Placement, ...]] = {}
    resource_ranks: dict[str, tuple[int, ...]] = {}
    if not isinstance(section, Mapping):
        if section is not None or not problems:
            fix = "write 'component: placement' pairs"
            problems.append(
                Problem("cluster.component_placement", section, "component_placement not a mapping", "", fix)
            )
        return placements, resource_ranks
    for names, value in section.items():
        key = f"cluster.component_placement.{names}"
        try:
            selected, text = _selection(value, groups)
        except RuleBrokenError as broken:
            problems.append(broken.at(key, value))
            continue
        try:
            processes = _place(text, selected)
        except RuleBrokenError as broken:
            problems.append(broken.at(key if not isinstance(value, Mapping) else f"{key}.placement", text))
            continue
        for name in (part.strip() for part in str(names).split(",")):
            if name in placements:
                problems.append(Problem(key, name, "component named twice", "", "name each component once"))
                continue
            placements[name] = _finish(name, processes, selected, isolate=isolate)
            resource_ranks[name] = tuple(dict.fromkeys(rank for item in processes for rank in item.resource_ranks))
    return placements, resource_ranks


def _selection(value: Any, groups: Sequence[Group]) -> tuple[list[Group], Any]:
    """The node groups that a component's numbers run through, in written order, and its placement string."""
    if not isinstance(value, Mapping):
        return [_find_group("cluster", groups)], value
    if "placement" not in value:
        raise RuleBrokenError("placement string missing", "", "add placement: next to node_group:")
    if "node_group" not in value:
        return [_find_group("cluster", groups)], value["placement"]
    label = value["node_group"]
    if isinstance(label, Sequence) and not isinstance(label, str):
        fix = "write the labels in one string: 'cloud,edge'"
        raise RuleBrokenError("node_group label unknown", "a YAML list does not work in RLinf", fix)
    text = str(label)
    labels = [part.strip() for part in text.split(",")] if "," in text else [text]
    return [_find_group(part, groups) for part in labels], value["placement"]


def _find_group(label: str, groups: Sequence[Group]) -> Group:
    for group in groups:
        if group.label == label:
            return group
    known = ", ".join(group.label for group in groups)
    raise RuleBrokenError("node_group label unknown", f"{label!r}", f"known labels are {known}")


def _place(text: Any, selected: Sequence[Group]) -> list[_Process]:
    by_hardware = all(group.hardware_type is not None for group in selected)
    count = sum(len(group.resources) for group in selected)
    shares = parse_placement(text, count, "accelerator" if by_hardware else "node")
    return _place_on_hardware(shares, selected) if by_hardware else _place_on_nodes(shares, selected)


def _place_on_hardware(shares: Sequence[tuple[int, ...]], selected: Sequence[Group]) -> list[_Process]:
    resources = [(group, node, index) for group in selected for node, index in group.resources]
    processes: list[_Process] = []
    for rank, share in enumerate(shares):
        group, node, _ = resources[share[0]]
        if any(resources[resource][1] != node for resource in share):
            raise RuleBrokenError(
                "process hardware spans nodes",
                f"process {rank} would get accelerators of several nodes",
                "give each process accelerators of one node",
            )
        if processes and _rank(node) < _rank(processes[-1].node):
            raise RuleBrokenError(
                "groups not in node order",
                f"process {rank} would run on node {node.rank}, after one on node {processes[-1].node.rank}",
                "name the groups in the order of their node ranks",
            )
        processes.append(_Process(node, group, share, tuple(resources[resource][2] for resource in share)))
    return processes


def _place_on_nodes(shares: Sequence[tuple[int, ...]], selected: Sequence[Group]) -> list[_Process]:
    """Whole nodes. If only some groups have accelerators, RLinf checks the string against accelerators plus nodes,
    but then reads its numbers as node indices; here the second reading is checked too."""
    if any(len(share) > 1 for share in shares):
        raise RuleBrokenError(
            "one process on several nodes", "there are fewer processes than nodes", "give each node a process"
        )
    resources = [(group, node) for group in selected for node in group.nodes]
    if len({node.rank for _, node in resources}) < len(resources):
        fix = "name groups that have no node in common"
        raise RuleBrokenError("node placement over overlapping groups", "", fix)
    processes: list[_Process] = []
    for share in shares:
        if share[0] >= len(resources):
            detail = f"{share[0]}, but the groups have {len(resources)} nodes; numbers mean nodes here"
            raise RuleBrokenError("node index out of range", detail, "do not mix groups with and without accelerators")
        group, node = resources[share[0]]
        if processes and _rank(node) < _rank(processes[-1].node):
            detail = f"node {node.rank} comes after node {processes[-1].node.rank}"
            raise RuleBrokenError("groups not in node order", detail, "name the groups in the order of node ranks")
        processes.append(_Process(node, group, share, ()))
    return processes


def _rank(node: Node) -> int:
    assert isinstance(node.rank, int)  # order_nodes made it one
    return node.rank


def _finish(
    name: str, processes: Sequence[_Process], selected: Sequence[Group], *, isolate: bool
) -> tuple[Placement, ...]:
    used_nodes = sorted({_rank(process.node) for process in processes})
    local_sizes = Counter(_rank(process.node) for process in processes)
    started: Counter[int] = Counter()
    strategy = "FLEXIBLE" if all(group.hardware_type is not None for group in selected) else "NODE"
    placements = []
    for process_rank, process in enumerate(processes):
        node_rank = _rank(process.node)
        own_only = isolate and strategy == "FLEXIBLE"
        visible = process.hardware_ranks if own_only else tuple(range(process.node.accelerator_count))
        placements.append(
            Placement(
                process_rank=process_rank,
                node_rank=node_rank,
                placement_node_rank=used_nodes.index(node_rank),
                node_group=process.group.label,
                strategy=strategy,
                resource_ranks=process.resource_ranks,
                hardware_ranks=process.hardware_ranks,
                accelerator_type=process.node.accelerator,
                accelerators=tuple(str(index) for index in visible),
                local_accelerator_rank=visible[0] if visible else -1,
                local_rank=started[node_rank],
                local_world_size=local_sizes[node_rank],
                visible_devices=",".join(str(index) for index in visible),
                isolate=isolate,
                actor_name=f"{name}:{process_rank}",
            )
        )
        started[node_rank] += 1
    return tuple(placements)
