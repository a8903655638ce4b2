"""On what way other nodes are reached, and that a change is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from edgelink.errors import OverlayError
from edgelink.overlay import path_watch
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.path_watch import PathWatch, ways
from edgelink.overlay.status import Peer, parse_next_hops
from edgelink.testing import FakeClock

RELAY, EDGE = IPv4Address("10.10.0.1"), IPv4Address("10.10.0.3")
OWN = Peer(IPv4Address("10.10.0.2"), "edge-1", "Local", None, "", "2.6.4")
TO_RELAY = Peer(RELAY, "relay", "p2p", 0.08, "tcp", "2.6.4", received="1.99 kB", sent="2.23 kB")
RELAYED = Peer(EDGE, "edge-2", "relay(2)", 0.0, "", "2.6.4")
DIRECT = Peer(EDGE, "edge-2", "p2p", 0.05, "udp", "2.6.4")

# `easytier-cli -o json route` of 2.6.4, recorded and shortened.
ROUTES = """[
  {"ipv4": "10.10.0.2/24", "hostname": "edge-1", "next_hop_ipv4": "-", "next_hop_hostname": "Local", "path_len": 0},
  {"ipv4": "", "hostname": "relay", "next_hop_ipv4": "DIRECT", "next_hop_hostname": "DIRECT", "path_len": 1},
  {"ipv4": "10.10.0.3/24", "hostname": "edge-2", "next_hop_ipv4": "", "next_hop_hostname": "relay", "path_len": 2}
]"""


def test_the_next_hop_is_read() -> None:
    """Whom one reaches directly, and oneself, have none; a relay may have no overlay address."""
    assert parse_next_hops(ROUTES) == {EDGE: "relay"}


def test_an_answer_that_is_no_route_list_is_an_error() -> None:
    """As for the list of peers."""
    with pytest.raises(OverlayError):
        parse_next_hops('{"error": 1}')


def test_a_way_names_its_relay_or_its_protocol() -> None:
    """Oneself and nodes without an overlay address have no way; 0 ms means not measured."""
    nameless = Peer(None, "relay-2", "p2p", 1.0, "tcp", "2.6.4")
    found = [way.to_dict() for way in ways([OWN, nameless, TO_RELAY, RELAYED], {EDGE: "relay"})]
    assert found == [
        {
            "hostname": "relay",
            "overlay_ip": "10.10.0.1",
            "path": "direct",
            "via": None,
            "protocol": "tcp",
            "latency_ms": 0.08,
            "loses_full_packets": False,
            "loss": None,
            "received": "1.99 kB",
            "sent": "2.23 kB",
        },
        {
            "hostname": "edge-2",
            "overlay_ip": "10.10.0.3",
            "path": "relayed",
            "via": "relay",
            "protocol": None,
            "latency_ms": None,
            "loses_full_packets": False,
            "loss": None,
            "received": "",
            "sent": "",
        },
    ]


@pytest.mark.parametrize("rows", [[DIRECT, RELAYED], [RELAYED, DIRECT]])
def test_of_two_rows_of_a_restarted_node_the_direct_one_counts(rows: list[Peer]) -> None:
    """One way a node, whatever their order."""
    assert [way.path for way in ways(rows, {})] == ["direct"]


@dataclass
class EasyTier:
    """What easytier-cli would say, and how often it was asked."""

    rows: list[Peer] = field(default_factory=list)
    hops: dict[IPv4Address, str] = field(default_factory=dict)
    error: OverlayError | None = None
    asked: list[str] = field(default_factory=list)

    async def peers(self, *_: object) -> list[Peer]:
        self.asked.append("peer")
        if self.error:
            raise self.error
        return self.rows

    async def next_hops(self, *_: object) -> dict[IPv4Address, str]:
        self.asked.append("route")
        return self.hops


@pytest.fixture
def easytier(monkeypatch: pytest.MonkeyPatch) -> EasyTier:
    easytier = EasyTier()
    monkeypatch.setattr(path_watch, "peers", easytier.peers)
    monkeypatch.setattr(path_watch, "next_hops", easytier.next_hops)
    return easytier


async def answering(_target: IPv4Address, *, full: bool) -> bool:
    return True


def watch(clock: FakeClock, answers: Callable[..., Awaitable[bool]] = answering) -> PathWatch:
    return PathWatch(lambda: EasyTierBinary(Path("/opt/easytier-core"), None, "2.6.4"), 15888, clock, answers)


async def test_each_change_is_logged_once(easytier: EasyTier) -> None:
    """Relayed, direct, relayed through another; a look without news, another latency and an outage say nothing."""
    paths = watch(FakeClock())
    easytier.hops = {EDGE: "relay"}
    with capture_logs() as logs:
        for rows in ([TO_RELAY, RELAYED], [TO_RELAY, RELAYED], [TO_RELAY, DIRECT], [TO_RELAY], [TO_RELAY, DIRECT]):
            easytier.rows = rows
            await paths.look()
        easytier.error = OverlayError("easytier-cli: no answer")
        assert await paths.look() == []
        easytier.error, easytier.rows, easytier.hops = None, [TO_RELAY, RELAYED], {EDGE: "relay-2"}
        await paths.look()
    assert [(log["node"], log["was"], log["now"]) for log in logs if log["event"] == "overlay.path_changed"] == [
        ("relay", None, "direct, tcp"),
        ("edge-2", None, "through relay"),
        ("edge-2", "through relay", "direct, udp"),
        ("edge-2", "direct, udp", "through relay-2"),
    ]


async def test_any_number_of_askers_costs_one_question(easytier: EasyTier) -> None:
    """Every local user may ask the daemon; one who goes away takes the answer from nobody."""
    clock = FakeClock()
    paths = watch(clock)
    easytier.rows = [TO_RELAY]
    askers = [asyncio.ensure_future(paths.latest()) for _ in range(50)]
    await asyncio.sleep(0)
    askers[0].cancel()
    answers = await asyncio.gather(*askers[1:])
    assert [[way.hostname for way in answer] for answer in answers] == [["relay"]] * 49
    assert easytier.asked == ["peer"]
    easytier.rows = [TO_RELAY, DIRECT]
    assert len(await paths.latest()) == 1
    await clock.advance(1)
    assert len(await paths.latest()) == 2
    assert easytier.asked == ["peer"] * 2


async def test_easytier_is_asked_seldom_and_for_hops_only_where_there_are_any(easytier: EasyTier) -> None:
    """Each question is a process."""
    clock = FakeClock()
    paths = watch(clock)
    easytier.rows = [TO_RELAY, DIRECT]
    task = asyncio.ensure_future(paths.run())
    await clock.advance(61)
    assert easytier.asked == ["peer"] * 4
    easytier.rows = [TO_RELAY, RELAYED]
    await clock.advance(15)
    assert easytier.asked[4:] == ["peer", "route"]
    task.cancel()


async def test_a_direct_path_that_loses_full_packets_is_told_until_it_carries_them(easytier: EasyTier) -> None:
    """Small pings pass on it, so EasyTier keeps it. One that carries is tried once; relayed and TCP ones never."""
    clock, carried, asked = FakeClock(), False, []

    async def answers(target: IPv4Address, *, full: bool) -> bool:
        asked.append((target, full))
        return carried or not full

    paths = watch(clock, answers)
    easytier.rows = [TO_RELAY, RELAYED]
    with capture_logs() as logs:
        task = asyncio.ensure_future(paths.run())
        await clock.advance(16)
        assert asked == []
        easytier.rows = [TO_RELAY, DIRECT]
        await clock.advance(30)
        assert {target for target, _ in asked} == {EDGE}
        assert [way.hostname for way in await paths.look() if way.loses_full_packets] == ["edge-2"]
        carried = True
        await clock.advance(15)
        assert not any(way.loses_full_packets for way in await paths.look())
        count = len(asked)
        await clock.advance(60)
        assert len(asked) == count
    task.cancel()
    assert [log["node"] for log in logs if log["event"] == "overlay.full_packets_lost"] == ["edge-2"]


async def test_a_node_that_does_not_answer_at_all_is_no_such_case(easytier: EasyTier) -> None:
    """Its own conditions say what is wrong."""
    clock = FakeClock()

    async def silent(_target: IPv4Address, *, full: bool) -> bool:
        return False

    paths = watch(clock, silent)
    easytier.rows = [DIRECT]
    task = asyncio.ensure_future(paths.run())
    await clock.advance(31)
    assert not any(way.loses_full_packets for way in await paths.look())
    task.cancel()
