"""The whole road in one lab: relay, head, two edges behind NAT, real EasyTier, Mosquitto, Ray and torch.

One lab serves all tests of this file, in order; each leaves every node Ready.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import port_scan
import pytest
import secrets_search
import yaml
from conftest import MakeLab
from faults import children, drop_sent
from machines import assert_error, brought_up_on, leases, overlay_ip, revive, wait_until
from training_run import find_learner

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road, demo_cluster, write_demo_cluster
from edgelink.process.port_ranges import merged

EDGES = ("edge-1", "edge-2")
NODES = (RELAY, CLOUD, *EDGES)
EXEC_REPLAYER = Path(__file__).with_name("exec_replayer.py")

IS_SOAK = os.environ.get("EDGELINK_SOAK") == "1"
ORDERS = (NODES, pytest.param(tuple(reversed(NODES)), marks=pytest.mark.long))
SHUFFLED = tuple(tuple(random.Random(seed).sample(NODES, len(NODES))) for seed in (3, 7))

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), len(EDGES))


@pytest.fixture
def road(brought_up: Road) -> Road:
    """Every node Ready, whatever the test before has left."""
    return revive(brought_up, NODES)


def listening_ports(lab: Lab, node: str) -> set[int]:
    """TCP ports that anything in the node listens on, other than on loopback or the overlay address alone."""
    rows = lab.exec(node, ["cat", "/proc/net/tcp"], capture=True, check=True).stdout.splitlines()[1:]
    ports = set()
    for row in rows:
        local, state = row.split()[1], row.split()[3]
        address, port = local.split(":")
        if state == "0A" and address == "00000000":
            ports.add(int(port, 16))
    rows6 = lab.exec(node, ["cat", "/proc/net/tcp6"], capture=True).stdout.splitlines()[1:]
    return ports | {
        int(r.split()[1].split(":")[1], 16) for r in rows6 if r.split()[3] == "0A" and set(r.split()[1][:32]) == {"0"}
    }


_ANSWERING = """
import errno, select, socket, sys, time
address, *ports = sys.argv[1:]
waiting, found = {}, []
for port in map(int, ports):
    probe = socket.socket()
    probe.setblocking(False)
    if probe.connect_ex((address, port)) in (0, errno.EINPROGRESS):
        waiting[probe] = port
end = time.monotonic() + 2
while waiting and time.monotonic() < end:
    _, ready, _ = select.select([], list(waiting), [], 0.2)
    for probe in ready:
        if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            found.append(waiting[probe])
        del waiting[probe]
print(*found)
"""


def answering(lab: Lab, source: str, address: str, ports: set[int]) -> set[int]:
    """Which of ``ports`` accept a connection from ``source``."""
    result = lab.exec(source, ["python", "-c", _ANSWERING, address, *map(str, sorted(ports))], capture=True, check=True)
    return {int(port) for port in result.stdout.split()}


def test_every_node_is_ready_and_says_who_it_is(road: Road) -> None:
    """Addresses and ranks as granted; `edgelink status` ends with 0, by hand as by script."""
    assert leases(road, NODES) == {
        RELAY: ("10.10.0.1", None),
        CLOUD: ("10.10.0.2", 0),
        "edge-1": ("10.10.0.3", 1),
        "edge-2": ("10.10.0.4", 2),
    }
    for node in NODES:
        result = road.lab.exec(node, ["edgelink", "status", "--json"], capture=True, check=True)
        assert json.loads(result.stdout)["ready"] is True


def test_overlay_addresses_have_names_without_dns(road: Road) -> None:
    """On head and edges, also in the way in which torch asks: as IPv6; the lab's hosts files are mounts."""
    script = "import socket, sys; print(*(socket.getnameinfo((a, 0), 0)[0] for a in sys.argv[1:]))"
    addresses = {"10.10.0.1": RELAY, "10.10.0.2": CLOUD, "10.10.0.3": "edge-1", "10.10.0.4": "edge-2"}
    asked = [*addresses, *(f"::ffff:{address}" for address in addresses)]
    for node in (CLOUD, *EDGES):
        wait_until(  # a node writes them every two seconds, Ready or not
            f"{node} has the names",
            lambda node=node: road.lab.exec(
                node, ["/usr/bin/python3", "-c", script, *asked], capture=True, check=True, cwd=Path("/")
            ).stdout.split(),
            30,
            wanted=lambda names: names == [f"{name}.edgelink.internal" for name in addresses.values()] * 2,
        )
        others = {name: address for address, name in addresses.items() if name != node}
        wait_until(
            f"{node} has the short names of the others",
            lambda node=node, others=others: road.lab.exec(node, ["getent", "ahostsv4", *others], capture=True).stdout,
            60,
            wanted=lambda told, others=others: (
                {(words[0], words[2]) for line in told.splitlines() if len(words := line.split()) == 3}
                >= {(address, f"{name}.edgelink.internal") for name, address in others.items()}
            ),
        )


