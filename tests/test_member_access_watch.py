"""What a node believes of the access rules, what it keeps, and what that opens."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from registry_world import World
from session_world import Network
from test_member_network_watch import Disk

from edgelink.config import Config
from edgelink.errors import UntrustedError
from edgelink.member.access_watch import ACCESS_FILE, AccessTold, AccessWatch
from edgelink.overlay.openings import Opening
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import MAX_ACCESS_ADDRESSES, MAX_ACCESS_RANGES, Envelope, NodeAccess, PortAccess, Role
from edgelink.protocol.refusals import OUTDATED, refusal_reason
from edgelink.protocol.transport import Message
from edgelink.shield.access_openings import Allowed, openings

CIDR = IPv4Network("10.10.0.0/24")


def opened(told: AccessTold, config: Config | None = None) -> frozenset[Opening]:
    return openings(Allowed(told, None), config=config or Config())


class Node:
    """An edge, and what the registry and others say on its topic."""

    def __init__(self, directory: Path) -> None:
        self.network = Network(directory)
        self.world = self.network.world
        self.key, self.membership = self.network.member("edge-1")
        self.other_key, self.other = self.network.member("cloud", Role.HEAD)
        self.disk = Disk()
        self.state = directory / "node"
        self.state.mkdir()
        self.start()

    def start(self) -> None:
        self.watch = AccessWatch(self.membership, self.state, self.disk)

    def hears(self, envelope: Envelope) -> None:
        assert self.watch.take(Message(self.watch.topic, envelope.model_dump_json().encode()))

    def refuses(self, envelope: Envelope) -> str:
        before = self.watch.told
        with pytest.raises((UntrustedError, ValidationError)) as refused:
            self.hears(envelope)
        assert self.watch.told == before
        return refusal_reason(refused.value)

    def allow(self, ports: str, source: str) -> Envelope:
        """What the registry says once this rule is made."""
        access = self.world.authority.access
        access.allow([access.rule("edge-1", ports, source)])
        return self.said()

    def deny(self, ports: str, source: str) -> Envelope:
        access = self.world.authority.access
        access.deny([access.rule("edge-1", ports, source)])
        return self.said()

    def said(self, membership: Membership | None = None) -> Envelope:
        node_id = (membership or self.membership).lease.node_id
        return self.world.authority.access.documents()[node_id][1]

    def signed(self, **change: Any) -> Envelope:
        """A document by the registry's key, with something else in it."""
        document = NodeAccess.model_validate_json(self.said().body)
        return self.world.keys.sign(Kind.ACCESS, document.model_copy(update=change))

    @property
    def open(self) -> set[Opening]:
        return set(opened(self.watch.told))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def opening(port: int, *sources: IPv4Address) -> Opening:
    return Opening("tcp", port, port, frozenset(sources) or None)


def test_nothing_is_open_before_the_registry_says_so(node: Node) -> None:
    assert node.open == set()
    assert node.watch.take(Message(node.watch.topic, b""))
    assert not node.watch.take(Message(node.network.topics.directory, b"{}"))
    assert node.open == set()


def test_a_node_goes_by_the_newest_word_and_keeps_it(node: Node) -> None:
    """A restart without a broker changes nothing."""
    node.hears(node.allow("tcp/22", "head"))
    assert node.open == {opening(22, node.other.lease.overlay_ip)}
    node.hears(node.allow("tcp/80", "all"))
    assert node.open == {opening(22, node.other.lease.overlay_ip), opening(80)}
    before = node.open
    node.start()
    assert node.open == before
    assert (node.state / ACCESS_FILE).stat().st_mode & 0o777 == 0o600
    node.hears(node.deny("tcp/80", "all"))
    node.hears(node.deny("tcp/22", "head"))
    assert node.open == set()
    node.start()
    assert node.open == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_broker_that_plays_old_words_again_opens_nothing(node: Node, restarts: bool) -> None:
    """The deny is on the node's disk."""
    old = [node.allow("tcp/22", "all"), node.allow("tcp/80", "all")]
    for envelope in (*old, node.deny("tcp/22", "all"), node.deny("tcp/80", "all")):
        node.hears(envelope)
    if restarts:
        node.start()
    for envelope in old:
        assert node.refuses(envelope) == OUTDATED
    node.hears(node.said())
    assert node.open == set()


def test_a_restored_registry_counts_more_than_its_former_one(node: Node) -> None:
    """And the former one no more, whatever it said last."""
    later = node.allow("tcp/22", "all")
    node.hears(later)
    node.deny("tcp/22", "all")
    last = node.allow("tcp/80", "all")
    relay = node.world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    node.world.store.note_restoration(relay.node_id, keep_addresses=True)
    node.hears(node.said())
    assert node.open == {opening(80)}
    for envelope in (later, last):
        assert node.refuses(envelope) == OUTDATED


def test_one_number_has_one_content(node: Node) -> None:
    """Who has the registry's key is the registry; two of them under one number are not."""
    node.hears(node.allow("tcp/22", "all"))
    assert node.refuses(node.signed(openings=())) == OUTDATED


def test_only_the_registry_speaks_and_to_this_node(node: Node, tmp_path: Path) -> None:
    """Not another node, another network's registry, or a document of another kind or node."""
    mine = node.allow("tcp/22", "all")
    document = NodeAccess.model_validate_json(mine.body)
    (tmp_path / "stranger").mkdir()
    stranger = World(tmp_path / "stranger")
    for forged in (
        node.other_key.sign(Kind.ACCESS, document),
        node.key.sign(Kind.ACCESS, document),
        node.other_key.sign(Kind.ACCESS, document).model_copy(update={"signer": "registry"}),
        stranger.keys.sign(Kind.ACCESS, document),
        node.said(node.other),
        node.signed(network_id="another"),
        node.world.keys.sign(Kind.NETWORK, document),
        node.membership.lease_envelope,
        mine.model_copy(update={"body": mine.body.replace('"first":22', '"first":21')}),
    ):
        node.refuses(forged)
    assert node.open == set()


