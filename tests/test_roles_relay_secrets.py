"""What `edgelink revoke` and `edgelink rotate-secret` ask of the relay's daemon, and what they are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rotation_world import Member, Network

from edgelink.api.server import Caller
from edgelink.clock import Clock, SystemClock
from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import DeadlineError, EdgelinkError, ExitCode, RegistryError, UsageError
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import NodeStatus
from edgelink.registry.rotations import Revoked
from edgelink.registry.statuses import SILENCE_S
from edgelink.registry.transport import Message
from edgelink.roles import bootstrap
from edgelink.roles.relay_secrets import RelaySecrets
from edgelink.roles.this_machine import ThisMachine
from edgelink.testing import FakeClock, eventually
from edgelink.testing.facts import board_with, pretend

ROOT = Caller(pid=1, uid=0, gid=0)


@dataclass
class Answer:
    """What came before the end, and the error that was it."""

    items: list[dict[str, Any]]
    error: EdgelinkError | None

    @property
    def done(self) -> dict[str, Any]:
        assert self.error is None, self.error
        return self.items[-1]

    def states_of(self, hostname: str) -> list[str]:
        """Each once, in the order they came."""
        rows = [row for item in self.items if item["event"] == "nodes" for row in item["nodes"]]
        return list(dict.fromkeys(row["state"] for row in rows if row["hostname"] == hostname))


class Relay:
    """The holder of the registry, its own EasyTier always as it should be."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.clock: Clock = SystemClock()
        self.conditions = ConditionSet(self.clock, [], [RelaySecrets.condition])
        self.key = network.relay
        self.board = board_with()
        pretend(self.board, easytier_as_wanted=True)
        self.store, self.authority, self.registry = network.world.store, network.world.authority, network.service
        self.secrets = RelaySecrets(self)  # type: ignore[arg-type]
        network.on_secret_step = self.secrets.overlay_changed

    @property
    def membership(self) -> Membership:
        return self.authority.relay_membership(self.key, "relay")

    async def ask(self, what: str, caller: Caller = ROOT, **body: Any) -> Answer:
        items: list[dict[str, Any]] = []
        try:
            async for item in getattr(self.secrets, what)(caller, body):
                items.append(item)
        except EdgelinkError as error:
            return Answer(items, error)
        return Answer(items, None)

    @property
    def reason(self) -> str:
        return self.conditions.get(RelaySecrets.condition).reason


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


@pytest.fixture
def relay(network: Network) -> Relay:
    return Relay(network)


async def known(relay: Relay, *members: Member) -> None:
    """The relay has heard of them, and for so long of nobody else that the others are away."""
    await eventually(lambda: all(member.key.node_id in relay.registry.statuses for member in members))
    await eventually(lambda: all(member.reason() == "Current" for member in members))
    await relay.network.world.clock.advance(SILENCE_S)


async def test_a_node_is_put_out_and_each_other_is_followed(relay: Relay, network: Network) -> None:
    """Live, to the end: nobody is behind, and the relay says so of the whole network."""
    one, two, stolen = (network.join(f"edge-{number}") for number in (1, 2, 3))
    async with network.serving(), network.running(one, two):
        await known(relay, one, two)
        answer = await relay.ask("revoke", node="edge-3")
        assert answer.items[0] == {
            "event": "revoked",
            "hostname": "edge-3",
            "node_id": stolen.key.node_id,
            "off_broker": True,
        }
        assert answer.done["behind"] == []
        for name in ("relay", "edge-1", "edge-2"):
            assert answer.states_of(name)[-1] == "runs on secret 2"
        assert answer.states_of("edge-3") == []
        assert one.on_disk == two.on_disk == network.secret
        await eventually(lambda: relay.reason == "Current")
        again = await relay.ask("revoke", node="edge-3")
        assert isinstance(again.error, RegistryError)
        assert again.error.condition_reason == "NodeRevoked"


async def test_who_is_away_is_named(relay: Relay, network: Network) -> None:
    """It is out all the same; a relay that is behind comes first, because it would carry the old network on."""
    near, _away, _stolen = (network.join(f"edge-{number}") for number in (1, 2, 3))
    async with network.serving(), network.running(near):
        await known(relay, near)
        answer = await relay.ask("revoke", node="edge-3")
        assert [(row["hostname"], row["online"]) for row in answer.done["behind"]] == [("edge-2", False)]
        assert "offline, follows when it is back" in answer.states_of("edge-2")
        await eventually(lambda: relay.reason == "OldSecretInUse")
        assert "edge-2" in relay.conditions.get(RelaySecrets.condition).message


