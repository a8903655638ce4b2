"""A network changes its secret: relay, head and edges follow, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Callable
from typing import Any

from sim import Box, Sim, all_ready, ready, secret, story
from sim_machine import BROKER, EASYTIER

from edgelink.errors import ExitCode, NotCommittedError, NotRecordedError
from edgelink.member.network_watch import STATE_FILE
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.relay.rotation import SWITCH_S
from edgelink.testing.virtual_time import Program


async def rotate(relay: Box, **body: Any) -> None:
    await relay.asks("POST", "/rotate-secret", **body)


def record(relay: Box) -> object | None:
    """The change that the registry is in the middle of."""
    return relay.relay.authority.rotations.record


def topics(relay: Box) -> Topics:
    return Topics(relay.relay.authority.network.network_id)


@story
async def test_all_change_together(sim: Sim) -> None:
    """Told, on disk, used and seen, within seconds: also by the registry, which waits for nobody in the end."""
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    begun_s = sim.clock.monotonic_s()
    await rotate(relay)
    assert SWITCH_S <= sim.clock.monotonic_s() - begun_s < SWITCH_S + 3
    assert record(relay) is None
    assert secret(relay).epoch == 2
    await all_ready(sim, boxes)
    for node in nodes:
        assert node.membership.held == secret(relay)
        assert [held.epoch for held in node.used] == [1, 2], "prepared, then changed, each once"
        assert node.used[0].next_secret == secret(relay).secret
        assert node.has("SecretCurrent", "Current")()
    assert relay.relay.authority.rotations.stragglers() == []


@story
async def test_a_node_that_was_away_catches_up(sim: Sim) -> None:
    """From whatever secret it had: the present one lies on the broker for it, sealed."""
    relay, _, away = boxes = await ready(sim, "cloud", "edge-1")
    await away.stop()
    for epoch in (2, 3):
        await rotate(relay)
        assert secret(relay).epoch == epoch
    away.start()
    await all_ready(sim, boxes)
    assert away.membership.held == secret(relay)
    assert [held.epoch for held in away.used] == [3]
    assert away.has("SecretCurrent", "Current")()


class Robot:
    """A robot with a hook, which says that it moves."""

    def __init__(self, sim: Sim) -> None:
        self.is_moving = True
        self.asked: list[dict[str, str]] = []
        sim.world.programs["hook"] = self._hook
        user = pwd.getpwuid(os.geteuid()).pw_name
        self.config = {"hold": ("hook",), "user": user}

    async def _hook(self, program: Program) -> int:
        self.asked.append(dict(program.environment))
        return ExitCode.TRY_AGAIN if self.is_moving else 0


async def with_robot(sim: Sim, robot: Robot) -> tuple[Box, Box, Box]:
    """A relay, an edge with this robot, and another one."""
    relay = await sim.relay()
    moving = await sim.join("edge-1", Role.EDGE, relay, robot=robot.config)
    other = await sim.join("edge-2", Role.EDGE, relay)
    for node in (moving, other):
        node.start()
    statuses = relay.relay.registry.statuses
    await sim.until(lambda: {moving.node_id, other.node_id} <= statuses.keys(), within_s=10)
    await sim.until(lambda: all(node.has("SecretCurrent", "Current")() for node in (moving, other)), within_s=10)
    return relay, moving, other


@story
async def test_a_change_waits_for_a_robot_in_motion(sim: Sim) -> None:
    """All have the next secret, and nobody changes before the hook says so; then it does not wait any longer."""
    robot = Robot(sim)
    relay, moving, other = await with_robot(sim, robot)
    asking = asyncio.create_task(rotate(relay, hold_s=50))
    await sim.until(moving.has("SecretCurrent", "Holding"), within_s=5)
    assert other.has("SecretCurrent", "Preparing")()
    await sim.passes(20)
    assert [box.membership.held.next_epoch for box in (moving, other)] == [2, 2]
    assert [secret(relay).epoch, moving.membership.held.epoch, other.membership.held.epoch] == [1, 1, 1]
    assert all("secret 2" in asked["EDGELINK_REASON"] for asked in robot.asked)
    robot.is_moving = False
    left_s = sim.clock.monotonic_s()
    await asking
    assert sim.clock.monotonic_s() - left_s < 10
    await sim.until(lambda: all(node.has("SecretCurrent", "Current")() for node in (moving, other)), within_s=5)
    assert moving.membership.held == other.membership.held == secret(relay)


@story
async def test_no_robot_holds_a_change_up_for_longer_than_the_operator_says(sim: Sim) -> None:
    """The hook is told how long it has, which is until the change, and is ended then."""
    robot = Robot(sim)
    relay, moving, _ = await with_robot(sim, robot)
    begun_s = sim.clock.monotonic_s()
    await rotate(relay, hold_s=10)
    assert 10 <= sim.clock.monotonic_s() - begun_s < 15
    assert 8 < float(robot.asked[0]["EDGELINK_HOLD_FOR_S"]) <= 10
    begun_s = sim.clock.monotonic_s()
    await rotate(relay, hold_s=0)
    assert sim.clock.monotonic_s() - begun_s < 5
    assert moving.membership.held.epoch == secret(relay).epoch == 3


@story
async def test_a_second_revocation_while_a_robot_holds_the_first_one_up(sim: Sim) -> None:
    """Neither knows the secret on which the network ends up; nobody changes twice."""
    robot = Robot(sim)
    relay, moving, other = await with_robot(sim, robot)
    for name in ("stolen-1", "stolen-2"):
        await sim.join(name, Role.EDGE, relay)
    await sim.passes(40)  # who has not spoken is away
    first = asyncio.create_task(relay.told("POST", "/revoke", node="stolen-1", hold_s=50))
    await sim.until(moving.has("SecretCurrent", "Holding"), within_s=5)
    await sim.passes(5)
    second = asyncio.create_task(relay.told("POST", "/revoke", node="stolen-2", hold_s=0))
    await asyncio.gather(first, second)
    assert secret(relay).epoch == 3
    assert moving.membership.held == other.membership.held == secret(relay)
    assert [held.epoch for held in other.used] == [1, 1, 3], "the next one twice, then changed"


@story
async def test_a_revoked_node_hears_it_and_ends(sim: Sim) -> None:
    """By the registry's own word, which it keeps: it does not start again, and the others go on without it."""
    relay, staying, stolen = await ready(sim, "cloud", "edge-1")
    stolen_id, memory = stolen.node_id, relay.machine.memory
    revoking = asyncio.create_task(relay.asks("POST", "/revoke", node="edge-1"))
    assert isinstance(await stolen.ends(within_s=5), NodeRevokedError)
    assert stolen.condition("Leased").final
    await revoking
    assert staying.membership.held.epoch == 2
    assert stolen.membership.held.next_secret is None
    assert stolen.membership.held.epoch == 1
    assert memory.passwords is not None
    assert f"node-{stolen_id}" not in memory.passwords
    assert topics(relay).secrets(stolen_id) not in memory.retained
    stolen.start()
    assert isinstance(await stolen.ends(within_s=5), NodeRevokedError)
    assert not stolen.machine.running(EASYTIER)


