"""The tunnel's TCP gets BBR by rules and a table of ours, on a real kernel, with a real EasyTier.

The host's settings and table main stay as they were. Lossy links, changes of the uplink, and one that drops full
packets without a word.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from conftest import MakeLab
from faults import narrow_uplink
from machines import push_s, wait_until
from overlay_lab import CLOUD, EDGE, NODES, OVERLAY_IPS, PORT, RELAY, RELAY_ADDRESS, OverlayLab

from edgelink.lab import Lab
from edgelink.overlay.congestion import PRIORITY, PROTOCOL, TABLE

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]
LOSSY = {"rtt": "100ms", "loss": "1%", "rate": "20mbit"}
CLEAR = {"rtt": "0", "loss": "0", "rate": "none"}
SECONDS = 8
TO_RELAY = f"ip route get {RELAY_ADDRESS} ipproto tcp dport {PORT}"
FOLLOWS_WITHIN_S = 1.0


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=1, spare_uplinks=True)
    for node in NODES:
        lab.exec(node, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"], capture=True, check=True)
    return lab


@pytest.fixture
def overlay(lab: Lab) -> Iterator[OverlayLab]:
    overlay = OverlayLab(lab)
    yield overlay
    overlay.end()
    lab.set_wan([EDGE], CLEAR)


def main_routes(overlay: OverlayLab, node: str) -> str:
    """Without the overlay's own."""
    lines = overlay.sh(node, "ip route show table main").splitlines()
    return "\n".join(line for line in lines if not line.startswith("10.10.0.0"))


def ours(overlay: OverlayLab, node: str) -> tuple[list[str], list[str]]:
    """The rules and the routes of ours."""
    rules = overlay.sh(node, f"ip rule show pref {PRIORITY}").splitlines()
    routes = overlay.lab.exec(node, ["ip", "route", "show", "table", str(TABLE)], capture=True).stdout
    return rules, routes.splitlines()


def way_to_relay(overlay: OverlayLab) -> str:
    return overlay.lab.exec(EDGE, TO_RELAY.split(), capture=True).stdout.split("uid")[0].strip()


def controls(overlay: OverlayLab, node: str, *filters: str) -> set[str]:
    """The congestion controls of the established connections."""
    told = overlay.sh(node, f"ss -tinH state established {' '.join(filters)}").split()
    return {word for word in told if word in ("bbr", "reno", "cubic")}


def test_the_tunnel_alone_gets_bbr(overlay: OverlayLab) -> None:
    """On relay, head and edge, by the first connection on; main, sysctl and other connections are as before, and at
    the end nothing of ours is left."""
    before = {node: main_routes(overlay, node) for node in NODES}
    overlay.start(*NODES)
    overlay.wait_connected()
    for node in NODES:
        assert controls(overlay, node, "sport", "=", str(PORT), "or", "dport", "=", str(PORT)) == {"bbr"}, node
        assert main_routes(overlay, node) == before[node]
        assert overlay.sh(node, "sysctl -n net.ipv4.tcp_congestion_control").strip() == "reno"
        other = overlay.sh(node, "ip route get 203.0.113.200 ipproto tcp dport 443")
        assert "congctl" not in other
        assert "BBR" not in overlay.condition(node)
    for node in (CLOUD, EDGE):
        inner = overlay.sh(node, f"ip route get {OVERLAY_IPS[RELAY]} ipproto tcp")
        assert "dev et0" in inner
        assert "congctl bbr" in inner
    overlay.end()
    for node in NODES:
        assert ours(overlay, node) == ([], [])
        assert main_routes(overlay, node) == before[node]


def test_a_lossy_link_is_used_in_both_directions(overlay: OverlayLab) -> None:
    """Of 20 Mbit/s with 100 ms and 1 % loss. The whole comparison is in benchmarks/test_tunnel_transport.py."""
    overlay.lab.set_wan([EDGE], LOSSY)
    found = {}
    for sets_bbr in (False, True):
        overlay.start(*NODES, sets_bbr=sets_bbr)
        overlay.wait_connected()
        for source, target in ((CLOUD, EDGE), (EDGE, CLOUD)):
            found[sets_bbr, source] = overlay.carry(source, target, SECONDS).mbit_s
        overlay.end()
    print(found)
    for source in (CLOUD, EDGE):
        assert found[True, source] > 2 * found[False, source]
        assert found[True, source] > 5