async def test_a_change_is_given_up_when_somebody_does_not_answer(relay: Relay, network: Network) -> None:
    """`rotate-secret` without --force: 75, the name, and the former secret."""
    deaf = network.join("edge-1")
    async with network.serving(), network.running(deaf):
        await known(relay, deaf)
        before = network.secret.secret
        deaf.turn_deaf()
        asking = asyncio.create_task(relay.ask("rotate", timeout_s=20))
        await eventually(lambda: relay.authority.rotations.record is not None)
        network.world.clock.step_wall_clock(21)
        network.service.rotation.wakeup.set()
        answer = await asyncio.wait_for(asking, 20)
        assert isinstance(answer.error, DeadlineError)
        assert answer.error.exit_code is ExitCode.TRY_AGAIN
        assert "edge-1" in answer.error.message
        assert network.secret.secret == before
        asking = asyncio.create_task(relay.ask("rotate", timeout_s=20, force=True))
        await eventually(lambda: relay.authority.rotations.record is not None)
        network.world.clock.step_wall_clock(21)
        network.service.rotation.wakeup.set()
        await eventually(lambda: network.secret.secret != before)
        asking.cancel()


async def test_no_time_is_no_time(relay: Relay, network: Network) -> None:
    """For a stolen robot nobody is waited for: 0 is not the default."""
    deaf = network.join("edge-1")
    async with network.serving(), network.running(deaf):
        await known(relay, deaf)
        deaf.turn_deaf()
        before = network.secret.secret
        asking = asyncio.create_task(relay.ask("rotate", timeout_s=0, force=True))
        await eventually(lambda: network.secret.secret != before)
        asking.cancel()


async def test_nodes_too_old_to_follow_are_named_before_anything_is_changed(relay: Relay, network: Network) -> None:
    """By what they say they can; the operator may accept that they are cut off."""
    able, old = network.join("edge-1"), network.join("edge-2")
    network.join("edge-3")
    old.client.publish_status(NodeStatus(node_id=old.key.node_id, online=True, phase="Ready"))
    async with network.serving(), network.running(able, old):
        await known(relay, able, old)
        answer = await relay.ask("revoke", node="edge-3")
        assert isinstance(answer.error, DeadlineError)
        assert "edge-2" in answer.error.message
        assert "edge-1" not in answer.error.message
        assert relay.store.find_lease("edge-3") is not None
        assert network.secret.epoch == 1
        assert isinstance((await relay.ask("rotate")).error, DeadlineError)
        old.turn_deaf()
        asking = relay.ask("revoke", node="edge-3", leave_behind=["edge-2"], timeout_s=20)
        answer = await asyncio.wait_for(asking, 20)  # it is not waited for
        assert answer.items[0]["event"] == "revoked"
        assert able.on_disk.epoch == 2
        assert [row["hostname"] for row in answer.done["behind"]] == ["edge-2"]
        assert answer.states_of("edge-2")[-1] == "left behind until it is upgraded, or joins with a new token"


async def test_only_root_and_only_other_nodes(relay: Relay, network: Network) -> None:
    """A local user cannot put anybody out; nor can the relay put itself out."""
    network.join("edge-1")
    async with network.serving():
        for what in ("revoke", "rotate"):
            answer = await relay.ask(what, Caller(1, 65534, 65534), node="edge-1")
            assert isinstance(answer.error, UsageError)
            assert answer.error.condition_reason == "PermissionDenied"
        assert isinstance((await relay.ask("revoke", node="relay")).error, UsageError)
        assert (await relay.ask("revoke", node="nobody")).error is not None
    assert relay.authority.rotations.record is None
    assert relay.store.find_lease("edge-1") is not None


async def test_an_older_daemon_beside_the_relays_own_is_named(relay: Relay, network: Network) -> None:
    """Relay and head on one machine share the EasyTier that the head's daemon has to follow with."""
    network.join("edge-1")
    own = network.relay.node_id
    status = NodeStatus(node_id=own, online=True, phase="Ready")
    async with network.serving():
        network.memory.publish(Message(network.topics.status(own), status.model_dump_json().encode()))
        await eventually(lambda: own in relay.registry.statuses)
        answer = await relay.ask("revoke", node="edge-1")
        assert isinstance(answer.error, DeadlineError)
        assert answer.error.condition_reason == "TooOldToFollow"
        assert "relay" in answer.error.message
        assert relay.store.find_lease("edge-1") is not None


