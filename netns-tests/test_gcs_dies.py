"""The head's GCS keeps its tables on disk (`ray.gcs_store`): its death costs a driver no error, no actor and no pause.

One cluster of a head and two edges serves all tests, in their order: the last ones end the driver.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from machines import records_in, wait_until
from ray_tables import TABLES
from ray_world import Machine, World

from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.ray_cluster.ride_through import ray_settings

KILLS = 200 if os.environ.get("EDGELINK_SOAK") else 20
LONGEST_CALL_S = 2.0
SLOWER = 1.2  # than without a store
PAIRS = 30  # of actors that are made with a store and without
JOIN_S, BACK_S = 120.0, 60.0
LONG_S = 10.0  # as in gcs_driver.py
STORE = "/tmp/ray/own/gcs"
# More than RocksDB has reserved for its log: as a package does that a driver brings.
PUT = """
import os
from ray._raylet import GcsClient
GcsClient(address=os.environ["RAY_ADDRESS"]).internal_kv_put(b"ballast", b"0" * 20_000_000, True, b"test")
"""
DRIVER = Path(__file__).with_name("gcs_driver.py")

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]


class Driver:
    """``gcs_driver.py`` on the head."""

    def __init__(self, head: Machine, python: Path, directory: Path, namespace: str = "gcs") -> None:
        self._record = directory / "record"
        self._log = directory / "driver.log"
        environment = {
            **environment_of(head),
            "HOME": str(directory),
            "RAY_USAGE_STATS_ENABLED": "0",
            **ray_settings(DEFAULT_RIDE_THROUGH_S),
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                head.command(python, DRIVER, self._record, namespace),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        self.nodes = set(self.wait_for("ready", 0.0, 120)["nodes"])

    def events(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        return [event for event in records_in(self._record) if event["at_s"] > since_s]

    def wait_for(self, event: str, since_s: float, timeout_s: float, **wanted: Any) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            found = (each for each in self.events(since_s) if each["event"] == event)
            return next((each for each in found if wanted.items() <= each.items()), None)

        return wait_until(f"the driver's {event}", look, timeout_s)

    def wait_made(self, since_s: float) -> dict[str, Any]:
        """Wait for an actor that the driver has begun to make after ``since_s``."""

        def look() -> dict[str, Any] | None:
            made = (each for each in self.events(since_s) if each["event"] == "made")
            return next((each for each in made if each["began_s"] > since_s), None)

        return wait_until("a new actor", look, BACK_S)

    def ask_for_group(self) -> float:
        assert self._process.stdin is not None
        asked_s = time.monotonic()
        self._process.stdin.write(b"group\n")
        self._process.stdin.flush()
        self.wait_for("asked", asked_s, 10)
        return asked_s

    def assert_untouched(self, since_s: float) -> None:
        """No error, no other process, no call lost, no node lost, and no long call."""
        events = self.events()
        assert [event for event in events if event["event"] == "error"] == []
        for name, calls in itertools.groupby(
            sorted((event for event in events if event["event"] == "answer"), key=lambda event: str(event["actor"])),
            key=lambda event: event["actor"],
        ):
            answers = list(calls)
            assert len({answer["pid"] for answer in answers}) == 1, name
            counts = [answer["count"] for answer in answers]
            assert counts == list(range(counts[0], counts[0] + len(counts))), name
            longest_s = max(answer["took_s"] for answer in answers)
            assert longest_s <= LONGEST_CALL_S + (LONG_S if name == "long" else 0), f"{name}: {longest_s}"
        lost = {node for event in events if event["event"] == "nodes" for node in self.nodes - set(event["alive"])}
        assert lost == set()
        answers = [event for event in events if event["event"] == "answer" and event["at_s"] > since_s]
        made = [event["took_s"] for event in events if event["event"] == "made" and event["at_s"] > since_s]
        print(
            "longest calls:",
            {
                name: round(max(each["took_s"] for each in answers if each["actor"] == name), 2)
                for name in sorted({each["actor"] for each in answers})
            },
            f"new actors: {len(made)}, median {median(made):.2f} s, longest {max(made):.2f} s",
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Its store is on a small disk of its own, which a test fills."""
    world = World(tmp_path_factory.mktemp("gcs"), Path(sys.executable), {"RAY__GCS_STORE": "true"})
    try:
        for name in ("cloud", "edge-1", "edge-2"):
            world.add(name)
        head = world.machines[0]
        head.run("sh", "-ec", f"mkdir -p -m 700 /tmp/ray/own; mkdir {STORE}; mount -t tmpfs -o size=64m gcs {STORE}")
        for machine in world.machines:
            world.start_daemon(machine)
        for machine in world.machines:
            wait_until(f"{machine.name} joins", machine.condition, JOIN_S, wanted=is_true)
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def driver(cluster: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(cluster.machines[0], cluster.python, tmp_path_factory.mktemp("driver"))
    yield made
    made.stop()


@pytest.fixture
def head(cluster: World) -> Machine:
    return cluster.machines[0]


def in_ray(world: World, head: Machine, *argv: str | Path) -> list[str]:
    return head.command(world.python, *argv)


def environment_of(head: Machine) -> dict[str, str]:
    """What a program on the head needs to speak to Ray."""
    return {
        "PATH": os.environ["PATH"],
        "RAY_ADDRESS": f"{head.overlay_ip}:6379",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(head.directory / "run/ray/token"),
    }


def is_true(condition: dict[str, Any]) -> bool:
    return bool(condition["status"] == "True")


def raylets(world: World) -> list[int]:
    return [machine.record()["raylet"]["pid"] for machine in world.machines]


def gcs_of(head: Machine) -> int:
    return int(head.record()["gcs"]["pid"])


def kill_gcs(head: Machine) -> int:
    pid = gcs_of(head)
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_for_new_gcs(head: Machine, old: int) -> None:
    wait_until("a new GCS", lambda: gcs_of(head), BACK_S, wanted=lambda pid: pid != old)


def test_a_killed_gcs_costs_a_run_nothing(cluster: World, head: Machine, driver: Driver) -> None:
    """Raylets, actors and the cluster spec stay; the condition says nothing else than before."""
    before, spec, said = raylets(cluster), cluster.spec_file.read_text(), head.output.read_text()
    began_s = time.monotonic()
    old = kill_gcs(head)
    wait_for_new_gcs(head, old)
    driver.wait_made(began_s)
    driver.wait_for("answer", began_s, 60, actor="long")
    driver.assert_untouched(began_s)
    assert raylets(cluster) == before
    assert cluster.spec_file.read_text() == spec
    assert head.output.read_text() == said


@pytest.mark.long
@pytest.mark.timeout(600 + 10 * KILLS)
def test_many_killed_gcs_cost_a_run_nothing(cluster: World, head: Machine, driver: Driver) -> None:
    """Each dies while actors are made and 10 s calls are in flight; what its starts leave on disk is bounded."""
    before, began_s = raylets(cluster), time.monotonic()
    for _ in range(KILLS):
        killed_s = time.monotonic()
        wait_for_new_gcs(head, kill_gcs(head))
        driver.wait_made(killed_s)
    driver.wait_for("answer", time.monotonic(), 60, actor="long")
    driver.assert_untouched(began_s)
    assert raylets(cluster) == before
    left = head.run("find", STORE, "-name", "LOG.old.*", "-o", "-name", "OPTIONS-*").splitlines()
    assert len(left) <= 2 * (3 + 4), left
    print(head.run("du", "-sh", STORE))


@pytest.mark.long
def test_a_placement_group_is_made_although_the_gcs_dies_over_it(head: Machine, driver: Driver) -> None:
    began_s = time.monotonic()
    pid = gcs_of(head)
    os.kill(pid, signal.SIGSTOP)  # so that it dies with the request
    driver.ask_for_group()
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    driver.wait_for("group", began_s, BACK_S)
    driver.wait_made(began_s)
    driver.assert_untouched(began_s)


@pytest.mark.long
def test_a_daemon_that_was_killed_is_succeeded_by_one_that_brings_the_gcs_back(
    cluster: World, head: Machine, driver: Driver
) -> None:
    """The GCS dies without a daemon, and again under the next one, which has only adopted it."""
    began_s, before = time.monotonic(), raylets(cluster)
    head.kill_daemon()
    old = kill_gcs(head)
    cluster.start_daemon(head)
    wait_for_new_gcs(head, old)
    driver.wait_made(time.monotonic())
    head.kill_daemon()
    cluster.start_daemon(head)
    wait_until("adopted", head.condition, JOIN_S, wanted=is_true)
    killed_s = time.monotonic()
    wait_for_new_gcs(head, kill_gcs(head))
    driver.wait_made(killed_s)
    driver.assert_untouched(began_s)
    assert raylets(cluster) == before


@pytest.mark.long
def test_a_full_disk_is_named_and_the_gcs_goes_on_when_there_is_room(
    cluster: World, head: Machine, driver: Driver
) -> None:
    """Meanwhile what runs goes on, and a new actor waits."""
    began_s, before = time.monotonic(), raylets(cluster)
    with suppress(AssertionError):  # dd ends with an error: the disk is full
        head.run("dd", "if=/dev/zero", f"of={STORE}/ballast", "bs=1M")
    try:
        with subprocess.Popen(
            in_ray(cluster, head, "-c", PUT), env=environment_of(head), cwd="/", stderr=subprocess.DEVNULL
        ) as put:
            wait_until("it is named", head.condition, BACK_S, wanted=lambda seen: seen["reason"] == "GcsStoreFull")
            put.kill()  # it would be tried again
        assert STORE in head.condition()["message"]
        driver.wait_for("answer", time.monotonic(), 10, actor="edge-1")
    finally:
        head.run("rm", f"{STORE}/ballast")
    freed_s = time.monotonic()
    wait_until("it goes on", head.condition, BACK_S, wanted=is_true)
    driver.wait_made(freed_s)
    driver.assert_untouched(began_s)
    assert raylets(cluster) == before


@pytest.mark.long
@pytest.mark.parametrize("what", ["raylet", "machine"])
def test_what_is_left_of_a_head_that_died_goes_on(cluster: World, head: Machine, tmp_path: Path, what: str) -> None:
    """The head's Ray starts on the same tables: the edges' raylets and the actors on them stay, also the detached one,
    which the next run is told of; the driver, which had its raylet on the head, ends, and its other actors with it."""
    driver = Driver(head, cluster.python, tmp_path, namespace=what)
    spec, edges, cluster_id = cluster.spec_file.read_text(), raylets(cluster)[1:], head.record()["cluster_id"]
    left = driver.wait_for("answer", 0, 60, actor="left")
    old = head.record()["raylet"]["pid"]
    for pid in [old] if what == "raylet" else head.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if what == "machine":
        head.kill_daemon()
        cluster.start_daemon(head)
    wait_until(
        "a new raylet", head.record_if_any, JOIN_S, wanted=lambda found: found.get("raylet", {}).get("pid", old) != old
    )
    wait_until("the head is back", head.condition, JOIN_S, wanted=is_true)
    driver.stop()
    expected = {"name": "left", "namespace": what, "pid": left["pid"]}
    wait_until(
        "the former job has ended",
        lambda: left_actors(cluster, head),
        wanted=lambda found: any(expected.items() <= actor.items() for actor in found),
    )
    everybody = [str(machine.overlay_ip) for machine in cluster.machines]
    wait_until(
        "no ghosts",
        lambda: tables_of(cluster, head),
        wanted=lambda found: found["alive"] == everybody and set(found["left"]) == {"left"},
    )
    assert raylets(cluster)[1:] == edges
    assert cluster.spec_file.read_text() == spec
    assert head.record()["cluster_id"] == cluster_id


def left_actors(world: World, head: Machine) -> list[dict[str, Any]]:
    return list(asked(world, head, head.directory / "run/ray/helper.py", "detached", "--address")["actors"])


def tables_of(world: World, head: Machine) -> dict[str, list[str]]:
    return asked(world, head, "-c", TABLES)


def asked(world: World, head: Machine, *program: str | Path) -> dict[str, Any]:
    """What a Python program that is given the GCS's address prints last."""
    answer = subprocess.run(
        in_ray(world, head, *program, f"{head.overlay_ip}:6379"),
        env=environment_of(head),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        timeout=60,
    )
    return dict(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.long
def test_tables_that_cannot_be_read_are_given_up(cluster: World, head: Machine) -> None:
    """A new cluster begins, on new tables, and the edges follow."""
    incarnation, edges = head.record()["incarnation"], raylets(cluster)[1:]
    head.kill_daemon()
    kill_gcs(head)
    head.run("sh", "-ec", f"for db in kv tables; do echo nonsense > {STORE}/$db/CURRENT; done")
    cluster.start_daemon(head)

    def followed() -> bool:
        spec = json.loads(cluster.spec_file.read_text())
        records = [machine.record_if_any() for machine in cluster.machines]
        return spec["incarnation"] != incarnation and {record.get("cluster_id") for record in records} == {
            spec["incarnation"]
        }

    wait_until("a new cluster", followed, 2 * JOIN_S)
    for machine in cluster.machines:
        wait_until(f"{machine.name} is in it", machine.condition, JOIN_S, wanted=is_true)
    assert not set(raylets(cluster)[1:]) & set(edges)
    wait_until("nobody is left", lambda: left_actors(cluster, head) == [])


MAKE_ONE = """
import sys, time, ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
class Actor:
    def call(self): pass
print("ready", flush=True)
for _ in sys.stdin:
    began = time.monotonic()
    actor = Actor.remote()
    ray.get(actor.call.remote())
    print(time.monotonic() - began, flush=True)
    ray.kill(actor)
"""


@pytest.mark.long
def test_actors_are_made_as_fast_as_without_a_store(tmp_path: Path) -> None:
    """Two heads beside each other, which make actors in turns; the store is on this machine's own disk."""
    worlds = {
        kept: World(tmp_path / kept, Path(sys.executable), {"RAY__GCS_STORE": kept}) for kept in ("true", "false")
    }
    took_s: dict[str, list[float]] = {kept: [] for kept in worlds}
    makers: dict[str, subprocess.Popen[str]] = {}
    try:
        for kept, world in worlds.items():
            head = world.add("cloud")
            world.start_daemon(head)
            wait_until(f"the head joins, store: {kept}", head.condition, JOIN_S, wanted=is_true)
            makers[kept] = subprocess.Popen(
                in_ray(world, head, "-c", MAKE_ONE),
                env=environment_of(head),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd="/",
            )
            answer_of(makers[kept])
        for number in range(PAIRS):
            for kept in list(makers)[:: 1 if number % 2 else -1]:
                stdin = makers[kept].stdin
                assert stdin is not None
                stdin.write("\n")
                stdin.flush()
                took_s[kept].append(float(answer_of(makers[kept])))
    finally:
        for maker in makers.values():
            maker.kill()
            maker.communicate()
        for world in worlds.values():
            world.close()
    with_store, without = median(took_s["true"]), median(took_s["false"])
    print(f"with a store {with_store:.3f} s, without {without:.3f} s")
    assert with_store <= SLOWER * without


def answer_of(maker: subprocess.Popen[str]) -> str:
    assert maker.stdout is not None
    line = maker.stdout.readline()
    assert line, "it has ended"
    return line
