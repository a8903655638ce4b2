"""verl's own worker group over the overlay: a worker on each node, and an all-reduce within the group.

    edgelink run -- python docs/examples/verl/group.py trainer.nnodes=3 [trainer.n_gpus_per_node=1] [OUTPUT]

It is made as verl's trainers make theirs: a RayResourcePool, whose placement groups are STRICT_PACK, and a
RayWorkerGroup, whose workers get MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. Without ``trainer.n_gpus_per_node`` it
runs on CPUs, and each worker takes all CPUs of its node: that spreads them as the GPUs would. What each worker found is
one JSON line, in OUTPUT or on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

SHOWN = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "WANDB_MODE")


@ray.remote
class Learner(Worker):
    """One process of the group."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def join(self) -> None:
        """The process group of all workers, at the address that verl chose."""
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reduce(self) -> dict[str, Any]:
        """Add up the ranks; where this happened, and over which addresses."""
        total = torch.tensor([float(self.rank + 1)])
        torch.distributed.all_reduce(total)
        return {
            "group": "learner",
            "rank": self.rank,
            "world_size": self.world_size,
            "sum": float(total),
            "node_ip": ray.util.get_node_ip_address(),
            "ray_node_id": ray.get_runtime_context().get_node_id(),
            "peers": peers(),
            "environment": {name: os.environ.get(name) for name in SHOWN},
        }


def peers() -> list[str]:
    """To whom this process has TCP connections."""
    found = psutil.Process().net_connections("tcp4")
    return sorted({each.raddr.ip for each in found if each.status == psutil.CONN_ESTABLISHED})


def main() -> None:
    overrides = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    output = next((Path(word) for word in sys.argv[1:] if "=" not in word), Path("/dev/stdout"))
    nodes, gpus = int(overrides["trainer.nnodes"]), int(overrides.get("trainer.n_gpus_per_node", 0))
    ray.init(runtime_env=get_ppo_ray_runtime_env())
    cpus = min(int(node["Resources"]["CPU"]) for node in ray.nodes() if node["Alive"])
    pool = RayResourcePool(
        process_on_nodes=[gpus or 1] * nodes, use_gpu=gpus > 0, max_colocate_count=1 if gpus else cpus
    )
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=Learner))
    group.join()
    found = group.reduce()
    with output.open("w") as file:
        file.writelines(json.dumps(each) + "\n" for each in found)


if __name__ == "__main__":
    main()
