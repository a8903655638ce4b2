"""That an EasyTier has ended: who tells it, who is believed, and what is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from full_disk import Disk
from overlay_world import SPEC
from pydantic import ValidationError
from registry_world import World

from edgelink.errors import OverlayError, UntrustedError
from edgelink.overlay.easytier_deaths import EasyTierDeaths
from edgelink.overlay.status import Peer
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, EasyTierDeath, Role
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.topics import Topics
from edgelink.testing import FakeClock, beside, eventually
from edgelink.testing.facts import board_with, give, pretend


def rows(own: str) -> list[Peer]:
    return [
        Peer(IPv4Address("10.10.0.9"), "relay", "p2p", 1.0, "tcp", "2.6.4", peer_id="99"),
        Peer(IPv4Address("10.10.0.3"), "edge-1", "Local", None, "", "2.6.4", peer_id=own),
    ]


class Network:
    """Three edges; what one sends, the test hands on."""

    def __init__(self, directory: Path) -> None:
        world = World(directory)
        self._records = directory
        self.id = world.keys.network_id
        self.topics = Topics(self.id)
        self.sent: list[tuple[str, bytes]] = []
        self.closed: list[tuple[str, IPv4Address]] = []
        self.error: Exception | None = None  # met by the next closing
        self.clock = FakeClock()
        self.under_way = asyncio.Semaphore(0)  # closings that may end, once `is_slow`
        self.is_slow = False
        self.keys = {name: NodeKey.generate() for name in ("edge-1", "edge-2", "edge-3")}
        for name, key in self.keys.items():
            world.enrol(key, world.token(Role.EDGE), name, role=Role.EDGE)
        self.directory = Directory.model_validate_json(world.authority.directory().body)
        self.nodes = {name: self.daemon(name) for name in self.keys}

    def daemon(self, name: str) -> EasyTierDeaths:
        """The daemon of a node, newly started."""
        return EasyTierDeaths(
            key=self.keys[name],
            network_id=self.id,
            send=lambda topic, payload: self.sent.append((topic, payload)),
            close=self._close,
            record=self._records / f"{name}.peer_id",
            clock=self.clock,
            inbox=Inbox(),
            refusals=Refusals("test"),
            board=board_with(directory=self.directory),
        )

    async def _close(self, peer_id: str, overlay_ip: IPv4Address) -> list[str]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.closed.append((peer_id, overlay_ip))
        if self.is_slow:
            await self.under_way.acquire()
        return ["198.51.100.10:37951"]

    def ip(self, name: str) -> IPv4Address:
        entry = self.directory.entry(self.keys[name].node_id)
        assert entry is not None
        return entry.overlay_ip

    def said(self) -> list[str]:
        """The peer ids that edge-1 has said to be dead, in turn."""
        assert {topic for topic, _ in self.sent} <= {self.topics.easytier(self.keys["edge-1"].node_id)}
        return [json.loads(json.loads(payload)["body"])["peer_id"] for _, payload in self.sent]

    def statement(self, signer: str, *, peer_id: str = "41", network_id: str | None = None) -> bytes:
        death = EasyTierDeath(network_id=network_id or self.id, peer_id=peer_id)
        return self.keys[signer].sign(Kind.EASYTIER_DEATH, death).model_dump_json().encode()

    @asynccontextmanager
    async def acting(self, name: str) -> AsyncIterator[EasyTierDeaths]:
        async with beside(self.nodes[name].run()):
            yield self.nodes[name]


def listed(node: EasyTierDeaths, peers: list[Peer]) -> None:
    """EasyTier tells whom it lists, itself included."""
    for own in (row for row in peers if row.is_self):
        give(node._board, easytier_peer_id=own.peer_id)
    node.look()


def ended(node: EasyTierDeaths) -> None:
    """This node's EasyTier ends."""
    give(node._board, easytier_ends=node._board.facts.easytier_ends + 1)
    node.look()


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_an_end_is_told_once(network: Network) -> None:
    """Of the EasyTier that was listed; of one that never was, there is nothing to tell."""
    node = network.nodes["edge-1"]
    ended(node)
    assert network.said() == []
    listed(node, rows("41"))
    listed(node, rows("41"))
    ended(node)
    ended(node)
    assert network.said() == ["41"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"p2p": True}, ["41"]),
        ({"peers": ("tcp://203.0.113.10:11010", "udp://203.0.113.10:11010")}, ["41"]),
        ({"peers": (), "listeners": ("udp://0.0.0.0:11010",)}, ["41"]),
    ],
)
def test_without_udp_there_is_nothing_to_tell(network: Network, changes: dict[str, Any], said: list[str]) -> None:
    """Whoever is connected by TCP is told by the kernel: no message to thousands who have nothing to close."""
    node, spec = network.nodes["edge-1"], replace(SPEC, **{"p2p": False, **changes})
    for facts in ({"overlay_spec": spec, "easytier_peer_id": "41"}, {"easytier_ends": 1}):
        pretend(node._board, **facts)
        node.look()
    assert network.said() == said
    node.take(network.keys["edge-2"].node_id, network.statement("edge-2"))
    assert node._waiting.qsize() == len(said), "nor to close"


