"""What answers strangers: exactly what docs/reference/ports.md names, under a training; with the firewall off, Ray.

One lab serves all tests of this file, in order.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import port_scan
import pytest
import secrets_search
from conftest import MakeLab
from faults import children
from forged import send_forged
from machines import overlay_ip, relay_status, told_by_doctor, wait_for_condition, wait_until
from prometheus_client.parser import text_string_to_metric_families

import edgelink
from edgelink.api import schema
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.ray_cluster.temp_dir import sessions_in

EDGE = "edge-1"
NODES = (RELAY, CLOUD, EDGE)
LAN = {CLOUD: "192.168.10.2", EDGE: "192.168.11.2"}
PUBLIC = {RELAY: "203.0.113.10", CLOUD: "198.51.100.2", EDGE: "198.51.100.6"}
ROBOT, COLLEAGUE = "192.168.11.77", "192.168.11.78"
RAYS_OWN = {20001, 20002}
METRICS, EASYTIERS = 9747, 11010
RENDEZVOUS = (29500, 45123)
JUPYTER, ROS = 8888, 7447  # somebody's own
POLICY = 8080  # a run's, on an edge
LOCAL_USER = Path(__file__).with_name("local_user.py")
STATE_THIEF = Path(__file__).with_name("state_thief.py")
SESSION_THIEF = Path(__file__).with_name("session_thief.py")
PAGE_VISITOR = Path(__file__).with_name("page_visitor.py")
EVERYWHERE = {"GET /status", "GET /paths", "GET /peers", "POST /ping"}
MAY_LOOK = {
    RELAY: {*EVERYWHERE, "GET /leases", "POST /renew"},  # which says that there is nothing to renew
    CLOUD: {*EVERYWHERE, "GET /nodes", "GET /placement/nodes", "POST /wait"},
    EDGE: EVERYWHERE,
}
MAX_GROWTH_MB = 24.0
NEW_WORDS = "a new line of the raylet"
TOLD_IN_TIME_S = 40.0  # the daemons look at what was dropped every 30 s
CLOSED_IN_TIME_S = 10.0  # they look every 2 s at who listens; a slow machine takes seconds for the scans
IN_TIME_S = 20.0  # sooner than the daemons look of themselves, every 30 s

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]

_LISTEN = """
import socket, sys
ends = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("listening", flush=True)
while True:
    ends[0].accept()
"""


# A service of somebody's on the overlay's address.
_NOTEBOOK = f"""
import socket, sys
end = socket.create_server((sys.argv[1], {JUPYTER}))
print("listening", flush=True)
held = []
while True:
    held.append(end.accept())