def test_rays_own_commands_work_on_every_node(road: Road) -> None:
    """`edgelink exec -- ray status`, and `edgelink env` for a shell."""

    def nodes_shown(node: str, *argv: str) -> int:
        return road.lab.exec(node, argv, capture=True, check=True).stdout.count(" 1 node_")

    ways = {
        "exec": ("edgelink", "exec", "--", "ray", "status"),
        "env": ("sh", "-c", 'eval "$(edgelink env)" && exec ray status'),
    }
    for node in (CLOUD, *EDGES):
        for way, argv in ways.items():  # Ray's own summary lags some seconds behind its node table
            wait_until(
                f"{node}, {way}: three nodes",
                lambda node=node, argv=argv: nodes_shown(node, *argv),
                wanted=lambda count: count == 3,
            )


@contextmanager
def without_table(lab: Lab, node: str, table: str) -> Iterator[None]:
    """The node without one of its tables, its daemon held; when it goes on, it puts the table back."""
    daemon = lab.daemon(node)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        lab.exec(node, ["nft", "delete", "table", "inet", table], check=True)
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    show = ["nft", "list", "table", "inet", table]
    # Well below the half minute after which it would be looked at without a word of the kernel's.
    wait_until(f"{node}: table {table} is back", lambda: lab.exec(node, show, capture=True).returncode == 0, 10)


def test_nothing_of_ray_answers_outside_the_overlay(road: Road) -> None:
    """Not from the Internet, not from a neighbour on the node's LAN; without the firewall it would."""
    lab = road.lab
    for node, lan in ((CLOUD, "192.168.10.2"), ("edge-1", "192.168.11.2"), ("edge-2", "192.168.12.2")):
        ports = listening_ports(lab, node) - {11010}  # EasyTier's own listener is meant to be reached
        assert len(ports) >= 2, "Ray listens on every interface: else this test shows nothing"
        assert answering(lab, f"{node}-nat", lan, ports) == set()
        assert answering(lab, "internet", lan, ports) == set()
        with without_table(lab, node, "edgelink"):
            assert answering(lab, f"{node}-nat", lan, ports) != set(), "the probe itself works"
    for public in ("198.51.100.2", "198.51.100.6", "198.51.100.10"):
        assert answering(lab, "internet", public, {6379, 8265, 20001, 20002}) == set()


_SSHD = """
import ctypes, socket, sys
ctypes.CDLL(None).prctl(15, b"sshd")
end = socket.create_server((sys.argv[1], 22))
print("listening", flush=True)
while True:
    end.accept()
"""


@pytest.mark.parametrize(
    ("node", "who", "may_ssh"),
    [
        pytest.param(RELAY, "relay", CLOUD, id="relay", marks=pytest.mark.long),
        pytest.param(CLOUD, "head", RELAY, id="head"),
        pytest.param(EDGES[1], "edges", CLOUD, id="edge", marks=pytest.mark.long),
    ],
)
def test_members_reach_what_is_documented(road: Road, tmp_path: Path, node: str, who: str, may_ssh: str) -> None:
    """All ports of TCP and UDP over the overlay, as root of an edge, whether something listens there or not."""
    lab = road.lab
    here, there = ((name, overlay_ip(lab, name)) for name in (EDGES[0], node))
    sshd = lab.popen(node, ["python", "-c", _SSHD, there[1]], tmp_path / "sshd.log")
    try:
        wait_until("sshd is found", lambda: answering(lab, may_ssh, there[1], {22}), 60)
        begun_s = time.monotonic()
        with ThreadPoolExecutor() as threads:
            found = {kind: threads.submit(port_scan.ports_let_in, lab, here, there, kind) for kind in ("tcp", "udp")}
        print(f"all ports in {time.monotonic() - begun_s:.1f} s")
        for protocol, scan in found.items():
            documented = port_scan.documented_inside(who, protocol)
            assert documented
            assert merged((port, port) for port in scan.result()) == documented
    finally:
        sshd.kill()
        sshd.wait()
    sockets = {entry.port for entry in port_scan.udp_sockets(lab, node)}
    assert port_scan.answering_udp_ports(lab, EDGES[0], there[1], sockets) == set(), "who speaks no EasyTier"
    with without_table(lab, node, "edgelink_easytier"):
        assert port_scan.ports_let_in(lab, here, there, "udp", some={0, 22}) == {0, 22}, "the probe itself works"


