"""Two faults at once, drawn by a seeded generator, again and again on one network.

Meanwhile no view of the head calls a member well that an observer does not reach.
After each round the network has to be whole again without a hand on it: every daemon Ready, a task answered by every
rank, each rank alive once in Ray, the same leases, no process too many, and daemons that have not grown.
`make soak` runs 20 rounds, `make test` three. A round that failed is repeated with ``EDGELINK_SEED=…``.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import children, cut, kill, kill_relay, mend, start_relay
from machines import leases

from edgelink.clock import SystemClock
from edgelink.errors import DeadlineError
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road, edge_names

EDGES = edge_names(2)
MEMBERS = (CLOUD, *EDGES)
NODES = (RELAY, *MEMBERS)
ROUNDS = 20 if os.environ.get("EDGELINK_SOAK") else 3
LONGEST_OUTAGE_S = 45.0 if os.environ.get("EDGELINK_SOAK") else 30.0
SEED = int(os.environ.get("EDGELINK_SEED") or secrets.randbits(32))
# What one node of each kind runs for EdgeLink.
CHILDREN = {
    RELAY: {"easytier-core", "mosquitto"},
    CLOUD: {"easytier-core", "raylet", "gcs_server"},
    **{edge: {"easytier-core", "raylet"} for edge in EDGES},
}
# The slowest of the single faults is a dead head: the cluster is whole again within half a minute on an idle machine.
WHOLE_AGAIN_S = 180.0
GROWTH_BYTES = 24 << 20
GROWTH_DESCRIPTORS = 16

pytestmark = [pytest.mark.timeout(600 + ROUNDS * 270), pytest.mark.usefixtures("easytier"), pytest.mark.told_truly]


@dataclass(frozen=True)
class Fault:
    """``strike`` breaks something; ``end`` takes a lasting cause away, where there is one."""

    name: str
    node: str
    strike: Callable[[Lab], object]
    end: Callable[[Lab], object] | None = None


def killing(name: str, node: str) -> Fault:
    return Fault(f"{name} killed", node, lambda lab: kill(lab, node, name))


def device(node: str, what: str, *argv: str) -> Fault:
    return Fault(what, node, lambda lab: lab.exec(node, ["ip", *argv], check=True, capture=True))


def daemon_killed(node: str) -> Fault:
    return Fault("daemon killed", node, lambda lab: lab.kill(node), lambda lab: lab.start(node))


def all_faults() -> list[Fault]:
    relay_away = Fault("relay away", RELAY, lambda lab: kill_relay(lab, keeps_broker=False), start_relay)
    found = [relay_away, killing("mosquitto", RELAY), killing("gcs_server", CLOUD)]
    for node in NODES:
        found += [killing("easytier-core", node), daemon_killed(node)]
    for node in MEMBERS:
        address = {CLOUD: "10.10.0.2/24", "edge-1": "10.10.0.3/24", "edge-2": "10.10.0.4/24"}[node]
        found += [
            Fault("link cut", node, lambda lab, node=node: cut(lab, node), lambda lab, node=node: mend(lab, node)),  # type: ignore[misc]
            device(node, "device deleted", "link", "del", "et0"),
            device(node, "device down", "link", "set", "et0", "down"),
            device(node, "address removed", "addr", "del", address, "dev", "et0"),
        ]
    return found + [killing("raylet", edge) for edge in EDGES]


def two_at_once(random_source: random.Random) -> tuple[Fault, Fault]:
    """Two that do not undo each other: what a dead relay or a killed daemon loses cannot be killed once more, and the
    device goes with its EasyTier."""
    while True:
        first, second = random_source.sample(all_faults(), 2)
        names = {first.name, second.name}
        undo = names & {"relay away", "device deleted", "device down"}
        if first.node != second.node or not (undo or names == {"easytier-core killed", "address removed"}):
            return first, second


_ANSWERS = """
import json, os, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address="auto", logging_level="error")
@ray.remote(num_cpus=0)
def rank():
    return os.environ["RLINF_NODE_RANK"]