"""


# A router that hands EasyTier's port and one of Ray's on to the machine behind it.
_FORWARD = """
table ip forwarded {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    iifname "wan" tcp dport {{ 11010, 20001 }} dnat to {lan};
  }}
}}
insert rule inet filter forward ct status dnat accept
"""


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Iterator[Road]:
    """With a training under way on all nodes, and somebody who waits for connections as its processes do."""
    lab = make_shared_lab()
    road = Road(lab, SystemClock(), print)
    config = {"ray": {"robot_ip": [ROBOT], "allow_from": [f"{COLLEAGUE}/32"]}, "metrics": {"listen": "overlay"}}
    road.bring_up(1, config=config)
    for address in (ROBOT, COLLEAGUE):
        lab.exec(f"{EDGE}-nat", ["ip", "address", "add", f"{address}/24", "dev", "lan"], check=True)
    for node, lan in LAN.items():
        lab.exec(f"{node}-nat", ["nft", "-f", "-"], stdin=_FORWARD.format(lan=lan), capture=True, check=True)
    directory = lab.node_directory(CLOUD)
    cluster = write_demo_cluster(directory / "cluster.yaml", 1)
    progress, log = directory / "progress", directory / "train.log"
    # A virtual machine that stands still for a moment would stop the robot, for a person to look at.
    robot = ["env.kinds=robot", "control.watchdog_s=5"]
    train = ["edgelink", "train", "run.iterations=100000", *robot, "--progress", str(progress)]
    children = [lab.popen(CLOUD, ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), "--", *train], log)]
    for node in (CLOUD, EDGE):
        out = lab.node_directory(node) / "listener.log"
        children.append(lab.popen(node, ["python", "-c", _LISTEN, *map(str, RENDEZVOUS)], out))
        wait_until(f"{node}: somebody listens", lambda out=out: out.read_text())
    out = lab.node_directory(EDGE) / "notebook.log"
    children.append(lab.popen(EDGE, ["python", "-c", _NOTEBOOK, overlay_ip(lab, EDGE)], out))
    wait_until("the notebook listens", out.read_text)

    def learned() -> str:
        assert children[0].poll() is None, log.read_text()
        return progress.read_text() if progress.exists() else ""

    wait_until("the training runs", learned, 120)
    try:
        yield road
    finally:
        for child in children:
            child.send_signal(signal.SIGINT)
        for child in children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@dataclass
class Followed:
    process: subprocess.Popen[bytes]
    log: Path


@pytest.fixture(scope="module")
def followed(road: Road) -> Iterator[Followed]:
    """`edgelink logs --ray -f` on the head, and a new line."""
    log = road.lab.node_directory(CLOUD) / "followed.log"
    process = road.lab.popen(CLOUD, ["edgelink", "logs", "-n", "3000", "--ray", "-f"], log)
    try:
        wait_until("Ray is told of", log.read_text, wanted=lambda told: "==> raylet.out <==" in told)
        words = sessions_in(None) / "session_latest/logs/raylet.out"
        road.lab.exec(CLOUD, ["sh", "-c", f"echo '{NEW_WORDS}' >> {words}"], check=True)
        yield Followed(process, log)
    finally:
        process.kill()
        process.wait()


def documented(machine: str, seen_from: str, protocol: str) -> set[int]:
    """The ports that the page names for a kind of machine."""
    page = Path(__file__).parent.parent / "docs/reference/ports.md"
    rows = re.findall(
        r"^\| ([^|]+) \| (everywhere|neighbours) \| (tcp|udp) ([\d, ]+) \|", page.read_text(), re.MULTILINE
    )
    assert len(rows) == 4, "the page has another table than this test reads"
    return {
        int(port)
        for who, whence, kind, ports in rows
        if machine in who.split(", ") and kind == protocol and whence in ("everywhere", seen_from)
        for port in ports.split(",")
    }


def test_the_page_names_ports() -> None:
    """Else the other tests of this file compare nothing with nothing."""
    assert documented("relay", "everywhere", "tcp") == {8883, 11010}
    assert documented("relay", "everywhere", "udp") == {3478, 3479}
    assert documented("edges", "everywhere", "tcp") == set()
    assert documented("edges", "neighbours", "tcp") == {11010}


def test_every_node_says_that_it_is_shielded(road: Road) -> None:
    """And what stands between Ray and whoever gets there."""
    for node in NODES:
        status, _ = wait_for_condition(road.lab, node, "Shielded", "RulesInPlace")
        assert status.get("ray_auth") == (None if node == RELAY else "token")


def test_a_full_scan_finds_what_is_documented(road: Road) -> None:
    """All 65,535 TCP ports of every address that a node has, from the Internet and from each node's own LAN."""
    lab = road.lab
    scans: dict[tuple[str, str], set[int]] = {("internet", PUBLIC[RELAY]): documented("relay", "everywhere", "tcp")}
    for node, who in ((CLOUD, "head"), (EDGE, "edges")):
        assert documented(who, "everywhere", "tcp") == set()
        scans["internet", PUBLIC[node]] = documented(who, "neighbours", "tcp")  # its router hands two ports on to it
        for address in port_scan.addresses(lab, node, "eth0"):
            if ":" not in address:
                scans[f"{node}-nat", address] = documented(who, "neighbours", "tcp")
            else:
                scans[f"{node}-nat", f"{address}%lan"] = set()
    scans |= {
        ("internet", f"{address}%{RELAY}"): set()
        for address in port_scan.addresses(lab, RELAY, "wan")
        if ":" in address
    }
    started_s = time.monotonic()
    with ThreadPoolExecutor(len(scans)) as threads:
        found = dict(zip(scans, threads.map(lambda key: port_scan.open_tcp_ports(lab, *key), scans), strict=True))
    print(f"{len(scans)} scans in {time.monotonic() - started_s:.1f} s")
    assert found == scans


