"""Ray's membership heals by itself: killed raylets, buried ones, a dead GCS, machines that reboot.

One lab serves all tests of this file. All the time Ray's node table is looked at, by ``node_table.py`` on the first
edge, and in no moment may two nodes be alive under one rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from faults import kill, processes
from machines import brought_up_on, revive, wait_until
from outages import OutageDriver
from training_run import CHECKPOINT_EVERY, TrainingRun, learned_again

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road

WATCHER, EDGE = "edge-1", "edge-2"
ADDRESSES = {CLOUD: "10.10.0.2", WATCHER: "10.10.0.3", EDGE: "10.10.0.4"}
ALL = {(ip, rank) for rank, ip in enumerate(ADDRESSES.values())}
# Deadlines, not bars: how long each took is printed.
BACK_WITHIN_S = 120.0
TOLD_WITHIN_S = 60.0
COMPLETE_WITHIN_S = 180.0
ROUNDS = 10 if os.environ.get("EDGELINK_SOAK") else 1
REBOOTS = 3 if os.environ.get("EDGELINK_SOAK") else 1
FIRST, MORE = 5, 8  # iterations of training before the first reboot, and after each: no multiples of the interval
HELPER = "/run/edgelink/ray/helper.py"
TABLE = Path(__file__).with_name("node_table.py")

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier"), pytest.mark.told_truly]


class NodeTable:
    """What Ray said of its nodes since the beginning, change by change."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self._lines = directory / "node_table"
        self.process = lab.popen(
            WATCHER,
            ["edgelink", "exec", "--", sys.executable, str(TABLE), HELPER, f"{ADDRESSES[CLOUD]}:6379"],
            self._lines,
        )

    def changes(self) -> list[tuple[float, list[tuple[str, int, str]]]]:
        assert self.process.poll() is None, self._lines.read_text()
        found = []
        for line in self._lines.read_text().splitlines(keepends=True):
            if line.startswith("[") and line.endswith("]\n"):  # Ray's own words begin otherwise
                at_s, alive = json.loads(line)
                found.append((at_s, [(ip, rank, ray_id) for ip, rank, ray_id in alive]))
        return found

    def alive(self) -> dict[str, str]:
        """Ray's id by address."""
        changes = self.changes()
        return {ip: ray_id for ip, _, ray_id in changes[-1][1]} if changes else {}

    def wait_complete(self, since_s: float, dead: set[str], timeout_s: float) -> tuple[float, dict[str, str]]:
        """From ``since_s`` (wall clock) until every node was alive with its rank, none by a dead Ray; and by which."""

        def complete() -> tuple[float, dict[str, str]] | None:
            for at_s, alive in self.changes():
                ids = {ip: ray_id for ip, _, ray_id in alive}
                if at_s > since_s and {(ip, rank) for ip, rank, _ in alive} == ALL and not dead & set(ids.values()):
                    return at_s - since_s, ids
            return None

        return wait_until("all nodes are alive", complete, timeout_s)

    def assert_no_rank_was_held_twice(self, since_s: float) -> None:
        for at_s, alive in self.changes():
            if at_s < since_s:
                continue
            twice = [rank for rank, count in Counter(rank for _, rank, _ in alive).items() if count > 1]
            assert twice == [], f"at {at_s}: {alive}"


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), 2)


@pytest.fixture(scope="module")
def table(road: Road, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeTable]:
    made = NodeTable(road.lab, tmp_path_factory.mktemp("table"))
    made.wait_complete(0, set(), 60)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture(autouse=True)
def never_twice(road: Road, table: NodeTable) -> Iterator[None]:
    """Each test begins and ends with every node Ready, under its address and rank, and none ever alive twice."""
    revive(road, (RELAY, *ADDRESSES))
    started_s = time.time()
    yield
    for node in (RELAY, *ADDRESSES):
        status = road.wait_ready(node)
        if node in ADDRESSES:
            assert (status["overlay_ip"], status["node_rank"]) == (
                ADDRESSES[node],
                list(ADDRESSES).index(node),
            )
    table.assert_no_rank_was_held_twice(started_s)


def record_of(road: Road, node: str) -> dict[str, Any]:
    return dict(json.loads((road.lab.host_path(node, Paths().processes) / "ray.json").read_text()))


def renew_daemon(road: Road, node: str) -> None:
    """Another daemon adopts the node's Ray; to it, Ray's next end is the first one."""
    road.lab.kill(node)
    road.lab.start(node)
    road.wait_ready(node)


