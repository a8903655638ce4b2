"""Doctor finds each fault by the name of its check, and only there; on a machine where all is well it finds none."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from doctor_world import (
    DAEMON,
    GIB,
    HEAD_IP,
    RAYLET,
    RELAY_IP,
    ROBOT,
    Machine,
)
from telling import Words

from edgelink import __version__
from edgelink.doctor import CHECKS, TOPICS, Finding, Verdict, examine
from edgelink.doctor.check import Surroundings, name_of
from edgelink.doctor.machine import gpu
from edgelink.doctor.probes import NAME_UNKNOWN, Lookup, NotARelay, Probes, Ran, Space, connected
from edgelink.doctor.robots import robot_answers
from edgelink.errors import EasyTierNotFoundError, MissingDependencyError
from edgelink.overlay.link import LocalNetwork
from edgelink.overlay.stale import Controlled
from edgelink.overlay.ways import Ways
from edgelink.protocol.token import Token
from edgelink.wording import printable

DOCS = Path(__file__).parent.parent / "docs"
MIB = 1 << 20
FULL = Space(2 * MIB, 0, 900, is_read_only=False)
STRANGER = 999
NO_MOSQUITTO = MissingDependencyError("there is none", hint="install it")
SESSIONS = "var/lib/edgelink-ray/sessions"
UNKNOWN = "no-such-name.invalid"
Plant = Callable[[Machine], object]


def fewer_capabilities(machine: Machine) -> None:
    machine.write(f"proc/{DAEMON}/status", "CapEff:\t000001ffffffcfff\n")


def raylet_files(soft: int, hard: int, used: int) -> Plant:
    def plant(machine: Machine) -> None:
        machine.write(f"proc/{RAYLET}/limits", f"Max open files            {soft}     {hard}     files\n")
        for number in range(used):
            machine.write(f"proc/{RAYLET}/fd/{number}", "")

    return plant


MISMATCH = Ran(None, "Driver/library version mismatch")
SLOW = TimeoutExpired(["nvidia-smi"], 3.0)


def nvidia(*, device: bool, answer: str | Ran | Exception | None, wanted: int | None = None) -> Plant:
    def plant(machine: Machine) -> None:
        machine.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        machine.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
        if device:
            machine.write("dev/nvidia0", "")
            machine.write("dev/nvidiactl", "")
        if answer is not None:
            question = "nvidia-smi --query-gpu=name,driver_version,mig.mode.current --format=csv,noheader"
            machine.programs[question] = answer
        machine.config["ray"]["num_gpus"] = wanted

    return plant


def settings(section: str, **values: object) -> Plant:
    return lambda machine: machine.config.setdefault(section, {}).update(values)


def probes(**values: object) -> Plant:
    def plant(machine: Machine) -> None:
        for name, value in values.items():
            assert hasattr(machine.probes, name)
            setattr(machine.probes, name, value)

    return plant


def mode(name: str, bits: int) -> Plant:
    return lambda machine: (machine.root / name).chmod(bits)


def sysctl(name: str, value: object) -> Plant:
    return lambda machine: machine.write(f"proc/sys/{name}", f"{value}\n")


def environ(**values: str) -> Plant:
    return lambda machine: machine.environ.update(values)


def changed_daemon(**values: object) -> Plant:
    return lambda machine: machine.daemon.update(values)


def stopped_robot(machine: Machine) -> None:
    latch = machine.write("robots/arm.stopped", json.dumps({"time": "2026-01-01T00:00:00+00:00", "cause": "a person"}))
    machine.probes.robots = [latch.parent]


def a_paused_edge(machine: Machine) -> None:
    said = {"type": "NodesReady", "status": "False", "reason": "NodesPaused", "message": "paused, no answer: edge-1"}
    machine.daemon["role"] = "head"
    machine.daemon["conditions"].append(said)


def another_cluster(machine: Machine) -> None:
    machine.daemon["cluster"] |= {"python_version": "3.10.12"}


def heads_directory_is_full(machine: Machine) -> None:
    """Which an edge's Ray uses, whatever is configured here."""
    machine.paths.ray_temp_dir.write_text("/mnt/heads/sessions\n")
    machine.probes.spaces = {"mnt/heads/sessions": Space(100 * GIB, GIB, 9, False)}


def rays_directory_where_all_may_write(machine: Machine) -> None:
    machine.write("mnt/ray/sessions/x", "").parent.parent.chmod(0o700)
    (machine.root / "mnt").chmod(0o777)
    machine.paths.ray_temp_dir.write_text("/mnt/ray/sessions\n")


