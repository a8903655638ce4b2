"""Real Ray on a head and an edge in namespaces: join, privacy, firewall, adoption, stop, busy ports, old versions."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from machines import wait_until
from ray_world import DEVICE, Machine, World

from edgelink.config import RayConfig

pytestmark = [pytest.mark.netns, pytest.mark.timeout(600)]
JOIN_S = 120
BOTH = [("10.99.0.1", 0, True), ("10.99.0.2", 1, True)]
AFTER_A_BURIAL = [("10.99.0.1", 0, True), ("10.99.0.2", 1, False), ("10.99.0.2", 1, True)]
PROBE = """
import json, socket, sys
address, ports = sys.argv[1], json.loads(sys.argv[2])
def answers(port):
    try:
        socket.create_connection((address, port), timeout=0.4).close()
        return True
    except OSError:
        return False
print(json.dumps([port for port in ports if answers(port)]))
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Path(sys.executable))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A head and an edge, which several tests use in order: those that look first, then those that end something."""
    made = World(tmp_path_factory.mktemp("cluster"), Path(sys.executable))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(cluster: World) -> tuple[Machine, Machine]:
    """Head and edge, both in Ray, whatever the test before has left."""
    return up(cluster)


def up(world: World) -> tuple[Machine, Machine]:
    """Head and edge, made and started as far as they are not."""
    while len(world.machines) < len(BOTH):
        world.add(("cloud", "edge-1")[len(world.machines)])
    head, edge = world.machines[:2]
    for machine in (head, edge):
        if machine.daemon is None or machine.daemon.poll() is not None:
            world.start_daemon(machine)
    for machine in (head, edge):
        wait_until(f"{machine.name} joins", machine.condition, JOIN_S, wanted=is_true)
    return head, edge


def is_true(condition: dict[str, Any]) -> bool:
    return bool(condition["status"] == "True")


def members(head: Machine) -> list[tuple[str, int, bool]]:
    try:
        values = json.loads((head.directory / "state/members.json").read_text())
    except (FileNotFoundError, ValueError):
        return []
    return sorted((value["ip"], value["rank"], value["alive"]) for value in values)


def listening_ports(machine: Machine) -> list[int]:
    """Ports that listen on more than loopback."""
    lines = machine.run("ss", "-Hltn").splitlines()
    found = {line.split()[3] for line in lines}
    return sorted({int(entry.rpartition(":")[2]) for entry in found if not entry.startswith("127.")})


def answering_from_lan(world: World, machine: Machine, ports: list[int]) -> list[int]:
    answer = world.from_lan([sys.executable, "-c", PROBE, str(machine.lan_ip), json.dumps(ports)])
    assert answer.returncode == 0, answer.stderr
    return list(json.loads(answer.stdout))


def test_edge_joins_with_ip_and_rank(pair: tuple[Machine, Machine]) -> None:
    """Ray lists both nodes alive under their overlay addresses and ranks; each runs with a clean environment."""
    head, edge = pair
    wait_until("both are members", lambda: members(head), wanted=lambda found: found == BOTH)
    for rank, machine in enumerate((head, edge)):
        raylet = machine.record()["raylet"]["pid"]
        environment = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{raylet}/environ").read_text().split("\0") if "=" in entry
        )
        assert environment["RLINF_NODE_RANK"] == str(rank)
        assert environment["RLINF_COMM_NET_DEVICES"] == DEVICE
        assert environment["ROS_DOMAIN_ID"] == str(rank), "as its own configuration says"
        assert "RAY_ADDRESS" not in environment
        assert Path(f"/proc/{raylet}/cwd").readlink() == Path("/")
        assert stat.S_IMODE((machine.directory / "state/logs/ray.log").stat().st_mode) == 0o600


def test_ray_token_stays_in_its_files(cluster: World, pair: tuple[Machine, Machine]) -> None:
    """Token authentication is on; the token is in 0600 files, never in an argv, an environment or a log."""
    head, edge = pair
    token = (head.directory / "state/ray_token").read_text()
    copies = [machine.directory / "run/ray/token" for machine in (head, edge)]
    for path in (head.directory / "state/ray_token", *copies):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == token
    assert secrets_seen(token, head, edge) == []
    planted = subprocess.Popen(head.command("sleep", "1000"), env={"PLANTED": token, "PATH": os.environ["PATH"]})
    try:
        wait_until("a planted token is found", lambda: secrets_seen(token, head, edge))
    finally:
        planted.kill()
        planted.wait()
    without = {"PATH": os.environ["PATH"], "RAY_AUTH_MODE": "disabled", "HOME": "/tmp"}
    helper = head.directory / "run/ray/helper.py"
    argv = head.command("timeout", "60", cluster.python, helper, "nodes", "--address", "10.99.0.1:6379")
    assert subprocess.run(argv, env=without, capture_output=True, check=False, cwd="/").returncode != 0
    with_token = without | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(head.directory / "run/ray/token")}
    assert subprocess.run(argv, env=with_token, capture_output=True, check=False, cwd="/").returncode == 0


def secrets_seen(token: str, *machines: Machine) -> list[str]:
    """Where a secret shows, in any of its spellings."""
    spellings = {token.encode(), base64.b64encode(token.encode()).rstrip(b"="), quote(token).encode()}
    texts: dict[str, bytes] = {}
    for machine in machines:
        for pid in machine.pids():
            for name in ("cmdline", "environ"):
                try:
                    texts[f"{machine.name} {pid} {name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
                except OSError:
                    continue
        for path in (machine.directory / "state/logs/ray.log", machine.directory / "daemon.log", machine.output):
            texts[str(path)] = path.read_bytes()
    texts["spec"] = next(iter(machines)).directory.parent.joinpath("cluster_spec.json").read_bytes()
    return [where for where, text in texts.items() if any(spelling in text for spelling in spellings)]


def test_killed_raylet_and_new_head_are_followed(cluster: World, pair: tuple[Machine, Machine]) -> None:
    """A killed raylet is started again; a new life of the head makes the edge join anew."""
    head, edge = pair
    old = edge.record()["raylet"]["pid"]
    os.kill(old, signal.SIGKILL)
    wait_until(
        "rejoined",
        lambda: (edge.condition(), edge.record_if_any()),
        JOIN_S,
        wanted=lambda seen: is_true(seen[0]) and seen[1].get("raylet", {}).get("pid") not in (None, old),
    )
    wait_until("the dead one is listed as dead", lambda: members(head), wanted=lambda found: found == AFTER_A_BURIAL)
    incarnation = head.record()["incarnation"]
    os.kill(head.record()["gcs"]["pid"], signal.SIGKILL)
    new = wait_until(
        "a new head",
        lambda: json.loads(cluster.spec_file.read_text())["incarnation"],
        JOIN_S,
        wanted=lambda found: found != incarnation,
    )
    wait_until(
        "edge follows",
        lambda: (edge.condition(), edge.record_if_any().get("cluster_id")),
        JOIN_S,
        wanted=lambda seen: is_true(seen[0]) and seen[1] == new,
    )
    wait_until(
        "the edge is a member of the new cluster",
        lambda: members(head),
        wanted=lambda found: ("10.99.0.2", 1, True) in found,
    )


def test_killed_daemons_are_succeeded_without_touching_ray(cluster: World, pair: tuple[Machine, Machine]) -> None:
    """After SIGKILL of the daemons Ray runs on; the next ones adopt it, the head with the same incarnation."""
    head, edge = pair
    before = [machine.record() for machine in (head, edge)]
    spec = cluster.spec_file.read_text()
    for machine in (head, edge):
        machine.kill_daemon()
    time.sleep(1)
    assert all(Path(f"/proc/{record['raylet']['pid']}").exists() for record in before)
    for machine in (head, edge):
        cluster.start_daemon(machine)
    for machine in (head, edge):
        wait_until(f"{machine.name} is adopted", machine.condition, wanted=is_true)
    assert [machine.record() for machine in (head, edge)] == before
    wait_until("the same spec is published", cluster.spec_file.read_text, wanted=lambda text: text == spec)
    edge.stop_daemon()
    assert edge.pids() == set()


def test_nothing_of_ray_answers_beside_the_overlay(cluster: World, pair: tuple[Machine, Machine]) -> None:
    """From the LAN no port of Ray answers; with the table removed they do; the daemon puts the table back."""
    for machine in pair:
        ports = listening_ports(machine)
        assert {20001, 20002} <= set(ports)
        assert answering_from_lan(cluster, machine, ports) == []
        assert machine.daemon is not None
        machine.daemon.send_signal(signal.SIGSTOP)  # else the table is back before anybody has asked
        machine.run("nft", "delete", "table", "inet", "edgelink")
        assert {20001, 20002} <= set(answering_from_lan(cluster, machine, ports)), "the probe itself works"
        machine.daemon.send_signal(signal.SIGCONT)
        wait_until(
            "the table is back",
            lambda m=machine: m.run("nft", "list", "tables"),
            wanted=lambda tables: "table inet edgelink" in tables,
        )
        assert answering_from_lan(cluster, machine, ports) == []
        machine.stop_daemon()
        assert "edgelink" not in machine.run("nft", "list", "tables")


def test_stop_ends_only_ours(cluster: World, pair: tuple[Machine, Machine]) -> None:
    """Stopping a node ends all of its Ray, raylet first, and not the Ray that somebody else runs on the machine."""
    head, edge = pair
    stranger = cluster.add("stranger")
    by_hand = ["ray.scripts.scripts", "start", "--head", "--num-cpus=1", f"--node-ip-address={stranger.overlay_ip}"]
    env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "RAY_AUTH_MODE": "disabled"}
    argv = stranger.command(cluster.python, "-m", *by_hand, "--object-store-memory=100000000")
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, cwd="/")
    theirs = {stranger.names()[name] for name in ("raylet", "gcs_server")}
    assert {"raylet", "gcs_server"} <= set(head.names())
    edge.stop_daemon()
    assert edge.pids() == set()
    wait_until(
        "the edge has said goodbye", lambda: members(head), wanted=lambda found: ("10.99.0.2", 1, False) in found
    )
    head.stop_daemon()
    assert head.pids() == set()
    assert theirs <= stranger.pids()


def test_busy_port_is_named_before_anything_starts(world: World) -> None:
    """A taken port 6379 is reported with its holder and the key that moves it; nothing is started."""
    head = world.add("cloud")
    hold = "import socket; s = socket.create_server(('0.0.0.0', 6379)); print(flush=True); input()"
    with subprocess.Popen(
        head.command(sys.executable, "-c", hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        world.start_daemon(head)
        wait_until("the port is reported", head.condition, wanted=lambda seen: seen["reason"] == "PortBusy")
        message = head.condition()["message"]
        assert "6379 (ray.port)" in message
        assert f"pid {holder.pid}" in message
        assert not {"raylet", "gcs_server"} & set(head.names())
        holder.kill()
    wait_until("it starts once the port is free", head.condition, JOIN_S, wanted=is_true)


@pytest.fixture(scope="session")
def old_ray() -> Path:
    """An interpreter with Ray 2.48.0, the last without labels and token authentication; made once, then cached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgelink"
    home, partial = cache / "ray-2.48.0", cache / "ray-2.48.0.partial"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "ray-2.48.0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker, or another checkout's tests, may be making it
        if not (home / "bin/python").exists():
            for left in (home, partial):
                shutil.rmtree(left, ignore_errors=True)
            uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
            assert uv is not None
            subprocess.run([uv, "venv", "--relocatable", "--python", sys.executable, partial], check=True)
            # click 8.2 and later break the command line of this Ray.
            packages = ["ray==2.48.0", "click<8.2"]
            subprocess.run([uv, "pip", "install", "--python", partial / "bin/python", *packages], check=True)
            partial.rename(home)
    return home / "bin/python"


