"""Doctor on real nodes: nothing is found where all is well; then faults are made for real, and each is found by name.

One lab serves all tests of this file. A fault is mended before the next one is made, so that what the next question
finds also shows that the last fault is gone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import MakeLab
from faults import drop_sent, narrow_uplink, pids_of, processes
from machines import Found, brought_up_on, overlay_ip, push_s, status_of, told_by_doctor, wait_until, wrong
from overlay_lab import RELAY_ADDRESS

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road
from edgelink.lab.topology import RELAY_DNS_NAME

EDGE = "edge-1"
LAN_ROUTER = "192.168.11.1"  # stands for a robot: the edge's router, which answers pings
LOOP = Path(__file__).with_name("doctor_loop.py")
QUICK_S = 5.0
BUSY_S = 10.0  # what other tests beside this one may add to a start of Ray
T = TypeVar("T")
# By configuration: a wider range of the kernel's own would leave the daemon's firewall open as well.
WORKERS_AMONG_OUTGOING = {"EDGELINK_RAY__MIN_WORKER_PORT": "40000", "EDGELINK_RAY__MAX_WORKER_PORT": "40900"}

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


class Doctor:
    """`edgelink doctor` on one node."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.lab = lab
        self.node = node
        fifo = lab.node_directory(node) / "doctor.fifo"
        os.mkfifo(fifo, 0o600)
        log = lab.node_directory(node) / "doctor.log"
        self._loop = lab.popen(node, ["python", str(LOOP), str(fifo)], log, stdout=subprocess.PIPE)
        self._questions = fifo.open("w")

    def ask(self, **environ: str) -> Found:
        """All that it finds."""
        self._questions.write(json.dumps(environ) + "\n")
        self._questions.flush()
        assert self._loop.stdout is not None
        found: Found = json.loads(self._loop.stdout.readline())
        return found

    def close(self) -> None:
        self._questions.close()
        self._loop.wait(30)


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    road = brought_up_on(make_shared_lab(), 1, config={"relay": {"advertise": [RELAY_DNS_NAME]}})
    for node in (RELAY, CLOUD, EDGE):
        hide_token_of_host(road.lab, node)
    return road


def hide_token_of_host(lab: Lab, node: str) -> None:
    """Ray runs as root here, whose home is the host's own; what somebody left there is no fault of the lab's."""
    directory = Path("~root/.ray").expanduser()
    if directory.is_dir():
        run(lab, node, "mount", "-t", "tmpfs", "none", str(directory))


@pytest.fixture(scope="module")
def doctor(road: Road) -> Iterator[Doctor]:
    doctor = Doctor(road.lab, EDGE)
    yield doctor
    doctor.close()


def run(lab: Lab, node: str, *argv: str, stdin: str | None = None) -> str:
    return lab.exec(node, argv, capture=True, check=True, stdin=stdin).stdout


def quickest(ask: Callable[[], T], bar_s: float) -> tuple[T, float]:
    """An answer and the seconds it took; asked again, twice at most, where a busy machine held it up."""
    for _ in range(3):
        started_s = time.monotonic()
        answer = ask()
        took_s = time.monotonic() - started_s
        if took_s < bar_s:
            break
    return answer, took_s


def test_on_healthy_nodes_nothing_is_found(road: Road) -> None:
    """By the command as people type it, on all three kinds of node, within five seconds."""
    for node in (RELAY, CLOUD, EDGE):
        result, took_s = quickest(
            lambda node=node: road.lab.exec(node, ["edgelink", "doctor", "--json"], capture=True), QUICK_S + 2
        )
        found = told_by_doctor(result)
        print(f"{node}: {took_s:.2f} s")
        assert wrong(found) == {}, node
        assert result.returncode == 0
        assert took_s < QUICK_S + 2  # and an interpreter's start, on a machine that does other things as well
        judged = {name for name, each in found.items() if each["verdict"] == "ok"}
        assert {"daemon-ready", "membership", "clock", "ports-free", "overlay-network", "overlay-mtu"} <= judged, node
        if node != RELAY:
            assert {"versions", "relay-name", "relay-reachable", "foreign-ray", "reverse-names"} <= judged, node
    shown = road.lab.exec(EDGE, ["edgelink", "doctor"], env={"COLUMNS": "80"}, capture=True)
    assert "what is wrong" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