def test_easytiers_rpc_tells_the_secret_to_root_only(road: Road) -> None:
    """On every node, the relay too: EasyTier gives its configuration to whoever asks on its RPC port."""
    lab = road.lab
    probe = ["/usr/bin/python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 15888), 2)"]
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *probe]
    for node in NODES:
        assert lab.exec(node, probe, capture=True, cwd=Path("/")).returncode == 0
        assert lab.exec(node, as_nobody, capture=True, cwd=Path("/")).returncode != 0
        with without_table(lab, node, "edgelink_easytier"):
            assert lab.exec(node, as_nobody, capture=True, cwd=Path("/")).returncode == 0, "the probe itself works"


def test_secrets_stay_where_they_belong(road: Road) -> None:
    """No secret in any argv, environment, log, JSON output or retained message; a planted one is found."""
    lab = road.lab
    token = lab.exec(RELAY, ["edgelink", "token", "create"], capture=True, check=True).stdout.strip()
    outputs = [
        (f"{node}: status --json", lab.exec(node, ["edgelink", "status", "--json"], capture=True).stdout.encode())
        for node in NODES
    ]
    outputs += [
        (f"{node}: env", lab.exec(node, ["edgelink", "env"], capture=True, check=True).stdout.encode())
        for node in (CLOUD, *EDGES)
    ]
    outputs.append(
        ("token list", lab.exec(RELAY, ["edgelink", "token", "list", "--json"], capture=True).stdout.encode())
    )
    secrets = secrets_search.secrets_of(lab, NODES, [token])
    everywhere = [*secrets_search.places(lab), *secrets_search.retained_messages(lab), *outputs]
    assert sum(place.startswith("topic ") for place, _ in everywhere) >= len(NODES)
    assert any("easytier.log" in place for place, _ in everywhere)
    assert secrets_search.find(secrets, everywhere) == []
    planted = lab.popen(
        "edge-1", ["python", "-c", "import signal; signal.pause()", secrets["network secret"]], Path(os.devnull)
    )
    try:
        wait_until(  # it starts outside, and enters the node
            "a planted secret is found",
            lambda: secrets_search.find(secrets, secrets_search.places(lab)),
            wanted=lambda found: any(f"network secret in edge-1: cmdline of {planted.pid}" in place for place in found),
        )
        encoded = base64.b64encode(b"a log line with " + secrets["Ray token"].encode())
        assert secrets_search.find(secrets, [("a log", encoded)]) == ["Ray token in a log"]
    finally:
        planted.kill()
        planted.wait()


@pytest.mark.parametrize("order", [*ORDERS, *(SHUFFLED if IS_SOAK else ())], ids="-".join)
def test_killed_daemons_come_back_to_the_same_leases_and_children(road: Road, order: tuple[str, ...]) -> None:
    """SIGKILL of every daemon, restarted in any order: same IPs, same ranks, same EasyTier and raylet pids."""
    before = leases(road, NODES)
    pids = {node: children(road.lab, node) for node in NODES}
    for node in order:
        road.lab.kill(node)
    for node in order:
        road.lab.start(node)
    for node in order:
        road.wait_ready(node)
    assert leases(road, NODES) == before
    assert {node: children(road.lab, node) for node in NODES} == pids


