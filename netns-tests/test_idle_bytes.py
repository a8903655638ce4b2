"""What an idle edge sends and receives has a budget, component by component, counted on its router."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from conftest import MakeLab
from machines import road, start_relay, wait_for_condition, wait_until

from edgelink.api.client import call
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import EdgelinkError
from edgelink.lab import Lab

EDGES = ("edge-1", "edge-2")
NODE, ROUTER = EDGES[0], f"{EDGES[0]}-nat"
DAY_S = 86_400
# Around an overlay packet: EasyTier's header and encryption, TCP, and its share of acknowledgements (measured).
OVERHEAD_BYTES = 100
ONE_TIME = 2_000  # bytes of a status, or a retransmission, in the window
# MB a day, docs/explanation/idle.md.
METERED = {"echo": 2.0, "mqtt": 0.9}
MOST_OURS_MB = 15.0  # echo, mqtt, stun and punching together, where the uplink is not metered
MOST_EASYTIER_MB = 150.0  # its connection to the relay with Ray's idle traffic and the echo in it
SEARCH_S = 150.0  # one of a minute, and EasyTier's start before it
ENV = {"EDGELINK_OVERLAY__METERED": "true"}
_OUTER = """
table ip idle {
  chain forward {
    type filter hook forward priority 0
    tcp dport 11010 counter comment "easytier"
    tcp sport 11010 counter comment "easytier"
    tcp dport 8883 counter comment "mqtt"
    tcp sport 8883 counter comment "mqtt"
    th dport { 3478, 3479 } counter comment "stun"
    th sport { 3478, 3479 } counter comment "stun"
    udp dport != { 3478, 3479 } udp sport != { 3478, 3479 } counter comment "punching"
  }
}
"""
_INNER = """
table ip idle {
  chain input {
    type filter hook input priority 0
    iifname "et0" udp dport 9749 counter comment "echo"
    iifname "et0" udp sport 9749 counter comment "echo"
  }
  chain output {
    type filter hook output priority 0
    oifname "et0" udp dport 9749 counter comment "echo"
    oifname "et0" udp sport 9749 counter comment "echo"
  }
}
"""

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("easytier")]


@contextmanager
def counted(lab: Lab, node: str, table: str) -> Iterator[None]:
    lab.exec(node, ["nft", "-f", "-"], stdin=table, check=True)
    try:
        yield
    finally:
        lab.exec(node, ["nft", "delete", "table", "ip", "idle"], check=True)


def bytes_of(lab: Lab, node: str) -> dict[str, int]:
    """What was counted there, by component; an overlay packet with what is around it."""
    found: dict[str, int] = {}
    listed = json.loads(lab.exec(node, ["nft", "-j", "list", "table", "ip", "idle"], capture=True, check=True).stdout)
    for rule in (entry["rule"] for entry in listed["nftables"] if "rule" in entry):
        counter = next(part["counter"] for part in rule["expr"] if "counter" in part)
        around = OVERHEAD_BYTES * counter["packets"] if rule["comment"] == "echo" else 0
        found[rule["comment"]] = found.get(rule["comment"], 0) + counter["bytes"] + around
    return found


def window(lab: Lab, seconds: float) -> dict[str, int]:
    """Bytes by component in so many idle seconds."""
    with counted(lab, ROUTER, _OUTER), counted(lab, NODE, _INNER):
        SystemClock().block(seconds)
        return bytes_of(lab, ROUTER) | bytes_of(lab, NODE)


def way(lab: Lab) -> str | None:
    """How the first edge reaches the second; None while that is not told."""
    try:
        paths = call(lab.host_path(NODE, Paths().node_socket), "GET", "/paths")["paths"]
    except EdgelinkError:
        return None
    return next((str(path["path"]) for path in paths if path["hostname"] == EDGES[1]), "none")


def has_given_up(lab: Lab) -> bool:
    """Whether the last that this daemon told of the search for direct paths is its end."""
    told = [line for line in lab.daemon_log(NODE).read_text().splitlines() if '"overlay.search_' in line]
    return bool(told) and '"overlay.search_over"' in told[-1]


def a_day_mb(found: Mapping[str, int], seconds: float) -> dict[str, float]:
    """MB a day by component, where so many bytes are counted in these seconds."""
    return {name: round(max(0, count - ONE_TIME) * DAY_S / seconds / 1e6, 1) for name, count in found.items()}


def start_edges(lab: Lab) -> None:
    """Relay and metered edges, which wait for a head that never comes: the overlay needs none."""
    start_relay(lab)
    for node in EDGES:
        road(lab).enrol(node)
        lab.start(node, env=ENV)
    for node in EDGES:
        wait_for_condition(lab, node, "RegistryConnected", "Connected")


@pytest.mark.long
def test_a_metered_edge_stays_within_its_budget(make_lab: MakeLab) -> None:
    lab = make_lab()
    lab.up(edges=2)
    start_edges(lab)
    wait_until("the search for direct paths is over", lambda: has_given_up(lab), SEARCH_S)
    found = window(lab, 60)
    assert found["easytier"] > 0
    a_day = a_day_mb(found, 60)
    assert all(a_day[name] <= most for name, most in METERED.items()), (a_day, found)
    assert (found["stun"], found["punching"]) == (0, 0), found


@pytest.mark.long
def test_after_a_search_that_ended_another_node_that_comes_is_found_directly(make_lab: MakeLab) -> None:
    lab = make_lab()
    lab.up(edges=2, nat=dict.fromkeys(EDGES, "cone"))
    start_edges(lab)
    wait_until("a direct path at first", lambda: way(lab) == "direct", SEARCH_S)
    wait_until("the search for direct paths is over", lambda: has_given_up(lab), SEARCH_S)
    lab.reboot(EDGES[1])
    wait_until("the way to the node that is gone", lambda: way(lab) != "direct", SEARCH_S)
    lab.start(EDGES[1], env=ENV)
    wait_until("a direct path again", lambda: way(lab) == "direct", SEARCH_S)


@pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="`make soak`")
@pytest.mark.parametrize("members", [3, 20])
@pytest.mark.timeout(1800)
def test_an_idle_edge_of_a_ray_cluster_stays_within_its_budget(make_lab: MakeLab, members: int) -> None:
    lab = make_lab()
    road(lab).bring_up(members - 1)
    wait_until("the search for direct paths is over", lambda: has_given_up(lab), 2 * SEARCH_S)
    a_day = a_day_mb(window(lab, 120), 120)
    print(f"\n{members} members, MB a day: {a_day}")
    easytier_mb = a_day.pop("easytier")
    assert sum(a_day.values()) <= MOST_OURS_MB
    assert easytier_mb <= MOST_EASYTIER_MB