def test_a_daemon_that_was_killed_leaves_a_network_that_works(overlay: OverlayLab) -> None:
    """The next one takes over what it finds, and makes nothing twice."""
    overlay.start(*NODES)
    overlay.wait_connected()
    found = ours(overlay, EDGE)
    overlay.stop(EDGE, number=signal.SIGKILL)
    assert ours(overlay, EDGE) == found
    overlay.wait_connected()
    overlay.sh(EDGE, f"ip route add 198.51.100.0/30 dev lo table {TABLE} proto {PROTOCOL}")
    overlay.start(EDGE)
    wait_until("what is ours is right again", lambda: ours(overlay, EDGE), wanted=lambda now: now == found)
    assert overlay.sh(EDGE, f"ip rule show pref {PRIORITY}").count(RELAY_ADDRESS) == 1


def test_somebody_flushes_the_rules(overlay: OverlayLab) -> None:
    """As a network manager does that keeps only its own."""
    overlay.start(*NODES)
    overlay.wait_connected()
    found = ours(overlay, EDGE)
    overlay.sh(EDGE, f"ip rule del pref {PRIORITY}")
    overlay.sh(EDGE, f"ip route flush table {TABLE}")
    wait_until(
        "all is there again", lambda: ours(overlay, EDGE), 5, wanted=lambda now: sorted(now[0]) == sorted(found[0])
    )
    assert ours(overlay, EDGE)[1] == found[1]


def test_the_way_to_the_relay_follows_the_uplink(overlay: OverlayLab) -> None:
    """Another gateway, another device, a cable that is out for a while, an address given anew: each within a second."""
    overlay.start(*NODES)
    overlay.wait_connected()

    def follows(what: str, *commands: str) -> str:
        """Where TCP to the relay goes after ``commands``, once that is where main leads."""
        for command in commands:
            overlay.sh(EDGE, command)
        started_s = time.monotonic()

        def is_right(way: str) -> bool:
            main = overlay.lab.exec(EDGE, ["ip", "route", "get", RELAY_ADDRESS], capture=True).stdout
            followed = f" table {TABLE}" in way or not way  # before that main decides, which is no harm
            return followed and way.replace(f" table {TABLE}", "") == main.split("uid")[0].strip()

        way = wait_until(what, lambda: way_to_relay(overlay), 5, wanted=is_right)
        assert time.monotonic() - started_s < FOLLOWS_WITHIN_S, what
        return way

    before = way_to_relay(overlay)
    device, address = before.split()[4], before.split()[-1]
    gateway = before.split()[2]
    assert f"table {TABLE}" in before
    other = f"{gateway.rpartition('.')[0]}.77"
    assert other in follows("another gateway", f"ip route replace default via {other} dev {device}")
    assert gateway in follows("back", f"ip route replace default via {gateway} dev {device}")
    assert follows("no uplink", f"ip link set {device} down") == ""
    follows("its return", f"ip link set {device} up", f"ip route add default via {gateway} dev {device}")
    assert way_to_relay(overlay) == before
    prefix = overlay.sh(EDGE, f"ip -o -4 addr show dev {device}").split()[3]
    follows(
        "a lease that is renewed",
        f"ip addr del {prefix} dev {device}",
        f"ip addr add {prefix} dev {device}",
        f"ip route replace default via {gateway} dev {device}",
    )
    assert address in way_to_relay(overlay)
    overlay.lab.move_uplink(EDGE)
    moved_s = time.monotonic()
    wait_until(
        "the other uplink", lambda: way_to_relay(overlay), 5, wanted=lambda way: way and device not in way.split()
    )
    assert time.monotonic() - moved_s < FOLLOWS_WITHIN_S
    overlay.wait_connected(timeout_s=30)  # the uplink's change was seen: EasyTier dials by the other one
    overlay.lab.move_uplink(EDGE)


def test_an_uplink_that_drops_full_packets_without_a_word(overlay: OverlayLab) -> None:
    """The tunnel comes up, the first stream finds what fits, and the next ones are quick, in both directions."""
    with narrow_uplink(overlay.lab, EDGE):
        overlay.start(RELAY, CLOUD)
        started_s = time.monotonic()
        overlay.start(EDGE)
        overlay.wait_connected()
        up_after_s = time.monotonic() - started_s
        first_s, next_s = (
            [push_s(overlay.lab, *ways, OVERLAY_IPS[ways[1]]) for ways in ((EDGE, CLOUD), (CLOUD, EDGE))]
            for _ in range(2)
        )
    print(f"up after {up_after_s:.1f} s, 1 MB in {first_s} s, then in {next_s} s")
    assert up_after_s <= 15
    assert max(first_s) <= 15
    assert max(next_s) <= 2