@story
async def test_what_was_said_once_counts_no_more(sim: Sim) -> None:
    """A broker in wrong hands plays old states and secrets again, also after a restart of the node: it stays."""
    relay, _, node = await ready(sim, "cloud", "edge-1")
    await rotate(relay)
    await node.stop()
    memory, network = relay.machine.memory, topics(relay).network
    own = {network, topics(relay).secrets(node.node_id)}
    recorded = [message for message in memory.published if message.topic in own and message.payload]
    assert len(recorded) >= 4
    node.start()
    await sim.until(node.has("RegistryConnected"), within_s=5)
    assert node.facts.network.state is not None, "what counts is on disk"
    before, client = node.membership.held, node.registry
    assert client is not None
    ignored = client.refusals.total
    for message in [*recorded, *reversed(recorded)]:
        memory.publish(Message(message.topic, message.payload))
    await sim.until(lambda: client.refusals.total > ignored, within_s=1)
    stranger = NodeKey.generate()
    for message in recorded:
        forged = json.loads(message.payload) if message.topic == network else {}
        forged = {**forged, "signature": "AAAA", "signer": stranger.node_id}
        memory.publish(Message(message.topic, json.dumps(forged).encode()))
    ignored = client.refusals.total
    memory.publish(Message(network, b"{}"))
    await sim.until(lambda: client.refusals.total > ignored, within_s=1)
    await sim.passes(5)
    assert node.membership.held == before
    assert node.used == []


