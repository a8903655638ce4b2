"""A driver that notices outages: calls one actor on each edge ten times a second and writes down what happens.

    outage_driver.py RECORD      JSON lines go to RECORD; ends by SIGINT or SIGTERM

The first edge's actor is called with retries, the second one's without. While RECORD.reduce exists, tensors of as
many MiB as it says are summed up with gloo over all nodes, one after the other. ``at_s`` is the monotonic clock.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

CALL_EVERY_S = 0.1
LOOK_EVERY_S = 0.5
GLOO_PORT = 29400


class Counter:
    """State that is lost when the process is."""

    def __init__(self) -> None:
        self.count = 0

    def tick(self) -> tuple[int, int]:
        self.count += 1
        return os.getpid(), self.count


class Member:
    """One rank of a gloo group."""

    def join(self, rank: int, size: int, master: str, device: str) -> None:
        import torch.distributed

        os.environ["GLOO_SOCKET_IFNAME"] = device
        torch.distributed.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=size)

    def reduce(self, mib: int) -> float:
        import torch

        tensor = torch.ones(mib * 2**18)
        torch.distributed.all_reduce(tensor)
        return float(tensor.sum()) / tensor.numel()


class Record:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def add(self, event: str, **values: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"event": event, "at_s": time.monotonic(), **values}) + "\n")


def on_node(actor: type, node: dict[str, Any], **options: Any) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(actor).options(num_cpus=0, scheduling_strategy=strategy, **options).remote()


def call_for_ever(record: Record, name: str, actor: Any) -> None:
    while True:
        try:
            pid, count = ray.get(actor.tick.remote())
            record.add("answer", actor=name, pid=pid, count=count)
        except Exception as error:  # whatever it is, the test has to see it
            record.add("error", actor=name, kind=type(error).__name__, message=str(error)[:500])
        time.sleep(CALL_EVERY_S)


def look_for_ever(record: Record) -> None:
    while True:
        record.add("nodes", alive=sorted(node["NodeID"] for node in ray.nodes() if node["Alive"]))
        time.sleep(LOOK_EVERY_S)


def reduce_for_ever(record: Record, nodes: list[dict[str, Any]], request: Path) -> None:
    while not request.exists():
        time.sleep(0.05)
    members = [on_node(Member, node) for node in nodes]
    master = f"{nodes[0]['NodeManagerAddress']}:{GLOO_PORT}"
    device = os.environ.get("RLINF_COMM_NET_DEVICES", "et0")
    ray.get([member.join.remote(rank, len(nodes), master, device) for rank, member in enumerate(members)])
    number = 0
    while True:
        if not request.exists():
            time.sleep(0.05)
            continue
        record.add("reduce", number=number)
        try:
            sums = ray.get([member.reduce.remote(int(request.read_text())) for member in members])
            record.add("reduced", number=number, sums=sums)
        except Exception as error:
            record.add("error", actor="gloo", kind=type(error).__name__, message=str(error)[:500])
            return
        number += 1


def main() -> None:
    path = Path(sys.argv[1])
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    head_ip = os.environ["RAY_ADDRESS"].partition(":")[0]
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]),
        key=lambda node: (node["NodeManagerAddress"] != head_ip, node["NodeManagerAddress"]),
    )
    record = Record(path)
    retried = on_node(Counter, nodes[1], max_restarts=-1, max_task_retries=-1)
    plain = on_node(Counter, nodes[2])
    ray.get([retried.tick.remote(), plain.tick.remote()])
    for target, *arguments in (
        (call_for_ever, "retried", retried),
        (call_for_ever, "plain", plain),
        (look_for_ever,),
        (reduce_for_ever, nodes, path.with_name(path.name + ".reduce")),
    ):
        threading.Thread(target=target, args=(record, *arguments), daemon=True).start()
    record.add("ready", nodes=[node["NodeID"] for node in nodes])
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    os._exit(0)  # some of the threads wait for what may never come


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # threads inherit it
    main()