def test_the_head_runs_programs_on_its_edges(road: Road, tmp_path: Path) -> None:
    """As a shell there would, on several nodes at once; nobody else may ask, and a request is good once."""
    lab, ask = road.lab, ["edgelink", "exec"]
    found = lab.exec(CLOUD, [*ask, EDGES[0], "--", "sh", "-c", "hostname; echo no >&2; exit 7"], capture=True)
    assert (found.stdout, found.stderr, found.returncode) == (f"{EDGES[0]}\n", "no\n", 7)
    joined = 'import os; print(os.environ["RAY_ADDRESS"])'
    found = lab.exec(CLOUD, [*ask, EDGES[0], "--", "python", "-c", joined], capture=True)
    assert found.stdout.strip() == f"{overlay_ip(lab, CLOUD)}:6379", found.stderr
    found = lab.exec(CLOUD, [*ask, "-i", EDGES[0], "--", "md5sum"], stdin="told\n" * 1000, capture=True)
    assert found.stdout.split()[0] == hashlib.md5(b"told\n" * 1000, usedforsecurity=False).hexdigest()
    found = lab.exec(CLOUD, [*ask, *EDGES, "--", "sh", "-c", 'hostname; [ "$(hostname)" = edge-1 ]'], capture=True)
    assert sorted(found.stdout.splitlines()) == [f"{edge} | {edge}" for edge in EDGES]
    assert found.returncode == 1

    log = tmp_path / "asked.log"
    asked = lab.popen(
        CLOUD, [*ask, EDGES[0], "--", "sh", "-c", "trap 'echo int; exit 9' INT; echo up; sleep 60 & wait"], log
    )
    wait_until("the program runs", log.read_text, wanted=lambda text: "up" in text)
    asked.send_signal(signal.SIGINT)
    assert asked.wait(30) == 9
    assert "int" in log.read_text()

    for node, target in ((EDGES[0], EDGES[1]), (EDGES[0], CLOUD)):
        found = lab.exec(node, [*ask, target, "--", "id"], capture=True)
        assert (found.stdout, found.returncode) == ("", 1)
        assert_error(found, 1, "ExecRefused", target)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    found = lab.exec(CLOUD, [*as_nobody, *ask, EDGES[0], "--", "id"], capture=True, cwd=Path("/"))
    assert_error(found, 2, "PermissionDenied")
    assert found.stdout == ""
    argv = ["python", str(EXEC_REPLAYER), str(Paths().node_socket), *EDGES]
    found = lab.exec(CLOUD, argv, capture=True)
    assert json.loads(found.stdout) == {"first": True, "again": False, "elsewhere": False}, found.stderr
    told = lab.daemon_log(EDGES[0]).read_text()
    assert "root on cloud" in told


def test_a_run_is_the_callers_own(road: Road, tmp_path: Path) -> None:
    """Directory, output, exit code and environment of CMD are as promised; a second run is refused meanwhile."""
    lab = road.lab
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", len(EDGES))
    script = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)})); raise SystemExit(7)"
    result = lab.exec(
        CLOUD,
        ["edgelink", "run", "--cluster", str(cluster), "--", "python", "-c", script],
        capture=True,
        cwd=tmp_path,
        env={"RLINF_NODE_RANK": "9", "RAY_ADDRESS": "wrong:1", "WANDB_PROJECT": "mine"},
    )
    assert result.returncode == 7, result.stderr
    assert all(part in result.stderr for part in ("preflight: 3 nodes", "gloo", "et0"))
    told = json.loads(result.stdout)
    assert told["cwd"] == str(tmp_path)
    assert told["env"]["RLINF_NODE_RANK"] == "0"
    assert told["env"]["RLINF_COMM_NET_DEVICES"] == "et0"
    assert told["env"]["RAY_ADDRESS"] == "10.10.0.2:6379"
    assert told["env"]["WANDB_PROJECT"] == "mine"
    assert not Path(told["env"]["EDGELINK_PLACEMENT"]).exists(), "the placement is the run's own, and goes with it"

    def driver_runs() -> bool:
        status = road.status(CLOUD)
        assert status is not None
        return any(c["type"] == "DriverRunning" and c["status"] == "True" for c in status["conditions"])

    sleeping = ["edgelink", "run", "--no-preflight", "--", "sleep", "600"]
    holder = lab.popen(CLOUD, sleeping, tmp_path / "holder.log")
    try:
        wait_until("the first run is granted", driver_runs)
        second = lab.exec(CLOUD, ["edgelink", "run", "--", "true"], capture=True)
        assert_error(second, 75, "RunInProgress")
        holder.send_signal(signal.SIGINT)
        assert holder.wait(60) == 130, (tmp_path / "holder.log").read_text()
        wait_until("the lock is released", lambda: not driver_runs())
        holder = lab.popen(CLOUD, sleeping, tmp_path / "holder.log")
        wait_until("the run is granted", driver_runs)
    finally:
        holder.kill()
        holder.wait()
    wait_until("a killed caller leaves no lock", lambda: not driver_runs())


