"""Somebody else's routes, rules and addresses take nothing of the overlay's, or are named. On a real kernel.

The neighbour is the edge's router. It counts what comes to it for a member.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker_engine
import pytest
from conftest import MakeLab
from docker_engine import Engine
from forged import send_forged
from machines import can_ping, wait_until
from overlay_lab import EDGE, NODES, OVERLAY_IPS, RAY_UID, OverlayLab
from pings import Pings

from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.namespaces import netns_path
from edgelink.overlay.overlay_drops import Kind, counted_in, noted_in
from edgelink.overlay.own_routes import PRIORITY, TABLE
from edgelink.overlay.rpc_guard import RPC_TABLE

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]
NEIGHBOUR, GATEWAY = "edge-1-nat", "192.168.11.1"
NETWORK, HEAD_IP, OWN_IP = "10.10.0.0/24", OVERLAY_IPS[CLOUD], OVERLAY_IPS[EDGE]
NAMED_WITHIN_S, PUT_BACK_WITHIN_S, LONGEST_GAP_S = 5.0, 1.0, 1.0
VIA = f"via {GATEWAY} dev eth0"
LED_AWAY = (f"route add 10.0.0.0/8 {VIA} table 100",)
COUNTER = f"""table inet heard {{
  chain in {{
    type filter hook prerouting priority -300;
    ip daddr {NETWORK} counter
  }}
}}"""

# What comes after our rule. Each is what `ip` is told to add, one after the other.
WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "the head alone, by DHCP": (f"route add {HEAD_IP}/32 {VIA} proto dhcp",),
    "half of the network, by DHCP": (f"route add 10.10.0.0/25 {VIA} proto dhcp",),
    "the network itself, before its own route": (f"route prepend {NETWORK} {VIA}",),
    "an office's network": (f"route add 10.0.0.0/8 {VIA}",),
    "an IPv6 next hop": ("route add 10.10.0.0/25 via inet6 fe80::1 dev eth0",),
    "an odd part of it": (f"route add {HEAD_IP}/31 {VIA}",),
    "a lower metric": (f"route add {NETWORK} {VIA} metric 1",),
    "a second default": (f"route prepend default {VIA}",),
    "a next hop with a number": (f"nexthop add id 77 {VIA}", "route add 10.10.0.0/25 nhid 77"),
    "a VRF": ("link add vrf-lab type vrf table 100", "link set vrf-lab up", *LED_AWAY),
    "a tunnel for everything": (f"route add 0.0.0.0/1 {VIA}", f"route add 128.0.0.0/1 {VIA}"),
    "a later rule": (*LED_AWAY, "rule add pref 5000 from all lookup 100"),
    "a later rule for Ray's user": (*LED_AWAY, f"rule add pref 200 uidrange {RAY_UID}-{RAY_UID} lookup 100"),
    "a later rule for a mark": (*LED_AWAY, "rule add pref 200 fwmark 0x5 lookup 100"),
    "a later rule for the echo": (*LED_AWAY, "rule add pref 200 ipproto udp dport 9749 lookup 100"),
    "a later rule for all that has no mark": (*LED_AWAY, "rule add pref 200 not from all fwmark 0xca6c lookup 100"),
}
# What comes before it, and what has to be named.
NAMED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an earlier rule": (
        (*LED_AWAY, "rule add pref 50 from all lookup 100"),
        ("50: from all lookup 100", "10.0.0.0/8", "eth0", "ip rule del priority 50"),
    ),
    "an earlier rule for Ray's user": (
        (*LED_AWAY, f"rule add pref 50 uidrange {RAY_UID}-{RAY_UID} lookup 100"),
        (f"uidrange {RAY_UID}-{RAY_UID}", "eth0"),
    ),
    "an earlier rule for one port": (
        (*LED_AWAY, "rule add pref 50 ipproto tcp dport 6379 lookup 100"),
        ("dport 6379-6379", "eth0"),
    ),
    "an earlier rule for one protocol": (
        (*LED_AWAY, "rule add pref 50 ipproto udp lookup 100"),
        ("ipproto 17", "eth0"),
    ),
    "an earlier rule for half of the network": (
        (*LED_AWAY, "rule add pref 50 to 10.10.0.0/25 lookup 100"),
        ("50: from all to 10.10.0.0/25", "eth0"),
    ),
    "an earlier rule and a next hop with a number": (
        (f"nexthop add id 77 {VIA}", "route add 10.0.0.0/8 nhid 77 table 100", "rule add pref 50 from all lookup 100"),
        ("50: from all lookup 100", "eth0"),
    ),
    "an earlier rule for our address": ((*LED_AWAY, f"rule add pref 50 from {OWN_IP} lookup 100"), (OWN_IP, "eth0")),
    "an earlier rule that prohibits": ((f"rule add pref 50 to {HEAD_IP} prohibit",), ("50: from all", "Permission")),
    "an earlier rule into a table that drops": (
        (f"route add blackhole {HEAD_IP}/32 table 100", "rule add pref 50 from all lookup 100"),
        ("50: from all lookup 100", f"blackhole {HEAD_IP}/32", "priority 50`"),
    ),
    "a route in table local that drops": (
        (f"route add unreachable {HEAD_IP}/32 table local",),
        (f"ip route del unreachable {HEAD_IP}/32 table local",),
    ),
    "a route in table local": (
        (f"route add local {HEAD_IP} dev lo table local",),
        (f"local {HEAD_IP}/32 dev lo", "table local", "cloud"),
    ),
    "another way in table local": ((f"route add {HEAD_IP}/32 {VIA} table local proto dhcp",), ("DHCP", "table local")),
    "a bridge with the head's address": (
        ("link add br-lab type bridge", f"addr add {HEAD_IP}/24 dev br-lab", "link set br-lab up"),
        ("br-lab", f"cloud ({HEAD_IP})"),
    ),
}


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=1)
    lab.exec(EDGE, ["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=0"], capture=True, check=True)
    return lab


@pytest.fixture(scope="module")
def overlay(lab: Lab) -> Iterator[OverlayLab]:
    overlay = OverlayLab(lab)
    overlay.start(*NODES)
    overlay.wait_connected()
    lab.exec(NEIGHBOUR, ["nft", "-f", "-"], capture=True, check=True, stdin=COUNTER)
    yield overlay
    overlay.end()


@contextmanager
def added(overlay: OverlayLab, commands: tuple[str, ...]) -> Iterator[None]:
    try:
        for command in commands:
            overlay.sh(EDGE, f"ip {command}")
        yield
    finally:
        take_away(overlay, commands)


def take_away(overlay: OverlayLab, commands: tuple[str, ...]) -> None:
    for command in reversed(commands):
        undo = re.sub(r"^(link|addr|route|rule) (add|prepend|set)", r"\1 del", command)
        undo = re.sub(r"^nexthop add (id \d+).*", r"nexthop del \1", undo)
        overlay.lab.exec(EDGE, ["ip", *undo.removesuffix(" up").removesuffix(" type bridge").split()], capture=True)


def last(overlay: OverlayLab) -> dict[str, Any]:
    return overlay.told(EDGE)[-1]


def heard(overlay: OverlayLab) -> int:
    """How many packets for members the neighbour has got."""
    told = overlay.sh(NEIGHBOUR, "nft list table inet heard")
    found = re.search(r"counter packets (\d+)", told)
    assert found, told
    return int(found[1])


def device_to(overlay: OverlayLab, ip: str, *asked: str) -> str:
    """The device by which the kernel sends there; empty where it does not."""
    told = overlay.lab.exec(EDGE, ["ip", "route", "get", ip, *asked], capture=True).stdout
    found = re.search(r"dev (\S+)", told)
    return found[1] if found else ""


def ours(overlay: OverlayLab) -> tuple[list[str], list[str]]:
    """Our rule, and what is in our table."""
    rules = overlay.sh(EDGE, f"ip rule show pref {PRIORITY}").splitlines()
    routes = overlay.lab.exec(EDGE, ["ip", "route", "show", "table", str(TABLE)], capture=True).stdout
    return rules, routes.splitlines()


def knows_vrfs(overlay: OverlayLab) -> bool:
    """Whether this kernel does."""
    probe = overlay.lab.exec(EDGE, ["ip", "link", "add", "vrf-probe", "type", "vrf", "table", "101"], capture=True)
    return probe.returncode == 0 and overlay.sh(EDGE, "ip link del vrf-probe") == ""


def rules_of(overlay: OverlayLab) -> list[str]:
    """The rules in our nftables table, without what they have counted."""
    told = overlay.sh(EDGE, f"nft list table inet {RPC_TABLE}")
    return [re.sub(r"packets \d+ bytes \d+", "", line) for line in told.splitlines() if "edgelink " in line]


def test_what_comes_after_our_rule_changes_nothing(overlay: OverlayLab, tmp_path: Path) -> None:
    """Nobody hears a packet, nothing is said but a caveat, and who calls all the time notices nothing."""
    before, wrong = len(overlay.told(EDGE)), {}
    variants = {what: commands for what, commands in WITHOUT_EFFECT.items() if what != "a VRF" or knows_vrfs(overlay)}
    pings = Pings(overlay.lab, EDGE, tmp_path / "pings", HEAD_IP)
    for what, commands in variants.items():
        with added(overlay, commands):
            pings.wait_for_answer()
            ways = {
                device_to(overlay, ip, *asked)
                for ip in (HEAD_IP, OVERLAY_IPS[RELAY])
                for asked in ((), ("uid", str(RAY_UID)), ("from", OWN_IP))
            }
        pings.wait_for_answer()
        if ways != {"et0"} or heard(overlay):
            wrong[what] = (ways, heard(overlay))
    gap_s = pings.settled_gap_s()
    print(f"longest gap {gap_s:.2f} s")
    assert wrong == {}
    assert gap_s <= LONGEST_GAP_S
    assert [told for told in overlay.told(EDGE)[before:] if told["status"] != "True"] == []


@pytest.mark.parametrize("what", NAMED)
def test_what_comes_before_our_rule_is_named(overlay: OverlayLab, what: str) -> None:
    """Within five seconds, with what to do; and all is well again once it is gone."""
    commands, words = NAMED[what]
    with added(overlay, commands):
        told = wait_until(
            "it is named", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: now["status"] == "False"
        )
        assert told["reason"] == "RouteElsewhere"
        for asked in ((), ("-I", OWN_IP)):
            overlay.lab.exec(EDGE, ["ping", "-c", "3", "-i", "0.1", "-W", "1", *asked, HEAD_IP], capture=True)
        assert heard(overlay) == 0
        assert all(word in told["message"] for word in words), told["message"]
    wait_until("all is well", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: now["status"] == "True")
    assert "route" not in last(overlay)["message"]


def test_an_earlier_rule_for_marked_packets_is_a_caveat(overlay: OverlayLab) -> None:
    """None of ours are marked."""
    with added(overlay, (*LED_AWAY, "rule add pref 50 fwmark 0x5 lookup 100")):
        told = wait_until("a caveat", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: "0x5" in now["message"])
        assert told["status"] == "True"
        marked = ["ping", "-c", "3", "-i", "0.1", "-W", "1", "-m", "5", HEAD_IP]
        assert overlay.lab.exec(EDGE, marked, capture=True).returncode != 0, "the mark leads them away"
        assert heard(overlay) == 0
    wait_until("it is gone", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: "0x5" not in now["message"])


def test_a_machine_whose_table_local_comes_later_reaches_itself(overlay: OverlayLab) -> None:
    """As the kernel's documentation has it for VRFs; Ray speaks to its own node by the overlay address all the time."""
    overlay.sh(EDGE, "ip rule add pref 32765 lookup local")
    overlay.sh(EDGE, "ip rule del pref 0")
    try:
        assert device_to(overlay, OWN_IP) == "lo"
        assert can_ping(overlay.lab, EDGE, OWN_IP)
        assert can_ping(overlay.lab, EDGE, HEAD_IP)
        assert can_ping(overlay.lab, CLOUD, OWN_IP)
    finally:
        overlay.sh(EDGE, "ip rule add pref 0 lookup local")
        overlay.sh(EDGE, "ip rule del pref 32765")