def test_another_peer_id_means_that_the_one_before_has_ended(network: Network) -> None:
    """However the end was missed; a list without ourselves says nothing."""
    node = network.nodes["edge-1"]
    listed(node, rows("41"))
    listed(node, rows("41")[:1])
    listed(node, rows("42"))
    assert network.said() == ["41"]


def test_a_full_disk_keeps_nobody_from_the_peers(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of peers is read on; what this life has seen is told, and what it could not note is not."""
    disk = Disk(monkeypatch)
    disk.is_full = True
    node = network.nodes["edge-1"]
    listed(node, rows("41"))
    ended(network.daemon("edge-1"))
    assert network.said() == []
    listed(node, rows("42"))
    assert network.said() == ["41"]


def test_a_daemon_tells_of_the_end_that_it_finds(network: Network) -> None:
    """Daemon and EasyTier were both killed; an EasyTier that is adopted has not ended."""
    listed(network.nodes["edge-1"], rows("41"))
    listed(network.daemon("edge-1"), rows("41"))
    assert network.said() == []
    listed(network.daemon("edge-1"), rows("42"))
    assert network.said() == ["41"]


async def test_what_another_node_says_of_its_own_is_acted_on_once(network: Network) -> None:
    """With the address of who says it, also when a broker plays it again."""
    listed(network.nodes["edge-1"], rows("41"))
    ended(network.nodes["edge-1"])
    ((_, payload),) = network.sent
    node_id = network.keys["edge-1"].node_id
    async with network.acting("edge-2") as other:
        other.take(node_id, payload)
        await eventually(lambda: network.closed)
        other.take(node_id, payload)
        other.take(node_id, network.statement("edge-1", peer_id="42"))
        await eventually(lambda: len(network.closed) > 1)
    assert network.closed == [("41", network.ip("edge-1")), ("42", network.ip("edge-1"))]


async def test_only_the_node_itself_is_believed(network: Network) -> None:
    """Not another node on its topic, nobody of another network, nobody without a lease, not oneself."""
    node_id = network.keys["edge-1"].node_id
    other = network.nodes["edge-2"]
    with pytest.raises(UntrustedError):
        other.take(node_id, network.statement("edge-2"))
    with pytest.raises(UntrustedError, match="another network"):
        other.take(node_id, network.statement("edge-1", network_id="another"))
    with pytest.raises(ValidationError):
        other.take(node_id, b"{}")
    other.take("a" * 26, network.statement("edge-1"))
    other.take(network.keys["edge-2"].node_id, network.statement("edge-2"))
    async with network.acting("edge-2"):
        other.take(node_id, network.statement("edge-1", peer_id="43"))
        await eventually(lambda: network.closed)
    assert network.closed == [("43", network.ip("edge-1"))]


async def test_what_cannot_be_closed_keeps_nobody_from_the_next(network: Network) -> None:
    """EasyTier does not answer, or nftables refuses: EasyTier finds out by itself."""
    network.error = OverlayError("easytier-cli: no answer")
    node_id = network.keys["edge-1"].node_id
    async with network.acting("edge-2") as other:
        other.take(node_id, network.statement("edge-1", peer_id="41"))
        await eventually(lambda: network.error is None)
        other.take(node_id, network.statement("edge-1", peer_id="42"))
        await eventually(lambda: network.closed)
    assert network.closed == [("42", network.ip("edge-1"))]


async def test_a_node_that_tells_of_ever_new_ends_costs_the_others_little(network: Network) -> None:
    """Each costs processes of easytier-cli here, and a node may make up as many as it likes; others are heard all the
    same, and so is it a while later."""
    liar, honest = (network.keys[name].node_id for name in ("edge-1", "edge-3"))
    async with network.acting("edge-2") as node:
        taken = 0
        for number in range(100):
            with suppress(UntrustedError):
                node.take(liar, network.statement("edge-1", peer_id=str(number)))
                taken += 1
        node.take(honest, network.statement("edge-3", peer_id="7"))
        await eventually(lambda: ("7", network.ip("edge-3")) in network.closed)
        assert len(network.closed) == taken + 1 <= 10
        await network.clock.advance(60)
        node.take(liar, network.statement("edge-1", peer_id="1000"))
        await eventually(lambda: ("1000", network.ip("edge-1")) in network.closed)


async def test_many_ends_at_once_are_seen_to_by_turns(network: Network) -> None:
    """A site without power: no more processes at once than a small board can take, and none is forgotten."""
    network.is_slow = True
    node_id = network.keys["edge-1"].node_id
    async with network.acting("edge-2") as node:
        for number in range(60):
            await network.clock.advance(2)
            node.take(node_id, network.statement("edge-1", peer_id=str(number)))
        for _ in range(100):
            await asyncio.sleep(0)  # whoever can begin has begun
        assert 1 <= len(network.closed) <= 20
        network.is_slow = False
        for _ in network.closed:
            network.under_way.release()
        await eventually(lambda: len(network.closed) == 60)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"forty-one", b"9" * 50])
def test_a_damaged_record_is_none(network: Network, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "edge-1.peer_id").write_bytes(damage)
    ended(network.daemon("edge-1"))
    assert network.said() == []
