"""Asks Ray who its nodes are; run by the *user's* interpreter (``ray.python``), the only file here that imports ray.

It needs nothing but the standard library and ray, and uses the GCS client directly: joining the cluster with ray.init
would take seconds, start processes and count as a driver. Answers are JSON lines on stdout:

    helper.py nodes      --address IP:PORT
    helper.py wait-alive --address IP:PORT --ip IP --rank N --timeout SECONDS   exit status 1: time is up
    helper.py watch      --address IP:PORT --interval SECONDS          a line at each change, until stdin ends
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import argparse
import json
import select
import time
from typing import Any

RANK_LABEL = "edgelink.rank"
RANK_RESOURCE_PREFIX = "edgelink-rank-"
ACCELERATORS = (("GPU", "NV_GPU"), ("NPU", "NPU"), ("TPU", "TPU"))  # Ray's resource, RLinf's name


def rank_of(info: Any) -> "int | None":
    """The node rank that the node was started with, or None."""
    if RANK_LABEL in info.labels:
        return int(info.labels[RANK_LABEL])
    for name in info.resources_total:
        if name.startswith(RANK_RESOURCE_PREFIX):
            return int(name[len(RANK_RESOURCE_PREFIX) :])
    return None


def describe(info: Any) -> "dict[str, Any]":
    """One member as a plain dictionary."""
    accelerator, count = "NO_ACCEL", 0
    for resource, name in ACCELERATORS:
        if info.resources_total.get(resource, 0) >= 1:
            accelerator, count = name, int(info.resources_total[resource])
            break
    if accelerator == "NV_GPU" and any(r.startswith("accelerator_type:AMD") for r in info.resources_total):
        accelerator = "AMD_GPU"
    return {
        "node_id": info.node_id.hex(),
        "ip": info.node_manager_address,
        "rank": rank_of(info),
        "alive": info.state == 0,  # GcsNodeInfo.ALIVE
        "hostname": info.node_manager_hostname,
        "accelerator": accelerator,
        "accelerator_count": count,
        "started_ms": info.start_time_ms,
    }


def connect(address: str) -> Any:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # here: 0.3 s, argument errors come first

    return GcsClient(address=address)


def nodes(client: Any, timeout_s: float = 10.0) -> "list[dict[str, Any]]":
    return sorted(
        (describe(info) for info in client.get_all_node_info(timeout=timeout_s).values()),
        key=lambda node: (node["rank"] is None, node["rank"], -node["started_ms"]),
    )


def wait_alive(client: Any, ip: str, rank: int, timeout_s: float) -> int:
    """0 once a node with this address and rank is alive."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = nodes(client)
        for node in found:
            if node["alive"] and node["ip"] == ip and node["rank"] == rank:
                print(json.dumps(node), flush=True)
                return 0
        if time.monotonic() >= deadline_s:
            print(json.dumps({"nodes": found}), flush=True)
            return 1
        time.sleep(0.1)


def watch(client: Any, interval_s: float) -> int:
    last = None
    while True:
        found = nodes(client)
        if found != last:
            print(json.dumps(found), flush=True)
            last = found
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return 0  # whoever asked is gone


def main(argv: "list[str] | None" = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("nodes", "wait-alive", "watch"):
        command = commands.add_parser(name)
        command.add_argument("--address", required=True)
        if name == "wait-alive":
            command.add_argument("--ip", required=True)
            command.add_argument("--rank", required=True, type=int)
            command.add_argument("--timeout", required=True, type=float)
        if name == "watch":
            command.add_argument("--interval", default=1.0, type=float)
    arguments = parser.parse_args(argv)
    client = connect(arguments.address)
    if arguments.command == "wait-alive":
        return wait_alive(client, arguments.ip, arguments.rank, arguments.timeout)
    if arguments.command == "watch":
        return watch(client, arguments.interval)
    print(json.dumps(nodes(client)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