@pytest.mark.timeout(600)  # the first use downloads it
def test_old_ray_works_without_labels_and_tokens(tmp_path: Path, old_ray: Path) -> None:
    """Head, edge and helper work with Ray 2.48.0 as well."""
    world = World(tmp_path, old_ray)
    try:
        head, edge = up(world)
        wait_until("both are members", lambda: members(head), wanted=lambda found: found == BOTH)
        spec = json.loads(world.spec_file.read_text())
        assert spec["ray_version"] == "2.48.0"
        assert not spec["token_auth"]
        os.kill(edge.record()["raylet"]["pid"], signal.SIGKILL)
        wait_until("buried, and back", lambda: members(head), JOIN_S, wanted=lambda found: found == AFTER_A_BURIAL)
        for machine in (edge, head):
            machine.stop_daemon()
            assert machine.pids() == set()
    finally:
        world.close()


def test_other_versions_are_refused_by_name(world: World, old_ray: Path) -> None:
    """An edge with another Ray is told both versions, and starts nothing."""
    head, edge = world.add("cloud"), world.add("edge-1")
    world.start_daemon(head)
    world.start_daemon(edge, RAY__PYTHON=str(old_ray))
    wait_until(
        "the mismatch is reported", edge.condition, JOIN_S, wanted=lambda seen: seen["reason"] == "VersionMismatch"
    )
    assert "2.48.0" in edge.condition()["message"]
    assert edge.names().get("raylet") is None


