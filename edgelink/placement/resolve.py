"""Resolve a ``cluster:`` section against nodes: pure, exact, and all mistakes at once as far as that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgelink.placement.components import Labels, Packed, place_component, read_components, repacked
from edgelink.placement.discover import discover
from edgelink.placement.grammar import span
from edgelink.placement.groups import ACCELERATOR, Group, Placement
from edgelink.placement.nodes import Driver, Node, as_driver, as_node, describe
from edgelink.placement.plans import Plan
from edgelink.placement.problems import Findings, InvalidClusterError, RuleBrokenError, Stage
from edgelink.placement.profiling import Profiling
from edgelink.placement.regrets import note_regrets
from edgelink.placement.rlinf_rules import RLINF_0_3, RlinfRules
from edgelink.placement.sections import ClusterSection, GroupSection, read_cluster
from edgelink.placement.worker_environment import Environments


def plan(
    cluster: Mapping[str, Any],
    nodes: Sequence[Node | Mapping[str, Any]],
    *,
    driver: Driver | Mapping[str, Any] | int | None = None,
    isolate: bool = True,
    num_nodes: int | None = None,
    packed: Mapping[str, Packed] | None = None,
    rules: RlinfRules = RLINF_0_3,
) -> Plan:
    """Resolve ``cluster`` against ``nodes``.

    Args:
        cluster: RLinf's ``cluster`` section, as YAML gives it.
        nodes: the alive nodes in the order in which Ray lists them; mappings as in a nodes file
            (docs/reference/placement.md).
        driver: where the driver runs (default: on the first of ``nodes``), and what its shell changed.
        isolate: each process sees its own accelerators only, as ``launch(isolate_gpu=…)``.
        num_nodes: what the driver passes as ``Cluster(num_nodes=…)``, if it does.
        rules: of the version of RLinf that is installed.
        packed: by component, where the program places in a way of its own (edgelink.frameworks.rlinf).

    Raises:
        InvalidClusterError: with every problem that was found.
        PlacementError: a node or the driver is not described as it has to be.
    """
    there = [node if isinstance(node, Node) else as_node(node) for node in nodes]
    home = as_driver(driver, len(there))
    findings = Findings()
    section = read_cluster(cluster, findings, rules)
    parsed = findings.count == 0
    if section.num_nodes is not None and num_nodes is not None and num_nodes != section.num_nodes:
        rule, fix = "num_nodes argument differs from config", "make them the same"
        detail = f"the driver asks for {num_nodes}"
        findings.add(Stage.DISCOVER, "cluster.num_nodes", section.num_nodes, rule, detail, fix)
    found = None
    if section.num_nodes is not None:
        found = discover(there, section, section.num_nodes, home, findings)
    if found is None or not parsed:
        check_without_nodes(section, findings)
        raise InvalidClusterError(findings.problems, describe(found[0] if found else there))
    ordered, home_node = found
    groups = _make_groups(section, ordered, findings)
    labels = _by_label(groups)
    components = read_components(section.component_placement, Labels(labels), findings)
    if packed:
        components = [each for written in components for each in repacked(written, packed, labels["cluster"])]
    placements: dict[str, tuple[Placement, ...]] = {}
    ranks: dict[str, tuple[int, ...]] = {}
    for component in components:
        try:
            placed = place_component(component, isolate=isolate)
        except RuleBrokenError as broken:
            findings.broken(broken, Stage.PLACEMENT, component.key, component.text)
            continue
        placements |= placed
        ranks |= dict.fromkeys(placed, tuple(dict.fromkeys(rank for share in component.shares for rank in share)))
        _check_profilers(section.profiling, placed, ordered, findings)
    if findings.count:
        raise InvalidClusterError(findings.problems, describe(ordered))
    note_regrets(section, groups, components, placements, findings)
    environments = Environments(ordered, home_node, home, groups, section.profiling, rules)
    return Plan(ordered, tuple(groups), placements, ranks, environments, tuple(findings.notices))


def check_without_nodes(section: ClusterSection, findings: Findings) -> None:
    """Of the components, what is wrong whatever the nodes turn out to have."""
    labels = frozenset({"cluster", "node", *(group.label for group in section.groups)}) | section.unread
    groups = {}
    if section.num_nodes is not None and section.num_nodes <= _EXPANDED_NODES:
        every = [Node(rank, "") for rank in range(section.num_nodes)]
        groups["node"] = Group("node", tuple(every), None)
        for group in section.groups:
            if group.is_valid and group.ignore_hardware and group.hardware_type is None and group.node_ranks:
                groups.setdefault(
                    group.label, Group(group.label, tuple(every[rank] for rank in group.node_ranks), None)
                )
    read_components(section.component_placement, Labels(groups, labels), findings)


_EXPANDED_NODES = 65_536


def _make_groups(section: ClusterSection, nodes: Sequence[Node], findings: Findings) -> list[Group]:
    groups: list[Group] = []
    for written in section.groups:
        if not written.node_ranks:  # RLinf drops a group without nodes before it checks its label
            message = f"group {written.label!r} has no nodes; RLinf drops it"
            findings.notice("group_without_nodes", f"{written.key}.node_ranks", message)
            continue
        members = tuple(nodes[rank] for rank in written.node_ranks)
        groups.append(_make_group(written, members))
    seen: dict[str, str] = {}
    for written in section.groups:
        if written.node_ranks and written.label in seen:
            detail, fix = f"also that of {seen[written.label]}", "give each group its own label"
            rule = "node group label duplicated"
            findings.add(Stage.DISCOVER, f"{written.key}.label", written.label, rule, detail, fix)
        elif written.node_ranks:
            seen[written.label] = written.key
    every = tuple(nodes)
    return [*groups, Group("cluster", every, _found_type(every)), Group("node", every, None)]


def _make_group(written: GroupSection, members: tuple[Node, ...]) -> Group:
    kind = written.hardware_type
    if kind is None and not written.ignore_hardware:
        kind = _found_type(members)
    env_vars: dict[int, dict[str, str]] = {}
    interpreters: dict[int, str] = {}
    for config in written.env_configs:
        variables = dict(config.variables)
        env_vars |= dict.fromkeys(config.node_ranks, variables)
        if config.python is not None:
            interpreters |= dict.fromkeys(config.node_ranks, config.python)
    return Group(written.label, members, kind, env_vars, interpreters)


def _found_type(nodes: Sequence[Node]) -> str | None:
    """One accelerator in a group makes every number in it mean an accelerator: RLinf's rule, and its trap."""
    return ACCELERATOR if any(node.accelerator_count > 0 for node in nodes) else None


def _by_label(groups: Sequence[Group]) -> dict[str, Group]:
    """In written order; of groups with one label, the first counts."""
    labels: dict[str, Group] = {}
    for group in groups:
        labels.setdefault(group.label, group)
    return labels


def _check_profilers(
    profiling: Profiling | None,
    placed: Mapping[str, Sequence[Placement]],
    nodes: Sequence[Node],
    findings: Findings,
) -> None:
    for name, placements in placed.items():
        if profiling is None or not profiling.covers(name):
            continue
        unchecked = []
        key = "cluster.profiling.backend"
        for rank in dict.fromkeys(placement.node_rank for placement in placements):
            node = nodes[rank]
            if node.profilers is None:
                unchecked.append(rank)
            elif profiling.backend not in node.profilers:
                detail = f"component {name} runs on node {rank}, {node.name}"
                fix = "install the profiler there, or take the component out of profiling.worker_groups"
                rule = "profiling tool missing on node"
                findings.add(Stage.PLACEMENT, key, profiling.backend, rule, detail, fix)
        if unchecked:
            message = f"whether {profiling.backend} is there on node {span(unchecked)} is not known"
            findings.notice("profiler_not_checked", key, message)
