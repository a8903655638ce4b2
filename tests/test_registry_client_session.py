"""The node's side: what it believes, what it reports, how it comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World

from edgelink.conditions import ConditionSet
from edgelink.errors import RegistryAuthError, RegistryUnavailableError, UntrustedError
from edgelink.registry.client import RegistryClient
from edgelink.registry.keys import Kind, NodeKey, open_envelope
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import (
    MAX_TEXT,
    ClusterMember,
    ClusterSpec,
    Directory,
    Envelope,
    NodeStatus,
    Payload,
    Role,
)
from edgelink.registry.topics import Topics
from edgelink.registry.transport import Message
from edgelink.state_files import StateFiles
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport
from edgelink.testing.memory_transport import MemorySession


class Network:
    """A registry without its service: the tests publish what it, or somebody else, says."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.topics = Topics(self.world.keys.network_id)
        self.broker = MemoryBroker()
        self.transport = MemoryTransport({ADDRESSES[1]: self.broker})

    def member(self, hostname: str, role: Role = Role.EDGE) -> tuple[NodeKey, Membership]:
        key, token = NodeKey.generate(), self.world.token(role)
        result = self.world.enrol(key, token, hostname, role=role)
        return key, self.world.membership(key, token, result)

    def say(self, topic: str, payload: Payload) -> None:
        self.broker.publish(Message(topic, payload.model_dump_json().encode(), retain=True))

    def say_directory(self) -> None:
        self.say(self.topics.directory, self.world.authority.directory())

    def spec(self, key: NodeKey, membership: Membership, epoch: int = 1, incarnation: str = "one") -> Envelope:
        lease = membership.lease
        member = ClusterMember(node_id=key.node_id, hostname=lease.hostname, overlay_ip=lease.overlay_ip, node_rank=0)
        spec = ClusterSpec(
            network_id=membership.network_id,
            epoch=epoch,
            incarnation=incarnation,
            head_node_id=key.node_id,
            head_ip=lease.overlay_ip,
            ray_port=6379,
            ray_version="2.60.0",
            python_version="3.11.2",
            token_auth=True,
            members=(member,),
        )
        return key.sign(Kind.CLUSTER_SPEC, spec)

    def statuses_of(self, node_id: str) -> list[NodeStatus]:
        topic = self.topics.status(node_id)
        return [NodeStatus.model_validate_json(m.payload) for m in self.broker.published if m.topic == topic]


class Follower:
    """A client and its clock; `changes` counts the calls of on_change."""

    def __init__(self, network: Network, key: NodeKey, membership: Membership, cache: Path | None = None) -> None:
        self.clock = FakeClock()
        self.changes = 0
        self.files = StateFiles(ConditionSet(self.clock, [], [StateFiles.condition]))
        self.on_disk = membership
        self.client = RegistryClient(
            membership,
            key,
            self.clock,
            self._changed,
            cache=cache,
            files=self.files,
            reload=lambda: self.on_disk,
            transport=network.transport,
        )

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RegistryClient]:
        task = asyncio.create_task(self.client.run())
        await self.clock.advance(0)
        try:
            yield self.client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def status(key: NodeKey, phase: str) -> NodeStatus:
    return NodeStatus(node_id=key.node_id, online=True, phase=phase, reported_at=datetime(2026, 1, 1, tzinfo=UTC))


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
        assert client.lease_envelope == membership.lease_envelope
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
        assert client.lease_envelope is None
        assert client.is_connected


async def test_refuses_older_epochs(network: Network) -> None:
    """A replayed older directory or cluster spec is ignored."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    old = network.world.authority.directory()
    network.member("edge-2")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=5))
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        directory, spec = client.directory, client.cluster_spec
        network.say(network.topics.directory, old)
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=4))
        await follower.clock.advance(0)
        assert client.ignored_messages == 2
        assert client.directory == directory
        assert client.cluster_spec == spec
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=6))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.epoch == 6


async def test_another_head(network: Network) -> None:
    """When the directory names another head, the former one's cluster spec is not followed any more."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert client.cluster_spec is not None
        network.world.authority.release("cloud")
        network.say_directory()
        await follower.clock.advance(0)
        assert client.cluster_spec is None
        new_key, new_head = network.member("cloud-2", Role.HEAD)
        network.say(network.topics.cluster, network.spec(new_key, new_head, epoch=1))
        network.say_directory()
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.head_node_id == new_key.node_id