def test_nodes_that_cannot_talk_are_named_before_a_run(road: Road) -> None:
    """A one-way block, an MTU black hole and a wrong device, each with its nodes and direction; CMD is not started."""
    lab = road.lab
    ips = {node: overlay_ip for node, (overlay_ip, _) in leases(road, NODES).items()}
    with (
        drop_sent(lab, EDGES[0], f"ip daddr {ips[EDGES[1]]}"),
        drop_sent(lab, EDGES[1], f"ip daddr {ips[CLOUD]} meta length > 1000"),
    ):
        refused = run_true(road, "--env", "GLOO_SOCKET_IFNAME=wrong0")
    assert refused.returncode == 78, refused.stderr
    told = refused.stderr
    assert f"one-way block: {EDGES[0]} ({ips[EDGES[0]]}) → {EDGES[1]} ({ips[EDGES[1]]})" in told
    assert f"MTU black hole: {EDGES[1]} ({ips[EDGES[1]]}) → {CLOUD} ({ips[CLOUD]})" in told
    assert any("wrong0" in line and "et0" in line for line in told.splitlines())
    assert told.count("one-way") == told.count("black hole") == told.count("wrong device") == 1
    assert told.endswith("reason: PreflightFailed\n")

    # Ray itself brings no answer then: what the head sees and hears of the node tells.
    whole, large = (f"ip daddr {ips[edge]}" for edge in EDGES)
    with drop_sent(lab, CLOUD, whole, f"{large} meta length > 1000"):
        refused = run_true(road)
    assert refused.returncode == 75, refused.stderr
    assert f"one-way block: {CLOUD} ({ips[CLOUD]}) → {EDGES[0]} ({ips[EDGES[0]]})" in refused.stderr, refused.stderr
    assert f"MTU black hole: {CLOUD} ({ips[CLOUD]}) → {EDGES[1]} ({ips[EDGES[1]]})" in refused.stderr


def test_edges_answer_each_other_for_a_run_only(road: Road, tmp_path: Path) -> None:
    """With `access: per-run`. The check in front of the run gets through, and head and edges need nothing else."""
    lab, raylet = road.lab, {20001}
    ips = {node: overlay_ip for node, (overlay_ip, _) in leases(road, NODES).items()}
    file, log = lab.host_path(CLOUD, Path("/etc/edgelink/edgelink.yaml")), tmp_path / "run.log"
    before = file.read_text()

    def reached() -> list[bool]:
        return [answering(lab, one, ips[other], raylet) == raylet for one, other in (EDGES, EDGES[::-1])]

    def configure(text: str) -> None:
        file.write_text(text)
        lab.kill(CLOUD)
        lab.start(CLOUD)

    configure(yaml.safe_dump({**yaml.safe_load(before), "access": "per-run"}))
    try:
        revive(road, NODES)
        lab.exec(CLOUD, ["edgelink", "run", "--no-preflight", "--", "true"], capture=True, check=True)
        wait_until("the edges are closed", reached, 10, wanted=lambda found: found == [False, False])
        assert all(answering(lab, CLOUD, ips[edge], raylet) == raylet for edge in EDGES)
        holder = lab.popen(CLOUD, ["edgelink", "run", "--", "sleep", "600"], log)
        try:
            wait_until("they have met", log.read_text, wanted=lambda text: "preflight: 3 nodes" in text)
            assert reached() == [True, True]
        finally:
            holder.kill()
            holder.wait()
        wait_until("the edges are closed again", reached, 10, wanted=lambda found: found == [False, False])
    finally:
        configure(before)
    wait_until("the edges are open", reached, wanted=lambda found: found == [True, True])


def test_a_missing_path_is_named_with_its_nodes(road: Road, tmp_path: Path) -> None:
    """Asked for by option, on the nodes of a component only, or named by the configuration; CMD is not started."""
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", len(EDGES))
    config = yaml.safe_load(cluster.read_text()) | {"actor": {"model": {"model_path": "/no/model"}}}
    cluster.write_text(yaml.safe_dump(config))
    refused = run_true(road, "--cluster", str(cluster), "--require-path", "env:/no/assets", "--require-path", "/etc")
    assert refused.returncode == 78, refused.stderr
    assert f"--require-path /no/assets: missing on {EDGES[0]} (No such file or directory), {EDGES[1]}" in refused.stderr
    assert f"actor.model.model_path: /no/model: missing on {CLOUD} (No such file or directory)" in refused.stderr
    assert "/etc" not in refused.stderr
    assert refused.stderr.endswith("reason: PreflightFailed\n")


