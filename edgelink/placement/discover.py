"""Which Ray nodes take part, and under which rank: RLinf's rules, applied before RLinf runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgelink.placement.model import Node, Notice
from edgelink.placement.problems import RuleBrokenError

_UNSET = -1  # RLinf's own mark for "no RLINF_NODE_RANK"
_SET_RANKS = "start Ray through edgelink, which sets RLINF_NODE_RANK on every node"


def order_nodes(
    nodes: Sequence[Node], num_nodes: int, *, grouped: bool, driver: int = 0
) -> tuple[list[Node], list[Notice]]:
    """The first ``num_nodes`` nodes by rank, each with its integer rank.

    Args:
        nodes: the alive nodes in the order in which Ray lists them.
        grouped: the cluster file has node groups; ranks then have to be set.
        driver: index in ``nodes`` of the node that the driver runs on.

    Raises:
        RuleBrokenError: the first rule that the nodes break.
    """
    if len(nodes) < num_nodes:
        here = ", ".join(node.hostname or node.ip for node in nodes) or "none"
        raise RuleBrokenError(
            "waits for missing nodes",
            f"{num_nodes} nodes are asked for, {len(nodes)} there: {here}",
            "start the missing nodes, or lower cluster.num_nodes",
        )
    ranks = [_rank(node) for node in nodes]
    if len(nodes) == 1:
        return [replace(nodes[0], rank=0)], []
    driver_node = nodes[driver]
    if all(rank == _UNSET for rank in ranks) and not grouped:
        ordered = _order_automatically(nodes, driver_node)
        ranked = [(rank, node) for rank, node in enumerate(ordered)]
    else:
        _check_ranks(nodes, ranks, grouped=grouped)
        ranked = sorted(zip(ranks, nodes, strict=True), key=lambda pair: pair[0])
    kept = ranked[:num_nodes]
    if not any(node is driver_node for _, node in kept):
        raise RuleBrokenError(
            "driver node outside num_nodes",
            f"the driver runs on {_name(driver_node)}, which is not among the first {num_nodes} nodes",
            "start the driver on the head, or raise cluster.num_nodes",
        )
    if [rank for rank, _ in kept] != list(range(num_nodes)):
        listed = ", ".join(f"{_name(node)}={rank}" for rank, node in kept)
        raise RuleBrokenError(
            "node ranks not unique and contiguous", listed, f"give the nodes ranks 0 to {num_nodes - 1}"
        )
    notices = []
    if len(ranked) > num_nodes:
        ignored = ", ".join(_name(node) for _, node in ranked[num_nodes:])
        notices.append(Notice("extra_nodes_ignored", f"not used, because cluster.num_nodes is {num_nodes}: {ignored}"))
    return [replace(node, rank=rank) for rank, node in kept], notices


def _rank(node: Node) -> int:
    if node.rank is None:
        return _UNSET
    try:
        return int(node.rank)
    except ValueError:
        raise RuleBrokenError("node rank not an integer", f"{_name(node)} has {node.rank!r}", _SET_RANKS) from None


def _check_ranks(nodes: Sequence[Node], ranks: Sequence[int], *, grouped: bool) -> None:
    unset = [_name(node) for node, rank in zip(nodes, ranks, strict=True) if rank == _UNSET]
    if unset and grouped:
        raise RuleBrokenError("node rank missing with node_groups", ", ".join(unset), _SET_RANKS)
    if unset:
        raise RuleBrokenError("node rank set on only some nodes", f"missing on {', '.join(unset)}", _SET_RANKS)
    for node, rank in zip(nodes, ranks, strict=True):
        if rank < 0:
            raise RuleBrokenError("node rank negative", f"{_name(node)} has {rank}", _SET_RANKS)
        if rank >= len(nodes):
            raise RuleBrokenError(
                "node rank too large",
                f"{_name(node)} has {rank}, but there are {len(nodes)} nodes",
                "start the nodes with the lower ranks, or give this one a rank without a gap",
            )


def _order_automatically(nodes: Sequence[Node], driver_node: Node) -> list[Node]:
    """Driver first, then by accelerator type as they appear, then by IP *as a string* (10.0.0.10 before 10.0.0.2)."""
    kinds = list(dict.fromkeys(node.accelerator for node in nodes))
    ordered = sorted(nodes, key=lambda node: (kinds.index(node.accelerator), node.ip))
    return [driver_node, *(node for node in ordered if node is not driver_node)]


def _name(node: Node) -> str:
    return f"{node.hostname} ({node.ip})" if node.hostname else node.ip