def much_memory(machine: Machine) -> None:
    """Of which Ray takes 10 GB by itself, whether they fit into what Docker was told to give or not."""
    machine.config["ray"]["object_store_memory"] = None
    machine.write("proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    machine.probes.spaces = {"dev/shm": Space(8192 * MIB, 8192 * MIB, 9, False)}


def others_reserved(machine: Machine) -> None:
    """Who follows the advice keeps what is reserved already: the kernel has one list."""
    machine.write("proc/sys/net/ipv4/ip_local_port_range", "16384 60999\n")
    machine.write("proc/sys/net/ipv4/ip_local_reserved_ports", "30000-32767\n")


SINCE_S = datetime(2025, 1, 1, tzinfo=UTC).timestamp()


def unready(machine: Machine) -> None:
    machine.daemon |= {"ready": False, "phase": "Degraded"}
    machine.condition("OverlayUp", "False", "DeviceDown")


def named_easytier_is_gone(machine: Machine) -> None:
    machine.config["overlay"] = {"easytier_core": "/opt/gone"}
    machine.probes.easytier = EasyTierNotFoundError("there is none", hint="make setup")


def collision() -> LocalNetwork:
    return LocalNetwork("docker0", IPv4Network("10.10.0.0/16"))


# The check that has to find it, its verdict, a value or name that it tells, and how the fault is planted.
FAULTS: list[tuple[str, str, str, Plant]] = [
    ("daemon-ready", "failed", "DeviceDown", unready),
    ("nodes-answer", "failed", "edge-1", a_paused_edge),
    ("daemon-current", "limited", "0.0.1", changed_daemon(version="0.0.1")),
    ("daemon-current", "limited", "edgelink.yaml", lambda m: os.utime(m.paths.node_socket, (SINCE_S, SINCE_S))),
    ("membership", "failed", "damaged", lambda m: m.paths.membership.write_text('{"version": 1}')),
    ("membership", "failed", "join", lambda m: m.paths.membership.unlink()),
    ("secrets-private", "failed", "node.key (0640)", lambda m: m.paths.node_key.chmod(0o640)),
    ("secrets-private", "failed", "(0711)", lambda m: m.paths.state.chmod(0o711)),
    ("secrets-private", "failed", "ROOT/run (mode 0777)", mode("run", 0o777)),
    ("secrets-private", "failed", "65534", lambda m: os.chown(m.paths.runtime, 65534, -1)),
    ("state-disk", "failed", "full", probes(spaces={"lib/edgelink": FULL})),
    ("state-disk", "failed", "read-only", probes(spaces={"lib/edgelink": Space(GIB, GIB, 900, is_read_only=True)})),
    ("state-disk", "failed", "inodes", probes(spaces={"lib/edgelink": Space(GIB, GIB, 3, is_read_only=False)})),
    ("state-disk", "limited", "100 MiB", probes(spaces={"lib/edgelink": Space(GIB, 100 * MIB, None, False)})),
    ("state-disk", "failed", "run/edgelink", probes(spaces={"run/edgelink": FULL})),
    ("tun", "failed", "--device /dev/net/tun", lambda m: (m.root / "dev/net/tun").unlink()),
    ("capabilities", "failed", "CAP_NET_ADMIN", fewer_capabilities),
    (
        "memory",
        "failed",
        "MiB free",
        lambda m: m.write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 9000 kB\n"),
    ),
    ("clock", "limited", "7.50 s ahead of relay", probes(ahead_s={RELAY_IP: -7.5, HEAD_IP: -7.9})),
    ("clock", "failed", "behind relay", probes(ahead_s={RELAY_IP: 4000.0})),
    ("open-files", "failed", "raylet", raylet_files(soft=10, hard=524288, used=9)),
    ("open-files", "limited", "1024 files", raylet_files(soft=512, hard=1024, used=9)),
    ("process-limit", "failed", "kernel.pid_max", lambda m: m.write("proc/loadavg", "0.1 0.1 0.1 2/32500 1\n")),
    (
        "process-limit",
        "failed",
        "edgelink.service",
        lambda m: m.write("sys/fs/cgroup/system.slice/edgelink.service/pids.max", "300\n"),
    ),
    ("inotify", "limited", "Too many", probes(no_inotify="Too many open files")),
    ("inotify", "limited", "4 inotify", sysctl("fs/inotify/max_user_instances", 4)),
    (
        "wifi-power-save",
        "limited",
        "iw dev wlan0 set",
        lambda m: m.programs.update({"iw dev wlan0 get power_save": "Power save: on"}),
    ),
    (
        "wifi-power-save",
        "failed",
        "3 s",
        lambda m: m.programs.update({"iw dev wlan0 get power_save": TimeoutExpired(["iw", "dev", "wlan0"], 3.0)}),
    ),
    ("relay-name", "failed", "nameserver 192.0.2.53", probes(names={"relay.example.org": Lookup((), 0.1)})),
    ("relay-name", "failed", "no answer within 2 s", probes(names={"relay.example.org": Lookup((), 2.0)})),
    ("relay-name", "limited", "1.5 s", probes(names={"relay.example.org": Lookup(("198.51.100.1",), 1.5)})),
    ("relay-reachable", "failed", "8883 (Connection refused)", probes(refusing={8883: "Connection refused"})),
    ("relay-reachable", "failed", "11010 (no answer)", probes(refusing={11010: "no answer"})),
    ("relay-reachable", "failed", "captive portal", probes(refusing={11010: NotARelay("it answers 'HTTP'")})),
    ("stun-answers", "limited", "udp relay", probes(seen={"relay.example.org:3478": None})),
    ("echo-answered", "failed", "9749", probes(serves_echoes=False)),
    (
        "congestion-control",
        "limited",
        "198.51.100.1:11010",
        probes(controls=[Controlled(40000, "198.51.100.1:11010", "cubic")]),
    ),
    ("conntrack", "failed", "250000 of 262144", sysctl("net/netfilter/nf_conntrack_count", 250000)),
    (
        "ports-free",
        "failed",
        "tcp 20002 (ray.object_manager_port) by nginx (pid 999)",
        probes(busy={("tcp", 20002): STRANGER}, others={STRANGER: "nginx"}),
    ),
    ("ports-free", "failed", "11010 (overlay.listeners) by another process", probes(busy={("tcp", 11010): None})),
    ("ports-free", "failed", "9747 (metrics.port)", probes(busy={("tcp", 9747): STRANGER}, others={STRANGER: "x"})),
    ("ephemeral-ports", "limited", "20001-20006", sysctl("net/ipv4/ip_local_port_range", "16384 60999")),
    ("ephemeral-ports", "limited", "30000-32767", others_reserved),
    ("easytier", "failed", "make setup", named_easytier_is_gone),
    ("foreign-easytier", "limited", "pid 999", probes(others={STRANGER: "easytier-core"})),
    ("overlay-network", "failed", "docker0", lambda m: m.probes.networks.append(collision())),
    (
        "overlay-network",
        "failed",
        "by eth0 instead of et0",
        probes(found_ways=Ways("it leaves by eth0 instead of et0", "x")),
    ),
    ("overlay-network", "limited", "iif docker0", probes(found_ways=Ways(caveat="the rule `50: iif docker0`"))),
    ("overlay-mtu", "failed", "relay, cloud", probes(carried_bytes=1000)),
    (
        "reverse-names",
        "failed",
        "3.0 s",
        lambda m: m.write("etc/hosts", f"127.0.0.1 localhost\n{RELAY_IP} relay\n"),
    ),
    ("ride-through-agrees", "failed", "ride_through", lambda m: m.config.update(ride_through=60)),
    ("tcp-resumes", "limited", "120 s late", sysctl("net/ipv4/tcp_rto_max_ms", 120000)),
    ("tcp-probes", "limited", "stands still", sysctl("net/ipv4/tcp_mtu_probing", 0)),
    ("tcp-outlives", "failed", "gives up after 27 s", sysctl("net/ipv4/tcp_retries2", 15)),
    ("collectives-wait", "failed", "RLINF_TIMEOUT=1", environ(RLINF_TIMEOUT="1")),
    ("firewall-in-place", "failed", "as it is", lambda m: m.condition("Shielded", "False", "FirewallFailed")),
    ("firewall-in-place", "limited", "as it is", lambda m: m.condition("Shielded", "True", "PacketsDropped")),
    ("other-firewalls", "failed", "ufw allow in on et0", lambda m: m.write("etc/ufw/ufw.conf", "ENABLED=yes\n")),
    ("interpreter", "failed", "pip install", probes(python=MissingDependencyError("no Ray", hint="pip install ray"))),
    ("versions", "failed", "Python 3.11.2, head has 3.10.12", another_cluster),
    ("gpu", "limited", "modprobe nvidia", nvidia(device=False, answer=None)),
    ("gpu", "failed", "modprobe nvidia", nvidia(device=False, answer=None, wanted=1)),
    ("gpu", "failed", "nvidia-smi fails: No such file", nvidia(device=True, answer=None)),
    ("gpu", "failed", "fails: Driver/library version mismatch", nvidia(device=True, answer=MISMATCH)),
    ("gpu", "limited", "nvidia-smi -pm 1", nvidia(device=True, answer=SLOW, wanted=8)),
    ("gpu", "failed", "2 GPUs", nvidia(device=True, answer="NVIDIA H100, 550.1, [N/A]", wanted=2)),
    ("gpu", "failed", "there is none", settings("ray", num_gpus=1)),
    ("shared-memory", "failed", "--shm-size", probes(spaces={"dev/shm": Space(64 * MIB, 64 * MIB, 9, False)})),
    ("shared-memory", "limited", "1024 MiB", probes(spaces={"dev/shm": Space(512 * MIB, MIB, 9, False)})),
    ("shared-memory", "limited", "object store takes 9537 MiB", much_memory),
    (
        "ray-disk",
        "failed",
        "95 % full",
        probes(spaces={SESSIONS: Space(100 * GIB, 4 * GIB, 9, False)}),
    ),
    (
        "ray-disk",
        "limited",
        "7%",
        probes(spaces={SESSIONS: Space(100 * GIB, 7 * GIB, 9, False)}),
    ),
    ("ray-disk", "failed", "old /mnt/heads/sessions/session_*", heads_directory_is_full),
    ("ray-directory-private", "failed", "0755", mode("var/lib/edgelink-ray", 0o755)),
    ("ray-directory-private", "failed", "ROOT/mnt (mode 0777)", rays_directory_where_all_may_write),
    ("foreign-ray", "limited", "gcs_server (pid 999)", probes(others={STRANGER: "gcs_server"})),
    ("leftover-ray-token", "limited", ".ray/auth_token", lambda m: m.write("home/alice/.ray/auth_token", "of another")),
    ("ray-environment", "limited", "RAY_ADDRESS", environ(RAY_ADDRESS="192.0.2.7:6379")),
    ("ray-environment", "limited", "unset RLINF_NODE_RANK", environ(RLINF_NODE_RANK="7")),
    ("collective-devices", "limited", "unset GLOO_SOCKET_IFNAME", environ(GLOO_SOCKET_IFNAME="eth0")),
    ("proxy", "limited", HEAD_IP, environ(https_proxy="http://proxy:3128", no_proxy="localhost,10.0.0.1")),
    ("environment-size", "failed", "first of all LS", environ(LS="x" * 100_000, B="y" * 40_000)),
    ("environment-size", "limited", "98 of 128 KiB", environ(LS="x" * 100_000)),
    ("environment-size", "limited", "98 of 128 KiB", environ(**{"\udcff": "\udcfe" * 100_000})),  # no UTF-8
    ("robot-answers", "failed", ROBOT, probes(alive={RELAY_IP, HEAD_IP})),
    ("robot-stopped", "limited", "edgelink robot resume arm", stopped_robot),
]


@pytest.fixture
def edge(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("role", ["edge", "head", "bootstrap"])
def test_where_all_is_well_nothing_is_found(tmp_path: Path, role: str) -> None:
    """And there is nothing to do; a look changes nothing."""
    machine = Machine(tmp_path, role)
    before = machine.tree()
    found = machine.findings()
    assert {name: f for name, f in found.items() if f.verdict not in (Verdict.OK, Verdict.SKIPPED)} == {}
    assert {finding.remedy for finding in found.values()} == {""}
    assert machine.tree() == before


@pytest.mark.parametrize(
    ("name", "verdict", "says", "plant"), FAULTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_planted_fault_is_found_by_its_name_and_only_there(
    edge: Machine, name: str, verdict: str, says: str, plant: Plant, words: Words
) -> None:
    """With what to do."""
    plant(edge)
    wrong = edge.wrong()
    assert list(wrong) == [name]
    assert wrong[name].verdict is Verdict(verdict)
    assert wrong[name].remedy
    figure = f" ({wrong[name].figure})" if wrong[name].figure else ""
    told = printable(f"{wrong[name].message}{figure}; what to do: {wrong[name].remedy}").replace(str(edge.root), "ROOT")
    assert says in told
    words(told, VERSION=__version__)


def test_a_daemon_that_started_before_the_clock_was_set_is_not_judged_by_it(edge: Machine) -> None:
    """A board without a battery starts in 1970."""
    os.utime(edge.paths.node_socket, (1, 1))
    assert edge.wrong() == {}


@pytest.mark.parametrize(("memory_gib", "shared_gib"), [(20, 7), (60, 10), (500, 10), (64, 32)])
def test_what_ray_takes_by_itself_fits(edge: Machine, memory_gib: int, shared_gib: int) -> None:
    """Into half of the memory, as the kernel gives it; into 10 GiB always."""
    edge.config["ray"]["object_store_memory"] = None
    edge.write("proc/meminfo", f"MemTotal: {memory_gib << 20} kB\nMemAvailable: {memory_gib << 20} kB\n")
    edge.probes.spaces = {"dev/shm": Space(shared_gib * 1024 * MIB, MIB, 9, False)}
    assert edge.wrong() == {}


CONTROL_GROUPS = {
    1: {
        "memory/memory.limit_in_bytes": "{limit}",
        "memory/memory.usage_in_bytes": "{used}",
        "memory/memory.stat": "inactive_file 900000000\ntotal_inactive_file 300000000\ntotal_active_file 100000000\n",
    },
    2: {
        "memory.max": "{limit}",
        "memory.current": "{used}",
        "memory.stat": "anon 9\ninactive_file 300000000\nactive_file 100000000\nworkingset_refault_file 7\n",
    },
}
GB = 10**9


@pytest.mark.parametrize("version", CONTROL_GROUPS)
@pytest.mark.parametrize(
    ("limit", "used", "wrong"),
    [
        (4 * GB, 12 * GB // 10, set()),  # 30 % of what is free fit; of the machine's they would not
        (8 * GB, GB, {"shared-memory"}),
        (4 * GB, 43 * GB // 10, {"memory"}),  # of which 0.4 GB are files, which give way
        ("max", 40 * GB, {"shared-memory"}),
        (2**63 - 4096, 40 * GB, {"shared-memory"}),
    ],
)
def test_in_a_container_its_limit_counts(
    edge: Machine, version: int, limit: int | str, used: int, wrong: set[str]
) -> None:
    """As it does for Ray, which takes its store and ends workers by what the container may take."""
    edge.config["ray"]["object_store_memory"] = None
    edge.write("proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    edge.probes.spaces = {"dev/shm": Space(GB, MIB, 9, False)}
    for name, content in CONTROL_GROUPS[version].items():
        edge.write(f"sys/fs/cgroup/{name}", content.format(limit=limit, used=used))
    assert edge.wrong().keys() == wrong


def test_a_kernel_without_bbr_is_named(edge: Machine) -> None:
    """On a relay, whose listener's port tells its connections."""
    edge.probes.controls = [Controlled(11010, "192.0.2.77:40000", "cubic")]
    edge.write("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic\n")
    assert "modprobe tcp_bbr" in edge.wrong()["congestion-control"].remedy


@pytest.mark.parametrize(
    "protocol, advice, not_advised",
    [("tcp", "tcp_mtu_probing=1", "set a smaller"), ("udp", "set a smaller", "probing")],
)
def test_what_helps_against_a_black_hole_depends_on_the_transport(
    edge: Machine, protocol: str, advice: str, not_advised: str
) -> None:
    """The way to the cloud goes through the relay, so that the relay's transport counts."""
    relay, cloud = edge.daemon["paths"]
    relay.update(protocol=protocol)
    cloud.update(via="relay", protocol=None)
    edge.probes.carried_bytes = 1000
    remedy = edge.wrong()["overlay-mtu"].remedy
    assert advice in remedy
    assert not_advised not in remedy


def test_every_check_is_shown_to_find_something() -> None:
    """But for the one that only a relay needs, below; there are more than 25, each with a name of its own."""
    names = [name_of(check) for check in CHECKS]
    assert len(set(names)) == len(names) >= 25
    assert set(names) - {name for name, *_ in FAULTS} == {"mosquitto"}


def test_a_relay_without_mosquitto_and_with_a_taken_port(tmp_path: Path) -> None:
    """What an edge does not need, a relay does."""
    relay = Machine(tmp_path, "bootstrap")
    relay.probes.broker = NO_MOSQUITTO
    relay.probes.busy = {("tcp", 8883): STRANGER, ("udp", 3478): DAEMON}
    relay.probes.others = {STRANGER: "mosquitto"}
    wrong = relay.wrong()
    assert list(wrong) == ["ports-free", "mosquitto"]
    assert "8883 (relay.broker_port) by mosquitto (pid 999)" in wrong["ports-free"].message


def test_an_additional_relay_needs_no_broker(tmp_path: Path) -> None:
    """Neither Mosquitto nor its port, also while its daemon is stopped; its other ports are its own."""
    relay = Machine(tmp_path, "bootstrap")
    del relay.daemon["broker_pid"]
    relay.probes.broker = NO_MOSQUITTO
    relay.probes.busy = {("tcp", 8883): STRANGER, ("udp", 3478): STRANGER}
    relay.probes.others = {STRANGER: "nginx"}
    wrong = relay.wrong()
    assert list(wrong) == ["ports-free"]
    assert "8883" not in wrong["ports-free"].message
    assert "3478 (relay.stun_ports) by nginx (pid 999)" in wrong["ports-free"].message
    relay.daemons = []
    assert relay.findings()["mosquitto"].verdict is Verdict.SKIPPED


def test_a_name_that_nobody_knows_is_told_once(edge: Machine) -> None:
    """Ports that cannot be asked for that reason are no second fault."""
    edge.probes.names = {"relay.example.org": Lookup((), 3.0)}
    edge.probes.refusing = {8883: NAME_UNKNOWN, 11010: NAME_UNKNOWN}
    edge.probes.seen = {}
    assert list(edge.wrong()) == ["relay-name"]


def test_what_is_this_nodes_own_is_nobody_elses(edge: Machine) -> None:
    """Its Ray's processes that no record names, its broker, the token that the head gave it."""
    edge.probes.others = {STRANGER: "gcs_server"}
    edge.probes.of_ray = {STRANGER}
    edge.probes.busy = {("tcp", 20003): STRANGER}
    edge.paths.ray_token_copy.parent.mkdir(parents=True)
    edge.paths.ray_token_copy.write_text("the head's\n")
    edge.paths.ray_token_copy.chmod(0o600)
    edge.write("home/alice/.ray/auth_token", "the head's")
    edge.environ |= {"RAY_ADDRESS": f"{HEAD_IP}:6379", "GLOO_SOCKET_IFNAME": "et0", "RLINF_NODE_RANK": "1"}
    edge.environ |= {"http_proxy": "http://proxy:3128", "NO_PROXY": "localhost, 10.10.0.0/24"}
    assert edge.wrong() == {}


def test_a_head_compares_all_nodes(tmp_path: Path) -> None:
    """Which one differs, and in what; a GPU that Ray does not count is told, too."""
    head = Machine(tmp_path, "head")
    head.probes.python = replace(head.probes.python, packages={"torch": "2.7.0+cu126"})  # type: ignore[type-var]
    good = {"edgelink": None, "python": "3.11.7", "ray": "2.60.0", "torch": "2.7.0"}
    head.probes.rows = [
        {"hostname": "cloud", "path": "self", "ray": "alive", "gpus": 0.0, "versions": {"ray": "1"}},
        {"hostname": "edge-1", "path": "direct", "versions": good},
        {"hostname": "edge-2", "path": "direct", "versions": {}},
    ]
    assert head.wrong() == {}
    head.probes.rows[1]["versions"] = good | {"edgelink": "0.0.1", "torch": "2.6.0"}
    wrong = head.wrong()
    assert list(wrong) == ["versions"]
    assert (wrong["versions"].verdict, wrong["versions"].message.count("edge-1: ")) == (Verdict.LIMITED, 2)
    head.probes.rows[1]["versions"] = good | {"ray": "2.50.0"}
    nvidia(device=True, answer="NVIDIA H100, 550.1, [N/A]")(head)
    wrong = head.wrong()
    assert list(wrong) == ["versions", "gpu"]
    assert wrong["versions"].verdict is Verdict.FAILED
    assert "edge-1: Ray 2.50.0, head has 2.60.0" in wrong["versions"].message
    assert "Ray counts 0 of 1 GPUs" in wrong["gpu"].message


@pytest.mark.parametrize(("mode", "verdict"), [("Enabled", Verdict.OK), ("Disabled", Verdict.FAILED)])
def test_parts_of_a_card_may_be_counted_each(edge: Machine, mode: str, verdict: Verdict) -> None:
    """Of one that MIG has split; others are as many as there are cards."""
    nvidia(device=True, answer=f"NVIDIA H100, 550.1, {mode}", wanted=7)(edge)
    found = edge.ask(gpu)
    assert (found.verdict, found.figure) == (verdict, "1 × NVIDIA H100, 550.1")


def test_a_lan_neighbour_that_answers_arp_is_a_robot_that_is_there(edge: Machine) -> None:
    """Many controllers answer no pings; that the kernel has known one before says nothing of now."""
    edge.probes.alive = {RELAY_IP, HEAD_IP}
    line = f"{ROBOT}     0x1         {{}}         00:11:22:33:44:55     *        eth0\n"
    edge.write("proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + line.format("0x0"))
    assert list(edge.wrong()) == ["robot-answers"]
    edge.write("proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + line.format("0x2"))
    assert list(edge.wrong()) == ["robot-answers"], "it was switched off a minute ago"
    edge.probes.answering_arp = {ROBOT}
    assert edge.wrong() == {}


def test_who_may_not_ask_by_arp_does_not_judge_a_robot_that_answers_no_ping(edge: Machine) -> None:
    """One that the kernel does not find either is off for everybody."""
    edge.probes.alive = {RELAY_IP, HEAD_IP}
    edge.probes.answering_arp = None
    line = f"{ROBOT} 0x1 {{}} 00:11:22:33:44:55 * eth0\n"
    edge.write("proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + line.format("0x2"))
    found = edge.ask(robot_answers)
    assert (found.verdict, "sudo" in found.message) == (Verdict.SKIPPED, True)
    edge.write("proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + line.format("0x0"))
    assert edge.ask(robot_answers).verdict is Verdict.FAILED


def test_a_clock_is_judged_by_those_who_agree_with_it_best(edge: Machine) -> None:
    """One other machine with a wrong clock is not this one's fault; without any answer the kernel is asked."""
    edge.probes.ahead_s = {RELAY_IP: 5000.0, HEAD_IP: 0.1}
    assert edge.wrong() == {}
    edge.probes.ahead_s = {}
    edge.probes.is_synchronised = False
    assert edge.wrong() == {}  # a daemon runs here, others may answer soon
    edge.daemons = []
    assert "clock" in edge.wrong()


def test_a_machine_that_has_joined_nothing_says_only_that(tmp_path: Path) -> None:
    """A machine before `edgelink join`: two findings, and both name a command."""
    machine = Machine(tmp_path)
    machine.daemons = []
    machine.probes.own = {}
    machine.paths.membership.unlink()
    wrong = machine.wrong()
    assert list(wrong) == ["daemon-ready", "membership"]
    assert "edgelink join" in wrong["membership"].remedy


def test_a_machine_with_a_token_is_told_whether_the_tokens_relay_answers(edge: Machine, tmp_path: Path) -> None:
    edge.paths.membership.unlink()
    edge.daemons = []
    token = Token("abcdefgh", "s" * 32, bytes(32), b64encode(bytes(32)).decode(), "n", ("relay.example.org:8883",))
    (tmp_path / "token").write_text(token.encode())
    edge.environ["EDGELINK_TOKEN_FILE"] = str(tmp_path / "token")
    assert edge.findings()["relay-reachable"].verdict is Verdict.OK
    edge.probes.refusing = {8883: NotARelay("it answers 'HTTP'")}
    assert "captive portal" in edge.wrong()["relay-reachable"].remedy


def test_who_is_not_root_is_not_told_of_faults_that_only_root_could_judge(edge: Machine) -> None:
    """What cannot be seen is skipped, with the reason."""
    edge.probes.root = False
    edge.probes.others = {STRANGER: "raylet"}
    edge.probes.busy = {("tcp", 20003): None}
    found = edge.findings()
    for name in ("foreign-ray", "ports-free"):
        assert found[name].verdict is Verdict.SKIPPED
        assert "root" in found[name].message
    assert found["overlay-mtu"].verdict is Verdict.OK, "an echo takes no right"
    assert edge.wrong() == {}


@pytest.mark.parametrize("check", ["ray-disk", "state-disk"])
def test_a_directory_in_somebodys_private_one_is_for_root_to_judge(edge: Machine, check: str) -> None:
    """It may be a disk of its own, whatever can be seen from outside."""
    edge.config["ray"]["temp_dir"] = "/home/bob/ray"
    denied = PermissionError(13, "Permission denied")
    edge.probes.spaces = {"home/bob/ray/sessions": denied, "var/lib/edgelink": denied}
    found = edge.findings()[check]
    assert (found.verdict, "root" in found.message) == (Verdict.SKIPPED, True)
    assert edge.wrong() == {}


def test_space_is_that_of_the_nearest_directory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be looked into is not guessed from what is above it."""
    (tmp_path / "file").write_text("")
    asked: list[str] = []
    statvfs = os.statvfs

    def note(path: Path) -> os.statvfs_result:
        asked.append(path.name)
        if path.name == "private":
            raise PermissionError(13, "Permission denied")
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", note)
    for below in ("not/there", "file/x"):
        assert Probes().space(tmp_path / below).total_bytes > 0
    assert asked == ["there", "not", tmp_path.name, "x", "file"]
    with pytest.raises(PermissionError):
        Probes().space(tmp_path / "private")


def test_a_relay_is_not_asked_for_ray(tmp_path: Path) -> None:
    """Nor is anybody asked for what their role does not need."""
    found = Machine(tmp_path, "bootstrap").findings()
    for name in ("interpreter", "versions", "gpu", "shared-memory", "ray-disk", "leftover-ray-token"):
        assert found[name].verdict is Verdict.SKIPPED, name
    existing = Machine(tmp_path / "other")
    existing.config["overlay"] = {"kind": "existing", "device": "eth0"}
    (existing.root / "dev/net/tun").unlink()
    existing.probes.easytier = EasyTierNotFoundError("there is none")
    existing.probes.networks.append(collision())
    assert existing.wrong() == {}


def no_secret_in(found: dict[str, Finding], machine: Machine) -> bool:
    membership = machine.surroundings.membership
    assert membership is not None
    told = json.dumps([[finding.message, finding.figure, finding.remedy] for finding in found.values()])
    secrets = (membership.secrets.network_secret, membership.secrets.broker_password)
    return not any(secret in told for secret in secrets)


def test_no_finding_holds_a_secret(edge: Machine) -> None:
    """Neither of a healthy node nor of a broken one."""
    assert no_secret_in(edge.findings(), edge)
    before = edge.paths.membership.read_text()
    for _, _, _, plant in FAULTS:
        plant(edge)
    edge.paths.membership.write_text(before)
    edge.write("home/alice/.ray/auth_token", "tell-nobody")
    found = edge.findings()
    assert len([f for f in found.values() if f.verdict is Verdict.FAILED]) > 15
    assert no_secret_in(found, edge)
    assert "tell-nobody" not in str(found)


def test_a_defect_and_one_that_hangs_do_not_end_the_others(edge: Machine) -> None:
    """Each is told under its own name, within the time that all have."""

    def broken(_: Surroundings) -> Finding:
        raise ZeroDivisionError("by hand")

    def hanging(_: Surroundings) -> Finding:
        time.sleep(60)  # ends with the interpreter
        raise AssertionError

    def working(_: Surroundings) -> Finding:
        return Finding(Verdict.OK, "fine")

    found = examine(edge.surroundings, [hanging, broken, working], patience_s=1.0)
    assert list(found) == ["hanging", "broken", "working"]
    assert {name: finding.verdict for name, finding in found.items()} == {
        "hanging": Verdict.FAILED,
        "broken": Verdict.FAILED,
        "working": Verdict.OK,
    }
    assert "ZeroDivisionError: by hand" in found["broken"].message
    assert "no answer within 1.0 s" in found["hanging"].message


@pytest.mark.parametrize(
    ("after", "verdict"),
    [("cpu 200 0 90 10 0 0 0 0 0 0", Verdict.OK), ("cpu 100 0 0 10 190 0 0 0 0 0", Verdict.FAILED)],
    ids=["busy", "a dead disk"],
)
def test_a_busy_machine_is_not_called_one_that_hangs(edge: Machine, after: str, verdict: Verdict) -> None:
    """The processors worked all the time, or waited for a disk."""
    edge.write("proc/stat", "cpu 0 0 0 0 0 0 0 0 0 0")

    def slow(_: Surroundings) -> Finding:
        edge.write("proc/stat", after)
        is_over.wait()
        return Finding(Verdict.OK, "fine")

    is_over = threading.Event()
    timer = threading.Timer(1.5, is_over.set)
    timer.start()
    assert examine(edge.surroundings, [slow], patience_s=1.0)["slow"].verdict is verdict
    timer.join()


def test_each_check_asks_a_question_and_is_on_the_page() -> None:
    """The page is what the checks say of themselves."""
    for check in CHECKS:
        assert (check.__doc__ or "").split("\n")[0].endswith("?"), name_of(check)
    text = (DOCS / "reference/doctor.md").read_text()
    assert re.findall(r"^- \*\*`([a-z-]+)`\*\*", text, re.M) == [name_of(check) for check in CHECKS]
    assert not TOPICS.keys() & {name_of(check) for check in CHECKS}


def test_the_real_probes_answer_as_they_say(tmp_path: Path) -> None:
    """On this very machine, without any network."""
    real = Probes()
    assert real.space(tmp_path / "not/there").total_bytes > 0
    assert "127.0.0.1" in real.resolve(["localhost"])["localhost"].found
    assert real.resolve([UNKNOWN])[UNKNOWN].found == ()
    assert real.connect({(UNKNOWN, 1): connected}) == {(UNKNOWN, 1): NAME_UNKNOWN}
    assert real.stun([f"{UNKNOWN}:3478"]) == {}
    assert isinstance(real.connect({("127.0.0.1", 1): connected})["127.0.0.1", 1], str)
    assert real.processes("no-such-program") == {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert real.holders([("tcp", port), ("tcp", 1)]) == {("tcp", port): os.getpid()}
        assert isinstance(real.connect({("127.0.0.1", port): connected})["127.0.0.1", port], float)
