"""RLinf's own placement of the same cluster, timed; run by an interpreter that has RLinf. Arguments: the sizes.

Only its configuration, groups and placements: no probes, no Ray, no environments, which it makes while it launches.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from omegaconf import OmegaConf
from rlinf.scheduler.cluster.cluster import Cluster
from rlinf.scheduler.cluster.config import ClusterConfig
from rlinf.scheduler.cluster.node import NodeGroupInfo, NodeInfo
from rlinf.scheduler.hardware import HardwareInfo, HardwareResource
from rlinf.scheduler.placement.placement import ComponentPlacement


def seconds(section: dict, gpus: int) -> float:
    config = OmegaConf.create({"cluster": section})
    started_s = time.perf_counter()
    parsed = ClusterConfig.from_dict_cfg(config.cluster)
    infos = [HardwareInfo("Accelerator", "NV_GPU:H100")] * gpus
    nodes = [
        NodeInfo([], rank, str(rank), f"10.0.0.{rank}", 1, "python", {}, {}, [HardwareResource("Accelerator", infos)])
        for rank in range(parsed.num_nodes)
    ]
    cluster = object.__new__(Cluster)
    cluster._nodes, cluster._num_nodes, cluster._cluster_cfg = nodes, len(nodes), parsed
    cluster._node_groups = [
        NodeGroupInfo(group.label, [nodes[rank] for rank in group.node_ranks], group.hardware_type)
        for group in parsed.node_groups
    ]
    cluster._node_groups += [NodeGroupInfo("cluster", nodes), NodeGroupInfo("node", nodes, ignore_hardware=True)]
    placement = ComponentPlacement(config, cluster)
    for name in placement.components:
        placement.get_strategy(name).get_placement(cluster, True)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(seconds(case["section"], case["gpus"])), flush=True)
