"""The examples that people copy do what they say."""

from __future__ import annotations

from pathlib import Path

import yaml

from edgelink.lab.road import demo_cluster
from edgelink.placement import Node, load_cluster_file, plan

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def test_the_example_is_the_demo() -> None:
    """What the README names and what `make demo` trains with are one and the same."""
    assert yaml.safe_load((EXAMPLES / "cluster.yaml").read_text()) == demo_cluster(2)


def test_the_example_puts_the_learner_in_the_cloud_and_the_rest_on_the_edges() -> None:
    """Resolved on three machines without accelerators."""
    nodes = [Node(rank=rank, ip=f"10.10.0.{rank + 2}") for rank in range(3)]
    resolved = plan(load_cluster_file(EXAMPLES / "cluster.yaml"), nodes).to_dict()["placements"]
    where = {name: [process["node_rank"] for process in processes] for name, processes in resolved.items()}
    assert where == {"actor": [0], "rollout": [1, 2], "env": [1, 2]}


def test_the_demo_grows_with_its_edges() -> None:
    """One edge and five are cluster files, too."""
    for edges in (1, 5):
        nodes = [Node(rank=rank, ip=f"10.10.0.{rank + 2}") for rank in range(edges + 1)]
        resolved = plan(demo_cluster(edges)["cluster"], nodes).to_dict()["placements"]
        assert [process["node_rank"] for process in resolved["env"]] == list(range(1, edges + 1))


def test_rlinfs_example_places_more_on_one_edge_than_on_the_other() -> None:
    """Each edge with variables of its own."""
    nodes = [Node(rank=rank, ip=f"10.10.0.{rank + 2}") for rank in range(3)]
    resolved = plan(load_cluster_file(EXAMPLES / "rlinf/config.yaml"), nodes)
    where = {name: [process.node_rank for process in processes] for name, processes in resolved.placements.items()}
    assert where == {"actor": [0], "rollout": [1, 2], "env": [1, 1, 1, 2]}
    assert [resolved.env("env", rank)["SIDE"] for rank in range(4)] == ["left", "left", "left", "right"]