async def test_statuses_are_coalesced(network: Network) -> None:
    """A burst of reports becomes the first and the last, half a second apart, retained."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert [s.phase for s in network.statuses_of(key.node_id)] == ["Starting"]
        for phase in ("A", "B", "C"):
            client.publish_status(status(key, phase))
            await follower.clock.advance(0.1)
        await follower.clock.advance(0.5)
        assert [s.phase for s in network.statuses_of(key.node_id)] == ["Starting", "C"]
        client.publish_status(status(key, "C"))  # nothing new
        await follower.clock.advance(5)
        assert len(network.statuses_of(key.node_id)) == 2
        assert b'"C"' in network.broker.retained[network.topics.status(key.node_id)]


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
        client.send(topic, b"one")
        client.send(topic, b"two")
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
        assert isinstance(client.last_error, RegistryUnavailableError)
        await follower.clock.advance(60)
        told = follower.changes
        tries = len(network.transport.dialled)
        await follower.clock.advance(60)
        assert len(network.transport.dialled) - tries >= 2 * 60 / 5 - 2  # goes on trying, at least each 5 s
        assert follower.changes == told
        assert client.directory is not None
        assert client.cluster_spec is not None
        network.broker.start()
        await follower.clock.advance(6)
        assert client.is_connected
        assert client.last_error is None
        assert network.topics.cluster in network.broker.retained
        assert b'"Ready"' in network.broker.retained[network.topics.status(head_key.node_id)]


async def test_refused_credentials(network: Network) -> None:
    """Refused credentials are shown as such, and tried again, in case the relay learns of us."""
    key, membership = network.member("edge-1")
    network.broker.passwords = {}
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert isinstance(client.last_error, RegistryAuthError)
        network.broker.passwords[membership.secrets.broker_username] = membership.secrets.broker_password
        await follower.clock.advance(6)
        assert client.is_connected


async def test_statuses_of_others(network: Network) -> None:
    """The head sees all statuses, each from its own topic only, and forgets who stays silent; an edge sees none."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    edge, follower = Follower(network, key, membership), Follower(network, head_key, head)
    async with edge.running() as edge_client, follower.running() as client:
        assert set(client.statuses) == {key.node_id, head_key.node_id}
        assert edge_client.statuses == {}
        network.say(network.topics.status(key.node_id), status(head_key, "Lie"))
        await follower.clock.advance(0)
        assert client.ignored_messages == 1
        network.broker.stop()
        await follower.clock.advance(0)
        network.broker.start()
        await follower.clock.advance(6)  # the edge's clock stands still: it does not come back
        assert key.node_id in client.statuses
        await follower.clock.advance(31)
        assert set(client.statuses) == {head_key.node_id}


GOOD_CONDITION = {
    "type": "OverlayUp",
    "status": "False",
    "reason": "DeviceDown",
    "message": "et0 is down",
    "since": "2026-01-01T00:00:00.000+00:00",
    "final": False,
}


@pytest.mark.parametrize(
    "conditions",
    [
        [{}],
        ["OverlayUp"],
        [{name: value for name, value in GOOD_CONDITION.items() if name != "reason"}],
        [GOOD_CONDITION | {"status": "Maybe"}],
        [GOOD_CONDITION | {"message": {"not": "a text"}}],
        [GOOD_CONDITION | {"type": "T" * 65}],
        [GOOD_CONDITION] * 65,
    ],
)
async def test_malformed_conditions_are_refused(network: Network, conditions: list[object]) -> None:
    """Whoever reads a status later relies on its shape: another one is counted, and the last good one stays."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, _ = network.member("edge-1")
    follower = Follower(network, head_key, head)
    topic = network.topics.status(key.node_id)
    async with follower.running() as client:
        for said in ([GOOD_CONDITION], conditions):
            report = {"node_id": key.node_id, "online": True, "conditions": said}
            network.broker.publish(Message(topic, json.dumps(report).encode()))
            await follower.clock.advance(0)
        assert client.ignored_messages == 1
        (condition,) = client.statuses[key.node_id].conditions
        assert condition.model_dump(include={"type", "reason", "message"}) == {
            "type": "OverlayUp",
            "reason": "DeviceDown",
            "message": "et0 is down",
        }


async def test_ends_of_easytier_are_handed_on(network: Network) -> None:
    """Of every node, to an edge too, with the id of the node whose topic it was; what is not believed is counted."""
    key, membership = network.member("edge-1")
    other, _ = network.member("edge-2")
    follower, taken = Follower(network, key, membership), list[tuple[str, bytes]]()

    def take(node_id: str, payload: bytes) -> None:
        if payload == b"forged":
            raise UntrustedError("not signed by the node")
        taken.append((node_id, payload))

    async with follower.running() as client:
        client.take_easytier_death = take
        for payload in (b"forged", b"true"):
            network.broker.publish(Message(network.topics.easytier(other.node_id), payload))
            await follower.clock.advance(0)
        assert taken == [(other.node_id, b"true")]
        assert client.ignored_messages == 1


async def test_a_long_message_of_a_condition_is_cut(network: Network) -> None:
    """It may quote what some program printed: no reason not to know the rest."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, _ = network.member("edge-1")
    report = {"node_id": key.node_id, "online": True, "conditions": [GOOD_CONDITION | {"message": "m" * 100_000}]}
    network.broker.publish(Message(network.topics.status(key.node_id), json.dumps(report).encode(), retain=True))
    async with Follower(network, head_key, head).running() as client:
        (condition,) = client.statuses[key.node_id].conditions
        assert condition.message == "m" * MAX_TEXT
        assert client.ignored_messages == 0


