"""A node follows the network's secret: the registry's service, the node's client and its reconciler, in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rotation_world import Member, Network, daemon

from edgelink.config import Paths
from edgelink.facts.part import Decision
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership, put_membership, update_membership
from edgelink.registry.network_watch import STATE_FILE, NetworkTold
from edgelink.registry.payloads import NetworkAnswer, NetworkState, NodeStatus, Rotation
from edgelink.registry.rotation import FOLLOWS_SECRETS, HeldSecret, HookAnswer, Step
from edgelink.registry.rotation_driver import following
from edgelink.registry.rotations import NodeRevokedError
from edgelink.registry.transport import Message
from edgelink.roles.secret_epochs import AskHook, HoldInputs, Inputs, Record, TakeUp, Tell
from edgelink.testing import FakeClock, eventually
from edgelink.testing.registry_client import LoneClient


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


FIRST, SECOND, THIRD = HeldSecret(1, "first"), HeldSecret(2, "second"), HeldSecret(3, "third")
PREPARED = HeldSecret(1, "first", 2, "second")
PATIENCE = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
PREPARE = Rotation(rotation_id="a" * 32, to_epoch=2, phase="prepare", hold_until=PATIENCE)
COMMITTED = PREPARE.model_copy(update={"phase": "committed"})


def state(epoch: int, rotation: Rotation | None = None) -> NetworkState:
    return NetworkState(network_id="n", generation=0, number=1, secret_epoch=epoch, rotation=rotation)


def told(epoch: int, rotation: Rotation | None = None, **more: Any) -> NetworkTold:
    return NetworkTold(state=state(epoch, rotation), **more)


class Plans:
    """One node's parts, which are asked for their plans only."""

    def __init__(self, network: Network) -> None:
        self.node = network.join("edge-1")

    def of(self, held: HeldSecret, network: NetworkTold, **more: Any) -> Decision[TakeUp | Tell | Record]:
        facts = {"easytier_as_wanted": True, "tries_next_secret": False, "hook_answer": None, "own": None, **more}
        return self.node.epochs.plan(Inputs(self.node.membership.with_secret(held), network, **facts), 0.0)

    def answer(self, held: HeldSecret, network: NetworkTold, **more: Any) -> NetworkAnswer:
        does = self.of(held, network, **more).does
        assert isinstance(does, Tell)
        return does.answer


@pytest.fixture
def plans(network: Network) -> Plans:
    return Plans(network)


@pytest.mark.parametrize(
    "held, heard, takes_up",
    [
        (FIRST, told(1, PREPARE, given=PREPARED), PREPARED),
        (PREPARED, told(1, PREPARE, given=PREPARED), None),
        (PREPARED, told(2, COMMITTED, given=PREPARED), SECOND),
        (PREPARED, told(2), SECOND),
        (PREPARED, told(1), FIRST),  # the change was given up
        (FIRST, told(2), None),  # a secret that it was not given
        (FIRST, told(3, given=THIRD), THIRD),  # it was away
        (FIRST, NetworkTold(given=THIRD), THIRD),
        (SECOND, told(1, given=FIRST), None),  # never back
    ],
)
def test_which_secret_is_taken_up(
    plans: Plans, held: HeldSecret, heard: NetworkTold, takes_up: HeldSecret | None
) -> None:
    decision = plans.of(held, heard)
    assert (decision.does == TakeUp(takes_up)) if takes_up else not isinstance(decision.does, TakeUp)
    assert bool(decision.says) == (takes_up is None), "what people read waits until it is done"


ASKED, ANSWERED = None, HookAnswer("a" * 32)


@pytest.mark.parametrize(
    "held, heard, more, reason",
    [
        (FIRST, NetworkTold(), {}, "NotToldYet"),
        (FIRST, told(1), {}, "Current"),
        (FIRST, told(1), {"easytier_as_wanted": False}, "Changing"),
        (FIRST, told(1), {"easytier_as_wanted": None}, "Current"),  # the other daemon of this machine tells of it
        (FIRST, told(2), {}, "BehindNetwork"),
        (SECOND, told(2, behind=state(1)), {}, "RegistryBehind"),
        (PREPARED, told(1, PREPARE), {"tries_next_secret": True}, "TryingNext"),
        (PREPARED, told(1, PREPARE), {"hook_answer": ASKED}, "Holding"),
        (PREPARED, told(1, PREPARE), {"hook_answer": ANSWERED}, "Preparing"),
        (PREPARED, told(1, PREPARE), {"hook_answer": HookAnswer("b" * 32)}, "Holding"),  # of another change
        (FIRST, told(1, PREPARE), {}, "Preparing"),  # it was not given the next one yet
        (SECOND, told(2, COMMITTED), {}, "Current"),
    ],
)
def test_what_people_are_told(
    plans: Plans, held: HeldSecret, heard: NetworkTold, more: dict[str, Any], reason: str
) -> None:
    plans.node.hold.is_set = True
    assert [said.reason for said in plans.of(held, heard, **more).says] == [reason]