alive = [node for node in ray.nodes() if node["Alive"]]
asked = [rank.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote() for node in alive]
print(json.dumps(sorted(ray.get(asked, timeout=20))))
"""


def ranks_that_answer(lab: Lab) -> list[str]:
    """The node rank of every node that Ray calls alive, told by a task that ran there; [] when one does not answer."""
    argv = ["edgelink", "exec", "--", sys.executable, "-c", _ANSWERS]
    try:
        asked = lab.exec(CLOUD, argv, capture=True, timeout_s=45)
    except DeadlineError:
        return []
    return json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else []


def is_whole(road: Road) -> bool:
    for node in NODES:
        status = road.status(node)
        if status is None or not status["ready"]:
            return False
    head = road.status(CLOUD)
    ready = {c["type"]: c["status"] for c in (head or {}).get("conditions", [])}
    return ready.get("NodesReady") == "True"


def why_not_whole(road: Road) -> str:
    lines = []
    for node in NODES:
        status = road.status(node)
        unmet = [c for c in (status or {}).get("conditions", []) if c["status"] != "True"]
        why = "; ".join(f"{c['type']} {c['reason']}: {c['message']}" for c in unmet)
        lines.append(f"{node}: {why if status else 'does not answer'}")
    return "\n".join(lines)


def wait_until_whole(road: Road, what: str, timeout_s: float) -> float:
    started_s = time.monotonic()
    while True:
        if is_whole(road) and ranks_that_answer(road.lab) == ["0", "1", "2"]:
            return time.monotonic() - started_s
        assert time.monotonic() - started_s < timeout_s, (
            f"{what}: not whole after {timeout_s:g} s\n{why_not_whole(road)}"
        )
        time.sleep(0.2)


def size(lab: Lab, node: str) -> tuple[int, int, int]:
    """Pid, resident bytes and open descriptors of the node's daemon."""
    process = lab.daemon(node)
    assert process is not None
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return process.pid, pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def namespaces(lab: Lab) -> set[str]:
    """The network namespaces that bear the lab's name; others on this machine come and go."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in names.splitlines() if lab.name in line}


@pytest.mark.long
def test_whole_again_after_two_faults_at_once(make_lab: MakeLab) -> None:
    print(f"EDGELINK_SEED={SEED}, {ROUNDS} rounds")
    random_source = random.Random(SEED)
    road = Road(make_lab(), SystemClock(), print)
    road.bring_up(len(EDGES), config={"ride_through": "60s"})
    lab = road.lab
    wait_until_whole(road, "before any fault", WHOLE_AGAIN_S)
    leased, present = leases(road, NODES), namespaces(lab)
    sizes = {node: size(lab, node) for node in NODES}
    for number in range(ROUNDS):
        first, second = two_at_once(random_source)
        outage_s = random_source.uniform(1.0, LONGEST_OUTAGE_S)
        what = f"round {number}: {first.name} on {first.node} and {second.name} on {second.node}, {outage_s:.1f} s"
        print(what, flush=True)
        for fault in (first, second):
            fault.strike(lab)
        time.sleep(outage_s)  # the outage itself
        for fault in (first, second):
            if fault.end is not None:
                fault.end(lab)
        took_s = wait_until_whole(road, what, WHOLE_AGAIN_S)
        print(f"  whole again {took_s:.1f} s after its end", flush=True)
        assert leases(road, NODES) == leased, what
        assert {node: set(children(lab, node)) for node in NODES} == CHILDREN, what
        assert namespaces(lab) == present, what
        for node in NODES:
            pid, memory, descriptors = size(lab, node)
            if pid != sizes[node][0]:  # a new daemon: from here on it is compared with itself
                sizes[node] = (pid, memory, descriptors)
            assert memory < sizes[node][1] + GROWTH_BYTES, f"{what}: the daemon on {node} has grown"
            assert descriptors < sizes[node][2] + GROWTH_DESCRIPTORS, f"{what}: descriptors of the daemon on {node}"
