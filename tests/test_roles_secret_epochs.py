"""A node follows the network's secret: the registry's service, the node's client and its reconciler, in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from rotation_world import Member, Network, daemon

from edgelink.config import Paths
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership, put_membership, update_membership
from edgelink.registry.network_watch import STATE_FILE
from edgelink.registry.payloads import NodeStatus
from edgelink.registry.rotation import FOLLOWS_SECRETS, HeldSecret, Step
from edgelink.registry.rotation_driver import following
from edgelink.registry.rotations import NodeRevokedError
from edgelink.registry.transport import Message
from edgelink.testing import FakeClock, eventually
from edgelink.testing.registry_client import LoneClient


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


async def test_all_change_together(network: Network) -> None:
    """Told, prepared on disk, committed, used, and seen: also by the registry, which waits for nobody in the end."""
    one, two = network.join("edge-1"), network.join("edge-2")
    async with network.serving(), network.running(one, two):
        await eventually(lambda: one.reason() == two.reason() == "Current")
        network.rotate(one, two)
        await eventually(lambda: network.world.authority.rotations.record is None)
        assert network.secret.epoch == 2
        for member in (one, two):
            assert member.on_disk == network.secret
            assert [held.epoch for held in member.used] == [1, 2], "prepared, then changed, each once"
            assert member.used[0].next_secret == network.secret.secret
            await eventually(lambda m=member: m.reason() == "Current")
        assert [lease.hostname for lease in network.world.authority.rotations.stragglers()] == ["relay"]


async def test_a_node_that_was_away_catches_up(network: Network) -> None:
    """From whatever secret it had: the present one lies on the broker for it, sealed."""
    here, away = network.join("edge-1"), network.join("edge-2")
    async with network.serving():
        async with network.running(here):
            for epoch in (2, 3):
                network.rotate(here)
                await eventually(lambda e=epoch: here.on_disk.epoch == e and here.reason() == "Current")
                await eventually(lambda: network.world.authority.rotations.record is None)
        async with network.running(away):
            await eventually(lambda: away.reason() == "Current" and away.on_disk.epoch == 3)
            assert away.on_disk == network.secret
            assert [held.epoch for held in away.used] == [3]


async def test_a_change_waits_for_a_robot_in_motion(network: Network) -> None:
    """It is prepared, and not committed before the hook says so."""
    moving, other = network.join("edge-1"), network.join("edge-2")
    moving.hold.is_set = True
    async with network.serving(), network.running(moving, other):
        await eventually(lambda: moving.reason() == other.reason() == "Current")
        network.rotate(moving, other)
        await eventually(lambda: moving.reason() == "Holding" and other.reason() == "Preparing")
        progress = network.world.authority.rotations.progress
        await eventually(lambda: progress()[other.key.node_id].prepared_epoch == 2)
        await eventually(lambda: progress()[moving.key.node_id].hold_until is not None)
        assert network.world.authority.rotations.advance() is Step.WAIT
        assert moving.hold.asked == ["the network changes to secret 2"]
        moving.hold.at_rest.set()
        await eventually(lambda: moving.on_disk.epoch == other.on_disk.epoch == 2)
        await eventually(lambda: moving.reason() == other.reason() == "Current")


async def test_a_revoked_node_hears_it_and_ends(network: Network) -> None:
    """By the registry's own word, which it keeps: it does not start again, and the others go on without it."""
    staying, stolen = network.join("edge-1"), network.join("edge-2")
    async with network.serving(), network.running(staying):
        ended = asyncio.create_task(ends(stolen))
        await eventually(lambda: staying.reason() == stolen.reason() == "Current")
        await network.service.revoke(
            "edge-2", network.request(staying), own_node_id=network.relay.node_id, all_tokens=False
        )
        with pytest.raises(NodeRevokedError):
            await asyncio.wait_for(ended, 20)
        assert stolen.conditions.get("Leased").final
        await eventually(lambda: staying.on_disk.epoch == 2)
        assert stolen.on_disk.next_secret is None
        assert stolen.on_disk.epoch == 1
        assert network.memory.passwords is not None
        assert f"node-{stolen.key.node_id}" not in network.memory.passwords
        await eventually(lambda: network.topics.secrets(stolen.key.node_id) not in network.memory.retained)
    again = network.member(stolen.key, stolen.paths)
    with pytest.raises(NodeRevokedError):
        again.epochs.refuse_revoked()


async def ends(member: Member) -> None:
    """Raises what ends the daemon."""
    async with daemon(member):
        try:
            await member.epochs.run()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


