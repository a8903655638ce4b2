"""Daemons are killed, upgraded and stopped; what they run goes on, or ends, as said, and nobody else's is touched.

One lab serves all tests of this file, in order; each leaves every node Ready.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import by_command, children, pids_of
from machines import (
    Machine,
    assert_error,
    brought_up_on,
    leftovers,
    make_token,
    revive,
    wait_for_condition,
    wait_until,
)
from outages import OutageDriver

import edgelink
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.ray_slots import RaySlots
from edgelink.lab.road import Road

EDGES = ("edge-1", "edge-2")
NODES = (RELAY, CLOUD, *EDGES)
PINGS, PINGS_PER_S = 1000, 100
DOCKERS_PATIENCE_S = 10.0  # then it kills
THEIRS = "/tmp/ray/theirs"

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), len(EDGES))


@pytest.fixture
def road(brought_up: Road) -> Road:
    """Every node Ready, whatever the test before has left; also a Ray that was stopped on all nodes."""
    status = brought_up.status(CLOUD) or {"conditions": []}
    if any(c["type"] == "RayJoined" and c["reason"] == "RayStopped" for c in status["conditions"]):
        brought_up.lab.exec(CLOUD, ["edgelink", "restart-ray", "--all"], capture=True, check=True, timeout_s=120)
    return revive(brought_up, NODES)


@pytest.fixture(scope="module")
def newer_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EdgeLink as another version that keeps more in its records: a directory for PYTHONPATH."""
    directory = tmp_path_factory.mktemp("newer")
    package = directory / "edgelink"
    shutil.copytree(Path(edgelink.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    change(package / "__init__.py", r'__version__ = "[^"]*"', '__version__ = "99.0.0"')
    change(
        package / "process/identity.py", r"values = asdict\(self\)", 'values = {**asdict(self), "cgroup": "/of 99.0.0"}'
    )
    change(
        package / "ray_cluster/record.py",
        r"return json\.dumps\(values\)",
        'return json.dumps({"of": "99.0.0", **values})',
    )
    return directory


def change(file: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement.replace("\\", r"\\"), file.read_text())
    assert count == 1, f"{file}: {pattern} is there {count} times"
    file.write_text(text)


@contextmanager
def pinging(lab: Lab, output: Path) -> Iterator[None]:
    """A hundred pings a second from an edge to the head, 1,000 at least: not one may be lost."""
    ping = lab.popen("edge-1", ["ping", "-i", f"{1 / PINGS_PER_S}", "-W", "5", "10.10.0.2"], output)
    try:
        yield
        wait_until(f"{PINGS} pings", lambda: len(output.read_bytes().splitlines()), wanted=lambda lines: lines > PINGS)
        ping.send_signal(signal.SIGINT)
        ping.wait(60)
    finally:
        ping.kill()
        ping.wait()
    print(output.read_text().splitlines()[-2:])
    summary = re.search(r"(\d+) packets transmitted, (\d+) received", output.read_text())
    assert summary, output.read_text()[-500:]
    sent, received = map(int, summary.groups())
    assert sent >= PINGS
    # Those of the last second may be under way when ping is told to end; of those before, none is missing.
    assert sent - received <= PINGS_PER_S, output.read_text()[-500:]
    missing = set(range(1, received + 1)) - {int(n) for n in re.findall(r"icmp_seq=(\d+)", output.read_text())}
    assert missing == set()


def test_killed_and_upgraded_daemons_cost_nothing(road: Road, newer_package: Path, tmp_path: Path) -> None:
    """No ping, no call of a running driver, no process; also back again, to a version that knows less."""
    lab = road.lab
    driver = OutageDriver(lab, ["edgelink", "run", "--no-preflight", "--", "python"], tmp_path)
    try:
        driver.wait_ready()
        since_s = SystemClock().monotonic_s()
        pids = {node: children(lab, node) for node in NODES}
        with pinging(lab, tmp_path / "ping"):
            restart_daemons(road, "edge-1", env={})
            with installed("edgelink_probe", "1.0"):
                restart_daemons(road, *NODES, env={"PYTHONPATH": str(newer_package)})
                wait_for_condition(lab, "edge-1", "RayCurrent", "InstalledAfterStart")
            assert {version(road, node) for node in NODES} == {"99.0.0"}
            assert '"of": "99.0.0"' in lab.host_path("edge-1", Paths().processes / "ray.json").read_text()
            restart_daemons(road, *NODES, env={})
            wait_for_condition(lab, "edge-1", "RayCurrent", "AsStarted")
            assert {version(road, node) for node in NODES} == {edgelink.__version__}
        assert {node: children(lab, node) for node in NODES} == pids
        assert driver.wait_answers(SystemClock().monotonic_s(), 60)
        seen = driver.seen(since_s)
        print(f"gaps {seen.gaps_s}")
        assert seen.errors == []
        assert seen.lost_nodes == set()
        assert {actor: len(found) for actor, found in seen.pids.items()} == {"retried": 1, "plain": 1}
        refuse_under_the_run(lab)
    finally:
        driver.stop()


@contextmanager
def installed(name: str, version: str) -> Iterator[None]:
    """A package in the interpreter that Ray runs with, as pip leaves it."""
    directory = Path(sysconfig.get_path("purelib")) / f"{name}-{version}.dist-info"
    directory.mkdir()
    try:
        (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        yield
    finally:
        shutil.rmtree(directory)


def restart_daemons(road: Road, *nodes: str, env: dict[str, str]) -> None:
    """What an upgrade does under a service manager, at its rudest."""
    for node in nodes:
        road.lab.kill(node)
    for node in nodes:
        road.lab.start(node, env=env)
    for node in nodes:
        road.wait_ready(node)


def version(road: Road, node: str) -> str:
    status = road.status(node)
    assert status is not None
    return str(status["version"])


def refuse_under_the_run(lab: Lab) -> None:
    """The head names who holds the run lock, an edge whose workers it has."""
    at_head = lab.exec(CLOUD, ["edgelink", "restart-ray", "edge-1"], capture=True, timeout_s=30)
    assert_error(at_head, 75, "RunInProgress", "pid ")
    at_edge = lab.exec("edge-1", ["edgelink", "restart-ray"], capture=True, timeout_s=30)
    assert_error(at_edge, 75, "RunInProgress", "ray::Counter", "--force")


def raylets(lab: Lab) -> dict[str, int]:
    return {node: children(lab, node)["raylet"] for node in (CLOUD, *EDGES)}


def test_rays_are_replaced_on_request(road: Road, tmp_path: Path) -> None:
    """One node's, from the head or by itself, and nobody else's; the overlay is not touched."""
    lab = road.lab
    before, cores = raylets(lab), {node: children(lab, node)["easytier-core"] for node in NODES}
    at_head = lab.popen(CLOUD, ["edgelink", "restart-ray", "edge-1"], tmp_path / "head.log")
    lab.exec("edge-2", ["edgelink", "restart-ray"], capture=True, check=True, timeout_s=120)
    assert at_head.wait(120) == 0, (tmp_path / "head.log").read_text()
    after = raylets(lab)
    assert {node: after[node] == before[node] for node in after} == {CLOUD: True, "edge-1": False, "edge-2": False}
    assert {node: children(lab, node)["easytier-core"] for node in NODES} == cores
    elsewhere = lab.exec("edge-1", ["edgelink", "restart-ray", "edge-2"], capture=True, timeout_s=30)
    assert_error(elsewhere, 2, "edge-1", "cloud (10.10.0.2)")
    for node in NODES:
        road.wait_ready(node)


def is_theirs(pid: int) -> bool:
    """Whether a process belongs to the Ray of :func:`strangers`."""
    try:
        return THEIRS in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False


def our_rays(lab: Lab, nodes: Iterable[str], *commands: str) -> list[int]:
    """Those of these names that are not :func:`strangers`; of several on a node, that which began first."""
    ours = [by_command(pid for pid in pids_of(lab, node, *commands) if not is_theirs(pid)) for node in nodes]
    return [pid for found in ours for pid in found.values()]


@contextmanager
def strangers(lab: Lab, node: str, tmp_path: Path) -> Iterator[None]:
    """Somebody else's Ray head and some program of theirs, beside ours on the same machine."""
    argv = ["ray", "start", "--head", "--port=7777", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
    argv += ["--object-store-memory=80000000", "--include-dashboard=false", f"--temp-dir={THEIRS}"]
    argv += ["--disable-usage-stats", "--min-worker-port=30000", "--max-worker-port=30100"]
    ours, slots = lab.pids(node), RaySlots(lab.directory.parent, SystemClock(), print)

    def end_theirs() -> None:
        for pid in lab.pids(node) - ours:
            if is_theirs(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until("their Ray is gone", lambda: not any(map(is_theirs, lab.pids(node) - ours)))

    def has_started() -> bool:
        with slots.held("a stranger"):
            return lab.exec(node, argv, capture=True, timeout_s=120, cwd=Path("/")).returncode == 0

    sleeper = lab.popen(node, ["sleep", "1000"], tmp_path / "sleep.log")
    try:
        for _ in range(3):  # on a busy machine Ray gives its own start up after 30 s
            if has_started():
                break
            end_theirs()
        theirs = by_command(pid for pid in pids_of(lab, node, "raylet", "gcs_server") if is_theirs(pid))
        assert len(theirs) == 2
        yield
        assert lab.pids(node) >= {*theirs.values(), sleeper.pid}, "a stranger's process was ended"
        assert sleeper.poll() is None
    finally:
        end_theirs()
        sleeper.kill()
        sleeper.wait()


def test_rays_token_follows_the_secret(road: Road) -> None:
    """A change of the network's secret leaves Ray as it runs; the next Ray has another token, and the old one, which a
    stolen robot knows, opens nothing."""
    lab = road.lab

    def told() -> str:
        (token,) = {Machine(lab, node).paths.ray_token_copy.read_text() for node in (CLOUD, *EDGES)}
        return token

    def asked_with(token: str) -> int:
        file, head = Machine(lab, "edge-1").paths.runtime / "known-token", road.wait_ready(CLOUD)["overlay_ip"]
        file.touch(0o600)
        file.write_text(token)
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Paths().runtime / file.name)}
        helper = [sys.executable, str(Paths().runtime / "ray/helper.py"), "nodes", "--address", f"{head}:6379"]
        try:
            return lab.exec("edge-1", ["timeout", "20", *helper], env=env, capture=True, timeout_s=30).returncode
        finally:
            file.unlink()

    before, running = told(), raylets(lab)
    lab.exec(RELAY, ["edgelink", "rotate-secret"], capture=True, check=True, timeout_s=120)
    assert (told(), raylets(lab)) == (before, running)
    assert asked_with(before) == 0
    lab.exec(CLOUD, ["edgelink", "restart-ray", "--all"], capture=True, check=True, timeout_s=120)
    for node in NODES:
        road.wait_ready(node)
    assert told() != before
    assert asked_with(told()) == 0
    assert asked_with(before) != 0


def test_stop_all_ends_every_ray_of_ours(road: Road, tmp_path: Path) -> None:
    """The run, then the edges, then the head; it stays so until somebody wants it back."""
    lab = road.lab
    before = raylets(lab)
    with strangers(lab, CLOUD, tmp_path):
        cores = {node: pids_of(lab, node, "easytier-core") for node in NODES}
        run = lab.popen(CLOUD, ["edgelink", "run", "--no-preflight", "--", "sleep", "600"], tmp_path / "run.log")
        wait_for_condition(lab, CLOUD, "DriverRunning", "Granted", 60)
        lab.exec(CLOUD, ["edgelink", "stop", "--all"], capture=True, check=True, timeout_s=120)
        assert run.wait(60) == 128 + signal.SIGTERM
        assert our_rays(lab, NODES, "raylet", "gcs_server") == []
        for node in (CLOUD, *EDGES):
            wait_for_condition(lab, node, "RayJoined", "RayStopped")
        refused = lab.exec(CLOUD, ["edgelink", "run", "--", "true"], capture=True, timeout_s=30)
        assert_error(refused, 1, "RayStopped", "restart-ray --all")
        lab.kill(CLOUD)
        lab.start(CLOUD)
        wait_for_condition(lab, CLOUD, "RayJoined", "RayStopped")
        assert {node: pids_of(lab, node, "easytier-core") for node in NODES} == cores
        lab.exec(CLOUD, ["edgelink", "restart-ray", "--all"], capture=True, check=True, timeout_s=120)
        for node in NODES:
            road.wait_ready(node)
        ours = our_rays(lab, (CLOUD, *EDGES), "raylet")
        assert len(ours) == 3
        assert not set(ours) & set(before.values())


def test_stop_ends_this_node_and_nothing_else(road: Road, tmp_path: Path) -> None:
    """With its daemon, and after its daemon was killed; a program beside lives on, the other nodes too."""
    lab = road.lab
    others = {node: children(lab, node) for node in (RELAY, CLOUD, "edge-2")}
    sleeper = lab.popen("edge-1", ["sleep", "1000"], tmp_path / "sleep.log")
    try:
        told = lab.exec("edge-1", ["edgelink", "stop"], capture=True, check=True, timeout_s=60)
        assert "stopped edge edge-1" in told.stdout
        assert leftovers(lab, "edge-1") == [f"pid {sleeper.pid}"]
        lab.start("edge-1")
        road.wait_ready("edge-1")
        lab.kill("edge-1")
        told = lab.exec("edge-1", ["edgelink", "stop"], capture=True, check=True, timeout_s=60)
        assert "Ray (" in told.stdout
        assert "easytier (pid" in told.stdout
        assert leftovers(lab, "edge-1") == [f"pid {sleeper.pid}"]
        again = lab.exec("edge-1", ["edgelink", "stop"], capture=True, check=True).stdout
        assert "pid" not in again
    finally:
        sleeper.kill()
        sleeper.wait()
    lab.start("edge-1")
    road.wait_ready("edge-1")
    assert {node: children(lab, node) for node in others} == others


def test_orphans_of_a_lost_state_directory_are_ended(road: Road) -> None:
    """The disk was replaced under a killed daemon: the next one, another node by its key, ends what is left over."""
    lab = road.lab
    others = {node: children(lab, node) for node in (RELAY, CLOUD, "edge-1")}
    orphans = children(lab, "edge-2")
    lab.kill("edge-2")
    for entry in lab.host_path("edge-2", Paths().state).iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    wait_until("the relay sees it gone", lambda: release(lab, "edge-2"))
    assert lab.pids("edge-2") >= set(orphans.values())
    lab.exec("edge-2", ["edgelink", "join", "-"], stdin=make_token(lab), capture=True, check=True)
    lab.start("edge-2")
    road.wait_ready("edge-2")
    log = lab.daemon_log("edge-2").read_text()
    assert "overlay.replaced" in log
    assert "ray.orphans_ended" in log
    assert not lab.pids("edge-2") & set(orphans.values())
    found = children(lab, "edge-2")
    assert sorted(found) == ["easytier-core", "raylet"]
    assert {node: children(lab, node) for node in others} == others
    nodes = lab.exec("edge-2", ["edgelink", "status", "--json"], capture=True, check=True).stdout
    assert json.loads(nodes)["ready"]


def release(lab: Lab, node: str) -> bool:
    return lab.exec(RELAY, ["edgelink", "registry", "release", node, "--now"], capture=True).returncode == 0


@pytest.mark.long
def test_the_stop_of_a_container_ends_its_node_in_order(road: Road, tmp_path: Path) -> None:
    """The daemon is the first process there: SIGTERM, and within Docker's ten seconds Ray has left the cluster."""
    lab = road.lab
    lab.stop("edge-2")
    log = tmp_path / "edge.log"
    container = lab.popen(
        "edge-2", ["unshare", "--pid", "--fork", "--mount-proc", "edgelink", "edge"], log, cwd=Path("/")
    )
    try:
        wait_until("the node is ready", lambda: road.status("edge-2"), 120, wanted=lambda status: status["ready"])
        (first,) = (pid for pid in lab.pids("edge-2") if innermost_pid(pid) == 1)
        started_s = SystemClock().monotonic_s()
        os.kill(first, signal.SIGTERM)
        assert container.wait(60) == 0, log.read_text()
        took_s = SystemClock().monotonic_s() - started_s
        print(f"container stopped after {took_s:.1f} s")
        assert took_s < DOCKERS_PATIENCE_S
    except BaseException:
        for pid in lab.pids("edge-2"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    wait_until("nothing is left", lambda: leftovers(lab, "edge-2"), 10, wanted=lambda left: left == [])
    wait_until("Ray lists one node less", lambda: alive_in_ray(lab), wanted=lambda count: count == 2)
    lab.start("edge-2")
    road.wait_ready("edge-2")


def innermost_pid(pid: int) -> int:
    """Its number in the innermost of its pid namespaces; 0 when it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    (numbers,) = re.findall(r"^NSpid:(.*)$", status, re.MULTILINE)
    return int(numbers.split()[-1])


def alive_in_ray(lab: Lab) -> int:
    script = "import ray; ray.init(log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"
    asked = ["edgelink", "exec", "--", "python", "-c", script]
    return int(lab.exec(CLOUD, asked, capture=True, check=True, cwd=Path("/")).stdout.split()[-1])


def test_leaving_leaves_logs_and_configuration(road: Road) -> None:
    """The other nodes notice nothing but the absence; the lease waits for the operator."""
    lab = road.lab
    others = {node: children(lab, node) for node in (RELAY, CLOUD, "edge-2")}
    rto = "/proc/sys/net/ipv4/tcp_rto_max_ms"
    hosts = ["cat", "/etc/hosts"]
    assert "edgelink.internal" in lab.exec("edge-1", hosts, capture=True, check=True).stdout
    told = lab.exec("edge-1", ["edgelink", "leave", "--yes"], capture=True, check=True, timeout_s=60).stdout
    assert "stopped edge edge-1" in told
    assert "edgelink registry release edge-1" in told
    assert leftovers(lab, "edge-1") == []
    assert {entry.name for entry in lab.host_path("edge-1", Paths().state).iterdir()} == {"logs"}
    assert list(lab.host_path("edge-1", Path("/var/lib/edgelink-ray")).iterdir()) == []
    assert (lab.host_path("edge-1", Path("/etc/edgelink")) / "edgelink.yaml").exists()
    assert "EdgeLink" not in lab.exec("edge-1", hosts, capture=True, check=True).stdout
    if Path(rto).exists():
        inside = lab.exec("edge-1", ["cat", rto], capture=True, check=True).stdout
        assert inside == lab.exec("edge-1-nat", ["cat", rto], capture=True, check=True).stdout
    assert {node: children(lab, node) for node in others} == others
    again = lab.exec("edge-1", ["edgelink", "leave", "--yes"], capture=True)
    assert_error(again, 2, "not a member", "edgelink join")
    relay = lab.exec(RELAY, ["edgelink", "leave", "--yes"], capture=True)
    assert_error(relay, 2, "registry", "edgelink stop")
    wait_until("the relay sees it gone", lambda: release(lab, "edge-1"))