def test_an_earlier_rule_for_what_comes_in_elsewhere_is_a_caveat(overlay: OverlayLab) -> None:
    """A container's packets are not this machine's own. The next test shows that they go nowhere."""
    bridge = ("link add br-lab type bridge", "link set br-lab up")
    with added(overlay, (*bridge, *LED_AWAY, "rule add pref 50 iif br-lab lookup 100")):
        told = wait_until(
            "a caveat", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: "iif br-lab" in now["message"]
        )
        assert told["status"] == "True"
    wait_until("it is gone", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: "br-lab" not in now["message"])


def test_next_hops_that_the_kernel_tells_by_number_only_are_seen_through(overlay: OverlayLab) -> None:
    """A setting of hosts that route for others."""
    overlay.sh(EDGE, "sysctl -qw net.ipv4.nexthop_compat_mode=0")
    try:
        test_what_comes_before_our_rule_is_named(overlay, "an earlier rule and a next hop with a number")
    finally:
        overlay.sh(EDGE, "sysctl -qw net.ipv4.nexthop_compat_mode=1")


def test_doctors_echo_leaves_by_the_overlay(overlay: OverlayLab) -> None:
    """Whatever rule leads others away, so that it tells of the overlay and not of the rule."""
    ask = "from edgelink.doctor.probes import Probes; print(sorted(Probes().echoes([%r], %r)))"

    def answering(device: str | None) -> str:
        command = [sys.executable, "-c", ask % (HEAD_IP, device)]
        return overlay.lab.exec(EDGE, command, capture=True, check=True).stdout.strip()

    with added(overlay, NAMED["an earlier rule"][0]):
        assert (answering("et0"), answering(None)) == (f"['{HEAD_IP}']", "[]")