@pytest.mark.timeout(420 + 240 * ROUNDS)
def test_a_killed_raylet_is_replaced_and_the_driver_told(road: Road, table: NodeTable, tmp_path: Path) -> None:
    """SIGKILL on an edge: back in Ray with the same rank, and the driver has ActorDiedError."""
    for number in range(ROUNDS):
        if number:
            renew_daemon(road, EDGE)
        directory = tmp_path / str(number)
        directory.mkdir()
        driver = OutageDriver(road.lab, ["edgelink", "run", "--no-preflight", "--", sys.executable], directory)
        try:
            driver.wait_ready()
            before = table.alive()
            killed_s, killed_mono_s = time.time(), time.monotonic()
            kill(road.lab, EDGE, "raylet")

            def died(events: list[dict[str, Any]], since_s: float = killed_mono_s) -> float | None:
                errors = [e for e in events if e["event"] == "error" and e["actor"] == "plain" and e["at_s"] > since_s]
                return next((e["at_s"] for e in errors if e["kind"] == "ActorDiedError"), None)

            told_s = driver.wait_for(died, TOLD_WITHIN_S) - killed_mono_s
            back_s, after = table.wait_complete(killed_s, {before[ADDRESSES[EDGE]]}, BACK_WITHIN_S)
            print(f"driver told after {told_s:.1f} s, back after {back_s:.1f} s")
            assert driver.seen(killed_mono_s).pids["retried"], "the other edge's actor"
        finally:
            driver.stop()
        assert {node for node in before if before[node] != after[node]} == {ADDRESSES[EDGE]}
        road.wait_ready(EDGE)


def test_a_node_that_ray_buried_comes_back(road: Road, table: NodeTable) -> None:
    """Ray says that it is dead, though it is not: its raylet ends, and the node joins anew."""
    renew_daemon(road, EDGE)
    before, at_s = table.alive(), time.time()
    bury = ["edgelink", "exec", "--", sys.executable, HELPER, "bury", "--address", f"{ADDRESSES[CLOUD]}:6379"]
    road.lab.exec(CLOUD, [*bury, "--id", before[ADDRESSES[EDGE]]], capture=True, check=True)
    back_s, _ = table.wait_complete(at_s, {before[ADDRESSES[EDGE]]}, BACK_WITHIN_S)
    print(f"back after {back_s:.1f} s")


def test_the_head_buries_whom_an_edge_reports(road: Road, table: NodeTable) -> None:
    """An edge that cannot reach the GCS tells of its raylet's end over the broker, and is back once it can."""
    renew_daemon(road, EDGE)
    before = table.alive()
    rule = f"ip daddr {ADDRESSES[CLOUD]} tcp dport 6379 drop"
    deaf = f"table inet deaf {{ chain output {{ type filter hook output priority filter; {rule}; }}; }}"
    road.lab.exec(EDGE, ["nft", "-f", "-"], stdin=deaf, capture=True, check=True)
    try:
        kill(road.lab, EDGE, "raylet")
        wait_until("the head buries it", table.alive, TOLD_WITHIN_S, wanted=lambda alive: ADDRESSES[EDGE] not in alive)
    finally:
        at_s = time.time()
        road.lab.exec(EDGE, ["nft", "delete", "table", "inet", "deaf"], check=True)
    table.wait_complete(at_s, {before[ADDRESSES[EDGE]]}, COMPLETE_WITHIN_S)


def test_a_run_for_some_nodes_has_ranks_without_gaps(road: Road, table: NodeTable, tmp_path: Path) -> None:
    """`--nodes`: who is not named leaves Ray, the last edge moves up, and after the run all is as before."""
    found = tmp_path / "nodes.json"
    look = (
        f"edgelink nodes --json > {found}; edgelink wait --for nodes=2 --timeout 1s && ! edgelink wait --for nodes=3 "
    )
    run = [
        "edgelink",
        "run",
        "--no-preflight",
        "--nodes",
        EDGE,
        "--timeout",
        "2m",
        "--",
        "sh",
        "-c",
        f"{look} --timeout 1s",
    ]
    started_s = time.time()
    answer = road.lab.exec(CLOUD, run, capture=True, timeout_s=180)
    ended_s = time.time()
    assert answer.returncode == 0, answer.stderr
    assert f"2/2: {CLOUD}, {EDGE} ready" in answer.stderr
    seen = json.loads(found.read_text())
    assert [(node["hostname"], node["node_rank"], node["ready"]) for node in seen["nodes"]] == [
        (CLOUD, 0, True),
        (EDGE, 1, True),
    ]
    assert [node["hostname"] for node in seen["left_out"]] == [WATCHER]
    assert seen["strangers"] == []
    back_s, _ = table.wait_complete(ended_s, set(), BACK_WITHIN_S)
    print(f"the run took {ended_s - started_s:.1f} s, all were back {back_s:.1f} s after it")
    whole = road.lab.exec(CLOUD, ["edgelink", "wait", "--for", "nodes=3", "--timeout", "2m"], capture=True)
    assert whole.returncode == 0, whole.stderr


