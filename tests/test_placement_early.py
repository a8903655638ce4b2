"""What can be said of a cluster file before any node is there."""

from __future__ import annotations

from typing import Any

import pytest

from edgelink.lab.road import demo_cluster
from edgelink.placement import InvalidClusterError, check_before_waiting


def cluster(**changes: Any) -> dict[str, Any]:
    return {**demo_cluster(2)["cluster"], **changes}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_nodes": 0}, "num_nodes not a positive integer"),
        ({"num_nodes": 10**9}, "more nodes than a network can have"),
        ({"num_nodes": "many"}, "wrong YAML type"),
        ({"num_nodes": "many", "node_groups": None}, "num_nodes not a positive integer"),
        ({"component_placement": {"actor": {"node_group": "node", "placement": "0-3"}}}, "resource rank out of range"),
        ({"num_nodes": 2}, "node_ranks out of cluster range"),
        ({"node_groups": [{"label": "edge"}]}, "node group field missing"),
        ({"component_placement": {"actor": {"node_group": "clowd", "placement": "0"}}}, "node_group label unknown"),
        ({"component_placement": {"actor": {"node_group": "cloud"}}}, "placement string missing"),
        ({"component_placement": {"actor": "zero"}}, "placement string malformed"),
    ],
)
def test_what_no_node_can_mend_is_refused_at_once(changes: dict[str, Any], rule: str) -> None:
    """Nobody waits ten minutes for nodes to be told of a misprint."""
    with pytest.raises(InvalidClusterError) as raised:
        check_before_waiting(cluster(**changes))
    assert rule in [problem.rule for problem in raised.value.problems]


@pytest.mark.parametrize("placement", ["0-7", "all:0-6", "0-1"])
def test_what_accelerators_may_mend_is_left_for_later(placement: str) -> None:
    """How many accelerators a node brings is known only when it is there."""
    check_before_waiting(cluster(component_placement={"actor": {"node_group": "cloud", "placement": placement}}))


def test_a_good_file_passes() -> None:
    """The demo's."""
    check_before_waiting(cluster())
