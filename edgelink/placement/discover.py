"""Which Ray nodes take part, under which rank, and what RLinf's probe finds on each: its rules, before it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from edgelink.placement.grammar import span
from edgelink.placement.groups import ACCELERATOR
from edgelink.placement.interpreters import FIX, RULE, wanted_of
from edgelink.placement.nodes import Driver, Node
from edgelink.placement.problems import Findings, RuleBrokenError, Stage
from edgelink.placement.robots import Robot, count_robots
from edgelink.placement.sections import ClusterSection, GroupSection

_UNSET = -1  # RLinf's own mark for "no RLINF_NODE_RANK"
_SET_RANKS = "start Ray through edgelink, which sets RLINF_NODE_RANK on every node"
_KEY = "cluster.num_nodes"


def discover(
    nodes: Sequence[Node], section: ClusterSection, num_nodes: int, driver: Driver, findings: Findings
) -> tuple[tuple[Node, ...], Node] | None:
    """The first ``num_nodes`` nodes by rank, each with its integer rank, labels and hardware, and the driver's.

    Args:
        nodes: the alive nodes in the order in which Ray lists them.

    Returns:
        None if RLinf stops here; why is in ``findings``.
    """
    if len(nodes) < num_nodes:
        here = ", ".join(node.name for node in nodes) or "none"
        detail = f"{num_nodes} nodes are asked for, {len(nodes)} there: {here}"
        fix = "start the missing nodes, or lower cluster.num_nodes"
        findings.add(Stage.DISCOVER, _KEY, num_nodes, "waits for missing nodes", detail, fix)
        return None
    before = findings.count
    probed = _probe(nodes, section, findings)
    if findings.count > before:
        return None
    try:
        return _order(probed, num_nodes, driver, findings)
    except RuleBrokenError as broken:
        findings.broken(broken, Stage.DISCOVER, _KEY, num_nodes)
        return None


def _probe(nodes: Sequence[Node], section: ClusterSection, findings: Findings) -> list[Node]:
    """Each node with what its probe finds; RLinf probes nodes beyond ``num_nodes``, too."""
    groups: defaultdict[int, list[GroupSection]] = defaultdict(list)
    robots: defaultdict[int, list[Robot]] = defaultdict(list)
    for group in section.groups:
        for member in group.node_ranks:
            groups[member].append(group)
        for robot in group.robots:
            robots[robot.node_rank].append(robot)
    interpreters = wanted_of(section)
    needs_ranks = section.has_groups and len(nodes) > 1
    without_rank = [node.name for node in nodes if _rank(node) == _UNSET] if needs_ranks else []
    unchecked: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    probed = []
    for node in nodes:
        rank = _rank(node)
        if rank is None:
            detail = f"{node.name} has {node.rank!r}"
            findings.add(Stage.DISCOVER, _KEY, None, "node rank not an integer", detail, _SET_RANKS)
            continue
        if len(nodes) == 1:
            rank = 0
        if rank == _UNSET and without_rank:
            if node.name == without_rank[0]:
                rule, names = "node rank missing with node_groups", f"missing on {', '.join(without_rank)}"
                findings.add(Stage.DISCOVER, _KEY, section.num_nodes, rule, names, _SET_RANKS)
            continue
        found = replace(node, rank=rank, set_rank=None if node.rank is None else str(node.rank))
        counts = count_robots(found, robots.get(rank, ()), findings)
        accelerators = {ACCELERATOR: node.accelerator_count} if node.accelerator_count > 0 else {}
        _check_interpreters(found, interpreters.get(rank, ()), findings, unchecked)
        labels = tuple(group.label for group in groups.get(rank, ()))
        probed.append(replace(found, labels=labels, hardware={**accelerators, **counts}))
    for (key, path), ranks in unchecked.items():
        message = f"whether {path} is there on node {span(sorted(ranks))} is not known"
        findings.notice("interpreter_not_checked", key, message)
    return probed


def _check_interpreters(
    node: Node,
    wanted: Sequence[tuple[str, str]],
    findings: Findings,
    unchecked: defaultdict[tuple[str, str], list[int]],
) -> None:
    for key, path in wanted:
        if node.paths is None:
            unchecked[key, path].append(node.number)
        elif path not in node.paths:
            detail = f"on node {node.rank}, {node.name}"
            findings.add(Stage.DISCOVER, key, path, RULE, detail, FIX)


def _rank(node: Node) -> int | None:
    """RLINF_NODE_RANK as RLinf reads it; None: it is no number."""
    if node.rank is None:
        return _UNSET
    try:
        return int(node.rank)
    except ValueError:
        return None


def _order(nodes: Sequence[Node], num_nodes: int, driver: Driver, findings: Findings) -> tuple[tuple[Node, ...], Node]:
    """Raises RuleBrokenError: the first rule that the ranks break."""
    home = nodes[driver.node]
    unset = [node for node in nodes if node.number == _UNSET]
    if not unset:
        _check_ranks(nodes)
        ordered = sorted(nodes, key=lambda node: node.number)
        if len(nodes) > num_nodes and home.number >= num_nodes:
            raise _driver_outside(home, num_nodes)
    elif len(unset) < len(nodes):
        names = ", ".join(node.name for node in unset)
        raise RuleBrokenError("node rank set on only some nodes", f"missing on {names}", _SET_RANKS)
    else:
        ordered = _order_automatically(nodes, home)
        home = ordered[0]
    kept, left = ordered[:num_nodes], ordered[num_nodes:]
    if [node.rank for node in kept] != list(range(num_nodes)):
        listed = ", ".join(f"{node.name}={node.rank}" for node in kept[:32])
        fix = f"give the nodes ranks 0 to {num_nodes - 1}"
        raise RuleBrokenError("node ranks not unique and contiguous", listed, fix)
    if any(node is home for node in left):
        raise _driver_outside(home, num_nodes)
    if left:
        message = f"not used, because cluster.num_nodes is {num_nodes}: {', '.join(node.name for node in left)}"
        findings.notice("extra_nodes_ignored", _KEY, message, from_rlinf=True)
        for node in left:
            if node.number < num_nodes:
                message = (
                    f"{node.name} and {kept[node.number].name} both have node rank {node.rank}: either may be used"
                )
                findings.notice("duplicate_rank_hidden", _KEY, message, _SET_RANKS)
    return tuple(kept), home


def _driver_outside(home: Node, num_nodes: int) -> RuleBrokenError:
    detail = f"the driver runs on {home.name}, which is not among the first {num_nodes} nodes"
    return RuleBrokenError(
        "driver node outside num_nodes", detail, "start the driver on the head, or raise cluster.num_nodes"
    )


def _check_ranks(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.number < 0:
            raise RuleBrokenError("node rank negative", f"{node.name} has {node.rank}", _SET_RANKS)
    for node in nodes:
        if node.number >= len(nodes):
            detail = f"{node.name} has {node.rank}, but there are {len(nodes)} nodes"
            fix = "start the nodes with the lower ranks, or give this one a rank without a gap"
            raise RuleBrokenError("node rank too large", detail, fix)


def _order_automatically(nodes: Sequence[Node], home: Node) -> list[Node]:
    """Driver first, then by accelerator type as they appear, then by IP *as a string* (10.0.0.10 before 10.0.0.2)."""
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(node.accelerator_type for node in nodes))}
    ordered = sorted(nodes, key=lambda node: (kinds[node.accelerator_type], node.ip))
    ordered = [home, *(node for node in ordered if node is not home)]
    return [replace(node, rank=rank) for rank, node in enumerate(ordered)]
