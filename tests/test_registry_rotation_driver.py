"""A registry keeps its session with the broker, whatever it is told and whatever its disk says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from registry_world import World
from sim import Box, Sim, story

from edgelink.errors import NotCommittedError
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import NetworkAnswer, Role
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message


def say(relay: Box, node: Box, payload: bytes, *, retain: bool = False) -> None:
    """Somebody says this as the node's answer."""
    topic = Topics(relay.relay.authority.network.network_id).answer(node.node_id)
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


async def outlasts_number(sim: Sim, **told: int) -> None:
    relay = await sim.relay()
    node, near = [await sim.join(name, Role.EDGE, relay) for name in ("edge-1", "edge-2")]
    network_id = relay.relay.authority.network.network_id
    said = {"network_id": network_id, "node_id": node.node_id, "generation": 0, "number": 1}
    answer = NetworkAnswer.model_construct(None, **{**said, **told})
    key = NodeKey.load(node.paths.node_key)
    say(relay, node, key.sign(Kind.NETWORK_ANSWER, answer).model_dump_json().encode(), retain=True)
    await serves(sim, relay, near)


@story
async def test_no_epoch_that_a_node_says_ends_the_registry(sim: Sim) -> None:
    """Signed by the node itself, and kept by the broker: it would end each daemon that comes after this one, too."""
    await outlasts_number(sim, prepared_epoch=10**30)


@story
async def test_no_number_that_a_node_says_ends_the_registry(sim: Sim) -> None:
    await outlasts_number(sim, number=2**62)


@story
async def test_a_message_that_breaks_what_takes_it_is_passed_over(sim: Sim) -> None:
    """Whatever it is that nobody has thought of."""
    relay = await sim.relay()
    node = await sim.join("edge-1", Role.EDGE, relay)
    driver, broken = relay.relay.registry.rotation, list[bytes]()
    real = driver.receive

    def receive(message: Message) -> bool:
        if message.payload == b"poison":
            broken.append(message.payload)
            raise ZeroDivisionError
        return real(message)

    driver.receive = receive  # type: ignore[method-assign]
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
    rotations, said = world.authority.rotations, world.keys.network_id
    writes = world.store._database._connection.total_changes
    for number in range(2, 50):
        answer = NetworkAnswer(network_id=said, node_id=key.node_id, generation=0, number=number, prepared_epoch=number)
        payload = key.sign(Kind.NETWORK_ANSWER, answer).model_dump_json().encode()
        assert not rotations.receive(key.node_id, payload)
    assert world.store._database._connection.total_changes == writes
    assert key.node_id not in rotations.progress() or rotations.progress()[key.node_id].prepared_epoch <= 1
