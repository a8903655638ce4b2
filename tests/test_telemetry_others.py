"""Who is known, on what way, and whether they answer: what `edgelink ping` and the shell's completion ask."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from overlay_world import SPEC
from telling import refuses

from edgelink.api.server import Caller
from edgelink.errors import OverlayError, UsageError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.protocol.payloads import Directory, Role
from edgelink.telemetry.others import Others
from edgelink.testing.facts import give
from edgelink.testing.payloads import entry

ANYBODY = Caller(1, 1000, 1000)
OWN = IPv4Address("10.10.0.2")
KNOWN = Directory(
    network_id="n",
    epoch=1,
    entries=(
        entry("relay", "10.10.0.1", role=Role.RELAY),
        entry("cloud", "10.10.0.2", 0, role=Role.HEAD),
        entry("edge-1", "10.10.0.3", 1),
        entry("2", "10.10.0.4", 5),
        entry("edge-2", "10.10.0.5", 2),
    ),
)
RELAYED = {
    "hostname": "edge-1",
    "overlay_ip": "10.10.0.3",
    "path": "relayed",
    "via": "relay",
    "protocol": None,
    "latency_ms": None,
    "loss": None,
    "loses_full_packets": False,
}
UNLISTED = {**RELAYED, "hostname": "edge-77", "overlay_ip": "10.10.0.77"}


class FakeOverlay:
    """Answers of edge-1 only."""

    full_payload_bytes = 1332

    def __init__(self) -> None:
        self.pinged: list[tuple[str, float, int]] = []

    async def ways(self) -> list[dict[str, Any]]:
        return [RELAYED, UNLISTED]

    async def ping(self, target: IPv4Address, timeout_s: float, *, payload_bytes: int) -> float | None:
        self.pinged.append((str(target), timeout_s, payload_bytes))
        return 23.5 if str(target) == "10.10.0.3" else None


@pytest.fixture
def overlay() -> FakeOverlay:
    return FakeOverlay()


@pytest.fixture
def others(overlay: FakeOverlay) -> Others:
    board = Board(Facts())
    give(board, directory=KNOWN, overlay_spec=replace(SPEC, overlay_ip=IPv4Interface((OWN, 24))))
    return Others(board, overlay)


async def test_all_others_are_told_with_the_way_to_them(others: Others) -> None:
    """Also who is switched off, and whom only EasyTier tells of."""
    peers = {node["hostname"]: node for node in (await others.peers(ANYBODY, {}))["peers"]}
    assert list(peers) == ["relay", "edge-1", "2", "edge-2", "edge-77"]
    assert (peers["edge-1"]["path"], peers["edge-1"]["via"], peers["edge-1"]["node_rank"]) == ("relayed", "relay", 1)
    assert peers["edge-2"]["path"] is None
    assert peers["edge-77"]["role"] is None


async def test_who_answers_is_told_of_those_that_are_asked(overlay: FakeOverlay) -> None:
    """Nobody asks the others."""
    board = Board(Facts())
    give(board, directory=KNOWN, overlay_spec=SPEC, answering={"relay": 1.0}, silent={"cloud": 2.0})
    peers = (await Others(board, overlay).peers(ANYBODY, {}))["peers"]
    answers = {node["hostname"]: node["answers"] for node in peers}
    assert (answers["relay"], answers["cloud"], answers["edge-1"]) == (True, False, None)


@pytest.mark.parametrize(
    ("wanted", "address"),
    [("edge-1", "10.10.0.3"), ("1", "10.10.0.3"), ("10.10.0.3", "10.10.0.3"), ("2", "10.10.0.4"), ("0", "10.10.0.2")],
)
async def test_a_node_is_named_in_three_ways(others: Others, overlay: FakeOverlay, wanted: str, address: str) -> None:
    """The hostname comes first: a node may be called `2`."""
    answer = await others.ping(ANYBODY, {"node": wanted, "timeout_s": 1})
    assert answer["overlay_ip"] == address
    assert overlay.pinged == [(address, 1.0, 56)]
    assert (answer["path"] == "self") == (address == str(OWN))


async def test_a_full_ping_is_as_large_as_the_overlay_carries(others: Others, overlay: FakeOverlay) -> None:
    """With IP's and ICMP's headers."""
    answer = await others.ping(ANYBODY, {"node": "edge-1", "full": True})
    assert (answer["rtt_ms"], answer["bytes"]) == (23.5, 1360)
    assert overlay.pinged[0][2] == 1332


async def test_nobody_of_that_name_is_told_with_those_that_are_known(others: Others, overlay: FakeOverlay) -> None:
    """And nothing is sent anywhere: not to an address outside of the network either."""
    for wanted in ("edge-9", "8.8.8.8", "", None):
        with refuses(UsageError, f"'{wanted}'", "relay, cloud, edge-1", reason="NoSuchNode"):
            await others.ping(ANYBODY, {"node": wanted})
    assert overlay.pinged == []


@pytest.mark.parametrize("timeout_s", [0, -1, 11, "1", None, float("nan")])
async def test_no_time_to_wait_is_refused(others: Others, timeout_s: Any) -> None:
    """Every local user may ask: nobody holds the daemon for hours."""
    with refuses(UsageError, timeout_s):
        await others.ping(ANYBODY, {"node": "edge-1", "timeout_s": timeout_s})


async def test_without_an_address_of_our_own_nothing_is_sent(overlay: FakeOverlay) -> None:
    """The node has not joined yet."""
    others = Others(Board(Facts()), overlay)
    with pytest.raises(OverlayError, match="no overlay address"):
        await others.ping(ANYBODY, {"node": "edge-1"})
    assert overlay.pinged == []
