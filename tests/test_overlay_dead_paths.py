"""Which of EasyTier's connections lead to a peer that is dead, and how it is made to give them up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from edgelink.errors import OverlayError
from edgelink.overlay import dead_paths
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.dead_paths import UdpConnection, close_paths, parse_connections
from edgelink.overlay.nft import Table
from edgelink.overlay.rpc_guard import DEAD_PATHS, rpc_guard
from edgelink.overlay.status import Peer

PUBLIC = IPv4Address("198.51.100.10")
DEAD, NODE_IP = "1250289697", IPv4Address("10.10.0.3")
BOTH = [UdpConnection(DEAD, 45566, PUBLIC, 37951), UdpConnection(DEAD, 41367, PUBLIC, 49950)]
BINARY = EasyTierBinary(Path("easytier-core"), Path("easytier-cli"), "2.6.4")


def conn(peer_id: int, local: str, remote: str) -> dict[str, object]:
    tunnel = {"tunnel_type": "udp", "local_addr": {"url": local}, "remote_addr": {"url": remote}}
    return {"conn_id": "4a2e", "my_peer_id": 13, "peer_id": peer_id, "features": [], "tunnel": tunnel}


def lists(*pairs: tuple[int, list[dict[str, object]] | None]) -> str:
    """`easytier-cli -v -o json peer` of 2.6.4, shortened: None stands for one that is reached through another."""
    return json.dumps(
        [
            {"route": {"peer_id": peer_id}, "peer": None if conns is None else {"peer_id": peer_id, "conns": conns}}
            for peer_id, conns in pairs
        ]
    )


# A relay by TCP, a node by two UDP connections and one without a tunnel, and one that is reached through the relay.
LIST = lists(
    (883438185, [conn(883438185, "tcp://192.168.11.2:32795", "tcp://203.0.113.10:11010")]),
    (
        int(DEAD),
        [
            conn(int(DEAD), "udp://0.0.0.0:45566", "udp://198.51.100.10:37951"),
            conn(int(DEAD), "", "") | {"tunnel": None},
            conn(int(DEAD), "udp://0.0.0.0:41367", "udp://198.51.100.10:49950"),
        ],
    ),
    (7, None),
)


def test_udp_connections_are_read() -> None:
    """With the other end and our port; TCP, what has no tunnel, names and IPv6 are left out."""
    assert parse_connections(LIST) == BOTH
    named = [conn(6, "udp://0.0.0.0:1", "udp://a.example:2"), conn(6, "udp://[::]:1", "udp://[2001:db8::1]:2")]
    assert parse_connections(lists((6, named))) == parse_connections("[]") == []
    for text in ("", '[{"peer": {"conns": [{}]}}]'):
        with pytest.raises(OverlayError):
            parse_connections(text)


def test_what_a_node_calls_itself_is_no_connection() -> None:
    """Whatever is in its name: nobody's connections are another's."""
    name = '"}}, "peer": {"conns": [{"peer_id": 41, "remote_addr": {"url": "udp://198.51.100.10:37951"}}]}}'
    pairs = [*json.loads(LIST), {"route": {"peer_id": 41, "hostname": name}, "peer": {"peer_id": 41, "conns": []}}]
    assert parse_connections(json.dumps(pairs)) == BOTH


@pytest.mark.parametrize("url", ["udp://[", "udp://198.51.100.10:99999", "udp://[::1", "udp://1.2.3.4:x", ""])
def test_an_end_that_is_no_url_is_left_out(url: str) -> None:
    """EasyTier lists it, and it is none that could be refused."""
    for local, remote in ((url, "udp://192.0.2.7:2"), ("udp://0.0.0.0:1", url)):
        found = parse_connections(lists((5, [conn(5, local, remote), conn(6, "udp://a:1", "udp://192.0.2.7:3")])))
        assert [one.peer_id for one in found] == ["6"]


class EasyTier:
    """Lists what it is told to; gives a connection up when something is sent after nftables refuses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, deaf: bool = False) -> None:
        self.refused: list[str] = []
        self.sent = 0
        self.is_deaf = deaf
        self.node = Peer(NODE_IP, "edge-2", "p2p", 1.0, "udp", "2.6.4", peer_id=DEAD)
        monkeypatch.setattr(dead_paths, "ask", self._ask)
        monkeypatch.setattr(dead_paths, "peers", self._peers)
        monkeypatch.setattr(Table, "add_elements", self._refuse)

    async def _ask(self, _binary: EasyTierBinary, _rpc_port: int, *_words: str) -> str:
        return "[]" if self.sent > 1 and self.refused and not self.is_deaf else LIST

    async def _peers(self, _binary: EasyTierBinary, _rpc_port: int) -> list[Peer]:
        return [self.node]

    async def _refuse(self, to_set: str, elements: Iterable[str]) -> None:
        assert to_set == DEAD_PATHS
        self.refused += elements

    async def provoke(self) -> None:
        self.sent += 1

    async def close(self, peer_id: str = DEAD, overlay_ip: IPv4Address = NODE_IP) -> list[str]:
        return await close_paths(BINARY, 15888, rpc_guard(15888), peer_id, overlay_ip, self.provoke)


async def test_exactly_the_dead_ones_are_refused_until_they_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By address, port and our port, for a time; something is sent until EasyTier has noticed."""
    easytier = EasyTier(monkeypatch)
    assert await easytier.close() == ["198.51.100.10:37951", "198.51.100.10:49950"]
    assert easytier.refused == [
        "198.51.100.10 . 37951 . 45566 timeout 60s",
        "198.51.100.10 . 49950 . 41367 timeout 60s",
    ]
    assert easytier.sent == 2


async def test_an_easytier_that_does_not_notice_is_not_pestered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule stays for a while; that is all that can be done."""
    easytier = EasyTier(monkeypatch, deaf=True)
    assert len(await easytier.close()) == 2
    assert easytier.sent == 5


async def test_nobody_has_anothers_connection_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer id has to be listed with the address of the node that told of it; one that is gone is no news."""
    easytier = EasyTier(monkeypatch)
    assert await easytier.close(overlay_ip=IPv4Address("10.10.0.4")) == []
    assert await easytier.close(peer_id="4") == []
    assert (easytier.refused, easytier.sent) == ([], 0)
