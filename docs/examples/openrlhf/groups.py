"""OpenRLHF's own actor groups over the overlay, laid out as its trainer does, with an all-reduce within each group.

    edgelink run -- python docs/examples/openrlhf/groups.py --actor.num_nodes 3 --actor.num_gpus_per_node 1 \\
        [--ref.num_nodes 3 --ref.num_gpus_per_node 1 --train.colocate_actor_ref] [--output FILE]

The groups that the options name are made as ``openrlhf/cli/train_ppo_ray.py`` (0.11.2) makes them: actor and reference
in one PACK placement group where they are colocated, each group in one of its own otherwise. What
``DeepspeedStrategy.setup_distributed`` does with NCCL on GPUs, a worker here does with gloo. What each worker found is
one JSON line, in FILE or on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from openrlhf.trainer.ray.launcher import BaseModelActor, RayActorGroup
from ray.util.placement_group import placement_group

GROUPS = ("actor", "ref", "critic", "reward")
SHOWN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GLOO_SOCKET_IFNAME")
SHOWN += ("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "WANDB_MODE")


@ray.remote(num_gpus=1)
class Model(BaseModelActor):
    """One process of a group."""

    def init_model_from_pretrained(self) -> None:
        """The process group of this actor group, at the address that OpenRLHF chose."""
        torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=5))

    def reduce(self, group: str) -> dict[str, Any]:
        """Add up the ranks; where this happened, and over which addresses."""
        total = torch.tensor([float(self._rank + 1)])
        torch.distributed.all_reduce(total)
        return {
            "group": group,
            "rank": self._rank,
            "world_size": self._world_size,
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


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for group in GROUPS:
        parser.add_argument(f"--{group}.num_nodes", type=int, default=0)
        parser.add_argument(f"--{group}.num_gpus_per_node", type=int, default=1)
    parser.add_argument("--train.colocate_actor_ref", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("/dev/stdout"))
    return parser.parse_args()


def main() -> None:
    options = vars(parsed())
    ray.init(
        runtime_env={
            "env_vars": {
                "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
                "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN"),
            }
        }
    )
    sizes = {name: (options[f"{name}.num_nodes"], options[f"{name}.num_gpus_per_node"]) for name in GROUPS}
    shared = None
    if options["train.colocate_actor_ref"]:
        nodes, gpus = sizes["actor"]
        shared = placement_group([{"GPU": 1, "CPU": 1} for _ in range(nodes * gpus)], strategy="PACK")
        ray.get(shared.ready())
    groups = {}
    for name, (nodes, gpus) in sizes.items():
        if nodes:
            pg = shared if name in ("actor", "ref") else None
            groups[name] = RayActorGroup(nodes, gpus, Model, pg=pg, num_gpus_per_actor=0.2 if pg else 1)
    ray.get([ref for group in groups.values() for ref in group.async_init_model_from_pretrained()])
    found = ray.get([ref for name, group in groups.items() for ref in group.async_run_method("reduce", name)])
    with options["output"].open("w") as file:
        file.writelines(json.dumps(each) + "\n" for each in found)


if __name__ == "__main__":
    main()