def listening(lab: Lab, node: str) -> set[int]:
    """The TCP ports on which a node listens for more than itself."""
    shown = lab.exec(node, ["ss", "-tlnH"], capture=True, check=True).stdout
    local = [line.split()[3].rpartition(":") for line in shown.splitlines()]
    return {int(port) for address, _, port in local if not address.startswith(("127.", "[::1]"))}


def test_doctor_tells_what_another_node_answers(road: Road) -> None:
    """From any member, as any user."""
    assert looked_over_overlay(road.lab, EDGE, CLOUD)["verdict"] == "ok"
    assert looked_over_overlay(road.lab, EDGE, RELAY)["verdict"] == "ok"


def looked_over_overlay(lab: Lab, seen_from: str, node: str) -> dict[str, Any]:
    argv = ["edgelink", "doctor", "--json", "ports-free", "--from-overlay", node]
    shown = json.loads(lab.exec(seen_from, argv, capture=True, timeout_s=60).stdout)
    return next(dict(check) for check in shown["checks"] if check["check"] == "from-overlay")


def test_udp_sockets_are_easytiers_and_answer_nobody(road: Road) -> None:
    """By the kernel's table: the relay's STUN, and EasyTier's sockets for direct paths, which answer no stranger.

    Nodes, and a robot's node and its driver, say that they are there on the overlay's addresses; that is not answered
    there either.
    """
    lab = road.lab
    overlay = {node: port_scan.addresses(lab, node, "et0") for node in NODES}

    def look(node: str, who: str) -> None:
        wanted = documented(who, "neighbours", "udp")
        sockets = port_scan.udp_sockets(lab, node)
        ports = {entry.port for entry in sockets}
        assert wanted <= ports
        inside = {entry.port for entry in sockets if port_scan.written(entry.address) in overlay[node]}
        holders = {port: holder_of(lab, node, port) for port in ports - wanted - inside}
        assert set(holders.values()) <= {"easytier-core"}, holders
        seen_from, address = ("internet", PUBLIC[RELAY]) if node == RELAY else (f"{node}-nat", LAN[node])
        assert port_scan.answering_udp_ports(lab, seen_from, address, ports) == wanted

    with ThreadPoolExecutor(len(NODES)) as threads:
        list(threads.map(look, NODES, ("relay", "head", "edges")))


def holder_of(lab: Lab, node: str, port: int) -> str:
    """The program that holds a UDP port of a node, as `ss` tells; a socket that is gone meanwhile is EasyTier's."""
    shown = lab.exec(node, ["ss", "-uanpH", f"sport = :{port}"], capture=True, check=True).stdout
    found = re.search(r'users:\(\("([^"]+)"', shown)
    return found[1] if found else "easytier-core" if not shown.strip() else shown


def test_robots_call_back_and_colleagues_reach_ray(road: Road) -> None:
    """`ray.robot_ip` opens the training's processes only, `ray.allow_from` Ray too; the overlay reaches both."""
    lab = road.lab

    everything = {*RAYS_OWN, *RENDEZVOUS}

    def reached(source: str) -> set[int]:
        return port_scan.open_tcp_ports(lab, f"{EDGE}-nat", LAN[EDGE], source=source, some=everything)

    assert reached("192.168.11.1") == set()
    assert reached(ROBOT) == set(RENDEZVOUS)
    assert reached(COLLEAGUE) == everything
    status = road.status(EDGE)
    assert status is not None
    assert port_scan.open_tcp_ports(lab, CLOUD, status["overlay_ip"], some=everything) == everything


# A policy server, as a task on the node with the address that is given.
_POLICY_SERVER = f"""
import sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(logging_level="error", log_to_driver=False)
@ray.remote(num_cpus=0)
def serve():
    import http.server
    http.server.HTTPServer(("0.0.0.0", {POLICY}), http.server.BaseHTTPRequestHandler).serve_forever()
(node,) = [node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == sys.argv[1] and node["Alive"]]
ray.get(serve.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)).remote())
"""


