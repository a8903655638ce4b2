"""A driver for the tests that kill the GCS: `gcs_driver.py RECORD NAMESPACE`, one JSON line an event, until stdin ends.

It calls an actor on each of the three nodes all the time, keeps 10 s calls in flight, and makes actors and placement
groups. A line on stdin asks for one placement group, whose ``asked`` is written before Ray is asked.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

LONG_S = 10.0
_record = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(event: str, **values: Any) -> None:
    os.write(_record, (json.dumps({"event": event, "at_s": time.monotonic(), **values}) + "\n").encode())


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def call(self, lasts_s: float = 0.0) -> tuple[int, int]:
        time.sleep(lasts_s)
        self.count += 1
        return os.getpid(), self.count


Actor: Any = ray.remote(num_cpus=0)(Counter)


def on(rank: int) -> Any:
    return Actor.options(label_selector={"edgelink.rank": str(rank)})


def call_on(name: str, actor: Any, pause_s: float, *arguments: float) -> None:
    while True:
        began_s = time.monotonic()
        pid, count = ray.get(actor.call.remote(*arguments))
        note("answer", actor=name, pid=pid, count=count, took_s=time.monotonic() - began_s)
        time.sleep(pause_s)


def make_actors() -> None:
    rank = 0
    while True:
        rank = rank % 2 + 1
        began_s = time.monotonic()
        actor = on(rank).remote()
        ray.get(actor.call.remote())
        note("made", rank=rank, took_s=time.monotonic() - began_s, began_s=began_s)
        ray.kill(actor)


def make_group() -> None:
    note("asked")
    group = placement_group([{"CPU": 0.1}] * 3, strategy="SPREAD")
    ray.get(group.ready())
    note("group")
    remove_placement_group(group)


def watch_nodes() -> None:
    while True:
        try:
            note("nodes", alive=sorted(node["NodeID"] for node in ray.nodes() if node["Alive"]))
        except Exception as error:  # not asked while the GCS is away
            note("nodes unknown", why=type(error).__name__)
        time.sleep(0.5)


def forever(name: str, work: Callable[..., None], *arguments: Any) -> None:
    def run() -> None:
        try:
            work(*arguments)
        except Exception as error:
            note("error", who=name, kind=type(error).__name__, message=str(error)[:500])

    threading.Thread(target=run, daemon=True, name=name).start()


def main() -> None:
    ray.init(namespace=sys.argv[2], log_to_driver=False)
    detached = Actor.options(label_selector={"edgelink.rank": "1"}, name="left", lifetime="detached")
    actors = {"head": on(0).remote(), "edge-1": on(1).remote(), "edge-2": on(2).remote(), "left": detached.remote()}
    long = on(2).remote()
    ray.get([actor.call.remote() for actor in (*actors.values(), long)])
    note("ready", nodes=sorted(node["NodeID"] for node in ray.nodes() if node["Alive"]))
    for name, actor in actors.items():
        forever(name, call_on, name, actor, 0.1)
    forever("long", call_on, "long", long, 0.0, LONG_S)
    forever("make", make_actors)
    forever("nodes", watch_nodes)
    for _ in sys.stdin:
        forever("group", make_group)


if __name__ == "__main__":
    main()