def test_somebody_flushes_what_is_ours_while_a_route_waits_for_it(overlay: OverlayLab) -> None:
    """As a network manager does that keeps only its own; somebody adds a route to our table."""
    found, before = ours(overlay), len(overlay.told(EDGE))
    with added(overlay, (f"route add 10.10.0.0/25 {VIA}",)):
        for command in (
            f"ip rule del pref {PRIORITY}",
            f"ip route flush table {TABLE}",
            f"ip route add 10.10.0.0/25 {VIA} table {TABLE}",
            f"ip route prepend {NETWORK} {VIA} table {TABLE}",
            f"ip rule add pref {PRIORITY} from all lookup {TABLE}",
        ):
            overlay.sh(EDGE, command)
            wait_until(
                f"all is as before {command}", lambda: ours(overlay), PUT_BACK_WITHIN_S, wanted=lambda now: now == found
            )
    assert {told["status"] for told in overlay.told(EDGE)[before:]} <= {"True"}


def test_what_is_for_a_member_leaves_by_no_other_way(overlay: OverlayLab) -> None:
    """A killed daemon leaves it, with a device that is gone nothing leaves; the next daemon adopts it; the end of the
    overlay takes it away."""
    found, table = ours(overlay), rules_of(overlay)
    overlay.stop(EDGE, number=signal.SIGKILL)
    assert (ours(overlay), rules_of(overlay)) == (found, table)
    with added(overlay, (f"route add 10.10.0.0/25 {VIA}",)):
        assert device_to(overlay, HEAD_IP) == "et0"
        for fault in ("ip link set et0 down", "ip link del et0"):
            overlay.sh(EDGE, fault)
            for asked in ((), ("from", OWN_IP)):
                assert device_to(overlay, HEAD_IP, *asked) == "", fault
        before = len(overlay.told(EDGE))
        overlay.start(EDGE)
        wait_until(
            "the overlay is up",
            lambda: overlay.told(EDGE)[before:],
            wanted=lambda told: told and told[-1]["status"] == "True",
        )
        assert ours(overlay) == found
        overlay.stop(EDGE)
        assert ours(overlay) == ([], [])
        assert RPC_TABLE not in overlay.sh(EDGE, "nft list tables")
        assert device_to(overlay, HEAD_IP) == "eth0", "without the rule the kernel knows another way"
    overlay.start(EDGE)
    overlay.wait_connected()
    assert ours(overlay) == found