def test_a_runs_own_server_is_closed_to_neighbours(road: Road, tmp_path: Path) -> None:
    """On a port that nobody named before; the robot's own service beside it stays open, and a robot may call back."""
    lab, address = road.lab, overlay_ip(road.lab, EDGE)

    def reached(source: str = "192.168.11.1") -> set[int]:
        return port_scan.open_tcp_ports(lab, f"{EDGE}-nat", LAN[EDGE], source=source, some={POLICY, ROS})

    def table() -> str:
        return lab.exec(EDGE, ["nft", "list", "table", "inet", "edgelink"], capture=True, check=True).stdout

    own = lab.popen(EDGE, ["python", "-c", _LISTEN, str(ROS)], tmp_path / "own.log")
    job = ["edgelink", "exec", "--", "python", "-c", _POLICY_SERVER, address]
    driver = lab.popen(CLOUD, job, tmp_path / "driver.log")
    try:
        wait_until("both listen", lambda: listening(lab, EDGE), 60, wanted={POLICY, ROS}.__le__)
        listens_s = time.monotonic()
        wait_until("the server is closed", reached, CLOSED_IN_TIME_S, wanted={ROS}.__eq__)
        print(f"closed after {time.monotonic() - listens_s:.2f} s, the scan included")
        assert reached(ROBOT) == reached(COLLEAGUE) == {POLICY, ROS}
        assert port_scan.open_tcp_ports(lab, CLOUD, address, some={POLICY, ROS}) == set()
        driver.send_signal(signal.SIGINT)
        driver.wait(30)
        wait_until("it is in the table no more", lambda: str(POLICY) not in table(), 30)
        assert reached() == {ROS}
    finally:
        for child in (driver, own):
            child.kill()
            child.wait()


def test_the_web_page_is_told_to_who_has_a_link(road: Road) -> None:
    """On the head's loopback with a link, and over the overlay from an edge, but with no link nothing; and from its LAN
    not even that, also with the head's overlay address."""
    lab = road.lab
    made = lab.exec(CLOUD, ["edgelink", "dashboard", "--json"], capture=True, check=True).stdout
    link = json.loads(made)
    asked = json.loads(lab.exec(CLOUD, ["python", str(PAGE_VISITOR), link["url"]], capture=True, check=True).stdout)
    assert asked["before"] == 401
    assert asked["login"] == 200
    assert {row["hostname"] for row in asked["snapshot"]["nodes"].values()} == set(NODES)
    assert asked["snapshot"]["head"]["alive"] == 2
    shown = asked["snapshot"]
    assert shown["run"]["in_progress"]
    assert shown["points"][-1]["values"]["env steps/s"] > 0
    placed = {row["hostname"]: {each["component"] for each in row["placed"]} for row in shown["nodes"].values()}
    assert placed == {RELAY: set(), CLOUD: {"actor"}, EDGE: {"rollout", "env"}}
    assert shown["traffic"][-1]["sent_bytes_per_s"] > 0
    links = {shown["nodes"][node]["hostname"] for node, measure in shown["measures"].items() if measure["received"]}
    assert RELAY in links
    assert asked["again"] == 401, "a link works once"
    page = urlsplit(link["overlay_url"])
    head_ip, port = page.hostname or "", page.port or 0
    assert port_scan.open_tcp_ports(lab, EDGE, head_ip, some={port}) == {port}
    assert port_scan.open_tcp_ports(lab, f"{CLOUD}-nat", LAN[CLOUD], some={port}) == set()
    route = ["ip", "route", "add", f"{head_ip}/32", "via", LAN[CLOUD]]
    lab.exec(f"{CLOUD}-nat", route, check=True)
    try:
        assert port_scan.open_tcp_ports(lab, f"{CLOUD}-nat", head_ip, some={port}) == set()
    finally:
        lab.exec(f"{CLOUD}-nat", ["ip", "route", "del", f"{head_ip}/32"], check=True)