@pytest.mark.parametrize("phase", ["", "P" * 65, 7])
async def test_a_malformed_phase_is_refused(network: Network, phase: object) -> None:
    """It is shown in every list of nodes."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, _ = network.member("edge-1")
    follower = Follower(network, head_key, head)
    async with follower.running() as client:
        for said in ("Ready", phase):
            report = {"node_id": key.node_id, "online": True, "phase": said, "ray_version": "2" * 100_000}
            network.broker.publish(Message(network.topics.status(key.node_id), json.dumps(report).encode()))
            await follower.clock.advance(0)
        assert client.ignored_messages == 1
        assert client.statuses[key.node_id].phase == "Ready"
        assert client.statuses[key.node_id].ray_version == "2" * MAX_TEXT


async def test_cache_outlives_the_daemon(network: Network, tmp_path: Path) -> None:
    """A daemon that starts while the relay is away knows what its predecessor knew, verified; junk is ignored."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=3))
    cache = tmp_path / "cache"
    cache.mkdir()
    async with Follower(network, key, membership, cache).running() as client:
        directory, spec = client.directory, client.cluster_spec
    network.broker.stop()
    async with Follower(network, key, membership, cache).running() as client:
        assert not client.is_connected
        assert client.directory == directory
        assert client.cluster_spec == spec
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.iterdir())
    for path in cache.iterdir():
        path.write_text("{}")
    junk = Follower(network, key, membership, cache).client
    assert junk.directory is None
    assert junk.cluster_spec is None


async def test_client_id_is_steady_and_not_guessable(network: Network) -> None:
    """The client id is the same at each connect, so that a half-open one ends; and says nothing of the password."""
    key, membership = network.member("edge-1")
    first, second = (Follower(network, key, membership).client._login() for _ in range(2))
    assert first.client_id == second.client_id
    assert len(first.client_id) == 23  # what MQTT 3.1.1 brokers have to accept
    assert membership.secrets.broker_password not in first.client_id


async def test_a_renewed_membership_is_taken_up_without_a_restart(network: Network) -> None:
    """`edgelink join` beside a running daemon gives the node a new password: the daemon reads it and goes on."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership)
    renewed_secrets = membership.secrets.model_copy(update={"broker_password": "renewed-by-join"})
    network.broker.add_user(membership.secrets.broker_username, "renewed-by-join")
    async with follower.running() as client:
        await follower.clock.advance(10)
        assert isinstance(client.last_error, RegistryAuthError)
        follower.on_disk = membership.model_copy(update={"secrets": renewed_secrets})
        await follower.clock.advance(20)
        assert client.is_connected


async def test_a_full_disk_does_not_end_the_daemon(network: Network, tmp_path: Path) -> None:
    """What cannot be kept for the next start is followed all the same."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership, cache=tmp_path / "cannot" / "be-written")
    network.say_directory()
    async with follower.running() as client:
        await follower.clock.advance(1)
        assert client.directory is not None
        assert client.is_connected
    (tmp_path / "cannot" / "be-written").mkdir(parents=True)
    await follower.files.reconcile()
    assert Follower(network, key, membership, tmp_path / "cannot" / "be-written").client.directory == client.directory


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