@pytest.mark.parametrize(
    "held, heard, more, prepared, running, hold_until",
    [
        (FIRST, told(1), {}, 1, 1, None),
        (PREPARED, told(1, PREPARE), {"hook_answer": ANSWERED}, 2, 1, None),
        (PREPARED, told(1, PREPARE), {"hook_answer": ASKED}, 2, 1, PATIENCE),
        (PREPARED, told(1, PREPARE), {"hook_answer": ANSWERED, "tries_next_secret": True}, 2, 0, None),
        (SECOND, told(2, COMMITTED), {"easytier_as_wanted": False}, 2, 0, None),
        (SECOND, told(2, COMMITTED), {"easytier_as_wanted": None}, 2, 0, None),
        (SECOND, told(2, COMMITTED), {}, 2, 2, None),
    ],
)
def test_what_the_registry_is_told(
    plans: Plans,
    held: HeldSecret,
    heard: NetworkTold,
    more: dict[str, Any],
    prepared: int,
    running: int,
    hold_until: datetime | None,
) -> None:
    """What it says of a secret is on its disk, and what it says of EasyTier is confirmed."""
    plans.node.hold.is_set = True
    answer = plans.answer(held, heard, **more)
    assert (answer.prepared_epoch, answer.running_epoch, answer.hold_until) == (prepared, running, hold_until)


def test_each_answer_is_told_once_under_a_number_of_its_own(plans: Plans) -> None:
    """Before the registry has said anything there is nothing to answer."""
    assert plans.of(FIRST, NetworkTold()).does is None
    first = plans.answer(FIRST, told(1))
    assert plans.of(FIRST, told(1), own=first).does is None
    second = plans.answer(FIRST, told(1), own=first, easytier_as_wanted=False)
    assert (first.number, second.number) == (1, 2)


def test_a_state_that_waits_for_room_is_written_down_again_and_again(plans: Plans) -> None:
    waiting = told(1, is_on_disk=False)
    answer = plans.answer(FIRST, waiting)
    decision = plans.of(FIRST, waiting, own=answer)
    assert (decision.does, decision.again_s) == (Record(), 5.0)


def test_who_was_put_out_ends_whatever_else_there_is_to_do(plans: Plans) -> None:
    decision = plans.of(FIRST, told(2, given=SECOND, is_revoked=True))
    assert isinstance(decision.ends, NodeRevokedError)
    assert decision.does is None
    assert [(said.type, said.final) for said in decision.says] == [("Leased", True)]


@pytest.mark.parametrize(
    "is_set, held, heard, answer, is_asked",
    [
        (True, PREPARED, told(1, PREPARE), None, True),
        (True, PREPARED, told(1, PREPARE), HookAnswer("b" * 32), True),
        (True, PREPARED, told(1, PREPARE), ANSWERED, False),
        (True, FIRST, told(1, PREPARE), None, False),  # the next secret is not on disk yet
        (True, SECOND, told(2, COMMITTED), None, False),
        (True, FIRST, told(1), None, False),
        (False, PREPARED, told(1, PREPARE), None, False),
    ],
)
def test_when_the_robots_hook_is_asked(
    plans: Plans, is_set: bool, held: HeldSecret, heard: NetworkTold, answer: HookAnswer | None, is_asked: bool
) -> None:
    """Once for each change, when this node could follow it."""
    plans.node.hold.is_set = is_set
    decision = plans.node.robot.plan(HoldInputs(plans.node.membership.with_secret(held), heard, answer), 0.0)
    assert decision.does == (AskHook("a" * 32, 2) if is_asked else None)


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
        assert member.following is not None
        await member.following


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