def test_metrics_answer_the_overlay_and_no_neighbour(road: Road) -> None:
    """Not even one that has a route to the overlay's address: the kernel would answer it on any device."""
    lab, overlay_ip = road.lab, str((road.status(EDGE) or {})["overlay_ip"])
    lab.exec(f"{EDGE}-nat", ["ip", "route", "replace", overlay_ip, "via", LAN[EDGE]], check=True)
    asked = {METRICS, EASYTIERS}
    assert port_scan.open_tcp_ports(lab, f"{EDGE}-nat", overlay_ip, some=asked) == {EASYTIERS}
    assert port_scan.open_tcp_ports(lab, f"{EDGE}-nat", LAN[EDGE], some=asked) == {EASYTIERS}
    assert port_scan.open_tcp_ports(lab, CLOUD, overlay_ip, some=asked) == {METRICS}

    def told(address: str) -> dict[tuple[str, ...], float]:
        fetch = f"import urllib.request; print(urllib.request.urlopen('http://{address}/metrics').read().decode())"
        text = lab.exec(CLOUD, ["python", "-c", fetch], capture=True, check=True, timeout_s=30).stdout
        families = text_string_to_metric_families(text.strip() + "\n")
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    edge = wait_until(
        "the edge tells how far away the head is",
        lambda: told(f"{overlay_ip}:{METRICS}"),
        wanted=lambda figures: ("edgelink_peer_rtt_seconds", CLOUD) in figures,
    )
    head = told(f"127.0.0.1:{METRICS}")
    assert edge["edgelink_ready",] == edge["edgelink_condition", "OverlayUp", "DeviceConfirmed"] == 1
    assert edge["edgelink_path", RELAY, "direct", "", "tcp"] == edge["edgelink_easytier_running",] == 1
    assert edge["edgelink_overlay_receive_bytes_total", "et0"] > 1000
    assert 0 < edge["edgelink_peer_rtt_seconds", CLOUD] < 5
    assert head["edgelink_ray_nodes_alive",] == head["edgelink_ray_nodes_expected",] == 2
    assert head["edgelink_run_in_progress",] == 1
    relay = told(f"{relay_status(lab)['overlay_ip']}:{METRICS + 1}")
    assert relay["edgelink_nodes_online",] == relay["edgelink_nodes_enrolled",] == 3


def test_what_json_prints_is_what_its_page_says(road: Road) -> None:
    """On each kind of node, under a training; the page is made from the same types."""

    def told(node: str, *words: str) -> str:
        return road.lab.exec(node, ["edgelink", *words, "--json"], capture=True, check=True).stdout

    for node in NODES:
        schema.Status.model_validate(json.loads(told(node, "status")))
    schema.Nodes.model_validate(json.loads(told(CLOUD, "nodes")))
    for node in (RELAY, EDGE):
        members = json.loads(told(node, "nodes"))
        schema.Members.model_validate(members)
        assert {row["hostname"] for row in members["members"]} == set(NODES)
    probe, summary = map(json.loads, told(CLOUD, "ping", EDGE, "-c", "1").splitlines())
    schema.Probe.model_validate(probe)
    schema.PingSummary.model_validate(summary)


def test_logs_of_all_kinds_hold_no_secret(road: Road, followed: Followed) -> None:
    """Of the daemon, of EasyTier, which prints its own, and of Ray on another node, which the head asks: what is there,
    and what comes until Ctrl-C."""
    lab = road.lab
    secrets = secrets_search.secrets_of(lab, NODES, [])
    for words, expected in ((), "node.condition"), (("--easytier",), "et0"), (("--ray", EDGE), "raylet.out"):
        told = lab.exec(
            CLOUD, ["edgelink", "logs", "-n", "3000", *words], capture=True, check=True, timeout_s=60
        ).stdout
        assert expected in told, told[:2000]
        assert secrets_search.find(secrets, [("logs", told.encode())]) == []
    new = f"raylet.out: {NEW_WORDS}\n"
    wait_until("what has come is told of", followed.log.read_text, wanted=lambda told: new in told)
    followed.process.send_signal(signal.SIGINT)
    assert followed.process.wait(60) == 0
    told = followed.log.read_text()
    assert told.count(NEW_WORDS) == 1
    assert secrets_search.find(secrets, [("logs", told.encode())]) == []


