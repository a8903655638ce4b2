"""Somebody else's routes, rules and addresses take nothing of the overlay's, or are named. On a real kernel.

The neighbour is the edge's router. It counts what comes to it for a member.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from machines import wait_until
from overlay_lab import EDGE, NODES, OVERLAY_IPS, RAY_UID, OverlayLab
from pings import Pings

from edgelink.lab import CLOUD, RELAY, Lab
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
    "a second default": (f"route prepend default {VIA}",),
    "a tunnel for everything": (f"route add 0.0.0.0/1 {VIA}", f"route add 128.0.0.0/1 {VIA}"),
    "a later rule": (*LED_AWAY, "rule add pref 5000 from all lookup 100"),
    "a later rule for Ray's user": (*LED_AWAY, f"rule add pref 200 uidrange {RAY_UID}-{RAY_UID} lookup 100"),
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
    "an earlier rule for our address": ((*LED_AWAY, f"rule add pref 50 from {OWN_IP} lookup 100"), (OWN_IP, "eth0")),
    "an earlier rule that prohibits": ((f"rule add pref 50 to {HEAD_IP} prohibit",), ("50: from all", "Permission")),
    "a route in table local": (
        (f"route add local {HEAD_IP} dev lo table local",),
        (f"local {HEAD_IP}/32 dev lo", "table local", "cloud"),
    ),
    "another way in table local": ((f"route add {HEAD_IP}/32 {VIA} table local proto dhcp",), ("DHCP", "table local")),
    "a bridge with the head's address": (
        ("link add br-lab type bridge", f"addr add {HEAD_IP}/24 dev br-lab", "link set br-lab up"),
        ("br-lab has that overlay address", f"cloud ({HEAD_IP})"),
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


def test_what_comes_after_our_rule_changes_nothing(overlay: OverlayLab, tmp_path: Path) -> None:
    """Nobody hears a packet, nothing is said but a caveat, and who calls all the time notices nothing."""
    before, wrong = len(overlay.told(EDGE)), {}
    pings = Pings(overlay.lab, EDGE, tmp_path / "pings", HEAD_IP)
    for what, commands in WITHOUT_EFFECT.items():
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
    found = ours(overlay)
    overlay.stop(EDGE, number=signal.SIGKILL)
    assert ours(overlay) == found
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
        assert device_to(overlay, HEAD_IP) == "eth0", "without the rule the kernel knows another way"
    overlay.start(EDGE)
    overlay.wait_connected()
    assert ours(overlay) == found


SEND_SPOOFED = """
import socket, struct, sys
source, target = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as end:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"et0")
    udp = struct.pack("!HHHH", 4444, 9999, 9, 0) + b"x"
    inside = (socket.inet_aton(source), socket.inet_aton(target))
    end.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, *inside) + udp, (target, 0))
"""


def dropped(overlay: OverlayLab, node: str, rule: str) -> int:
    """How many packets the rule has dropped there."""
    told = overlay.sh(node, f"nft list table inet {RPC_TABLE}")
    return int(re.findall(rf"{re.escape(rule)} counter packets (\d+)", told)[0])


def test_foreign_addresses_come_in_by_no_device(overlay: OverlayLab) -> None:
    """A member sends from an address outside the overlay, the head's LAN; a neighbour from one inside it."""
    by_et0, beside = f'iifname "et0" ip saddr != {NETWORK}', f'iifname != "et0" ip saddr {NETWORK}'
    before = dropped(overlay, CLOUD, by_et0)
    for source in ("8.8.8.8", "192.168.10.7"):
        overlay.lab.exec(EDGE, [sys.executable, "-c", SEND_SPOOFED, source, HEAD_IP], capture=True, check=True)
    wait_until("the head drops them", lambda: dropped(overlay, CLOUD, by_et0), wanted=lambda now: now == before + 2)
    overlay.sh(NEIGHBOUR, f"ip addr add {HEAD_IP}/32 dev lo")
    try:
        before = dropped(overlay, EDGE, beside)
        asks = ["ping", "-c", "2", "-W", "1", "-I", HEAD_IP, "192.168.11.2"]
        assert overlay.lab.exec(NEIGHBOUR, asks, capture=True).returncode != 0
        assert dropped(overlay, EDGE, beside) >= before + 2
    finally:
        overlay.sh(NEIGHBOUR, f"ip addr del {HEAD_IP}/32 dev lo")
