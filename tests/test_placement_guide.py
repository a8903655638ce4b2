"""The two cluster examples of RLinf's guides, word for word, checked by hand."""

from __future__ import annotations

from edgelink.placement import Node, Plan, plan
from edgelink.placement.cluster_file import parse_yaml

HETEROGENEOUS = """
cluster:
  num_nodes: 18
  component_placement:
    actor:
      node_group: a800
      placement: 0-63
    rollout:
      node_group: 4090
      placement: 0-63
    env:
      node_group: franka
      placement: 0-1
    agent:
      node_group: node
      placement: 0-1:0-199,2-3:200-399
  node_groups:
    - label: a800
      node_ranks: 0-7
      env_configs:
        - node_ranks: 0-7
          python_interpreter_path: /opt/venv/openpi/bin/python3
          env_vars:
            - GLOO_SOCKET_IFNAME: "eth0"
    - label: 4090
      node_ranks: 8-15
      env_configs:
        - node_ranks: 8-15
          env_vars:
            - GLOO_SOCKET_IFNAME: "eth1"
    - label: franka
      node_ranks: 16-17
      hardware:
        type: Franka
        configs:
          - robot_ip: "10.10.10.1"
            node_rank: 16
            camera_serials: ["322142001230", "322142001231"]
          - robot_ip: "10.10.10.2"
            node_rank: 17
            camera_serials: ["322142001232", "322142001233"]
"""
CLOUD_EDGE = """
cluster:
  num_nodes: 2
  node_groups:
    - label: cloud
      node_ranks: 0
    - label: edge
      node_ranks: 1
  component_placement:
    actor:
      node_group: cloud
      placement: 0-3
    rollout:
      node_group: edge
      placement: 0-0
    env:
      node_group: edge
      placement: 0-0
"""
INTERPRETER = "/opt/venv/openpi/bin/python3"


def node(rank: int, gpus: int = 0, *cameras: str) -> Node:
    kind = "NV_GPU" if gpus else "NO_ACCEL"
    env = {"PATH": "/usr/bin", "RLINF_COMM_NET_DEVICES": "et0"}
    paths = frozenset({INTERPRETER})
    address = f"10.10.0.{rank + 1}"
    known = {"env": env, "python": "/usr/bin/python3", "paths": paths, "cameras": cameras}
    return Node(rank, address, f"n{rank}", kind, gpus, "A800", **known)


def where(result: Plan, component: str) -> list[tuple[int, tuple[int, ...], str]]:
    """(node, hardware, visible devices) of each process."""
    return [(item.node_rank, item.hardware_ranks, item.visible_devices) for item in result.placements[component]]


def test_the_heterogeneous_cluster_of_the_guide() -> None:
    """18 machines: 64 A800 for the learner, 64 4090 for the rollout, two robots, 400 agents on four machines."""
    section = parse_yaml(HETEROGENEOUS)[0]["cluster"]
    robots = [node(16, 0, "322142001230", "322142001231"), node(17, 0, "322142001232", "322142001233")]

    result = plan(section, [*(node(rank, 8) for rank in range(16)), *robots])

    assert {name: len(items) for name, items in result.placements.items()} == {
        "actor": 64,
        "rollout": 64,
        "env": 2,
        "agent": 400,
    }
    assert where(result, "actor")[0] == (0, (0,), "0")
    assert where(result, "actor")[8] == (1, (0,), "0")
    assert where(result, "actor")[63] == (7, (7,), "7")
    assert where(result, "rollout")[0] == (8, (0,), "0")
    assert where(result, "rollout")[63] == (15, (7,), "7")
    assert where(result, "env") == [(16, (0,), ""), (17, (0,), "")]
    agents = [item.node_rank for item in result.placements["agent"]]
    assert agents == [0] * 100 + [1] * 100 + [2] * 100 + [3] * 100
    assert result.placements["agent"][399].strategy == "NODE"
    assert result.placements["agent"][0].visible_devices == "0,1,2,3,4,5,6,7"

    assert result.env("actor", 9)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert result.env("actor", 9)["NCCL_SOCKET_IFNAME"] == "et0"
    assert result.env("rollout", 9)["GLOO_SOCKET_IFNAME"] == "eth1"
    assert result.env("agent", 0)["GLOO_SOCKET_IFNAME"] == "et0", "env_configs are of the group, not of the machine"
    assert result.env("rollout", 63)["MASTER_ADDR"] == "10.10.0.9"
    assert result.py_executable("actor", 0) == INTERPRETER
    assert result.py_executable("agent", 0) == "/usr/bin/python3"
    assert result.notices == ()


def test_the_cloud_and_edge_cluster_of_the_guide() -> None:
    """One cloud machine with four GPUs, one robot without: the edge's 0-0 is the machine itself."""
    section = parse_yaml(CLOUD_EDGE)[0]["cluster"]

    result = plan(section, [node(0, 4), node(1)])

    assert where(result, "actor") == [(0, (index,), str(index)) for index in range(4)]
    assert where(result, "rollout") == where(result, "env") == [(1, (), "")]
    assert [group.hardware_type for group in result.groups] == ["Accelerator", None, "Accelerator", None]
    assert result.env("env", 0)["MASTER_ADDR"] == "10.10.0.2"
    assert result.env("env", 0)["GLOO_SOCKET_IFNAME"] == "et0"
    assert result.notices == ()