def dropped(overlay: OverlayLab, node: str, kind: Kind) -> int:
    """How many packets of this kind the node has dropped."""
    return counted_in(overlay.sh(node, f"nft list table inet {RPC_TABLE}"))[kind]


def test_foreign_addresses_come_in_by_no_device(overlay: OverlayLab) -> None:
    """A member sends from the head's LAN, and from an address that nobody has; a neighbour from a member's."""
    before = dropped(overlay, CLOUD, Kind.FOREIGN)
    for source in ("8.8.8.8", "192.168.10.7"):
        send_forged(overlay.lab, EDGE, source, HEAD_IP)
    wait_until(
        "the head drops them", lambda: dropped(overlay, CLOUD, Kind.FOREIGN), wanted=lambda now: now == before + 2
    )
    before = dropped(overlay, CLOUD, Kind.UNLEASED)
    send_forged(overlay.lab, EDGE, "10.10.0.77", HEAD_IP)
    wait_until(
        "the head drops it", lambda: dropped(overlay, CLOUD, Kind.UNLEASED), wanted=lambda now: now == before + 1
    )
    noted = overlay.sh(CLOUD, f"nft list table inet {RPC_TABLE}")
    assert {(drop.kind, drop.device, str(drop.source), str(drop.target)) for drop in noted_in(noted)} == {
        (Kind.FOREIGN, "et0", "8.8.8.8", HEAD_IP),
        (Kind.FOREIGN, "et0", "192.168.10.7", HEAD_IP),
        (Kind.UNLEASED, "et0", "10.10.0.77", HEAD_IP),
    }
    overlay.sh(NEIGHBOUR, f"ip addr add {HEAD_IP}/32 dev lo")
    try:
        before = dropped(overlay, EDGE, Kind.FROM_MEMBER)
        asks = ["ping", "-c", "2", "-W", "1", "-I", HEAD_IP, "192.168.11.2"]
        assert overlay.lab.exec(NEIGHBOUR, asks, capture=True).returncode != 0
        assert dropped(overlay, EDGE, Kind.FROM_MEMBER) >= before + 2
    finally:
        overlay.sh(NEIGHBOUR, f"ip addr del {HEAD_IP}/32 dev lo")