def looked_from_outside(lab: Lab, node: str) -> dict[str, Any]:
    """The finding of `edgelink doctor --from-outside` on a node."""
    told = lab.exec(node, ["edgelink", "doctor", "--from-outside", "--json"], capture=True, timeout_s=60)
    checks = {check["check"]: check for check in json.loads(told.stdout)["checks"]}
    found: dict[str, Any] = checks["from-outside"]
    failed = [check for check in checks.values() if check["verdict"] == "failed"]
    return found | {"status": told.returncode, "failed": failed}


def test_the_relay_knocks_and_finds_nothing_of_ray(road: Road) -> None:
    """It does so at the router's public address, which it is not told; once a minute."""
    found = looked_from_outside(road.lab, CLOUD)
    assert found["verdict"] == "ok", found
    # The configuration, which is the same everywhere here, names a robot that is in the edge's LAN only.
    assert ([check["check"] for check in found["failed"]], found["status"]) == (["robot-answers"], 1)
    assert f"ports of {PUBLIC[CLOUD]}, tried by {PUBLIC[RELAY]}:3478" in found["figure"]
    again = looked_from_outside(road.lab, CLOUD)
    assert again["verdict"] == "skipped"
    assert "minute" in again["message"]


def routes_of_the_source() -> list[list[str]]:
    """Each route of every daemon, with something in place of what it leaves open."""
    found: set[tuple[str, str]] = set()
    for file in Path(edgelink.__file__).parent.rglob("*.py"):
        found |= set(re.findall(r'"(GET|POST|PUT|PATCH|DELETE)", "(/[^"]+)"', file.read_text()))
    return [[method, re.sub(r"\{\w+\}", "edge-1", path)] for method, path in sorted(found)]


def test_a_local_user_commands_nothing(road: Road) -> None:
    """Whatever an ordinary user on relay, cloud or edge asks of root's daemon, and whoever it says it is: it may look,
    and hears no secret. Nonsense ends no daemon, and takes no memory."""
    lab, routes = road.lab, routes_of_the_source()
    assert len(routes) > 25
    secrets = secrets_search.secrets_of(lab, NODES, [])
    heard: dict[str, set[str]] = {}
    for node in NODES:
        daemon = lab.daemon(node)
        assert daemon is not None
        before_mb, known = memory_mb(daemon.pid), children(lab, node)
        socket = Paths().bootstrap_socket if node == RELAY else Paths().node_socket
        argv = ["python", str(LOCAL_USER), str(socket), "65534"]
        told = lab.exec(node, argv, stdin=json.dumps(routes), capture=True, check=True, timeout_s=120).stdout
        served = [answer for answer in json.loads(told) if answer[2] not in (404, 405)]
        refused = [answer for answer in served if '"reason": "PermissionDenied"' in answer[3]]
        assert len(refused) >= 5, served
        heard[node] = {f"{method} {path}" for method, path, *_ in served} - {
            f"{method} {path}" for method, path, *_ in refused
        }
        assert [name for name, secret in secrets.items() if secret in told] == []
        assert lab.daemon(node) == daemon
        assert children(lab, node) == known
        assert not (lab.host_path(node, Path("/etc/edgelink")) / "was-here").exists()
        road.wait_ready(node)
        assert memory_mb(daemon.pid) - before_mb < MAX_GROWTH_MB, node
    assert heard == MAY_LOOK


def test_a_local_user_gets_nothing_of_edgelinks_files(road: Road) -> None:
    """State, runtime directory and the robots' place: an ordinary user reads no secret there, and can neither replace
    nor shadow anything, sockets included. The daemons' own sockets are open, for all that any user may ask."""
    secrets = secrets_search.secrets_of(road.lab, NODES, [])
    for node in NODES:
        places = [str(path) for path in (Paths().state, Paths().runtime, "/etc/edgelink", "/var/tmp/edgelink-robots-0")]
        argv = ["python", str(STATE_THIEF), "65534", *places]
        found = json.loads(road.lab.exec(node, argv, capture=True, check=True).stdout)
        own = {RELAY: {Paths().bootstrap_socket}}.get(node, {Paths().node_socket})
        assert set(found["done"]) == {f"connect to {path}" for path in own}, node
        told = [(path, text.encode()) for path, text in found["read"].items()]
        assert secrets_search.find(secrets, told) == [], node