# Python runs it before anything else: the agent, and nothing else of Ray, waits until it may go on.
_HOLD_AGENT = """
import pathlib, sys, time
if any(word.endswith("dashboard/agent.py") for word in sys.orig_argv):
    while not pathlib.Path({release!r}).exists():
        time.sleep(0.1)
"""


def test_an_agent_that_needs_longer_than_ray_waits_does_not_end_ray(world: World, tmp_path: Path) -> None:
    """Ray lists the node while its agent is still held back: a raylet alone would abort after 15 s."""
    release = tmp_path / "release"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_HOLD_AGENT.format(release=str(release)))
    head = world.add("cloud")
    world.start_daemon(head, RAY__ENVIRONMENT=json.dumps({"PYTHONPATH": str(tmp_path / "site")}))
    wait_until("it is listed", head.condition, JOIN_S, wanted=is_true)
    record = head.record()
    (port_file,) = (tmp_path / "tmp-cloud/own/sessions").glob("session_2*/dashboard_agent_listen_port_*")
    assert port_file.read_text() == str(RayConfig().dashboard_agent_listen_port), "as EdgeLink has pinned it"
    port_file.unlink()
    release.touch()
    wait_until("the agent has started at last", port_file.exists)
    assert head.record() == record
    assert is_true(head.condition())
    assert "TooBusyForRay" not in head.output.read_text()
