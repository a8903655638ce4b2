"""``component_placement``: from each component's string to the node and the hardware of each of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from edgelink.placement.grammar import NOTHING_THERE, OUT_OF_RANGE, first_process_rank, parse_placement
from edgelink.placement.groups import ACCELERATOR, Group, Placement
from edgelink.placement.nodes import Node
from edgelink.placement.problems import Findings, RuleBrokenError, Stage
from edgelink.wording import few

_KEY = "cluster.component_placement"


@dataclass(frozen=True)
class Packed:
    """Hardware of the whole cluster that is dealt out in order, as RLinf's ``PackedPlacementStrategy`` does."""

    first: int  # of the cluster's accelerators
    last: int
    per_process: int = 1
    stride: int = 1  # between the accelerators of one process

    @property
    def shares(self) -> list[tuple[int, ...]]:
        """By process: its resource ranks."""
        shares: list[tuple[int, ...]] = []
        dealt: set[int] = set()
        for rank in range(self.first, self.last + 1):
            if rank not in dealt:
                shares.append(tuple(range(rank, rank + self.per_process * self.stride, self.stride)))
                dealt.update(shares[-1])
        return shares


@dataclass(frozen=True)
class Component:
    """One entry of ``component_placement`` that can be read."""

    key: str
    names: tuple[str, ...]
    text: Any
    groups: tuple[Group, ...]
    shares: Sequence[tuple[int, ...]]  # by process: its resource ranks
    is_packed: bool = False  # by the program, whatever the section says

    @property
    def by_hardware(self) -> bool:
        """Whether the numbers mean hardware; else they mean nodes."""
        return all(group.hardware_type is not None for group in self.groups)


@dataclass(frozen=True)
class Labels:
    """The groups that can be named. ``unsure`` ones are there, but what they hold is not known."""

    groups: Mapping[str, Group]
    unsure: frozenset[str] = frozenset()

    def find(self, label: str) -> Group | None:
        """The group of this label, None if it is unsure. Raises RuleBrokenError."""
        if label in self.groups:
            return self.groups[label]
        if label in self.unsure:
            return None
        known = [*self.groups, *sorted(self.unsure.difference(self.groups))]
        meant = get_close_matches(label.strip(), known, n=1)
        fix = (f"did you mean {meant[0]!r}? " if meant else "") + f"known labels are {', '.join(known)}"
        raise RuleBrokenError("node_group label unknown", f"{label!r}", fix)


def read_components(section: Any, labels: Labels, findings: Findings) -> list[Component]:
    """All entries that can be read; their problems, in the order of the file, go to ``findings``."""
    if not isinstance(section, Mapping):
        fix = "write 'component: placement' pairs"
        findings.add(Stage.COMPONENT, _KEY, section, "component_placement not a mapping", "", fix)
        return []
    components: list[Component] = []
    taken: dict[str, str] = {}
    for written, value in section.items():
        key = f"{_KEY}.{written}"
        names = tuple(name.strip() for name in str(written).split(","))
        component = _read_component(key, names, value, labels, findings)
        if component is not None:
            components.append(component)
        for name in names:
            if name in taken:
                detail = f"already in {taken[name]}"
                findings.add(Stage.COMPONENT, key, name, "component named twice", detail, "name each component once")
            taken.setdefault(name, key)
    return components


def repacked(component: Component, packed: Mapping[str, Packed], cluster: Group) -> list[Component]:
    """Return ``component`` by its names: those in ``packed`` are placed in ``cluster`` as that says."""
    left = tuple(name for name in component.names if name not in packed)
    return [
        *([replace(component, names=left)] if left else []),
        *(
            replace(component, names=(name,), groups=(cluster,), shares=packed[name].shares, is_packed=True)
            for name in component.names
            if name in packed
        ),
    ]