# Where its code comes from on the node with the address that is given.
_WHOSE_CODE = """
import sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(logging_level="error", log_to_driver=False, runtime_env={"working_dir": sys.argv[2]})
@ray.remote(num_cpus=0)
def who():
    import policy_code
    return policy_code.WHO
(node,) = [node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == sys.argv[1] and node["Alive"]]
print(ray.get(who.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)).remote(), timeout=60))
"""


_WHERE = """
import os, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(logging_level="error", log_to_driver=False)
(head,) = [node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
where = ray.remote(num_cpus=0)(lambda: (ray.util.get_node_ip_address(), os.getuid()))
print(*ray.get(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(head, False)).remote(), timeout=60))
"""


def test_root_of_an_edge_is_rays_user_on_the_head(road: Road) -> None:
    """Ray has one token for all. security.md begins with this; were it not so any more, that would be to be mended."""
    found = road.lab.exec(EDGE, ["edgelink", "exec", "--", "python", "-c", _WHERE], capture=True, timeout_s=120)
    assert found.stdout.split() == [str(road.wait_ready(CLOUD)["overlay_ip"]), "0"], found.stderr


def test_a_local_user_gets_nothing_of_rays_session(road: Road) -> None:
    """An ordinary user on the head or an edge can neither look into Ray's session nor change it: sockets, code, the
    directories above. The next job runs the trainer's code as before."""
    lab, address = road.lab, str(road.wait_ready(EDGE)["overlay_ip"])
    code = Path("/dev/shm/trainers-code")
    lab.exec(CLOUD, ["mkdir", str(code)], check=True)
    lab.exec(CLOUD, ["tee", f"{code}/policy_code.py"], stdin="WHO = 'the trainer'\n", capture=True, check=True)

    def whose_code() -> str:
        job = ["edgelink", "exec", "--", "python", "-c", _WHOSE_CODE, address, str(code)]
        return lab.exec(CLOUD, job, capture=True, check=True, timeout_s=120, cwd=Path("/")).stdout

    assert whose_code() == "the trainer\n"
    for node in (CLOUD, EDGE):
        sessions = lab.host_path(node, Paths().ray_temp_dir).read_text().strip()
        argv = ["python", str(SESSION_THIEF), sessions, "65534"]
        assert json.loads(lab.exec(node, argv, capture=True, check=True).stdout) == []
    assert whose_code() == "the trainer\n"


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def test_a_flushed_ruleset_is_back_at_once(road: Road) -> None:
    """As a reload of nftables.service does it; the kernel tells, nobody waits for the next look."""
    for node in NODES:
        flushed_s = time.monotonic()
        road.lab.exec(node, ["nft", "flush", "ruleset"], check=True)
        wanted = {"table inet edgelink_easytier", *(["table inet edgelink"] if node != RELAY else [])}
        wait_until(
            f"{node}: the tables are back", lambda node=node: tables_of(road.lab, node), IN_TIME_S, wanted=wanted.__le__
        )
        print(f"{node}: back after {time.monotonic() - flushed_s:.2f} s")
        one = road.lab.exec(node, ["nft", "-a", "list", "chain", "inet", "edgelink_easytier", "input"], capture=True)
        handle = re.search(r"drop.*# handle (\d+)", one.stdout)
        assert handle, one.stdout
        rule = ["nft", "delete", "rule", "inet", "edgelink_easytier", "input", "handle", handle[1]]
        road.lab.exec(node, rule, check=True)
        show = ["nft", "list", "chain", "inet", "edgelink_easytier", "input"]
        wait_until(
            f"{node}: one rule is back",
            lambda node=node, show=show: road.lab.exec(node, show, capture=True).stdout,
            IN_TIME_S,
            wanted=lambda text: "drop" in text,
        )


