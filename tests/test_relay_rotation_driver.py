"""A registry keeps its session with the broker, whatever it is told and whatever its disk says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from registry_world import World
from sim import Box, Sim, story

from edgelink.errors import NotCommittedError
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import NetworkState, NodeStatus, Role
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message


def say(relay: Box, node: Box, payload: bytes, *, retain: bool = False) -> None:
    """Somebody says this as the node's status."""
    topic = Topics(relay.relay.authority.network.network_id).status(node.node_id)
    relay.machine.memory.publish(Message(topic, payload, retain))


def sessions(relay: Box) -> int:
    """How many the registry has begun with its broker."""
    return relay.machine.memory.connects.count(relay.relay.broker.login.username)


async def serves(sim: Sim, relay: Box, node: Box) -> None:
    """A node that comes now is told of the secret, in the registry's first session."""
    node.start()
    await sim.until(node.has("SecretCurrent", "Current"), within_s=10)
    assert relay.has("RegistryConnected")()
    assert sessions(relay) == 1


@story
async def test_no_epoch_that_a_node_says_ends_the_registry(sim: Sim) -> None:
    """Kept by the broker, it would end each daemon that comes after this one, too."""
    relay = await sim.relay()
    node, near = [await sim.join(name, Role.EDGE, relay) for name in ("edge-1", "edge-2")]
    for epoch in (10**30, 2**62, 2**53 - 1, -1):
        say(relay, node, json.dumps({"node_id": node.node_id, "online": True, "secret_epoch": epoch}).encode())
    await serves(sim, relay, near)
    assert relay.relay.authority.rotations.seen_epochs()[node.node_id] == 1


@story
async def test_what_no_registry_has_said_brings_nobody_back_and_puts_nobody_out(sim: Sim) -> None:
    """A member says that this registry has forgotten something, which it has signed itself."""
    relay = await sim.relay()
    node, near = [await sim.join(name, Role.EDGE, relay) for name in ("edge-1", "edge-2")]
    rotations, key = relay.relay.authority.rotations, NodeKey.load(node.paths.node_key)
    network_id = relay.relay.authority.network.network_id
    lie = NetworkState(network_id=network_id, generation=9, number=9, secret_epoch=9, revoked=(near.node_id,))
    status = NodeStatus(node_id=node.node_id, online=True, known_network=key.sign(Kind.NETWORK, lie))
    say(relay, node, status.model_dump_json().encode())
    await sim.until(lambda: relay.relay.registry.refusals.counts, within_s=5)
    await serves(sim, relay, near)
    assert rotations.secret_epoch == 1
    assert relay.relay.store.lease(near.node_id) is not None


@story
async def test_a_message_that_breaks_what_takes_it_is_passed_over(sim: Sim) -> None:
    """Whatever it is that nobody has thought of."""
    relay = await sim.relay()
    node = await sim.join("edge-1", Role.EDGE, relay)
    service, broken = relay.relay.registry, list[bytes]()
    real = service._take_status

    def take_status(node_id: str, message: Message) -> None:
        if message.payload == b"poison":
            broken.append(message.payload)
            raise ZeroDivisionError
        real(node_id, message)

    service._take_status = take_status  # type: ignore[method-assign]
    say(relay, node, b"poison")
    await sim.until(lambda: broken, within_s=1)
    await serves(sim, relay, node)


@story
async def test_what_cannot_be_noted_is_noted_later(sim: Sim) -> None:
    """The daemon's own part, which writes as well, is asked again, and is not asked in the middle of anything."""
    relay = await sim.relay()
    secrets, noted = relay.relay.secrets, list[bool]()
    real, is_full = secrets.overlay_changed, True

    def overlay_changed(*given: Any) -> None:
        noted.append(not is_full)
        if is_full:
            raise NotCommittedError("registry.sqlite3: cannot be written: database or disk is full")
        real(*given)

    secrets.overlay_changed = overlay_changed  # type: ignore[method-assign]
    relay.relay.registry.rotation.look()
    await sim.until(lambda: noted, within_s=1)
    await sim.passes(5)
    assert relay.has("RegistryConnected")()
    assert not any(noted)
    is_full = False
    await sim.until(lambda: any(noted), within_s=10)
    assert sessions(relay) == 1


def test_a_node_that_claims_ever_more_costs_the_registry_no_write_each(tmp_path: Path) -> None:
    """Each would be a transaction with an fsync, in the loop that serves all nodes; no secret has such a number yet."""
    world, key = World(tmp_path), NodeKey.generate()
    world.enrol(key, world.token(), "edge-1")
    rotations = world.authority.rotations
    writes = world.store._database._connection.total_changes
    for epoch in range(2, 50):
        assert not rotations.note({key.node_id: epoch})
    assert world.store._database._connection.total_changes == writes
    assert rotations.seen_epochs()[key.node_id] == 1