async def test_a_registry_is_found_behind_another_relay(network: Network) -> None:
    """Nobody knows its new address, but the overlay leads there; only while the overlay is up."""
    relay = network.world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    key, membership = network.member("edge-1")
    network.say_directory()
    is_up = False
    client = RegistryClient(
        membership, key, FakeClock(), lambda: None, overlay_is_up=lambda: is_up, transport=network.transport
    )
    client.documents.directory = open_envelope(
        network.world.authority.directory(), Kind.DIRECTORY, Directory, membership.registry_verify_key
    )
    assert client._addresses() == list(ADDRESSES)
    is_up = True
    assert client._addresses() == [*ADDRESSES, f"{relay.overlay_ip}:8883"]


async def test_a_registry_that_was_replaced_is_left(network: Network, tmp_path: Path) -> None:
    """Of two, the one that was restored later counts, whatever their epochs; also after a restart of the daemon."""
    key, membership = network.member("edge-1")
    old = network.world.authority.directory()
    lease = network.world.store.find_lease("edge-1")
    assert lease is not None
    network.world.store.note_restoration(lease.node_id, keep_addresses=True)
    network.say_directory()
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.is_connected
        assert client.directory is not None
        assert client.directory.generation == network.world.store.generation() > 0
    network.say(network.topics.directory, old)
    again = Follower(network, key, membership, tmp_path)
    async with again.running() as client:
        assert not client.is_connected
        assert client.last_error is not None
        assert client.last_error.condition_reason == "RegistryReplaced"
        assert client.directory is not None
        assert client.directory.generation == network.world.store.generation() > 0
        tries = len(network.transport.dialled)
        await again.clock.advance(5)
        assert ADDRESSES[0] in network.transport.dialled[tries:], "the other addresses are tried"
        network.say_directory()
        await again.clock.advance(5)
        assert client.is_connected


async def test_a_restart_does_not_open_the_door_to_replays(network: Network, tmp_path: Path) -> None:
    """A broker that plays back a directory from before the head's time cannot make an old cluster spec count again."""
    key, membership = network.member("edge-1")
    before_head = network.world.authority.directory()
    head_key, head = network.member("cloud", Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    async with Follower(network, key, membership, tmp_path).running() as client:
        directory, spec = client.directory, client.cluster_spec
        assert spec is not None
    network.say(network.topics.directory, before_head)
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=4))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.is_connected
        network.say_directory()
        await follower.clock.advance(0)
        assert client.ignored_messages == 2
        assert client.directory == client.live_directory == directory, "the very same one again is no replay"
        assert client.cluster_spec == spec


async def test_a_heads_specs_go_on_counting_after_another_was_head(network: Network, tmp_path: Path) -> None:
    """What a former head said last is remembered, also by the next daemon: as head again, it goes on from there."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        network.world.authority.release("cloud")
        other_key, other = network.member("cloud-2", Role.HEAD)
        network.say_directory()
        network.say(network.topics.cluster, network.spec(other_key, other, epoch=1))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.head_node_id == other_key.node_id
    network.world.authority.release("cloud-2")
    network.world.enrol(head_key, network.world.token(Role.HEAD), "cloud", role=Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=8))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.cluster_spec is None
        assert client.ignored_messages == 1
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=10))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.epoch == 10


@pytest.mark.parametrize("said_before", [9, 5])
async def test_a_head_hears_which_epochs_it_has_used(network: Network, tmp_path: Path, said_before: int) -> None:
    """Its disk may be an older copy: what it said before has then a number as high as its own, and another content."""
    head_key, head = network.member("cloud", Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=said_before, incarnation="before"))
    now = network.spec(head_key, head, epoch=5)
    spec = ClusterSpec.model_validate_json(now.body)
    follower = Follower(network, head_key, head, tmp_path)
    assert follower.client.epoch_taken(spec) == 0
    follower.client.publish_cluster(now)
    assert follower.client.epoch_taken(spec) == 0
    async with follower.running() as client:
        assert client.epoch_taken(spec) == said_before
        above = network.spec(head_key, head, epoch=said_before + 1)
        client.publish_cluster(above)
        await follower.clock.advance(1)
        assert network.broker.retained[network.topics.cluster] == above.model_dump_json().encode()
        assert client.epoch_taken(ClusterSpec.model_validate_json(above.body)) == 0, "its own echo takes no number"
    successor = Follower(network, head_key, head, tmp_path).client
    assert successor.epoch_taken(spec) == successor.epoch_taken(None) == said_before + 1