async def test_a_relay_that_has_just_started_asks_who_has_not_spoken_yet(relay: Relay, network: Network) -> None:
    """A revocation takes the node away at once; who may be online is waited for, as long as for anybody."""
    late, _stolen = network.join("edge-1"), network.join("edge-2")
    async with network.serving():
        asking = asyncio.create_task(relay.ask("revoke", node="edge-2"))
        await eventually(lambda: relay.store.find_lease("edge-2") is None)
        assert relay.authority.rotations.progress()[late.key.node_id].is_expected
        assert network.secret.epoch == 1
        async with network.running(late):
            assert (await asyncio.wait_for(asking, 20)).done["behind"] == []
            assert late.on_disk.epoch == 2


async def test_a_secret_is_not_rotated_before_the_nodes_have_spoken(relay: Relay, network: Network) -> None:
    """Who comes soon after the relay's daemon is asked like all others."""
    late = network.join("edge-1")
    async with network.serving():
        asking = asyncio.create_task(relay.ask("rotate", timeout_s=20))
        async with network.running(late):
            answer = await asyncio.wait_for(asking, 20)
            assert answer.done["behind"] == []
            assert "offline, follows when it is back" not in answer.states_of("edge-1")


async def test_who_stays_silent_holds_no_rotation_up(relay: Relay, network: Network) -> None:
    """After some time it is away."""
    network.join("edge-1")
    async with network.serving():
        asking = asyncio.create_task(relay.ask("rotate", timeout_s=20))
        await network.world.clock.advance(SILENCE_S)
        answer = await asyncio.wait_for(asking, 20)
        assert [row["hostname"] for row in answer.done["behind"]] == ["edge-1"]


async def test_without_the_broker_nothing_is_rotated(relay: Relay, network: Network) -> None:
    """Nobody could be asked: 75, and the secret is what it was."""
    network.join("edge-1")
    answer = await relay.ask("rotate")
    assert answer.error is not None
    assert answer.error.exit_code is ExitCode.TRY_AGAIN
    assert relay.authority.rotations.record is None


async def test_without_the_broker_a_revocation_is_not_followed_for_ever(relay: Relay, network: Network) -> None:
    """It is recorded, and not said to be off the broker; the command ends with 75 and the reason."""
    network.join("edge-1")
    clock = relay.clock = FakeClock()
    asking = asyncio.create_task(relay.ask("revoke", node="edge-1", timeout_s=20, hold_s=10))
    await eventually(lambda: relay.authority.rotations.record is not None)
    await clock.advance(20 + 10 + 60 + 1)
    answer = await asyncio.wait_for(asking, 20)
    assert answer.items[0]["off_broker"] is False
    assert isinstance(answer.error, DeadlineError)
    assert answer.error.exit_code is ExitCode.TRY_AGAIN
    assert "no session with the broker" in answer.error.message
    assert relay.store.find_lease("edge-1") is None


async def test_a_change_that_is_over_at_once_is_followed(
    relay: Relay, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record may be gone before anybody looks at it."""
    network.join("edge-1")
    revoke = relay.registry.revoke

    async def quickly(*args: Any, **options: Any) -> tuple[Revoked, bool]:
        outcome = await revoke(*args, **options)
        book = relay.store.rotations
        if book.record() is not None:
            book.commit()
            book.finish()
            relay.registry.rotation.look()
        return outcome

    monkeypatch.setattr(relay.registry, "revoke", quickly)
    async with network.serving():
        answer = await relay.ask("revoke", node="edge-1")
        assert answer.items[0]["off_broker"] is True
        assert answer.done["event"] == "done"


async def test_a_changed_condition_only_wakes(tmp_path: Path) -> None:
    """A failing database is no reason for whoever sets ``OverlayUp`` to end."""
    relay = bootstrap.Relay(Config(), Paths(tmp_path / "state", tmp_path / "run"), FakeClock(), ThisMachine(), None)
    looks: list[None] = []
    pretend(relay.board, running=object())
    relay.registry = SimpleNamespace(rotation=SimpleNamespace(look=lambda: looks.append(None)))  # type: ignore[assignment]
    relay.conditions.set_true("OverlayUp", "Up", "there is no registry's database at all here")
    assert looks