# Faults: each a context manager that makes it, and mends it when it is left; it yields variables for the question.

Fault = Callable[[Lab], Any]


def sysctl(name: str, value: str) -> Fault:
    @contextmanager
    def fault(lab: Lab) -> Iterator[dict[str, str]]:
        path = f"/proc/sys/{name}"
        before = run(lab, EDGE, "cat", path)
        run(lab, EDGE, "tee", path, stdin=value)
        yield {}
        run(lab, EDGE, "tee", path, stdin=before)

    return fault


def mode(path: Path, bits: int) -> Fault:
    @contextmanager
    def fault(lab: Lab) -> Iterator[dict[str, str]]:
        file = lab.host_path(EDGE, path)
        before = file.stat().st_mode & 0o7777
        file.chmod(bits)
        yield {}
        file.chmod(before)

    return fault


def shell(**environ: str) -> Fault:
    @contextmanager
    def fault(_: Lab) -> Iterator[dict[str, str]]:
        yield environ

    return fault


def mounted(*argv: str) -> Fault:
    """The last of ``argv`` is where."""

    @contextmanager
    def fault(lab: Lab) -> Iterator[dict[str, str]]:
        run(lab, EDGE, "mount", *argv)
        yield {}
        run(lab, EDGE, "umount", argv[-1])

    return fault


@contextmanager
def small_shared_memory(lab: Lab) -> Iterator[dict[str, str]]:
    run(lab, EDGE, "mount", "-o", "remount,size=100m", "/dev/shm")
    yield {}
    run(lab, EDGE, "mount", "-o", "remount,size=1g", "/dev/shm")


@contextmanager
def full_runtime_directory(lab: Lab) -> Iterator[dict[str, str]]:
    """One that leads to the daemon, too: its own is not to be harmed."""
    with full(lab, "runtime") as target:
        lab.exec(EDGE, ["ln", "-s", str(Paths().node_socket), str(target / "node.sock")], check=True)
        yield {"EDGELINK_RUNTIME_DIR": str(target)}