def _read_component(
    key: str, names: tuple[str, ...], value: Any, labels: Labels, findings: Findings
) -> Component | None:
    before = findings.count
    groups = _selected(key, value, labels, findings)
    text = value
    if isinstance(value, Mapping):
        if "placement" not in value:
            near = get_close_matches("placement", [str(name) for name in value if name != "node_group"], n=1)
            fix = f"did you mean placement, where it has {near[0]}?" if near else "add placement: next to node_group:"
            findings.add(Stage.COMPONENT, key, dict(value), "placement string missing", "", fix)
            return None
        text = value["placement"]
        _note_extra_keys(key, value, findings)
        key = f"{key}.placement"
    known = [group for group in groups if group is not None]
    count = sum(len(group.resources) for group in known) if len(known) == len(groups) and known else None
    resource = _numbers_mean(known)
    try:
        shares = parse_placement(text, count, resource)
        if count is not None and resource == "node" and any(len(share) > 1 for share in shares):
            detail, fix = "there are fewer processes than nodes", "give each node a process"
            raise RuleBrokenError("one process on several nodes", detail, fix)
    except RuleBrokenError as broken:
        if broken.rule in (OUT_OF_RANGE, NOTHING_THERE):
            broken.fix += _who_has_what(known)
        findings.broken(broken, Stage.COMPONENT, key, text)
        return None
    if count is None or findings.count > before:
        return None
    first = first_process_rank(text)
    if first:
        message = f"{text!r} gives its first process rank {first}, but ranks are counted from 0: it becomes 0"
        findings.notice("process_ranks_renumbered", key, message, "start with process 0")
    return Component(key, names, text, tuple(known), shares)


def _selected(key: str, value: Any, labels: Labels, findings: Findings) -> list[Group | None]:
    """The node groups that a component's numbers run through, in written order; empty if one is unknown."""
    if not isinstance(value, Mapping) or "node_group" not in value:
        return [labels.find("cluster")]
    written = value["node_group"]
    text = str(written)
    parts = [part.strip() for part in text.split(",")] if isinstance(written, str) and "," in text else [text]
    try:
        return [labels.find(part) for part in parts]
    except RuleBrokenError as broken:
        detail, fix = broken.detail, broken.fix
        if isinstance(written, Sequence) and not isinstance(written, str):
            together = ",".join(str(item) for item in written)
            detail = "a YAML list is one label to RLinf's code"
            fix = f"RLinf's guide shows a list, but its code takes one string: write '{together}'"
        findings.add(Stage.COMPONENT, f"{key}.node_group", written, broken.rule, detail, fix)
        return []


def _note_extra_keys(key: str, value: Mapping[str, Any], findings: Findings) -> None:
    for name in value:
        if name not in ("node_group", "placement"):
            meant = get_close_matches(str(name), ("node_group", "placement"), n=1)
            fix = f"did you mean {meant[0]}?" if meant else "RLinf reads node_group and placement here"
            findings.notice("unknown_key_ignored", f"{key}.{name}", f"{key}.{name} is ignored", fix)


def _numbers_mean(groups: Sequence[Group]) -> str:
    if any(group.hardware_type is None for group in groups):
        return "node"
    return " or ".join(dict.fromkeys(group.numbers_mean for group in groups)) or "resource"


def _who_has_what(groups: Sequence[Group]) -> str:
    """Which nodes bring the hardware that is counted, those with the least first; where numbers mean nodes, who has
    none of the accelerators that may have been expected."""
    nodes = {node.number: node for group in groups for node in group.nodes}
    kinds = {group.hardware_type for group in groups}
    if None in kinds:
        without = [node.name for node in nodes.values() if not node.accelerator_count]
        return f"; if accelerators are meant, there is none on {few(without)}" if without else ""
    counts = Counter(node.number for group in groups for node, _ in group.resources)
    ordered = sorted(nodes.values(), key=lambda node: (counts[node.number], node.number))
    told = [f"{node.name} has {counts[node.number] or 'none'}" for node in ordered]
    return f"; {few(told)}"


def place_component(component: Component, *, isolate: bool) -> dict[str, tuple[Placement, ...]]:
    """The placements of each name of ``component``. Raises RuleBrokenError where RLinf would at launch."""
    processes = _on_hardware(component) if component.by_hardware else _on_nodes(component)
    last = None
    for rank, process in enumerate(processes):
        if last is not None and process.node.number < last.number:
            detail = f"process {rank} would run on node {process.node.rank}, after one on node {last.rank}"
            fix = "name the groups in the order of their node ranks"
            raise RuleBrokenError("groups not in node order", detail, fix)
        last = process.node
    first = _finish(component.names[0], processes, component, isolate=isolate)
    placed = {component.names[0]: first}
    for name in component.names[1:]:
        placed[name] = _finish(name, processes, component, isolate=isolate)
    return placed


