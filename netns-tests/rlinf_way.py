"""A driver that treats its workers' environment as RLinf 0.3.0 does, without RLinf; prints that of one on each edge.

    rlinf_way.py [RUNTIME_ENV]      RUNTIME_ENV: JSON for `ray.init`, as other frameworks give it

Mirrors `_configure_node_envs` of rlinf/scheduler/cluster/node.py, and `merge_worker_env_vars` and `allocate` of
rlinf/scheduler/cluster/cluster.py: whatever differs from the environment of the driver's node goes to all nodes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PATH_LIKE = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "CPATH")


@ray.remote(num_cpus=0)
class Worker:
    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def environments(runtime_envs: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What a worker on each node, by Ray's id, finds in its environment."""
    workers = {
        node: Worker.options(  # type: ignore[attr-defined]
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), runtime_env=runtime_env
        ).remote()
        for node, runtime_env in runtime_envs.items()
    }
    return dict(zip(workers, ray.get([worker.environment.remote() for worker in workers.values()]), strict=True))


def merged(own: dict[str, str], driver: dict[str, str]) -> dict[str, str]:
    result = {**own, **driver}
    for name in set(PATH_LIKE) & set(own) & set(driver):
        result[name] = ":".join(dict.fromkeys([*driver[name].split(":"), *own[name].split(":")]))
    return result


def main() -> None:
    driver = dict(os.environ)  # Ray adds to it
    runtime_env = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
    ray.init(address="auto", namespace="RLinf", logging_level=logging.ERROR, runtime_env=runtime_env)
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    own = environments({node: {} for node in addresses})
    of_head = own.pop(ray.get_runtime_context().get_node_id())
    changed = {name: value for name, value in driver.items() if of_head.get(name) != value}
    given = environments({node: {"env_vars": merged(variables, changed)} for node, variables in own.items()})
    print(json.dumps({addresses[node]: {"own": own[node], "given": given[node]} for node in own}))


if __name__ == "__main__":
    main()
