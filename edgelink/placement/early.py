"""What is wrong with a ``cluster:`` section whatever the nodes turn out to be: said before anyone is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.placement.model import Node
from edgelink.placement.problems import InvalidClusterError, Problem
from edgelink.placement.resolve import plan

# An overlay network is a /16 at most; a mistyped number must not make us think about a billion nodes.
_MOST_NODES = 65_533
# Broken on nodes without accelerators, perhaps not on those that will come.
_DEPENDS_ON_NODES = frozenset(
    {
        "groups not in node order",
        "node index out of range",
        "node placement over overlapping groups",
        "one process on several nodes",
        "process and resource counts not divisible",
        "process hardware spans nodes",
        "resource rank out of range",
    }
)


def check_before_waiting(cluster: Mapping[str, Any]) -> None:
    """Resolve ``cluster`` against as many nodes as it asks for, of which nothing is known yet.

    Raises:
        InvalidClusterError: with every problem that no node can mend.
    """
    count = cluster.get("num_nodes")
    if isinstance(count, int) and count > _MOST_NODES:
        fix = "write the number of machines, for example num_nodes: 3"
        raise InvalidClusterError([Problem("cluster.num_nodes", count, "more nodes than a network can have", "", fix)])
    nodes = [Node(rank, "") for rank in range(count)] if isinstance(count, int) else []
    try:
        plan(cluster, nodes)
    except InvalidClusterError as error:
        lasting = [problem for problem in error.problems if problem.rule not in _DEPENDS_ON_NODES]
        if lasting:
            raise InvalidClusterError(lasting) from None