def test_an_edge_that_reboots_comes_back(road: Road, table: NodeTable) -> None:
    """The same lease and rank; the others' Rays are not touched."""
    before = table.alive()
    road.lab.reboot(EDGE)
    at_s = time.time()
    road.lab.start(EDGE)
    back_s, after = table.wait_complete(at_s, {before[ADDRESSES[EDGE]]}, COMPLETE_WITHIN_S)
    print(f"back {back_s:.1f} s after the daemon's start")
    assert {node for node in before if before[node] != after[node]} == {ADDRESSES[EDGE]}


@pytest.mark.parametrize(
    "has_broker", [True, pytest.param(False, marks=pytest.mark.long)], ids=["broker", "broker frozen"]
)
def test_a_new_gcs_is_joined_by_all(road: Road, table: NodeTable, has_broker: bool) -> None:
    """SIGKILL of the GCS; with the broker frozen nobody can tell of the new one, and all find it.

    When the new cluster spec has come everywhere, nothing is started a second time.
    """
    before = set(table.alive().values())
    broker = processes(road.lab, RELAY)["mosquitto"]
    if not has_broker:
        os.kill(broker, signal.SIGSTOP)
    try:
        at_s = time.time()
        kill(road.lab, CLOUD, "gcs_server")
        complete_s, joined = table.wait_complete(at_s, before, COMPLETE_WITHIN_S)
    finally:
        os.kill(broker, signal.SIGCONT)
    print(f"complete after {complete_s:.1f} s")
    road.wait_ready(CLOUD)  # its record is finished last: Ray may list all before
    incarnation = record_of(road, CLOUD)["cluster_id"]

    def told() -> bool:
        edges = [road.lab.host_path(node, Paths().state) for node in (WATCHER, EDGE)]
        return all(incarnation in (state / "cluster-spec.json").read_text() for state in edges)

    wait_until("the edges know the new cluster spec", told)
    for node in ADDRESSES:
        road.wait_ready(node)
    assert table.alive() == joined
    assert {record_of(road, node)["cluster_id"] for node in ADDRESSES} == {incarnation}


@pytest.mark.timeout(420 + 600 * REBOOTS)
@pytest.mark.long
def test_a_head_that_reboots_gets_its_cluster_and_its_run_back(road: Road, table: NodeTable, tmp_path: Path) -> None:
    """All its processes die under a run, its network is another one: nobody touches an edge, the cluster is complete
    again, and the same command, which the unit in docs/how-to/long-runs.md starts at boot, goes on from its newest
    checkpoint."""
    training = TrainingRun(
        road,
        tmp_path,
        FIRST + MORE * REBOOTS,
        *("--timeout", "1h", "--retries", "5"),
        edges=2,
        resume=True,
    )
    for number in range(REBOOTS):
        training.wait_for_iteration(FIRST + MORE * number)
        before, raylets = set(table.alive().values()), {processes(road.lab, node)["raylet"] for node in (WATCHER, EDGE)}
        road.lab.reboot(CLOUD)
        assert training.command.poll() is not None, "it died with its machine"
        learned = len(training.iterations())
        at_s = time.time()
        road.lab.start(CLOUD)
        wait_until("the head daemon answers", lambda: road.status(CLOUD) is not None)  # READY=1 to systemd
        training.start_again()
        complete_s, _ = table.wait_complete(at_s, before, 2 * COMPLETE_WITHIN_S)  # a busy machine may add as much
        assert not raylets & {processes(road.lab, node)["raylet"] for node in (WATCHER, EDGE)}
        training.wait_for_more_than(learned)
        print(f"complete {complete_s:.1f} s after the daemon's start, learning again after {time.time() - at_s:.1f} s")
        assert len({record_of(road, node)["cluster_id"] for node in ADDRESSES}) == 1
    assert training.command.wait(300) == 0, training.log.read_text()
    learned_in_all, lost = training.iterations(), learned_again(training.iterations())
    print(f"iterations learned twice: {lost}")
    assert sorted(set(learned_in_all)) == list(range(1, FIRST + MORE * REBOOTS + 1))
    assert learned_in_all.count(1) == 1, "not from the beginning"
    assert len(lost) <= REBOOTS
    assert max(lost, default=0) <= CHECKPOINT_EVERY, learned_in_all