# -- Docker


NEEDS_DOCKER = docker_engine.reason_to_skip()
IMAGE = "nothing"
PYTHON = "/usr/bin/python3"
LAN_IP, SSH_PORT = "192.168.11.2", 2222
SERVE = f"""
import socket
with socket.create_server(("0.0.0.0", {SSH_PORT})) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while said := connection.recv(100):
        connection.sendall(said)
"""
SPEAK = f"""
import socket, time
with socket.create_connection(("{LAN_IP}", {SSH_PORT}), 10) as connection:
    connection.settimeout(10)
    while True:
        connection.sendall(b"x")
        assert connection.recv(100)
        print(time.monotonic(), flush=True)
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def engine(overlay: OverlayLab) -> Iterator[Engine]:
    """On the edge. Its image is empty: containers use the programs of this machine."""
    engine = Engine(netns_path(overlay.lab.name, EDGE))
    try:
        engine.start()
        engine.import_nothing(IMAGE)
        yield engine
    finally:
        engine.close()


def from_container(engine: Engine, *command: str) -> bool:
    """Whether a command succeeds in a container on Docker's own bridge."""
    mounts = [word for path in ("/usr", "/lib", "/lib64", "/bin", "/etc") for word in ("--volume", f"{path}:{path}:ro")]
    return engine.docker("run", "--rm", *mounts, IMAGE, *command, check=False).returncode == 0


def asks(address: str) -> tuple[str, ...]:
    return ("ping", "-c", "3", "-i", "0.2", "-W", "2", address)


@pytest.mark.skipif(NEEDS_DOCKER is not None, reason=str(NEEDS_DOCKER))
def test_a_container_reaches_host_and_members_by_the_overlay_only(overlay: OverlayLab, engine: Engine) -> None:
    """Where a rule leads its packets past the overlay, they go nowhere, and it is said."""
    for address in (LAN_IP, OWN_IP, HEAD_IP):
        assert from_container(engine, *asks(address)), address
    with added(overlay, (*LED_AWAY, "rule add pref 50 iif docker0 lookup 100")):
        wait_until("it is said", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: "docker0" in now["message"])
        before = heard(overlay)
        assert not from_container(engine, *asks(HEAD_IP))
        assert heard(overlay) == before
    assert from_container(engine, *asks(HEAD_IP))


@pytest.mark.skipif(NEEDS_DOCKER is not None, reason=str(NEEDS_DOCKER))
def test_a_docker_network_with_the_overlays_addresses_is_named(
    overlay: OverlayLab, engine: Engine, tmp_path: Path
) -> None:
    """At once; who is connected by another network notices nothing, and all is well once it is gone."""
    server = overlay.lab.popen(EDGE, [PYTHON, "-c", SERVE], tmp_path / "server")
    wait_until("it listens", (tmp_path / "server").read_text, wanted=lambda text: "listening" in text)
    client = overlay.lab.popen(NEIGHBOUR, [PYTHON, "-c", SPEAK], tmp_path / "client")

    def spoken_s() -> list[float]:
        return [
            float(line) for line in (tmp_path / "client").read_text().splitlines(keepends=True) if line[-1:] == "\n"
        ]

    before = heard(overlay)
    try:
        wait_until("they speak", spoken_s)
        engine.docker("network", "create", "--subnet", NETWORK, "taker")
        try:
            told = wait_until(
                "it is named", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: now["status"] == "False"
            )
            assert told["reason"] == "RouteElsewhere"
            assert f"relay ({OVERLAY_IPS[RELAY]})" in told["message"]
            assert heard(overlay) == before
        finally:
            engine.docker("network", "rm", "taker")
        wait_until("all is well", lambda: last(overlay), NAMED_WITHIN_S, wanted=lambda now: now["status"] == "True")
        now = len(spoken_s())
        wait_until("they speak on", spoken_s, wanted=lambda times: len(times) > now + 10)
        assert max(after - before for before, after in itertools.pairwise(spoken_s())) <= LONGEST_GAP_S
    finally:
        for process in (client, server):
            process.kill()
            process.wait()