async def test_what_was_said_once_counts_no_more(network: Network, tmp_path: Path) -> None:
    """A broker in wrong hands plays old states and secrets again, also after a restart of the node: it stays."""
    node = network.join("edge-1")
    async with network.serving(), network.running(node):
        await eventually(lambda: node.reason() == "Current")
        network.rotate(node)
        await eventually(lambda: node.reason() == "Current" and node.on_disk.epoch == 2)
        await eventually(lambda: network.world.authority.rotations.record is None)
    own = {network.topics.network, network.topics.secrets(node.key.node_id)}
    recorded = [message for message in network.memory.published if message.topic in own and message.payload]
    assert len(recorded) >= 5
    again = network.member(node.key, node.paths)
    assert again.client.facts.network.state is not None, "what counts is on disk"
    before = node.on_disk
    async with network.running(again):
        await eventually(lambda: again.client.is_connected)
        for message in [*recorded, *reversed(recorded)]:
            network.memory.publish(Message(message.topic, message.payload))
        await eventually(lambda: again.client.ignored_messages > 0)
        stranger = NodeKey.generate()
        for message in recorded:
            forged = json.loads(message.payload) if message.topic == network.topics.network else {}
            forged = {**forged, "signature": "AAAA", "signer": stranger.node_id}
            network.memory.publish(Message(message.topic, json.dumps(forged).encode()))
        ignored = again.client.ignored_messages
        network.memory.publish(Message(network.topics.network, b"{}"))
        await eventually(lambda: again.client.ignored_messages > ignored)
        assert again.on_disk == before
        assert again.used == []


async def test_an_older_secret_is_never_written_back(network: Network) -> None:
    """Whoever writes a copy of the membership from memory, or gets a reply of an older registry."""
    node = network.join("edge-1")
    stale = node.membership
    current = HeldSecret(5, "the fifth", 6, "the sixth")
    assert update_membership(node.paths, lambda present: present.holding(current))
    assert node.on_disk == current
    put_membership(node.paths, stale)
    assert node.on_disk == current
    written = update_membership(node.paths, lambda _: stale.model_copy(update={"addresses": ("192.0.2.1:8883",)}))
    assert written is not None
    assert node.on_disk.epoch == 5
    found = Membership.load(node.paths)
    assert found is not None
    assert found.addresses == ("192.0.2.1:8883",)
    assert update_membership(Paths(Path(node.paths.state / "none"), node.paths.runtime), lambda m: m) is None


async def test_the_newest_state_is_private_and_survives_damage(network: Network) -> None:
    """0600; a damaged file is told of, and costs nothing but the memory."""
    node = network.join("edge-1")
    async with network.serving(), network.running(node):
        await eventually(lambda: node.reason() == "Current")
    file = node.paths.state / STATE_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{")
    assert network.member(node.key, node.paths).client.facts.network.state is None


def test_who_is_too_old_to_follow_is_known() -> None:
    """By what a node says it can, not by its version."""
    key = [NodeKey.generate().node_id for _ in range(3)]
    statuses = {
        key[0]: NodeStatus(node_id=key[0], online=True, features=(FOLLOWS_SECRETS, "more")),
        key[1]: NodeStatus(node_id=key[1], online=True, edgelink_version="9.9"),
        key[2]: NodeStatus(node_id=key[2], online=False),
    }
    assert following(statuses) == ({key[0]}, {key[1]})


async def test_a_node_that_is_starting_is_not_taken_for_an_older_one(network: Network) -> None:
    """Else a change would be refused for as long as that takes."""
    node = network.join("edge-1")
    node_id = node.key.node_id
    client = LoneClient(node.membership, node.key, FakeClock(), transport=network.transport)
    async with network.serving():
        running = asyncio.create_task(client.run())
        await eventually(lambda: node_id in network.service.statuses)
        assert following(network.service.statuses) == ({node_id}, set())
        running.cancel()


async def test_a_service_that_starts_anew_goes_on(network: Network) -> None:
    """The daemon is killed in the middle of a change: its successor says the same, and ends it."""
    node, absent = network.join("edge-1"), network.join("edge-2")
    async with network.running(node):
        async with network.serving():
            await eventually(lambda: node.reason() == "Current")
            network.rotate(node, absent)
            await eventually(lambda: node.on_disk.next_epoch == 2)
            assert network.world.authority.rotations.record is not None
        network.world.reopen()
        network.service = network.new_service()
        async with network.serving():
            network.world.clock.step_wall_clock(21)
            network.service.rotation.wakeup.set()
            await eventually(lambda: node.on_disk.epoch == 2)
            assert node.on_disk == network.secret
