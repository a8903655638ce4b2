"""A driver on real RLinf: rollout workers on the edges send tensors to an actor in the cloud, round after round.

    rlinf_driver.py RECORD       JSON lines go to RECORD; ends by SIGTERM

RLinf calls its workers without retries, and moves tensors by gloo groups of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from omegaconf import OmegaConf
from rlinf.scheduler import Cluster, ComponentPlacement, Worker

ROLLOUTS = 2
ELEMENTS = 2**18


class Rollout(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def give(self) -> tuple[int, int]:
        self.rounds += 1
        self.send(torch.full((ELEMENTS,), float(self.rounds)), "actor", 0)
        return os.getpid(), self.rounds


class Actor(Worker):
    def __init__(self) -> None:
        super().__init__()

    def take(self) -> list[float]:
        return [float(self.recv("rollout", rank).mean()) for rank in range(ROLLOUTS)]


def main() -> None:
    config = OmegaConf.create(
        {
            "cluster": {
                "num_nodes": ROLLOUTS + 1,
                "node_groups": [
                    {"label": "cloud", "node_ranks": "0"},
                    {"label": "edge", "node_ranks": f"1-{ROLLOUTS}"},
                ],
                "component_placement": {
                    "actor": {"node_group": "cloud", "placement": "0"},
                    "rollout": {"node_group": "edge", "placement": f"0-{ROLLOUTS - 1}"},
                },
            }
        }
    )
    with Path(sys.argv[1]).open("a", buffering=1) as record:
        cluster = Cluster(cluster_cfg=config.cluster)
        placement = ComponentPlacement(config, cluster)
        groups = {
            name: worker.create_group().launch(cluster, placement.get_strategy(name), name=name)
            for name, worker in (("rollout", Rollout), ("actor", Actor))
        }
        while True:
            given, taken = groups["rollout"].give(), groups["actor"].take()
            means, workers = taken.wait()[0], given.wait()
            record.write(json.dumps({"at_s": time.monotonic(), "means": means, "workers": workers}) + "\n")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