@contextmanager
def full(lab: Lab, name: str) -> Iterator[Path]:
    """A file system of one MiB with little left."""
    target = lab.node_directory(EDGE) / "scratch" / name
    target.mkdir()
    run(lab, EDGE, "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(target))
    run(lab, EDGE, "sh", "-c", f"head -c 1000k /dev/zero > {target}/x")
    yield target
    run(lab, EDGE, "umount", str(target))


def table(rule: str, hook: str = "output") -> Fault:
    """A rule of somebody's firewall."""

    @contextmanager
    def fault(lab: Lab) -> Iterator[dict[str, str]]:
        chain = f"chain c {{ type filter hook {hook} priority -400; {rule}; }}"
        run(lab, EDGE, "nft", "-f", "-", stdin=f"table ip planted {{ {chain}; }}\n")
        yield {}
        run(lab, EDGE, "nft", "delete", "table", "ip", "planted")

    return fault


PORTAL = """
import socketserver
class Portal(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 302 Found\\r\\nLocation: http://portal.hotel/login\\r\\n\\r\\n")
socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer(("0.0.0.0", 8080), Portal) as server:
    print(1, flush=True)
    server.serve_forever()
"""


@contextmanager
def captive_portal(lab: Lab, *, cuts: bool = False) -> Iterator[dict[str, str]]:
    """New connections of the edge are answered by its router, as by a hotel's; with ``cuts`` there are no others."""
    router, lan = f"{EDGE}-nat", "192.168.11.0/24"
    answers = lab.popen(
        router, ["python3", "-c", PORTAL], lab.node_directory(EDGE) / "portal.log", stdout=subprocess.PIPE
    )
    assert answers.stdout is not None
    answers.stdout.readline()
    leads = f"chain n {{ type nat hook prerouting priority -110; ip saddr {lan} meta l4proto tcp redirect to :8080; }}"
    drops = f"chain f {{ type filter hook forward priority -10; ip saddr {lan} drop; }}" if cuts else ""
    run(lab, router, "nft", "-f", "-", stdin=f"table ip portal {{\n{leads}\n{drops}\n}}\n")
    yield {}
    run(lab, router, "nft", "delete", "table", "ip", "portal")
    answers.kill()
    answers.wait()


def process_called(name: str) -> Fault:
    """Somebody else's program of this name."""

    @contextmanager
    def fault(lab: Lab) -> Iterator[dict[str, str]]:
        program = lab.node_directory(EDGE) / "scratch" / name
        shutil.copy("/bin/sleep", program)
        child = lab.popen(EDGE, [str(program), "600"], program.with_suffix(".log"))
        deadline_s = time.monotonic() + 30
        while not pids_of(lab, EDGE, name) & {child.pid}:  # it execs its way there
            assert time.monotonic() < deadline_s
        yield {}
        child.kill()
        child.wait()

    return fault


@contextmanager
def changed_file(lab: Lab, path: Path, change: Callable[[str], str]) -> Iterator[dict[str, str]]:
    """Written in place: it is mounted in the node."""
    before = path.read_text()
    path.write_text(change(before))
    yield {}
    path.write_text(before)


def without_relay_name(lab: Lab) -> Any:
    hosts = lab.node_directory(EDGE) / "hosts"
    return changed_file(lab, hosts, lambda text: text.replace(RELAY_DNS_NAME, "other.edgelink.test"))


def damaged_membership(lab: Lab) -> Any:
    return changed_file(lab, lab.host_path(EDGE, Paths().membership), lambda text: text[:200])


@contextmanager
def token_file(lab: Lab) -> Iterator[dict[str, str]]:
    token = lab.node_directory(EDGE) / "home/.ray/auth_token"
    token.parent.mkdir()
    token.write_text("of-another-cluster")
    yield {}
    shutil.rmtree(token.parent)


@contextmanager
def taken_port(lab: Lab) -> Iterator[dict[str, str]]:
    log = lab.node_directory(EDGE) / "listener.log"
    code = "import socket, time; s = socket.create_server(('0.0.0.0', 23456)); print(1, flush=True); time.sleep(600)"
    child = lab.popen(EDGE, ["python", "-c", code], log, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield {"EDGELINK_RAY__METRICS_EXPORT_PORT": "23456"}
    child.kill()
    child.wait()


@contextmanager
def lan_with_our_addresses(lab: Lab) -> Iterator[dict[str, str]]:
    run(lab, EDGE, "ip", "link", "add", "docker7", "type", "bridge")
    run(lab, EDGE, "ip", "address", "add", "10.10.0.241/28", "dev", "docker7")
    run(lab, EDGE, "ip", "link", "set", "docker7", "up")
    yield {}
    run(lab, EDGE, "ip", "link", "del", "docker7")


@contextmanager
def black_hole(lab: Lab) -> Iterator[dict[str, str]]:
    with drop_sent(lab, EDGE, "meta length > 1000"):
        yield {}


def shifted_clock(lab: Lab) -> Any:
    """The kernel has one clock for all: what the others answer is changed on its way, to half a minute later."""
    later_ns = time.time_ns() + 30 * 10**9
    both = f"@th,224,64 set {later_ns} @th,288,64 set {later_ns} udp checksum set 0"  # received, answered
    return table(f'iifname "et0" udp sport 9749 {both}', "prerouting")(lab)


@contextmanager
def few_files(lab: Lab) -> Iterator[dict[str, str]]:
    """For the raylet, which has more than four fifths of them open then. An idle one opens none and closes none."""
    pid = processes(lab, EDGE)["raylet"]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (int(used / 0.85), before[1]))
    yield {}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def edited_configuration(lab: Lab) -> Iterator[dict[str, str]]:
    file = lab.host_path(EDGE, Path("/etc/edgelink/edgelink.yaml"))
    before = file.stat()
    file.touch()
    yield {}
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def other_congestion_control(lab: Lab) -> Iterator[dict[str, str]]:
    """A person's own route to the relay names one, and goes before ours; connections take it when they begin anew."""
    way = run(lab, EDGE, "ip", "route", "get", RELAY_ADDRESS).split()
    route = [
        f"{RELAY_ADDRESS}/32",
        "via",
        way[way.index("via") + 1],
        "dev",
        way[way.index("dev") + 1],
        "congctl",
        "reno",
    ]
    run(lab, EDGE, "ip", "route", "add", *route)
    dial_anew(lab, "reno")
    yield {}
    run(lab, EDGE, "ip", "route", "del", *route)
    dial_anew(lab, "bbr")


def dial_anew(lab: Lab, control: str) -> None:
    """Until EasyTier's connection to the relay uses ``control``."""
    to_relay = ["dst", RELAY_ADDRESS, "dport", "=", "11010"]
    way = ["ip", "route", "get", RELAY_ADDRESS, "ipproto", "tcp"]
    wait_until(f"TCP to the relay takes {control}", lambda: control in run(lab, EDGE, *way).split())
    run(lab, EDGE, "ss", "-K", *to_relay)
    wait_until(f"EasyTier uses {control}", lambda: control in run(lab, EDGE, "ss", "-tinH", *to_relay).split())
    wait_until("the overlay is back", lambda: len(rtts_ms(lab)) == 2)


def rtts_ms(lab: Lab) -> list[float]:
    """To relay and head."""
    status = json.loads(run(lab, EDGE, "edgelink", "status", "--json"))
    return list(status["daemons"][0]["rtt_ms"].values())


@contextmanager
def stopped_robot(lab: Lab) -> Iterator[dict[str, str]]:
    latch = lab.host_path(EDGE, Path("/var/tmp/edgelink-robots-0")) / "arm.stopped"
    latch.write_text(json.dumps({"time": "2026-01-01T00:00:00+00:00", "cause": "a person"}))
    yield {}
    latch.unlink()


@contextmanager
def full_disk(lab: Lab) -> Iterator[dict[str, str]]:
    """Of the directory that Ray is noted to use; another one than the running Ray's, which is not to be harmed."""
    note = lab.host_path(EDGE, Paths().ray_temp_dir)
    used = note.read_text()
    with full(lab, "sessions") as target:
        target.parent.chmod(0o700)  # as Ray's directory is
        note.write_text(f"{target}\n")
        yield {}
        note.write_text(used)
        target.parent.chmod(0o755)


FAULTS: dict[str, tuple[str, Fault]] = {
    "chmod 644 membership.json": ("secrets-private", mode(Paths().membership, 0o644)),
    "chmod 755 on the state directory": ("secrets-private", mode(Paths().state, 0o755)),
    "chmod 755 on Ray's directory": ("ray-directory-private", mode(Path("/var/lib/edgelink-ray"), 0o755)),
    "a damaged membership": ("membership", damaged_membership),
    "a full runtime directory": ("state-disk", full_runtime_directory),
    "an edited configuration": ("daemon-current", edited_configuration),
    "no TUN": ("tun", mounted("-t", "tmpfs", "none", "/dev/net")),
    "few files": ("open-files", few_files),
    "a clock that is 30 s behind": ("clock", shifted_clock),
    "no name of the relay": ("relay-name", without_relay_name),
    "a closed broker": ("relay-reachable", table("tcp dport 8883 tcp flags syn / syn,ack reject with tcp reset")),
    "a captive portal": ("relay-reachable", captive_portal),
    "no STUN": ("stun-answers", table("udp dport { 3478, 3479 } drop")),
    "another congestion control": ("congestion-control", other_congestion_control),
    "no probing for the MTU": ("tcp-probes", sysctl("net/ipv4/tcp_mtu_probing", "0")),
    "no answers to echoes": ("echo-answered", table('iifname "lo" udp dport 9749 reject', "input")),
    "a taken port": ("ports-free", taken_port),
    "ephemeral ports": ("ephemeral-ports", shell(**WORKERS_AMONG_OUTGOING)),
    "no EasyTier": ("easytier", shell(EDGELINK_OVERLAY__EASYTIER_CORE="/opt/no-such-core")),
    "an EasyTier by hand": ("foreign-easytier", process_called("easytier-core")),
    "a bridge with the overlay's addresses": ("overlay-network", lan_with_our_addresses),
    "an MTU black hole": ("overlay-mtu", black_hole),
    "another ride_through": ("ride-through-agrees", shell(EDGELINK_RIDE_THROUGH="60s")),
    "a short time-out": ("collectives-wait", shell(RLINF_TIMEOUT="1")),
    "an interpreter that is gone": ("interpreter", shell(EDGELINK_RAY__PYTHON="/opt/no-such-python")),
    "small shared memory": ("shared-memory", small_shared_memory),
    "a full disk": ("ray-disk", full_disk),
    "another Ray": ("foreign-ray", process_called("gcs_server")),
    "a left-over token": ("leftover-ray-token", token_file),
    "RAY_ADDRESS": ("ray-environment", shell(RAY_ADDRESS="192.0.2.9:6379")),
    "GLOO_SOCKET_IFNAME": ("collective-devices", shell(GLOO_SOCKET_IFNAME="eth0")),
    "a proxy": ("proxy", shell(http_proxy="http://192.0.2.9:3128")),
    "a large environment": ("environment-size", shell(ONE="x" * 100_000, OTHER="x" * 100_000)),
    "a robot that is off": ("robot-answers", shell(EDGELINK_RAY__ROBOT_IP="[192.168.11.99]")),
    "a robot that was stopped": ("robot-stopped", stopped_robot),
}


def test_each_fault_is_found_by_name_and_only_there(road: Road, doctor: Doctor) -> None:
    """And is gone again once it is mended."""
    assert len(FAULTS) >= 25
    missed, took_s = {}, list[float]()
    for what, (check, fault) in FAULTS.items():
        with fault(road.lab) as environ:
            answer, seconds = quickest(lambda environ=environ: doctor.ask(**environ), QUICK_S)
            found = wrong(answer)
            took_s.append(seconds)
        if list(found) != [check] or not found[check]["remedy"]:
            missed[what] = {name: finding["message"] for name, finding in found.items()}
    print(f"{len(FAULTS)} questions: {sum(took_s):.1f} s, the longest {max(took_s):.2f} s")
    assert missed == {}
    assert max(took_s) < QUICK_S
    found = doctor.ask(EDGELINK_RAY__ROBOT_IP=f"[{LAN_ROUTER}]")
    assert wrong(found) == {}
    assert found["robot-answers"]["verdict"] == "ok"


def test_what_a_relay_needs_is_asked_of_a_relay(road: Road) -> None:
    """Its broker's program: here one that cannot be run."""
    program = shutil.which("mosquitto", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    assert program is not None
    other = road.lab.node_directory(RELAY) / "scratch/mosquitto"
    other.touch(0o644)
    run(road.lab, RELAY, "mount", "--bind", str(other), program)
    told = road.lab.exec(RELAY, ["edgelink", "doctor", "--json"], capture=True)
    run(road.lab, RELAY, "umount", program)
    assert list(wrong(told_by_doctor(told))) == ["mosquitto"]


def test_without_its_daemon_only_that_is_wrong(road: Road, doctor: Doctor) -> None:
    """Ray and EasyTier live on, and are nobody else's. What keeps the clock right is the host's business."""
    road.lab.kill(EDGE)
    found = wrong(doctor.ask())
    assert found.keys() - {"clock"} == {"daemon-ready"}, found
    road.lab.start(EDGE)
    road.wait_ready(EDGE)
    assert wrong(doctor.ask()) == {}


def test_a_node_behind_an_uplink_that_drops_full_packets_without_a_word(road: Road) -> None:
    """The whole node: Ready, and a megabyte to the head, while nothing larger than 1280 bytes leaves or arrives."""
    road.lab.stop(EDGE)
    with narrow_uplink(road.lab, EDGE):
        started_s = time.monotonic()
        road.lab.start(EDGE)
        road.wait_ready(EDGE)
        ready_after_s = time.monotonic() - started_s
        took_s = push_s(road.lab, EDGE, CLOUD, overlay_ip(road.lab, CLOUD))
    print(f"ready after {ready_after_s:.1f} s, 1 MB in {took_s:.2f} s")
    assert ready_after_s <= 15 + BUSY_S
    assert took_s <= 2


def test_a_captive_portal_is_named_by_status_and_by_doctor(road: Road, doctor: Doctor) -> None:
    """A hotel's router answers all TCP with a page and lets nothing through. Then somebody logs in."""

    def reason() -> str:
        told = {each["type"]: each for each in status_of(road.lab, EDGE)["conditions"]}["PeersReachable"]
        return f"{told['reason']}: {told['message']}"

    with captive_portal(road.lab, cuts=True):
        wait_until("status names the portal", lambda: re.search(r"RelayUnreachable.*captive portal", reason()))
        found = doctor.ask()["relay-reachable"]
        assert found["verdict"] == "failed"
        assert "captive portal" in found["remedy"]
    wait_until("it is over", lambda: reason().startswith("Reachable"))


RELAY_IPV6 = "fd00:1::10"
IPV6 = {
    RELAY: ("wan fd00:1::10/64", "default via fd00:1::1"),
    "internet": ("relay fd00:1::1/64", "edge-1 fd00:2::1/64", "fd00:3::/64 via fd00:2::2"),
    "edge-1-nat": ("wan fd00:2::2/64", "lan fd00:3::1/64", "default via fd00:2::1"),
    EDGE: ("eth0 fd00:3::2/64", "default via fd00:3::1"),
}


def give_ipv6(lab: Lab) -> None:
    """Addresses and routes between the edge and the relay. The edge's router drops what nobody inside asked for."""
    run(
        lab, f"{EDGE}-nat", "nft", "insert", "rule", "inet", "filter", "input", "meta", "l4proto", "ipv6-icmp", "accept"
    )
    for node, parts in IPV6.items():
        run(lab, node, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        for part in parts:
            device, *address = part.split()
            if address[0] == "via":
                run(lab, node, "ip", "-6", "route", "add", *part.split())
            else:
                run(lab, node, "sysctl", "-qw", f"net.ipv6.conf.{device}.disable_ipv6=0")
                run(lab, node, "ip", "address", "add", *address, "dev", device, "nodad")


def test_an_uplink_with_ipv6_only_is_enough(road: Road, doctor: Doctor) -> None:
    """A robot gets another SIM, of a provider without IPv4. It enrols as well."""
    lab = road.lab
    give_ipv6(lab)
    with changed_file(lab, lab.node_directory(EDGE) / "hosts", lambda text: text.replace(RELAY_ADDRESS, RELAY_IPV6)):
        run(lab, EDGE, "ip", "-4", "address", "flush", "dev", "eth0")
        to_relay = ["ss", "-tnH", "dst", f"[{RELAY_IPV6}]", "dport", "=", "11010"]
        wait_until("EasyTier dials by IPv6", lambda: "ESTAB" in run(lab, EDGE, *to_relay))
        road.wait_ready(EDGE)
        assert doctor.ask()["relay-reachable"]["verdict"] == "ok"
        road.enrol(EDGE)
    run(lab, EDGE, "ip", "address", "add", "192.168.11.2/24", "dev", "eth0")
    run(lab, EDGE, "ip", "route", "add", "default", "via", LAN_ROUTER)
    road.wait_ready(EDGE)
