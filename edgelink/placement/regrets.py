"""What RLinf accepts in silence and users regret: said as notices of a plan that is valid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from edgelink.placement.components import Component
from edgelink.placement.grammar import span
from edgelink.placement.groups import ACCELERATOR, Group, Placement
from edgelink.placement.problems import Findings
from edgelink.placement.sections import ClusterSection
from edgelink.wording import few


def note_regrets(
    section: ClusterSection,
    groups: Sequence[Group],
    components: Sequence[Component],
    placements: Mapping[str, Sequence[Placement]],
    findings: Findings,
) -> None:
    """Look through a finished plan."""
    _shared_accelerators(groups, placements, findings)
    _mixed_groups(components, findings)
    _unused_env_configs(section, placements, findings)
    _idle_robots(section, groups, placements, findings)
    _strange_controllers(section, findings)
    for group in section.groups:
        if group.ignore_hardware and group.hardware_type is not None:
            message = f"ignore_hardware has no effect next to hardware_type: {group.hardware_type}"
            findings.notice("ignore_hardware_without_effect", group.key, message, "remove one of them")
        label = group.raw["label"]
        if not isinstance(label, str | int) or isinstance(label, bool):
            message = f"YAML made {label!r} of this label; RLinf calls the group {group.label!r}"
            findings.notice("yaml_changed_value", f"{group.key}.label", message, "quote it")


def _shared_accelerators(
    groups: Sequence[Group], placements: Mapping[str, Sequence[Placement]], findings: Findings
) -> None:
    """Components that use the same devices: legal, and meant for collocation, but not reported by RLinf."""
    by_accelerator = {group.label for group in groups if group.hardware_type == ACCELERATOR}
    users: defaultdict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    for name, items in placements.items():
        for item in items:
            if item.strategy == "FLEXIBLE" and item.node_group in by_accelerator:
                for index in item.hardware_ranks:
                    users[item.node_rank, index][name] = None
    shared: defaultdict[tuple[str, ...], defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (node, index), by in users.items():
        if len(by) > 1:
            shared[tuple(by)][node].append(index)
    for names, devices in shared.items():
        told = [f"{span(sorted(indices))} of node {node}" for node, indices in list(devices.items())[:4]]
        more = f" and those of {len(devices) - 4} more nodes" if len(devices) > 4 else ""
        message = f"{' and '.join(names)} share accelerators {', '.join(told)}{more}"
        fix = "give them different numbers unless they take turns"
        findings.notice("accelerators_shared", "cluster.component_placement", message, fix)


def _mixed_groups(components: Sequence[Component], findings: Findings) -> None:
    told: set[str] = set()
    for component in components:
        names = [group.label for group in component.groups]
        if not component.by_hardware and any(group.hardware_type is not None for group in component.groups):
            message = (
                f"{','.join(names)}: not all of these groups have accelerators, so numbers mean nodes, not devices"
            )
            fix = "name groups of one kind, or the group 'node'"
            findings.notice("numbers_mean_nodes", component.key, message, fix)
        if len(set(names)) < len(names):
            message = f"{','.join(names)}: a group named twice counts its hardware twice"
            findings.notice("group_named_twice", component.key, message, "name each group once")
        for group in component.groups if component.by_hardware else ():
            without = [node for node in group.nodes if not node.accelerator_count]
            if group.hardware_type != ACCELERATOR or not without or group.label in told:
                continue
            first = next((node for node in group.nodes if node.accelerator_count), None)
            if first is None:
                continue
            told.add(group.label)
            message = (
                f"numbers in group {group.label!r} mean accelerators, because node {first.rank} has one: "
                f"node {span([node.number for node in without])}, {few([node.name for node in without])}, has none and "
                "no number"
            )
            fix = "name the group 'node' to place by node, or put the nodes into a group of their own"
            findings.notice("nodes_without_number", component.key, message, fix)


def _idle_robots(
    section: ClusterSection,
    groups: Sequence[Group],
    placements: Mapping[str, Sequence[Placement]],
    findings: Findings,
) -> None:
    """A process has the robots of the group that it is placed through, and of no other on its node."""
    kinds = {group.label: group.hardware_type for group in groups}
    used = {(kinds.get(item.node_group), item.node_rank) for items in placements.values() for item in items}
    for group in section.groups:
        for robot in group.robots:
            if (robot.type, robot.node_rank) not in used:
                message = (
                    f"the {robot.type} of node {robot.node_rank} reaches no component: none is placed there through a "
                    "group of its type"
                )
                fix = f"name {group.label!r} as node_group of the component that drives it, as a rule env"
                findings.notice("robot_not_reached", robot.key, message, fix)


def _strange_controllers(section: ClusterSection, findings: Findings) -> None:
    """RLinf looks for a robot's controller only when it makes the environment."""
    ranks = range(section.num_nodes or 0)
    for robot in (robot for group in section.groups for robot in group.robots):
        for name, rank in robot.values.items():
            if name.endswith("controller_node_rank") and isinstance(rank, int) and rank not in ranks:
                message = f"{name} {rank} is no node of this cluster"
                fix = f"write one of {span([*ranks])}, or leave it out for the robot's own node"
                findings.notice("controller_not_a_node", f"{robot.key}.{name}", message, fix)


def _unused_env_configs(
    section: ClusterSection, placements: Mapping[str, Sequence[Placement]], findings: Findings
) -> None:
    """env_configs apply to processes that are placed *through* their group, not to all on its nodes."""
    used: defaultdict[str, set[int]] = defaultdict(set)
    for items in placements.values():
        for item in items:
            used[item.node_group].add(item.node_rank)
    for group in section.groups:
        for config in group.env_configs:
            if not config.variables and config.python is None:
                continue
            idle = [rank for rank in config.node_ranks if rank not in used[group.label]]
            if idle:
                message = f"does not apply on node {span(idle)}: no process is placed there through {group.label!r}"
                fix = f"name {group.label!r} as node_group of the component, or export the variables before Ray starts"
                findings.notice("env_config_not_applied", config.key, message, fix)