def test_devices_that_nobody_has_are_refused_by_name(road: Road, tmp_path: Path) -> None:
    """Ray itself is asked, before the driver starts: verl would wait for ever."""
    ran = tmp_path / "ran"
    driver = ["touch", str(ran), "trainer.nnodes=2", "trainer.n_gpus_per_node=1"]
    refused = road.lab.exec(CLOUD, ["edgelink", "run", "--framework", "verl", "--", *driver], capture=True)
    assert refused.returncode == 78, refused.stderr
    has_none = "; ".join(f"{name} no GPU" for name in (CLOUD, *EDGES))
    assert f"0 of 2: {has_none}" in refused.stderr
    assert not ran.exists()


def run_true(road: Road, *options: str) -> subprocess.CompletedProcess[str]:
    """`edgelink run … -- true`, which says by its output whether it ran."""
    result = road.lab.exec(CLOUD, ["edgelink", "run", *options, "--", "echo", "ran"], capture=True)
    assert result.stdout == ""
    return result


def test_a_plan_of_the_living_cluster_is_that_of_a_run(road: Road, tmp_path: Path) -> None:
    """`plan --live` says beforehand, to everybody on the head, what the driver of a run then finds in its file."""
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", len(EDGES))
    planned = road.lab.exec(CLOUD, ["edgelink", "plan", str(cluster), "--live", "--json"], capture=True)
    assert planned.returncode == 0, planned.stderr
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), "--", "sh", "-c", "cat $EDGELINK_PLACEMENT"]
    ran = road.lab.exec(CLOUD, run, capture=True)
    assert ran.returncode == 0, ran.stderr
    plan, placement = json.loads(planned.stdout), json.loads(ran.stdout)
    assert plan.pop("ok")
    assert plan == placement
    assert [node["hostname"] for node in plan["nodes"]] == [CLOUD, *EDGES]

    table = road.lab.exec(CLOUD, ["edgelink", "plan", str(cluster), "--live"], capture=True)
    assert re.search(rf"^2 +{EDGES[1]} \(10\.10\.0\.\d+\) .*\benv 1", table.stdout, re.MULTILINE)
    elsewhere = road.lab.exec(EDGES[0], ["edgelink", "plan", str(cluster), "--live"], capture=True)
    assert (elsewhere.returncode, "reason: NotTheHead" in elsewhere.stderr) == (2, True)


def test_other_code_and_a_missing_interpreter_are_named_with_their_node(road: Road, tmp_path: Path) -> None:
    """What workers would import and be started with, on each machine as it is there; who differs is named alone."""
    lab, different, ran = road.lab, EDGES[1], tmp_path / "ran"
    package, venv, elsewhere = tmp_path / "src/rlinf", tmp_path / "venv", tmp_path / "elsewhere"
    for directory in (package, venv, elsewhere):
        directory.mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("worker.py", "x = 1")):
        (package / name).write_text(text)
    (elsewhere / "__init__.py").touch()
    (elsewhere / "worker.py").write_text("x = 2")
    (venv / "python").symlink_to(sys.executable)
    cluster, file = demo_cluster(len(EDGES)), tmp_path / "cluster.yaml"
    cluster["cluster"]["node_groups"][1]["env_configs"] = [
        {"node_ranks": "1-2", "python_interpreter_path": str(venv / "python")}
    ]
    file.write_text(json.dumps(cluster))
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(file), "--framework", "rlinf", "--", "touch", str(ran)]

    for hidden in (package, venv):
        lab.exec(different, ["mount", "--bind", str(elsewhere), str(hidden)], check=True)
    try:
        result = lab.exec(CLOUD, run, capture=True, env={"PYTHONPATH": str(package.parent)})
    finally:
        lab.exec(different, ["umount", str(package), str(venv)], check=True)

    assert result.returncode == 78, result.stderr
    (warning,) = (line for line in result.stderr.splitlines() if "warning: rlinf on" in line)
    assert all(part in warning for part in (f"rlinf on {different}: {package} ", "1 with other content (worker.py)"))
    wanted = f"cluster.node_groups[1].env_configs[0].python_interpreter_path: '{venv / 'python'}'"
    assert f"{wanted}: interpreter missing on node" in result.stderr
    assert f"node 2, {different}: No such file" in result.stderr
    assert result.stderr.endswith("reason: PlacementInvalid\n")
    assert "on node 1" not in result.stderr
    assert not ran.exists()


