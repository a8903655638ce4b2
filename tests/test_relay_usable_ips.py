"""Which overlay addresses nodes may use: what the registry tells, and what a node believes of it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from registry_world import DEFAULT_CIDR, World

from edgelink.config.models import DEFAULT_QUARANTINE_S
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, Role
from edgelink.protocol.roster_pages import MAX_WHOLE
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.founding import NetworkRequest, settle_network
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.store import RegistryStore
from edgelink.testing.registry_client import LoneClient


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def ips(*hosts: int) -> frozenset[IPv4Address]:
    return frozenset(IPv4Address(f"10.10.0.{host}") for host in hosts)


def told(world: World) -> tuple[IPv4Address, ...] | None:
    return Directory.model_validate_json(world.authority.directory().body).unleased_ips


def member(world: World, role: Role = Role.EDGE, key: NodeKey | None = None, **more: Any) -> LoneClient:
    """A node that has just joined, and has heard nothing."""
    key = key or NodeKey.generate()
    token = world.token(role)
    membership = world.membership(key, token, world.enrol(key, token, f"{role.value}-x", role=role))
    return LoneClient(membership, key, world.clock, **more)


def hear(client: LoneClient, world: World) -> None:
    """Take the directory and its pages as they are now."""
    topics, (directory, pages) = Topics(world.keys.network_id), world.authority.directory_and_roster()
    documents = {topics.roster(number): page for number, page in pages.items()} | {topics.directory: directory}
    for topic, document in documents.items():
        client._take(Message(topic, document.model_dump_json().encode()))


def test_a_changed_address_may_be_used_until_it_rests_no_more(world: World) -> None:
    """The node goes on with it while somebody works there. What a released node held, nobody may use."""
    world.join("edge-1")
    world.join("edge-2")
    assert world.authority.usable_ips() == ips(2, 3)
    world.authority.change_lease("edge-1", LeaseChange(overlay_ip=IPv4Address("10.10.0.77")))
    world.authority.release("edge-2")
    assert world.authority.usable_ips() == ips(2, 77)
    assert told(world) == (IPv4Address("10.10.0.2"),)
    world.clock.step_wall_clock(2 * DEFAULT_QUARANTINE_S)
    assert world.authority.usable_ips() == ips(77)


def test_where_others_may_be_in_use_none_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no node drops any: machines without a lease have an imported secret, and what nodes leave may not rest."""
    world = World(tmp_path / "state")
    keys = AuthorityKeys.load_or_create(tmp_path / "authority", world.clock)
    store = RegistryStore(tmp_path / "imported.sqlite3", world.clock)
    settle_network(store, keys, world.clock, NetworkRequest("lab", DEFAULT_CIDR, secret="chosen by people"))
    assert Authority(store, keys, world.clock).usable_ips() is None

    assert world.authority.usable_ips() == frozenset()
    restless = Authority(world.store, world.keys, world.clock, quarantine_s=0)
    assert restless.usable_ips() is None
    assert restless.full_directory().unleased_ips is None

    monkeypatch.setattr("edgelink.relay.authority.MAX_UNLEASED", 1)
    for number, left in ((1, 1), (2, None)):
        world.join(f"edge-{number}")
        world.authority.change_lease(f"edge-{number}", LeaseChange(overlay_ip=IPv4Address(f"10.10.0.{70 + number}")))
        assert told(world) is None if left is None else len(told(world) or ()) == left


def test_a_node_knows_what_the_directory_tells(world: World, tmp_path: Path) -> None:
    """Nothing before it is told; the last word counts while the broker is away, and after a restart."""
    key = NodeKey.generate()
    client = member(world, key=key, cache=tmp_path)
    assert client.facts.usable_ips is None
    hear(client, world)
    assert client.facts.usable_ips == ips(2)
    world.join("edge-1")
    assert client.facts.usable_ips == ips(2)
    hear(client, world)
    assert client.facts.usable_ips == ips(2, 3)
    again = LoneClient(client._membership, key, world.clock, cache=tmp_path)
    assert again.facts.usable_ips == ips(2, 3)


def test_in_a_large_network_those_know_who_read_the_roster(tmp_path: Path) -> None:
    """The directory alone names relays and head: an edge drops nobody's packets for want of a page."""
    world = World(tmp_path / "large", cidr=IPv4Network("10.16.0.0/16"))
    token = world.token(uses=MAX_WHOLE)
    for number in range(MAX_WHOLE):
        world.enrol(NodeKey.generate(), token, f"edge-{number}")
    edge, head = member(world), member(world, Role.HEAD)
    for client in (edge, head):
        hear(client, world)
    assert edge.facts.usable_ips is None
    assert len(head.facts.usable_ips or ()) == MAX_WHOLE + 2


def test_who_joined_since_the_backup_goes_on_under_the_restored_registry(world: World) -> None:
    """Until the node has joined again; a daemon that is started then knows what the restored registry tells."""
    client = member(world)
    backup = world.authority.full_directory()
    world.join("edge-1")
    hear(client, world)
    restored = backup.model_copy(update={"generation": backup.generation + 1})
    envelope = world.keys.sign(Kind.DIRECTORY, restored)
    client._take(Message(Topics(world.keys.network_id).directory, envelope.model_dump_json().encode()))
    assert client.facts.directory == restored
    assert client.facts.usable_ips == ips(2, 3)


def test_a_restored_relay_lets_in_who_joined_since_its_backup(world: World) -> None:
    """That node asks the relays by the overlay where the broker is now."""
    relay = world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    assert world.authority.usable_ips() == frozenset({relay.overlay_ip})
    world.store.note_restoration(relay.node_id, keep_addresses=False)
    assert world.authority.usable_ips() is None
