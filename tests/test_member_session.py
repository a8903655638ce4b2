"""The node's side: whom it believes, and how it comes back."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World
from session_world import Follower, Network, network, status  # noqa: F401

from edgelink.errors import RegistryAuthError, RegistryUnavailableError
from edgelink.member.lease_watch import HeardLease
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Directory, Role
from edgelink.protocol.transport import KEEPALIVE_S, METERED_KEEPALIVE_S, Message
from edgelink.testing.memory_transport import MemorySession


@pytest.mark.parametrize("spec_first", [True, False])
async def test_follows_directory_and_cluster(network: Network, spec_first: bool) -> None:
    """Directory, cluster spec and lease are known right after connecting, whichever message comes first."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    if spec_first:
        network.say(network.topics.cluster, network.spec(head_key, head))
        network.say_directory()
    else:
        network.say_directory()
        network.say(network.topics.cluster, network.spec(head_key, head))
    network.say(network.topics.lease(key.node_id), membership.lease_envelope)
    async with Follower(network, key, membership).running() as client:
        assert client.is_connected
        assert client.directory is not None
        assert client.directory.head is not None
        assert client.directory.head.node_id == head_key.node_id
        assert client.cluster_spec is not None
        assert client.cluster_spec.head_ip == IPv4Address("10.10.0.2")
        assert client.facts.next_lease == HeardLease(membership.lease_envelope, membership.lease)
        assert client.ignored_messages == 0


async def test_addresses_in_turn(network: Network) -> None:
    """An address where nobody answers is passed over."""
    async with Follower(network, *network.member("edge-1")).running() as client:
        assert client.is_connected
        assert client.address == ADDRESSES[1]
        assert network.transport.dialled == list(ADDRESSES)


async def test_ignores_what_is_not_signed(network: Network, tmp_path: Path) -> None:
    """Malformed, forged, foreign and misplaced documents are counted and change nothing."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    stranger = World(tmp_path / "stranger")
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        known = client.directory
        topics = network.topics
        bad: list[tuple[str, bytes]] = [
            (topics.directory, b"\xff not JSON"),
            (topics.directory, b"{}"),
            (topics.directory, stranger.authority.directory().model_dump_json().encode()),
            (topics.directory, membership.lease_envelope.model_dump_json().encode()),  # another kind
            (topics.cluster, b"[]"),
            (topics.lease(key.node_id), head.lease_envelope.model_dump_json().encode()),  # another node's
        ]
        for number, (topic, payload) in enumerate(bad, start=1):
            network.broker.publish(Message(topic, payload))
            await follower.clock.advance(0)
            assert client.ignored_messages == number, topic
        forged = network.spec(key, membership).model_copy(update={"signer": head_key.node_id})
        network.say(topics.cluster, forged)
        await follower.clock.advance(0)
        assert client.ignored_messages == len(bad) + 1
        network.say(topics.cluster, network.spec(key, membership))  # an edge that plays the head
        network.broker.publish(Message(topics.directory, b""))  # a cleared retained message
        await follower.clock.advance(0)
        assert client.directory == known
        assert client.cluster_spec is None
        assert client.facts.next_lease is None
        assert client.is_connected


@pytest.mark.parametrize(("breaks", "arrived"), [(1, [b"one", b"two"]), (9, [b"two"])], ids=["once", "for ever"])
async def test_what_a_lost_session_left_unsent_is_tried_once_more(
    network: Network, monkeypatch: pytest.MonkeyPatch, breaks: int, arrived: list[bytes]
) -> None:
    """Its uplink moved at that moment, say; but a message that costs every session is given up."""
    key, membership = network.member("edge-1")
    topic, publish, left = network.topics.easytier(key.node_id), MemorySession.publish, breaks

    async def break_at_one(session: MemorySession, to: str, payload: bytes, *, retain: bool = False) -> None:
        nonlocal left
        if payload == b"one" and left > 0:
            left -= 1
            session.lose()
        await publish(session, to, payload, retain=retain)

    monkeypatch.setattr(MemorySession, "publish", break_at_one)
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        client.outbox.put(topic, b"one")
        client.outbox.put(topic, b"two")
        for _ in range(30):
            await follower.clock.advance(1)
        assert [m.payload for m in network.broker.published if m.topic == topic] == arrived
        assert client.is_connected


async def test_last_will(network: Network) -> None:
    """However the client ends, the network is told that the node is offline."""
    key, membership = network.member("edge-1")
    async with Follower(network, key, membership).running():
        assert network.statuses_of(key.node_id)[-1].online
    assert not network.statuses_of(key.node_id)[-1].online
    assert network.topics.status(key.node_id) in network.broker.retained


async def test_outage(network: Network) -> None:
    """During an outage what is known stays, the error is told once, and afterwards everything is said again."""
    head_key, head = network.member("cloud", Role.HEAD)
    network.say_directory()
    follower = Follower(network, head_key, head)
    async with follower.running() as client:
        client.publish_cluster(network.spec(head_key, head))
        client.publish_status(status(head_key, "Ready"))
        await follower.clock.advance(1)
        assert client.cluster_spec is not None
        network.broker.stop()
        await follower.clock.advance(0)
        assert not client.is_connected
        assert isinstance(client.facts.session.error, RegistryUnavailableError)
        await follower.clock.advance(60)
        told = follower.board.facts
        tries = len(network.transport.dialled)
        await follower.clock.advance(60)
        assert len(network.transport.dialled) - tries >= 2 * 60 / 5 - 2  # goes on trying, at least each 5 s
        assert follower.board.facts is told
        assert client.directory is not None
        assert client.cluster_spec is not None
        network.broker.start()
        await follower.clock.advance(6)
        assert client.is_connected
        assert client.facts.session.error is None
        assert network.topics.cluster in network.broker.retained
        assert b'"Ready"' in network.broker.retained[network.topics.status(head_key.node_id)]


async def test_refused_credentials(network: Network) -> None:
    """Refused credentials are shown as such, and tried again, in case the relay learns of us."""
    key, membership = network.member("edge-1")
    network.broker.passwords = {}
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert isinstance(client.facts.session.error, RegistryAuthError)
        network.broker.passwords[membership.secrets.broker_username] = membership.secrets.broker_password
        await follower.clock.advance(6)
        assert client.is_connected


async def test_client_id_is_steady_and_not_guessable(network: Network) -> None:
    """The client id is the same at each connect, so that a half-open one ends; and says nothing of the password."""
    key, membership = network.member("edge-1")
    first, second = (Follower(network, key, membership)._login() for _ in range(2))
    assert first.client_id == second.client_id
    assert len(first.client_id) == 23  # what MQTT 3.1.1 brokers have to accept
    assert membership.secrets.broker_password not in first.client_id


async def test_a_renewed_membership_is_taken_up_without_a_restart(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`edgelink join` beside a running daemon gives the node a new password: the daemon reads it and goes on."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership)
    renewed_secrets = membership.secrets.model_copy(update={"broker_password": "renewed-by-join"})
    network.broker.add_user(membership.secrets.broker_username, "renewed-by-join")
    async with follower.running() as client:
        await follower.clock.advance(10)
        assert isinstance(client.facts.session.error, RegistryAuthError)
        renewed = membership.model_copy(update={"secrets": renewed_secrets})
        monkeypatch.setattr(follower, "reload", lambda: follower.board.given(membership=renewed))
        await follower.clock.advance(20)
        assert client.is_connected


async def test_a_session_is_sought_where_it_was_first(network: Network) -> None:
    """The broker is away for a moment: the address that served us is tried at once, not after the others' time-outs."""
    network.say_directory()
    follower = Follower(network, *network.member("edge-1"))
    async with follower.running() as client:
        assert network.transport.dialled == list(ADDRESSES)
        network.broker.stop()
        network.broker.start()
        await follower.clock.advance(1)
        assert client.is_connected
        assert network.transport.dialled == [*ADDRESSES, ADDRESSES[1]]