def test_learning_needs_the_overlay_and_robots_need_nobody(road: Road, tmp_path: Path) -> None:
    """Learner stopped for 10 s: the robot ticks on. et0 cut: learning stalls. Both mended: it goes on to its end."""
    lab = road.lab
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", len(EDGES))
    progress, report, ticks = tmp_path / "progress", tmp_path / "report.json", tmp_path / "ticks"
    log = tmp_path / "train.log"
    train = ["edgelink", "train", "run.iterations=14", "--progress", str(progress), "--report", str(report)]
    run = lab.popen(
        CLOUD,
        ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), "--", *train, f"control.tick_file={ticks}"],
        log,
    )

    def iterations() -> int:
        assert run.poll() is None or run.returncode == 0, log.read_text()
        return len(progress.read_text().splitlines()) if progress.exists() else 0

    def tick() -> int:
        return int(json.loads(ticks.read_text())["ticks"])

    try:
        wait_until("training is under way", iterations, 180, wanted=lambda count: count >= 2)

        learner = find_learner(lab)
        os.kill(learner, signal.SIGSTOP)
        try:
            settled_at, ticks_before = iterations_when_settled(iterations), tick()
            time.sleep(10)  # the bar's own ten seconds, not a synchronisation
            assert tick() - ticks_before > 100, "a robot at 100 Hz did not tick on while the learner was stopped"
            assert iterations() == settled_at
        finally:
            os.kill(learner, signal.SIGCONT)
        wait_until("learning goes on", iterations, wanted=lambda count: count > settled_at)

        lab.exec(
            CLOUD,
            [
                "nft",
                "add table inet cut; add chain inet cut in { type filter hook input priority -300; }; "
                'add rule inet cut in iifname "et0" drop',
            ],
            check=True,
        )
        try:
            settled_at = iterations_when_settled(iterations)
            time.sleep(5)
            assert iterations() == settled_at, "learning went on with et0 cut: the traffic goes another way"
        finally:
            lab.exec(CLOUD, ["nft", "delete", "table", "inet", "cut"], check=True)
        assert run.wait(300) == 0, log.read_text()
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(60)

    trained = json.loads(report.read_text())
    assert trained["return_after"] > trained["return_before"]
    moved = sum(
        node["rx_bytes_after"] - node["rx_bytes_before"] for node in trained["nodes"] if node["hostname"] == CLOUD
    )
    assert moved > 100_000


def iterations_when_settled(iterations: Callable[[], int], quiet_s: float = 3.0) -> int:
    """The count once it has not moved for ``quiet_s``: what was in flight has arrived."""
    seen, since_s = iterations(), time.monotonic()
    end_s = since_s + 60
    while time.monotonic() - since_s < quiet_s:
        assert time.monotonic() < end_s, "the count does not settle"
        if (now := iterations()) != seen:
            seen, since_s = now, time.monotonic()
        time.sleep(0.1)
    return seen


def test_the_heads_shell_does_not_reach_the_edges(road: Road, tmp_path: Path) -> None:
    """The way RLinf gives its driver's environment to all nodes; without `edgelink run`, the edges get all of it."""
    shell = {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{road.lab.environment(CLOUD)['PATH']}",
        "RLINF_NODE_RANK": "7",
        "RLINF_COMM_NET_DEVICES": "lan9",
        "https_proxy": "http://192.0.2.9:3128",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    meant = {"WANDB_MODE": "offline", "NCCL_DEBUG": "INFO", "DATA": "/data"}
    script = str(Path(__file__).with_name("rlinf_way.py"))

    by_hand = ("sh", "-c", 'own="$PATH"; eval "$(edgelink env)"; PATH="$own" exec python "$0"', script)

    def workers(*command: str) -> dict[str, dict[str, dict[str, str]]]:
        answer = road.lab.exec(CLOUD, command, capture=True, env={**shell, **meant}, timeout_s=90)
        assert answer.returncode == 0, answer.stderr
        found: dict[str, dict[str, dict[str, str]]] = json.loads(answer.stdout.splitlines()[-1])
        return {ip: found[ip] for ip in ("10.10.0.3", "10.10.0.4")}

    for worker in workers(*by_hand).values():
        assert {**shell, **meant}.items() - worker["given"].items() <= {("PATH", shell["PATH"])}
        assert worker["given"]["PATH"].startswith(shell["PATH"])
    for rank, worker in enumerate(
        workers(
            "edgelink", "run", "--no-preflight", "--framework", "rlinf", "--env", "DATA", "--", "python", script
        ).values(),
        start=1,
    ):
        own, given = worker["own"], worker["given"]
        assert own.items() - given.items() == set(), "nothing of the edge's own is changed"
        assert meant.items() <= given.items()
        assert (given["RLINF_NODE_RANK"], given["RLINF_COMM_NET_DEVICES"]) == (str(rank), "et0")
        assert not {"https_proxy", "AWS_SECRET_ACCESS_KEY"} & set(given)
        assert str(tmp_path) not in "".join(given.values())
    runtime_env = json.dumps({"env_vars": {"NCCL_DEBUG": "WARN"}})
    for worker in workers(
        "edgelink", "run", "--no-preflight", "--framework", "verl", "--", "python", script, runtime_env
    ).values():
        told = {"WANDB_MODE": "offline", "NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "et0"}
        assert told.items() <= worker["own"].items(), "handed over by Ray; the program's own wins"
        assert not {"https_proxy", "DATA", "RLINF_RANK"} & set(worker["own"])


def test_a_stopped_installation_leaves_only_its_state(road: Road) -> None:
    """SIGTERM to each daemon ends its EasyTier, broker and Ray, and nothing is left running."""
    lab = road.lab
    for node in reversed(NODES):
        lab.stop(node)
    assert {node: children(lab, node) for node in NODES} == {node: {} for node in NODES}
    for node in NODES:
        left = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in lab.pids(node)}
        assert left == {}, node
        assert "edgelink" not in lab.exec(node, ["nft", "list", "tables"], capture=True, check=True).stdout
        assert lab.host_path(node, Paths().membership).exists()
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError):
            probe.connect(str(lab.host_path(node, Paths().node_socket)))


