"""Resolve a ``cluster:`` section against nodes: pure, exact, and all mistakes at once as far as that is possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgelink.placement.components import place_components
from edgelink.placement.discover import order_nodes
from edgelink.placement.grammar import parse_node_ranks
from edgelink.placement.model import Group, Node, Notice, Plan
from edgelink.placement.problems import InvalidClusterError, Problem, RuleBrokenError

_RESERVED_LABELS = ("node", "cluster")
_GROUP_FIELDS = ("label", "node_ranks", "ignore_hardware")
_CLUSTER_FIELDS = ("num_nodes", "node_groups", "component_placement")
_NOT_YET_IN_GROUP = ("hardware", "hardware_type", "env_configs")
_NOT_YET_IN_CLUSTER = ("profiling", "net_emulation", "tracer")


def plan(
    cluster: Mapping[str, Any],
    nodes: Sequence[Node],
    *,
    driver: int | None = None,
    isolate: bool = True,
    num_nodes: int | None = None,
) -> Plan:
    """Resolve ``cluster`` against ``nodes``.

    Args:
        nodes: the alive nodes in the order in which Ray lists them.
        driver: index in ``nodes`` of the node the driver runs on; default the first.
        isolate: each process sees its own accelerators only.
        num_nodes: what the driver passes as ``Cluster(num_nodes=…)``, if it does.

    Raises:
        InvalidClusterError: with every problem that was found.
    """
    problems: list[Problem] = []
    notices: list[Notice] = []
    wanted = _read_num_nodes(cluster, num_nodes, problems)
    _check_cluster_fields(cluster, problems, notices)
    raw_groups = _read_group_list(cluster, problems)
    ordered: list[Node] | None = None
    if wanted is not None:
        try:
            ordered, more = order_nodes(nodes, wanted, grouped=bool(raw_groups), driver=driver or 0)
            notices += more
        except RuleBrokenError as broken:
            problems.append(broken.at("cluster.num_nodes", wanted))
    # The groups are read even if the nodes do not fit, so that their mistakes are shown in the same go.
    members = ordered if ordered is not None else [Node(rank, "") for rank in range(wanted or 0)]
    groups = _read_groups(raw_groups, members, problems, check_ranks=wanted is not None)
    if ordered is None or any(problem.key.startswith("cluster.node_groups") for problem in problems):
        raise InvalidClusterError(problems)
    placements, component_ranks = place_components(
        cluster.get("component_placement"), groups, problems, isolate=isolate
    )
    if problems:
        raise InvalidClusterError(problems)
    return Plan(tuple(ordered), tuple(groups), placements, component_ranks, tuple(notices))


def _read_num_nodes(cluster: Mapping[str, Any], argument: int | None, problems: list[Problem]) -> int | None:
    key, fix = "cluster.num_nodes", "write the number of machines, for example num_nodes: 3"
    value = cluster.get("num_nodes")
    if value is None:
        problems.append(Problem(key, None, "cluster field missing", "", fix))
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        problems.append(Problem(key, value, "num_nodes not a positive integer", "", fix))
        return None
    if argument is not None and argument != value:
        detail = f"the driver asks for {argument}"
        problems.append(Problem(key, value, "num_nodes argument differs from config", detail, "make them the same"))
        return None
    return value


def _check_cluster_fields(cluster: Mapping[str, Any], problems: list[Problem], notices: list[Notice]) -> None:
    for name in cluster:
        if name in _NOT_YET_IN_CLUSTER and cluster[name] is not None:
            problems.append(_not_yet(f"cluster.{name}"))
        elif name not in _CLUSTER_FIELDS and name not in _NOT_YET_IN_CLUSTER:
            # RLinf says nothing here, so that node_group: for node_groups: goes unnoticed.
            notices.append(
                Notice("unknown_key_ignored", f"cluster.{name} is not a key that RLinf knows; it is ignored")
            )
    if "component_placement" not in cluster:
        fix = "add component_placement with one entry a component"
        problems.append(Problem("cluster.component_placement", None, "cluster field missing", "", fix))


def _not_yet(key: str) -> Problem:
    return Problem(key, None, "not supported yet", "EdgeLink cannot resolve it", "remove the key for now")


def _read_group_list(cluster: Mapping[str, Any], problems: list[Problem]) -> list[Any]:
    value = cluster.get("node_groups")
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str):
        fix = "write a list: '- label: edge' and 'node_ranks: 1-2' below it"
        problems.append(Problem("cluster.node_groups", value, "node_groups not a list", "", fix))
        return []
    return list(value)


def _read_groups(
    raw_groups: Sequence[Any], nodes: Sequence[Node], problems: list[Problem], *, check_ranks: bool
) -> list[Group]:
    groups: list[Group] = []
    for index, raw in enumerate(raw_groups):
        key = f"cluster.node_groups[{index}]"
        if _check_group_shape(raw, key, problems) and check_ranks:
            group = _read_group(raw, key, nodes, problems)
            if group is not None and group.nodes:  # RLinf drops a group without nodes before it checks its label
                groups.append(group)
    for label, count in Counter(group.label for group in groups).items():
        if count > 1:
            fix = "give each group its own label"
            problems.append(Problem("cluster.node_groups", label, "node group label duplicated", "", fix))
    members = tuple(nodes)
    return [*groups, Group("cluster", members, _hardware_type(members)), Group("node", members, None)]


def _check_group_shape(raw: Any, key: str, problems: list[Problem]) -> bool:
    if not isinstance(raw, Mapping):
        fix = "write label: and node_ranks:"
        problems.append(Problem(key, raw, "node group not a mapping", "", fix))
        return False
    before = len(problems)
    for name in ("label", "node_ranks"):
        if name not in raw:
            problems.append(Problem(f"{key}.{name}", None, "node group field missing", "", f"add {name}:"))
    for name in raw:
        if name in _NOT_YET_IN_GROUP:
            if raw[name] is not None:
                problems.append(_not_yet(f"{key}.{name}"))
        elif name not in _GROUP_FIELDS:
            fix = f"known are {', '.join((*_GROUP_FIELDS, *_NOT_YET_IN_GROUP))}"
            problems.append(Problem(f"{key}.{name}", raw[name], "node group field unknown", "", fix))
    return len(problems) == before


def _read_group(raw: Mapping[str, Any], key: str, nodes: Sequence[Node], problems: list[Problem]) -> Group | None:
    label = str(raw["label"])
    if label in _RESERVED_LABELS:
        detail = "'cluster' and 'node' always exist and mean all nodes"
        problems.append(Problem(f"{key}.label", label, "reserved label", detail, "choose another label"))
        return None
    try:
        ranks = parse_node_ranks(raw["node_ranks"], range(len(nodes)))
    except RuleBrokenError as broken:
        problems.append(broken.at(f"{key}.node_ranks", raw["node_ranks"]))
        return None
    members = tuple(nodes[rank] for rank in ranks)
    return Group(label, members, None if raw.get("ignore_hardware") else _hardware_type(members))


def _hardware_type(nodes: Sequence[Node]) -> str | None:
    """One accelerator in a group makes every number in it mean an accelerator: RLinf's rule, and its trap."""
    return "Accelerator" if any(node.accelerator_count for node in nodes) else None