def test_documents_without_bounds_are_refused(node: Node) -> None:
    """Before they take memory: a range is few bytes, and billions of addresses."""
    node.allow("tcp/22", "all")
    everything = (IPv4Address(0), IPv4Address("255.255.255.255"))
    wide = (IPv4Address(0), IPv4Address(MAX_ACCESS_ADDRESSES - 1))
    many = tuple((IPv4Address(2 * number), IPv4Address(2 * number)) for number in range(MAX_ACCESS_RANGES + 1))

    def one(**change: Any) -> PortAccess:
        return PortAccess.model_construct(**{"protocol": "tcp", "first": 1, "last": 2, "sources": None} | change)

    for wrong in (
        (one(sources=(everything,)),),
        (one(sources=(wide,)), one(sources=((IPv4Address(0), IPv4Address(0)),))),
        (one(sources=many),),
        (one(),) * 257,
        (one(first=3),),
        (one(first=0),),
        (one(last=65536),),
        (one(protocol="icmp"),),
        (one(sources=((IPv4Address(2), IPv4Address(1)),)),),
    ):
        node.refuses(node.signed(openings=wrong, epoch=10**6))
    body = node.signed(openings=(one(),), epoch=10**6).body.replace(',"sources":null', "")
    with pytest.raises(ValidationError):
        NodeAccess.model_validate_json(body)  # who may reach it is never left to a default
    node.hears(node.signed(openings=(one(sources=(wide,)),), epoch=10**6))
    assert {len(found.sources or ()) for found in node.open} == {MAX_ACCESS_ADDRESSES}


def test_on_a_full_disk_a_node_closes_at_once_and_opens_later(node: Node) -> None:
    """Whom the newest document lets in no more stays out; whom it lets in anew waits."""
    node.hears(node.allow("tcp/22", "all"))
    node.hears(node.allow("tcp/80", "head"))
    node.disk.is_full = True
    node.hears(node.deny("tcp/80", "head"))
    assert node.open == {opening(22)}
    node.hears(node.allow("tcp/443", "all"))
    assert node.open == {opening(22)}
    node.allow("tcp/22", "head")
    node.hears(node.deny("tcp/22", "all"))
    assert node.open == {opening(22, node.other.lease.overlay_ip)}, "head only"
    assert not node.watch.is_on_disk
    node.watch.settle()
    assert not node.watch.is_on_disk
    node.disk.is_full = False
    node.watch.settle()
    assert node.open == {opening(22, node.other.lease.overlay_ip), opening(443)}
    node.start()
    assert node.open == {opening(22, node.other.lease.overlay_ip), opening(443)}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"kind": "access"}'])
def test_a_damaged_file_opens_nothing(node: Node, content: bytes) -> None:
    node.hears(node.allow("tcp/22", "all"))
    (node.state / ACCESS_FILE).write_bytes(content)
    node.start()
    assert node.open == set()
    node.hears(node.said())
    assert node.open == {opening(22)}


def document(*found: tuple[int, tuple[str, str] | None]) -> NodeAccess:
    return NodeAccess(
        network_id="n",
        node_id="a" * 26,
        generation=0,
        epoch=0,
        openings=tuple(
            PortAccess(
                protocol="udp",
                first=port,
                last=port + 1,
                sources=None if hosts is None else ((IPv4Address(hosts[0]), IPv4Address(hosts[1])),),
            )
            for port, hosts in found
        ),
    )


FEW, MORE = ("10.10.0.2", "10.10.0.3"), ("10.10.0.3", "10.10.0.5")
BOTH = frozenset({CIDR[3]})


@pytest.mark.parametrize(
    ("recorded", "newest", "sources"),
    [
        (None, None, {}),
        (None, document((5, None)), {}),
        (document((5, None)), document((5, None)), {5: None}),
        (document((5, FEW)), document((5, FEW)), {5: frozenset({CIDR[2], CIDR[3]})}),
        (document((5, None), (7, FEW)), document((7, FEW)), {7: frozenset({CIDR[2], CIDR[3]})}),
        (document((5, FEW)), document((5, MORE)), {5: BOTH}),
        (document((5, None)), document((5, FEW)), {5: frozenset({CIDR[2], CIDR[3]})}),
        (document((5, FEW)), document((5, None)), {5: frozenset({CIDR[2], CIDR[3]})}),
        (document((5, FEW)), document((6, FEW)), {}),
        (document((5, FEW)), document((5, ("10.10.0.9", "10.10.0.9"))), {}),
    ],
)
def test_what_is_open_by_what_was_heard(
    recorded: NodeAccess | None, newest: NodeAccess | None, sources: dict[int, frozenset[IPv4Address] | None]
) -> None:
    """Never more than both the document on disk and the newest one open."""
    found = opened(AccessTold(recorded, newest))
    assert found == {Opening("udp", port, port + 1, who) for port, who in sources.items()}


def test_a_nodes_own_configuration_opens_as_well() -> None:
    """The relay cannot take it away."""
    config = Config.model_validate({"firewall": {"overlay_allow": ["8888"]}})
    found = opened(AccessTold(document((5, None)), document((5, None))), config)
    assert found == {Opening("udp", 5, 6), Opening("tcp", 8888, 8888)}