@dataclass(frozen=True, slots=True)
class _Process:
    """One process before it is known who else runs on its node."""

    node: Node
    group: Group
    resource_ranks: tuple[int, ...]
    hardware_ranks: tuple[int, ...]


def _on_hardware(component: Component) -> list[_Process]:
    resources = [(group, node, index) for group in component.groups for node, index in group.resources]
    if not component.shares:  # unreachable by the grammar; RLinf refuses it, too
        raise RuleBrokenError("placement string empty", "", "write which resources to use")
    processes: list[_Process] = []
    for rank, share in enumerate(component.shares):
        group, node, index = resources[share[0]]
        if len(share) == 1:
            processes.append(_Process(node, group, share, (index,)))
            continue
        own = [resources[resource] for resource in share]
        nodes = sorted({item[1].number for item in own})
        if len(nodes) > 1:
            detail = f"process {rank} would get resources {share[0]}-{share[-1]}, on nodes {', '.join(map(str, nodes))}"
            fix = "give each process hardware of one node"
            raise RuleBrokenError("process hardware spans nodes", detail, fix)
        kinds = sorted({str(item[0].hardware_type) for item in own})
        if len(kinds) > 1:
            detail = f"process {rank} would get {' and '.join(kinds)} on node {node.rank}"
            raise RuleBrokenError("process mixes hardware types", detail, "give each process hardware of one type")
        processes.append(_Process(node, group, share, tuple(item[2] for item in own)))
    return processes


def _on_nodes(component: Component) -> list[_Process]:
    """Whole nodes. If only some groups have accelerators, RLinf checks the string against accelerators plus nodes,
    but then reads its numbers as node indices; here the second reading is checked, too."""
    resources = [(group, node) for group in component.groups for node in group.nodes]
    counts = Counter(node.number for _, node in resources)
    if len(counts) < len(resources):
        twice = ", ".join(str(rank) for rank, count in counts.items() if count > 1)
        detail, fix = f"node {twice} is in more than one of them", "name groups that have no node in common"
        raise RuleBrokenError("node placement over overlapping groups", detail, fix)
    processes: list[_Process] = []
    for share in component.shares:
        if share[0] >= len(resources):
            detail = f"{share[0]}, but the groups have {len(resources)} nodes; numbers mean nodes here"
            raise RuleBrokenError("node index out of range", detail, "do not mix groups with and without accelerators")
        group, node = resources[share[0]]
        processes.append(_Process(node, group, share, ()))
    return processes


def _finish(name: str, processes: Sequence[_Process], component: Component, *, isolate: bool) -> tuple[Placement, ...]:
    local_sizes = Counter(process.node.number for process in processes)
    node_places = {rank: place for place, rank in enumerate(sorted(local_sizes))}
    started: Counter[int] = Counter()
    strategy = "PACKED" if component.is_packed else "FLEXIBLE" if component.by_hardware else "NODE"
    everything = dict.fromkeys(local_sizes, ()) | {
        process.node.number: tuple(str(index) for index in range(process.node.accelerator_count))
        for process in processes
    }
    placements = []
    for process_rank, process in enumerate(processes):
        node_rank = process.node.number
        if isolate and process.group.hardware_type == ACCELERATOR and component.by_hardware:
            visible = tuple(map(str, process.hardware_ranks))
            first = process.hardware_ranks[0]
        else:
            visible = everything[node_rank]
            first = 0 if visible else -1
        placements.append(
            Placement(
                process_rank=process_rank,
                node_rank=node_rank,
                placement_node_rank=node_places[node_rank],
                node_group=process.group.label,
                strategy=strategy,
                resource_ranks=process.resource_ranks,
                hardware_ranks=process.hardware_ranks,
                accelerator_type=process.node.accelerator_type,
                accelerators=visible,
                local_accelerator_rank=first,
                local_rank=started[node_rank],
                local_world_size=local_sizes[node_rank],
                visible_devices=",".join(visible),
                isolate=isolate,
                actor_name=f"{name}:{process_rank}",
            )
        )
        started[node_rank] += 1
    return tuple(placements)