def test_packets_from_addresses_that_nobody_has_are_dropped_and_told(road: Road) -> None:
    """By the head's daemon within half a minute, by its doctor and metrics; the head stays Ready."""
    lab, head_ip = road.lab, overlay_ip(road.lab, CLOUD)
    for source in ("10.10.0.77", LAN[CLOUD]):
        send_forged(lab, EDGE, source, head_ip)
    status, shielded = wait_for_condition(lab, CLOUD, "Shielded", "PacketsDropped", TOLD_IN_TIME_S)
    assert (status["ready"], shielded["status"]) == (True, "True")
    for source in ("10.10.0.77", LAN[CLOUD]):
        assert source in shielded["message"]
    found = told_by_doctor(lab.exec(CLOUD, ["edgelink", "doctor", "--json"], capture=True))["firewall-in-place"]
    assert (found["verdict"], "10.10.0.77" in found["message"]) == ("limited", True)
    assert "edgelink registry list" in found["remedy"]
    fetch = (
        f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{METRICS}/metrics').read().decode())"
    )
    told = lab.exec(CLOUD, ["python", "-c", fetch], capture=True, check=True, timeout_s=30).stdout
    for kind in ("unleased", "foreign"):
        assert f'edgelink_overlay_dropped_packets_total{{kind="{kind}"}} 1' in told


def tables_of(lab: Lab, node: str) -> set[str]:
    return set(lab.exec(node, ["nft", "list", "tables"], capture=True, check=True).stdout.splitlines())


def restart(road: Road, **env: Any) -> None:
    """The edge's daemon is killed, and the next one has these variables."""
    road.lab.kill(EDGE)
    road.lab.start(EDGE, env=env)
    road.wait_ready(EDGE)


def test_with_the_firewall_off_the_scan_finds_ray(road: Road) -> None:
    """`firewall: off`, which says so; so the scan sees what it has to see. Switched on again, it is closed again."""
    lab = road.lab
    restart(road, EDGELINK_FIREWALL="off")
    wait_for_condition(lab, EDGE, "Shielded", "SwitchedOff")
    wait_until("the tables are gone", lambda: not any("edgelink" in table for table in tables_of(lab, EDGE)))
    found = port_scan.open_tcp_ports(lab, f"{EDGE}-nat", LAN[EDGE])
    assert {*RAYS_OWN, *RENDEZVOUS} <= found
    assert len(found) > len({*RAYS_OWN, *RENDEZVOUS, 11010}), "workers and agents of Ray, too"
    seen = looked_from_outside(lab, EDGE)
    assert (seen["verdict"], seen["status"]) == ("failed", 1), seen
    assert "tcp 20001" in seen["message"]
    seen = looked_over_overlay(lab, CLOUD, EDGE)
    assert (seen["verdict"], f"tcp {JUPYTER}" in seen["message"]) == ("limited", True), seen
    restart(road)
    wait_for_condition(lab, EDGE, "Shielded", "RulesInPlace")
    assert port_scan.open_tcp_ports(lab, f"{EDGE}-nat", LAN[EDGE], some=found) == documented(
        "edges", "neighbours", "tcp"
    )


_CONNECT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10):
    print("connected", flush=True)
    time.sleep(600)
"""


def test_an_upgrade_leaves_open_what_a_member_uses(road: Road, tmp_path: Path) -> None:
    """The edge had a version that closed nothing. Its notebook stays open until the operator answers."""
    lab, address, asked = road.lab, overlay_ip(road.lab, EDGE), {JUPYTER, EASYTIERS}
    restart(road, EDGELINK_FIREWALL="off")
    assert port_scan.open_tcp_ports(lab, CLOUD, address, some=asked) == asked
    connected = lab.popen(CLOUD, ["python", "-c", _CONNECT, address, str(JUPYTER)], tmp_path / "connected.log")
    try:
        wait_until("the head is connected", (tmp_path / "connected.log").read_text)
        lab.host_path(EDGE, Paths().left_open_of("node")).unlink(missing_ok=True)
        restart(road)
        told = wait_for_condition(lab, EDGE, "Shielded", "LeftOpen")
        assert f"tcp {JUPYTER} (python" in str(told)
        assert f"used by {CLOUD})" in str(told)
        assert port_scan.open_tcp_ports(lab, CLOUD, address, some=asked) == {JUPYTER}
        restart(road, EDGELINK_FIREWALL__OVERLAY_ALLOW="[]")
        wait_for_condition(lab, EDGE, "Shielded", "RulesInPlace")
        assert port_scan.open_tcp_ports(lab, CLOUD, address, some=asked) == set()
        assert connected.poll() is None, "what is connected goes on"
    finally:
        connected.kill()
        connected.wait()