async def test_a_registry_that_was_replaced_is_left(network: Network) -> None:
    """The other addresses are tried, until the right one is back."""
    follower = Follower(network, *network.member("edge-1"))
    old = network.directory
    network.restore()
    network.say_directory()
    async with follower.running() as client:
        assert client.is_connected
        assert client.directory is not None
        assert client.directory.generation == network.world.store.generation() > 0
        network.say(network.topics.directory, old)
        await follower.clock.advance(0)
        assert not client.is_connected
        assert client.facts.session.error is not None
        assert client.facts.session.error.condition_reason == "RegistryReplaced"
        tries = len(network.transport.dialled)
        await follower.clock.advance(5)
        assert ADDRESSES[0] in network.transport.dialled[tries:]
        network.say_directory()
        await follower.clock.advance(5)
        assert client.is_connected


async def test_a_registry_is_found_behind_another_relay(network: Network) -> None:
    """Nobody knows its new address, but the overlay leads there; only while the overlay is up."""
    relay = network.world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    key, membership = network.member("edge-1")
    network.say_directory()
    client = Follower(network, key, membership)
    client.documents.directory = open_envelope(
        network.directory, Kind.DIRECTORY, Directory, membership.registry_verify_key
    )
    assert client._addresses() == list(ADDRESSES)
    client.board.given(overlay_is_up=True)
    assert client._addresses() == [*ADDRESSES, f"{relay.overlay_ip}:8883"]


async def test_who_pays_by_the_byte_shows_life_less_often_from_the_next_session_on(network: Network) -> None:
    edge = Follower(network, *network.member("edge-1"))
    edge.board.given(is_metered=True)
    async with edge.running():
        assert set(network.transport.keepalives_s) == {METERED_KEEPALIVE_S}
        edge.board.given(is_metered=False)
        network.broker.stop()
        await edge.clock.advance(0)
        network.broker.start()
        await edge.clock.advance(10)
        assert network.transport.keepalives_s[-1] == KEEPALIVE_S
