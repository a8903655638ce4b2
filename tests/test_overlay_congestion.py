"""BBR for the tunnel alone: which rules and routes are wanted, from what the kernel says of table main."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from typing import Any
from uuid import UUID

import pytest

from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import Route, Rule, as_route, mirror, rules_for

SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="n",
    network_secret="s",
    overlay_ip=IPv4Interface("10.10.0.3/24"),
    peers=("tcp://203.0.113.10:11010",),
    listeners=("tcp://0.0.0.0:11010", "udp://0.0.0.0:11011", "wss://0.0.0.0:443"),
    device="et0",
    mtu=1360,
    rpc_port=15888,
    instance_id=UUID(int=1),
)
UNICAST, THROW, UNREACHABLE = 1, 9, 7
DEFAULT, EVERYWHERE = "0.0.0.0/0", IPv4Network("0.0.0.0/0")


def message(to: str = DEFAULT, kind: int = UNICAST, tos: int = 0, **attributes: Any) -> dict[str, Any]:
    """A route as pyroute2 tells of it."""
    network = IPv4Network(to)
    named = [(f"RTA_{name.upper()}", value) for name, value in attributes.items()]
    if network.prefixlen:
        named.append(("RTA_DST", str(network.network_address)))
    return {"dst_len": network.prefixlen, "tos": tos, "type": kind, "scope": 0, "flags": 16, "attrs": named}


def metrics(**values: int | str) -> dict[str, Any]:
    return {"attrs": [(f"RTAX_{name.upper()}", value) for name, value in values.items()]}


def mirrored(*main: dict[str, Any]) -> list[Route]:
    return list(mirror(main).values())


def test_a_node_has_rules_for_its_relays() -> None:
    """None of them names a port: the kernel looks up "fragmentation needed" without ports."""
    node = replace(SPEC, listeners=())
    assert rules_for(node, ["203.0.113.10", "198.51.100.4"], has_probing=False) == {
        Rule(to="203.0.113.10/32"),
        Rule(to="198.51.100.4/32"),
    }


def test_a_relays_listener_has_a_rule_where_tcp_probes() -> None:
    """Over TCP only; and not where a path with a small MTU would stand still for it."""
    relay = replace(SPEC, peers=())
    assert rules_for(relay, [], has_probing=True) == {Rule(source_port=11010), Rule(source_port=443)}
    assert rules_for(relay, [], has_probing=False) == set()


def test_the_way_out_is_copied_with_bbr() -> None:
    (route,) = mirrored(message(oif=4, gateway="192.0.2.1", prefsrc="192.0.2.7", priority=100))
    assert (route.destination, route.device_index, route.gateway) == (EVERYWHERE, 4, "192.0.2.1")
    assert (route.source, route.priority, route.kind) == ("192.0.2.7", 100, UNICAST)
    assert dict(route.metrics) == {"cc_algo": "bbr"}


def test_other_metrics_stay() -> None:
    (route,) = mirrored(message(oif=4, metrics=metrics(mtu=1400, initcwnd=30)))
    assert dict(route.metrics) == {"mtu": 1400, "initcwnd": 30, "cc_algo": "bbr"}


def test_several_hops_are_copied_with_their_weights() -> None:
    hops = [
        {"oif": 4, "hops": 1, "flags": 0, "attrs": [("RTA_GATEWAY", "192.0.2.1")]},
        {"oif": 5, "hops": 0, "flags": 4, "attrs": [("RTA_GATEWAY", "198.51.100.1")]},
    ]
    (route,) = mirrored(message(multipath=hops))
    assert [(hop.device_index, hop.gateway, hop.weight, hop.flags) for hop in route.hops] == [
        (4, "192.0.2.1", 1, 0),
        (5, "198.51.100.1", 0, 4),
    ]


@pytest.mark.parametrize(
    "route",
    [
        message("10.10.0.0/24", UNREACHABLE, priority=7),
        message("10.10.0.0/24", oif=4, via={"family": 10, "addr": "fe80::1"}, priority=7),
        message("10.10.0.0/24", oif=4, encap={}, priority=7),
        message("10.10.0.0/24", multipath=[{"oif": 4, "hops": 0, "flags": 0, "attrs": [("RTA_VIA", {})]}], priority=7),
        message("10.10.0.0/24", oif=4, metrics=metrics(cc_algo="cubic"), priority=7),
    ],
    ids=["a fence", "an IPv6 gateway", "an encapsulation", "a hop with an IPv6 gateway", "a choice of the user's"],
)
def test_main_decides_where_a_copy_would_lose_something(route: dict[str, Any]) -> None:
    """A throw of the same prefix sends the look-up on, so that no wider route of ours answers in its place."""
    assert mirrored(message(oif=4, gateway="192.0.2.1"), route)[1:] == [Route(IPv4Network("10.10.0.0/24"), 7, 0, THROW)]


def test_the_first_of_equal_routes_counts() -> None:
    """As it does in table main."""
    found = mirrored(message(oif=4), message(oif=5), message(oif=5, priority=9))
    assert [(route.device_index, route.priority) for route in found] == [(4, 0), (5, 9)]


def test_what_was_copied_is_recognised() -> None:
    """Else each look would write it anew."""
    (wanted,) = mirrored(message(oif=4, gateway="192.0.2.1", metrics=metrics(mtu=1400)))
    present = message(oif=4, gateway="192.0.2.1", metrics=metrics(mtu=1400, cc_algo="bbr"), table=233)
    assert as_route(present) == wanted