def on_a_terminal(argv: Sequence[str | Path]) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns and 24 rows; its exit status, and what it wrote there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    told = b""
    with suppress(OSError):  # EIO: nobody has the terminal open any more
        while part := os.read(ours, 1 << 16):
            told += part
    os.close(ours)
    return process.wait(timeout=280), told.decode()


@pytest.mark.long
def test_the_whole_road_by_one_command(tmp_path: Path) -> None:
    """`edgelink lab run`: what ran, as it reports itself; the policy improves; nothing is left behind.

    What it says fits a terminal of 80 columns, and ends with what to do next.
    """
    report_file = tmp_path / "report.json"
    name = f"test-{os.getpid()}"
    program = Path(sys.executable).with_name("edgelink")
    status, told = on_a_terminal([program, "lab", "run", "--name", name, "--report", report_file])
    assert status == 0, told
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", told).strip())
    of_rays = re.compile(r"\[[\d :,-]+ [A-Z] \d+ \d+\] ")  # what its C++ writes past everybody, on a busy machine
    assert [line for line in lines if len(line) > 80 and not of_rays.match(line)] == []
    assert lines[-1].endswith("tutorial")
    report = json.loads(report_file.read_text())
    nodes = {node["name"]: node for node in report["nodes"]}
    assert {name: node["overlay_ip"] for name, node in nodes.items()} == {
        RELAY: "10.10.0.1",
        CLOUD: "10.10.0.2",
        "edge-1": "10.10.0.3",
        "edge-2": "10.10.0.4",
    }
    assert [nodes[name]["node_rank"] for name in (CLOUD, *EDGES)] == [0, 1, 2]
    assert len({nodes[name]["ray_node_id"] for name in (CLOUD, *EDGES)}) == 3
    assert report["return_after"] >= 3 * report["return_before"]

    workers = {(w["component"], w["process_rank"]): w for w in report["placements"]}
    expected = {("actor", 0): CLOUD} | {(c, r): EDGES[r] for c in ("rollout", "env") for r in (0, 1)}
    assert {key: worker["hostname"] for key, worker in workers.items()} == expected
    for worker in workers.values():
        assert worker["device_address"] == worker["node_ip"] == nodes[worker["hostname"]]["overlay_ip"]
        assert worker["ray_node_id"] == nodes[worker["hostname"]]["ray_node_id"]
    assert len({worker["network_namespace"] for worker in workers.values()}) == 3
    shares = report["training"]["sample_share"]
    assert min(shares.values()) >= 0.2
    for edge in EDGES:  # what an edge sent is what its samples weigh, at least
        samples = workers["rollout", EDGES.index(edge)]["samples"]
        assert nodes[edge]["tx_bytes"] > 16 * samples  # four float32 of an observation
    assert nodes[CLOUD]["rx_bytes"] > sum(16 * workers["rollout", rank]["samples"] for rank in (0, 1))
    assert {"lab", "relay", "enrolment", "head", "edges", "training"} <= set(report["stages"])

    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"edgelink-{name}-" not in namespaces
    assert not Path("/var/tmp/edgelink-lab", name).exists()
