"""A program on RLinf 0.3.0: worker groups on cloud and edges, a channel between them, tensors sent back.

    edgelink plan config.yaml --live
    edgelink run --cluster config.yaml -- python program.py config.yaml

It prints one JSON line: by component, where each worker found itself, with its environment. Rollout workers put
their results into a channel, the actor takes them and sends a tensor back to each.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from typing import Any

import ray
import torch
from omegaconf import OmegaConf
from rlinf.scheduler import Channel, Cluster, ComponentPlacement, Worker

CHANNEL, ELEMENTS = "trajectories", 2**16
SECRET = re.compile("KEY|TOKEN|SECRET|PASS")


class Somewhere(Worker):
    """Tells where it is; nothing of it comes from the plan."""

    def __init__(self) -> None:
        super().__init__()

    def whereabouts(self) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "ip": ray.util.get_node_ip_address(),
            "ray_node_id": ray.get_runtime_context().get_node_id(),
            "hostname": socket.gethostname(),
            "python": sys.executable,
            "environment": {name: text for name, text in os.environ.items() if not SECRET.search(name)},
        }


class Rollout(Somewhere):
    def play(self, channel: Channel) -> float:
        channel.put({"rank": self._rank, "trajectory": torch.full((ELEMENTS,), float(self._rank + 1))})
        return float(self.recv("actor", 0).mean())


class Actor(Somewhere):
    def learn(self, channel: Channel, count: int) -> float:
        taken = [channel.get() for _ in range(count)]
        total = sum(float(item["trajectory"].mean()) for item in taken)
        for item in taken:
            self.send(torch.full((ELEMENTS,), total), "rollout", item["rank"])
        return total


def main() -> None:
    config = OmegaConf.load(sys.argv[1])
    cluster = Cluster(cluster_cfg=config.cluster)
    placement = ComponentPlacement(config, cluster)
    groups = {
        name: worker.create_group().launch(cluster, placement.get_strategy(name), name=name)
        for name, worker in (("actor", Actor), ("rollout", Rollout), ("env", Somewhere))
    }
    channel = Channel.create(CHANNEL)
    rollouts = placement.get_world_size("rollout")
    played, learnt = groups["rollout"].play(channel), groups["actor"].learn(channel, rollouts)
    told = {name: group.whereabouts().wait() for name, group in groups.items()}
    print("\n" + json.dumps({"workers": told, "learnt": learnt.wait(), "played": played.wait()}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
