"""How long a plan takes: 8 GPUs and 20 processes a node, 10 to 10,000 nodes. Needs no root.

EDGELINK_RLINF_PYTHON names an interpreter that has RLinf: its own code is then timed on the same clusters, as far as
EDGELINK_RLINF_NODES nodes (default 100).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from figures import Figure, Figures

from edgelink.placement import Node, plan

SIZES = (10, 100, 1_000, 10_000)
GPUS = 8
ROUNDS = {10: 9, 100: 9, 1_000: 7, 10_000: 3}
RLINF = os.environ.get("EDGELINK_RLINF_PYTHON")
RLINF_NODES = int(os.environ.get("EDGELINK_RLINF_NODES", "100"))
pytestmark = pytest.mark.timeout(1800)


def section(count: int) -> dict[str, Any]:
    """Half of the machines train, half roll out; agents on all of them: 20 processes a machine."""
    half = count // 2
    devices = half * GPUS
    env_configs = [{"node_ranks": "all", "env_vars": [{"A": "1"}]}]
    return {
        "num_nodes": count,
        "node_groups": [
            {"label": "train", "node_ranks": f"0-{half - 1}", "env_configs": env_configs},
            {"label": "roll", "node_ranks": f"{half}-{count - 1}"},
        ],
        "component_placement": {
            "actor": {"node_group": "train", "placement": "all"},
            "rollout": {"node_group": "roll", "placement": f"all:0-{devices - 1}"},
            "env": {"node_group": "roll", "placement": f"0-{devices - 1}:0-{2 * devices - 1}"},
            "agent": {"node_group": "node", "placement": f"all:0-{4 * count - 1}"},
        },
    }


def machine(rank: int) -> Node:
    env = {"PATH": "/usr/bin", "HOME": "/root", "RLINF_COMM_NET_DEVICES": "et0"}
    return Node(rank, f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}", f"n{rank}", "NV_GPU", GPUS, "H100", env)


@pytest.fixture(scope="module")
def rlinf() -> Iterator[subprocess.Popen[str] | None]:
    """RLinf's side, if there is one; it costs seconds to import, which are not counted."""
    if RLINF is None:
        yield None
        return
    command = [RLINF, str(Path(__file__).with_name("rlinf_side.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child
        child.kill()


def rlinf_seconds(child: subprocess.Popen[str], count: int) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    print(json.dumps({"section": section(count), "gpus": GPUS}), file=child.stdin, flush=True)
    return float(json.loads(child.stdout.readline()))


def test_a_plan_takes_a_second_and_grows_with_the_cluster(
    figures: Figures, rlinf: subprocess.Popen[str] | None
) -> None:
    """1,000 nodes and 20,000 processes within a second; ten times the nodes, some ten times as long."""
    taken: dict[int, float] = {}
    for count in SIZES:
        cluster, nodes = section(count), [machine(rank) for rank in range(count)]
        rounds, by_rlinf = [], []
        for _ in range(ROUNDS[count]):
            started_s = time.perf_counter()
            result = plan(cluster, nodes)
            rounds.append(time.perf_counter() - started_s)
            if rlinf is not None and count <= RLINF_NODES:
                by_rlinf.append(rlinf_seconds(rlinf, count))
        assert sum(map(len, result.placements.values())) == 20 * count
        bar = "at most 1" if count == 1_000 else ""
        figures.add(Figure(f"plan of {count:,} nodes (RLinf's own beside it)", "s", rounds, by_rlinf, bar))
        taken[count] = median(rounds)
    assert taken[1_000] <= 1.0
    assert taken[10_000] <= 20 * taken[1_000], "it does not grow with the number of nodes alone"