@story
async def test_a_relay_that_is_killed_in_the_middle_of_a_change_ends_it(sim: Sim) -> None:
    """Nobody changes without it, whatever the hour; its successor changes at once."""
    relay, _, node = boxes = await ready(sim, "cloud", "edge-1")
    asking = asyncio.create_task(relay.told("POST", "/rotate-secret"))
    await sim.until(lambda: node.membership.held.next_epoch == 2, within_s=5)
    assert record(relay) is not None
    await relay.kill()
    await asyncio.gather(asking, return_exceptions=True)
    await sim.passes(SWITCH_S + 10)
    assert [box.membership.held.epoch for box in boxes[1:]] == [1, 1]
    assert not node.facts.tries_next_secret
    relay.start()
    await sim.until(lambda: node.membership.held.epoch == 2, within_s=10)
    await all_ready(sim, boxes)
    assert [box.membership.held for box in boxes[1:]] == [secret(relay)] * 2


@story
async def test_the_newest_state_is_private_and_survives_damage(sim: Sim) -> None:
    """0600; a damaged file is told of, and costs nothing but the memory."""
    relay = await sim.relay()
    node = await sim.join("edge-1", Role.EDGE, relay)
    node.start()
    await sim.until(node.has("SecretCurrent", "Current"), within_s=10)
    await node.stop()
    file = node.paths.state / STATE_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{")
    relay.machine.end(BROKER)
    relay.machine.broken.add(BROKER)
    node.start()
    await sim.passes(5)
    assert node.facts.network.state is None
    relay.machine.broken.clear()
    await sim.until(node.has("SecretCurrent", "Current"), within_s=60)


class Disk:
    """Full, or not: then what writes through :meth:`guard` is done."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0

    def guard(self, write: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if self.is_full:
                self.refused += 1
                raise error
            return write(*args)

        return guarded


@story
async def test_a_full_disk_of_the_relays_holds_a_change_up(sim: Sim) -> None:
    """Nobody changes before the relay has it on disk, and no session ends."""
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    disk, book = Disk(), relay.relay.store.rotations
    full = NotCommittedError("registry.sqlite3: cannot be written: database or disk is full")
    for write in ("commit", "note_epochs"):
        setattr(book, write, disk.guard(getattr(book, write), full))
    sessions = len(relay.machine.memory.connects)
    asking = asyncio.create_task(rotate(relay))
    await sim.until(lambda: all(node.membership.held.next_epoch == 2 for node in nodes), within_s=1)
    disk.is_full = True
    await sim.until(lambda: disk.refused, within_s=5)
    await sim.passes(10)
    assert relay.has("RegistryConnected")()
    assert [box.membership.held.epoch for box in nodes] == [1, 1]
    assert not any(node.facts.tries_next_secret for node in nodes)
    disk.is_full = False
    await asking
    await all_ready(sim, boxes)
    assert all(node.membership.held.epoch == 2 for node in nodes)
    assert len(relay.machine.memory.connects) == sessions


@story
async def test_a_nodes_session_outlasts_a_full_disk(sim: Sim) -> None:
    """The node stays connected meanwhile, and follows by itself when there is room again."""
    relay, _, node = await ready(sim, "cloud", "edge-1")
    disk, files = Disk(), node.node.base.files
    for write in ("require", "keep"):
        setattr(files, write, disk.guard(getattr(files, write), NotRecordedError("no room")))
    sessions = len(relay.machine.memory.connects)
    disk.is_full = True
    asking = asyncio.create_task(rotate(relay, timeout_s=60))
    await sim.until(lambda: not node.facts.network.is_on_disk, within_s=5)
    await sim.passes(10)
    assert node.has("RegistryConnected")()
    disk.is_full = False
    await asking
    assert node.membership.held.epoch == 2
    assert node.facts.network.state is not None
    assert (node.paths.state / STATE_FILE).exists()
    assert len(relay.machine.memory.connects) == sessions
