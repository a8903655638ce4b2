"""A node asks the registry whether it may be the node: service, clients and their daemons' part of it, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from registry_world import ADDRESSES
from registry_world import World as RegistryWorld

from edgelink.conditions import ConditionSet, Said, Status
from edgelink.errors import RegistryError, RegistryUnavailableError
from edgelink.files import AT_ONCE
from edgelink.registry.claims import ALTERNATION_S, HEARD_S, RETURN_S, Admission, Life, cloned
from edgelink.registry.client import Session
from edgelink.registry.dynamic_security import ADMIN
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import NodeStatus, Role
from edgelink.registry.requests import Answer, Claim, Done, Question, Verdict
from edgelink.registry.service import RegistryService
from edgelink.registry.topics import Topics
from edgelink.registry.transport import Login, Message
from edgelink.roles.admission import (
    ASK_AGAIN_S,
    PATIENCE_S,
    Claimant,
    Claimed,
    ClonedNodeError,
    Inputs,
    MakeClaim,
)
from edgelink.roles.lease_follower import Inputs as LeaseInputs
from edgelink.roles.lease_follower import Looked, lease_in_words, leased
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport, eventually
from edgelink.testing.facts import GivenBoard, board_with, keep_settled, settle
from edgelink.testing.registry_client import LoneClient
from edgelink.testing.registry_service import LoneService

HERE, THERE = ("mac:" + "1" * 32,), ("mac:" + "2" * 32,)


class FakeBroker:
    """One that runs already."""

    address = "127.0.0.1:8883"
    login = Login(ADMIN, "the admin's password")

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def restart(self) -> None:
        raise AssertionError("nothing here needs fresh files")


class Network:
    """A relay's service and its broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.world = RegistryWorld(directory / "relay")
        self.topics = Topics(self.world.keys.network_id)
        self.memory = MemoryBroker({ADMIN: FakeBroker.login.password})
        self.passwords: dict[str, str] = {}
        self.listed: set[IPv4Address] = set()  # by the relay's EasyTier
        self.service = self.new_service()

    def new_service(self) -> RegistryService:
        service = LoneService(
            authority=self.world.authority,
            store=self.world.store,
            network_id=self.world.keys.network_id,
            broker=FakeBroker(),
            transport=MemoryTransport({FakeBroker.address: self.memory}),
            clock=self.world.clock,
            is_listed=lambda ip: ip in self.listed,
        )
        service._passwords |= self.passwords
        return service

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.service.run())
        await asyncio.wait_for(self.service.ready.wait(), 20)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def join(self, name: str) -> tuple[NodeKey, Membership]:
        key, token = NodeKey.generate(), self.world.token()
        result = self.world.enrol(key, token, name)
        assert result.broker_password is not None
        self.passwords[self.world.store.broker_username(key.node_id)] = result.broker_password
        self.passwords[token.broker_username] = token.secret
        self.service._passwords |= self.passwords
        return key, self.world.membership(key, token, result)


def leased_on(board: GivenBoard) -> Said:
    """What ``Leased`` says there."""
    (said,) = leased(board.select(LeaseInputs, Looked()))
    return said


def claimant_of(client: Any, board: GivenBoard, refusal: Path, clock: FakeClock) -> Claimant:
    return Claimant(
        board=board,
        channel=client.channel,
        life=client.life,
        refusal=refusal,
        files=AT_ONCE,
        clock=clock,
        easytier=SimpleNamespace(is_running=False),
    )


class Daemon:
    """The part of a node's daemon that has to do with this, on a machine of its own; `ended` is what ended it."""

    def __init__(self, network: Network, key: NodeKey, membership: Membership, machine: tuple[str, ...]) -> None:
        self.clock = FakeClock()
        self.conditions = ConditionSet(self.clock, ["Leased"])
        transport = MemoryTransport({ADDRESSES[0]: network.memory})
        self.key, self.life = key, Life(machine)
        self.board = board_with(membership=membership)
        self.client = LoneClient(membership, key, self.clock, board=self.board, transport=transport, life=self.life)
        self.client.publish_status(NodeStatus(node_id=key.node_id, online=True, phase="Ready"))
        self.refusal = network.directory / f"refusal-{self.life.instance}"
        self.claimant = claimant_of(self.client, self.board, self.refusal, self.clock)
        self.ended: BaseException | None = None

    @property
    def leased(self) -> Said:
        return leased_on(self.board)

    @property
    def reason(self) -> str:
        return self.leased.reason

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                claiming = keep_settled(self.claimant, self.board, self.conditions, self.clock)
                for work in (self.client.run(), claiming, self._tick()):
                    tasks.create_task(work)
        except* ClonedNodeError as group:
            self.ended = group.exceptions[0]

    async def _tick(self) -> None:
        while True:
            await self.clock.advance(0.05)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*daemons: Daemon) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(daemon.run()) for daemon in daemons]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class World:
    """One node, and the machines that have its disk."""

    def cloned(self) -> list[str]:
        """The nodes that the relay has heard with two voices of late."""
        return cloned(self.network.service.claims.alternations(), self.network.world.clock.monotonic_s())

    def __init__(self, directory: Path) -> None:
        self.network = Network(directory)
        self.key, self.membership = self.network.join("edge-1")
        self.lease = self.membership.lease

    def daemon(self, machine: tuple[str, ...] = HERE) -> Daemon:
        return Daemon(self.network, self.key, self.membership, machine)

    @property
    def heard(self) -> NodeStatus | None:
        """The node's newest word, as the relay has it."""
        return self.network.service.statuses.get(self.key.node_id)

    def is_heard(self, daemon: Daemon) -> bool:
        return self.heard is not None and self.heard.online and self.heard.instance == daemon.life.instance

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The registry's service; twenty seconds pass for it in one."""

        async def tick() -> None:
            while True:
                await self.pass_by(0.02)
                await asyncio.sleep(0.001)

        task = asyncio.create_task(tick())
        try:
            async with self.network.serving():
                yield
        finally:
            task.cancel()

    async def pass_by(self, seconds: float) -> None:
        """On the relay's clock."""
        await self.network.world.clock.advance(seconds)

    def history(self) -> list[str]:
        return [item["action"] for item in self.network.world.store.history()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_node_is_accepted_and_recorded(world: World) -> None:
    """EasyTier may start; the machine is on disk; nothing is said of the node before."""
    node = world.daemon()
    assert not node.board.facts.admission.may_start
    async with world.serving(), running(node):
        await eventually(lambda: node.board.facts.admission.may_start and world.is_heard(node))
        assert node.reason == "Leased"
        recorded = world.network.world.store.machines.get(world.key.node_id)
        assert recorded is not None
        assert (recorded.instance, recorded.machine) == (node.life.instance, HERE)


async def test_a_copy_is_refused_by_name_and_the_node_goes_on(world: World) -> None:
    """Also when the node was silent for long: it is asked to speak. Nothing of the copy reaches the node's status."""
    node, copy = world.daemon(), world.daemon(THERE)
    async with world.serving(), running(node):
        await eventually(lambda: world.is_heard(node))
        await world.pass_by(3600)
        async with running(copy):
            await eventually(lambda: copy.ended is not None)
        assert isinstance(copy.ended, ClonedNodeError)
        assert f"edge-1 ({world.key.node_id}) is running on another machine since 00:00 UTC" in str(copy.ended)
        assert "edgelink leave" in copy.ended.hint
        assert copy.ended.exit_code == 78
        assert copy.conditions.get("Leased").final
        assert copy.leased.final, "whoever speaks last"
        assert not copy.board.facts.admission.may_start
        assert "on another machine" in copy.refusal.read_text()
        topic = world.network.topics.status(world.key.node_id)

        def kept() -> NodeStatus:
            return NodeStatus.model_validate_json(world.network.memory.retained[topic])

        await eventually(lambda: kept().online and kept().instance == node.life.instance)
        assert world.is_heard(node), "the copy's Last Will is not the node's end"
        assert node.ended is None
        assert node.client.is_connected
        assert world.network.service.refusals.counts["ClonedNode"] == 1
        assert world.history().count("clone refused") == 1
        assert world.cloned() == [], "it was never let in"


async def test_copies_that_come_again_and_again_do_not_wear_the_node_out(world: World) -> None:
    """Each is a life of its own; what they leave behind hides nothing of the node's."""
    node = world.daemon()
    async with world.serving(), running(node):
        await eventually(lambda: world.is_heard(node))
        for _ in range(10):
            await world.pass_by(60)
            copy = world.daemon(THERE)
            async with running(copy):
                await eventually(lambda copy=copy: isinstance(copy.ended, ClonedNodeError))
        assert node.ended is None


async def test_the_next_daemon_of_the_same_machine_is_the_node_at_once(world: World) -> None:
    """After a crash, and also where nothing of the machine can be read."""
    async with world.serving():
        for machine in (HERE, HERE, (), HERE):
            node = world.daemon(machine)
            async with running(node):
                await eventually(lambda node=node: node.board.facts.admission.may_start and world.is_heard(node))
                assert node.reason == "Leased"
        assert world.cloned() == []


async def test_a_disk_that_moved_waits_and_is_accepted_and_the_former_machine_refused(world: World) -> None:
    """A swapped board stops no robot; it waits until the former machine was not heard for a minute."""
    former, moved = world.daemon(), world.daemon(THERE)
    async with world.serving():
        async with running(former):
            await eventually(lambda: world.is_heard(former))
        async with running(moved):
            await eventually(lambda: moved.reason == "OtherMachine")
            assert "another machine since" in moved.leased.message
            assert not moved.board.facts.admission.may_start
            await world.pass_by(HEARD_S)
            await eventually(lambda: moved.reason == "MachineChanged" and moved.board.facts.admission.may_start)
            assert "on another machine than before" in moved.leased.message
            assert world.history().count("machine changed") == 1
            back = world.daemon(HERE)
            async with running(back):
                await eventually(lambda: isinstance(back.ended, ClonedNodeError))
            assert moved.ended is None


async def test_a_machine_whose_easytier_goes_on_is_not_gone(world: World) -> None:
    """Its daemon is dead for an hour, and its address is still in the overlay: the copy waits, and says for what."""
    former, copy = world.daemon(), world.daemon(THERE)
    world.network.listed = {world.lease.overlay_ip}
    async with world.serving():
        async with running(former):
            await eventually(lambda: world.is_heard(former))
        await world.pass_by(3600)
        async with running(copy):
            await eventually(lambda: "somebody has 10.10.0.2" in copy.leased.message)
            assert not copy.board.facts.admission.may_start
            world.network.listed.clear()
            await eventually(lambda: copy.reason == "MachineChanged")


async def test_a_registry_that_has_just_begun_waits_for_the_node_first(world: World) -> None:
    """After a relay's restart the copy may come first: it waits, and is refused once the node is back."""
    node = world.daemon()
    async with world.serving(), running(node):
        await eventually(lambda: world.is_heard(node))
    world.network.memory.stop()
    world.network.memory.start()
    world.network.service = world.network.new_service()
    copy = world.daemon(THERE)
    async with world.serving(), running(copy):
        await eventually(lambda: copy.reason == "OtherMachine")
        again = world.daemon()
        async with running(again):
            await eventually(lambda: world.is_heard(again))
            await eventually(lambda: copy.ended is not None)
            assert again.reason == "Leased"


async def test_a_former_machine_that_never_returns_is_not_waited_for(world: World) -> None:
    """After a relay's restart, for half a minute only."""
    async with world.serving(), running(node := world.daemon()):
        await eventually(lambda: world.is_heard(node))
    world.network.memory.stop()
    world.network.memory.start()
    world.network.service = world.network.new_service()
    moved = world.daemon(THERE)
    async with world.serving(), running(moved):
        await eventually(lambda: moved.reason == "OtherMachine")
        await world.pass_by(RETURN_S)
        await eventually(lambda: moved.reason == "MachineChanged")


async def test_copies_that_cannot_be_told_apart_are_told_of(world: World) -> None:
    """Where nothing of the machines can be read: by the two voices, on the relay, for five minutes."""
    one, other = world.daemon(()), world.daemon(())
    async with world.serving(), running(one):
        await eventually(lambda: world.is_heard(one))
        async with running(other):
            await eventually(lambda: world.is_heard(other))
            one.client.publish_status(NodeStatus(node_id=world.key.node_id, online=True, phase="Degraded"))
            await eventually(lambda: world.cloned() == ["edge-1"])
        await world.pass_by(ALTERNATION_S)
        assert world.cloned() == []


async def test_the_head_hears_two_voices_as_well(world: World) -> None:
    """Also while the registry is away: by the statuses alone. Restarts are none, nor is the end of an earlier life."""
    network = world.network
    head = network.world.enrol(
        key := NodeKey.generate(), token := network.world.token(Role.HEAD), "cloud", role=Role.HEAD
    )
    client = LoneClient(
        network.world.membership(key, token, head),
        key,
        FakeClock(),
        transport=MemoryTransport({ADDRESSES[0]: network.memory}),
    )
    network.memory.passwords = None
    first, second = Life(), Life()
    said = [(first, True), (second, True), (first, False), (second, True)]

    def say(life: Life, *, online: bool) -> None:
        status = NodeStatus(node_id=world.key.node_id, online=online, instance=life.instance)
        network.memory.publish(
            Message(network.topics.status(world.key.node_id), status.model_dump_json().encode(), retain=True)
        )

    task = asyncio.create_task(client.run())
    await eventually(lambda: client.is_connected)
    for life, online in said:
        say(life, online=online)
    await eventually(lambda: world.key.node_id in client.statuses)
    assert client.statuses[world.key.node_id].online
    assert cloned(client.facts.alternations, 0.0) == []
    say(first, online=True)
    await eventually(lambda: cloned(client.facts.alternations, 0.0) == [world.key.node_id])
    task.cancel()


async def test_the_node_is_judged_anew_in_each_session(world: World) -> None:
    """Its link was away, and meanwhile the disk ran elsewhere: it is told when it comes back."""
    node, moved = world.daemon(), world.daemon(THERE)
    async with running(node):
        async with world.serving():
            await eventually(lambda: world.is_heard(node))
        world.network.memory.stop()
        await eventually(lambda: not node.client.is_connected)
        recorded = Claim(instance=moved.life.instance, machine=THERE)
        lease = world.network.world.store.lease(world.key.node_id)
        assert lease is not None
        world.network.world.store.machines.put(lease.node_id, recorded.instance, recorded.machine)
        world.network.memory.start()
        world.network.service = world.network.new_service()
        async with world.serving(), running(moved):
            await eventually(lambda: isinstance(node.ended, ClonedNodeError))
            assert moved.ended is None


class Silent:
    """A registry that answers as it is told; `asked` counts."""

    def __init__(self, answer: Callable[[], Answer]) -> None:
        self.life = Life(HERE)
        self.channel, self.answer, self.asked = self, answer, 0

    async def ask(self, ask: Question, *, within_s: float = 10.0) -> Answer:
        assert isinstance(ask, Claim)
        assert within_s == PATIENCE_S
        self.asked += 1
        return self.answer()


def board_of_a_member(directory: Path) -> GivenBoard:
    world, key = RegistryWorld(directory / "relay"), NodeKey.generate()
    token = world.token()
    return board_with(membership=world.membership(key, token, world.enrol(key, token)))


def unavailable() -> Answer:
    raise RegistryUnavailableError("nobody answers")


def too_old() -> Answer:
    raise RegistryError("does not know this", reason="NotUnderstood")


AWAY = RegistryUnavailableError("nobody answers")
OLDER = RegistryError("does not know this", reason="NotUnderstood")
ACCEPTED = Verdict(outcome="accepted")
CHANGED = Verdict(outcome="accepted", reason="MachineChanged", message="on another machine than before")
WAIT = Verdict(outcome="wait", message="another one", again_s=5)
REFUSED = Verdict(outcome="refused", message="a copy", hint="leave")
NEVER = Admission()
UNKNOWN = Admission(may_start=True, settled_in=3)
IS_NODE = Admission(may_start=True, is_accepted=True, settled_in=3)
WAS_NODE = Admission(may_start=True, is_accepted=True, settled_in=2)


@pytest.mark.parametrize(
    "before, answer, admission, was_refused",
    [
        (Claimed(), ACCEPTED, IS_NODE, False),
        (Claimed(), CHANGED, IS_NODE, False),
        (Claimed(was_refused=True), ACCEPTED, IS_NODE, False),
        # The network works without an answer, but for a copy that knows what it is.
        (Claimed(), AWAY, UNKNOWN, False),
        (Claimed(), OLDER, UNKNOWN, False),
        (Claimed(), Done(), UNKNOWN, False),
        (Claimed(WAS_NODE), AWAY, IS_NODE, False),
        (Claimed(was_refused=True), AWAY, NEVER, True),
        (Claimed(was_refused=True), OLDER, UNKNOWN, True),
        (Claimed(Admission(is_doubted=True)), AWAY, UNKNOWN, False),
        # EasyTier is not started by a machine that waits; one that runs is left alone.
        (Claimed(), WAIT, Admission(is_doubted=True), False),
        (Claimed(WAS_NODE), WAIT, Admission(True, is_accepted=True, is_doubted=True, settled_in=2), False),
        (Claimed(), REFUSED, NEVER, True),
        (Claimed(WAS_NODE), REFUSED, WAS_NODE, True),
    ],
)
def test_what_an_answer_allows(
    before: Claimed, answer: Answer | RegistryError, admission: Admission, was_refused: bool
) -> None:
    after = before.after(answer, 3, 100.0)
    assert (after.admission, after.was_refused) == (admission, was_refused)


WAITS, CLONED = (Status.FALSE, "OtherMachine", "another one"), (Status.FALSE, "ClonedNode", "a copy. leave")
MOVED = (Status.TRUE, "MachineChanged", "{}; on another machine than before")


@pytest.mark.parametrize(
    "answers, said",
    [
        ((), (Status.TRUE, "Leased", "{}")),
        ((ACCEPTED,), (Status.TRUE, "Leased", "{}")),
        ((AWAY,), (Status.TRUE, "Leased", "{}")),
        ((WAIT,), WAITS),
        ((WAIT, AWAY), (Status.TRUE, "Leased", "{}")),
        ((WAIT, ACCEPTED), (Status.TRUE, "Leased", "{}")),
        ((REFUSED,), CLONED),
        ((CHANGED,), MOVED),
        ((CHANGED, ACCEPTED), MOVED),
        ((CHANGED, AWAY), MOVED),
        ((CHANGED, WAIT), WAITS),
        ((CHANGED, WAIT, ACCEPTED), (Status.TRUE, "Leased", "{}")),
    ],
)
def test_what_the_answers_make_of_the_lease(
    tmp_path: Path, answers: tuple[Answer | RegistryError, ...], said: tuple[Status, str, str]
) -> None:
    """That another machine was the node is told for as long as this one is it."""
    claimed, board = Claimed(), board_of_a_member(tmp_path)
    for answer in answers:
        claimed = claimed.after(answer, 3, 100.0)
    board.given(claim_word=claimed.word)
    assert board.facts.running is not None
    status, reason, message = said
    found = leased_on(board)
    assert (found.status, found.reason, found.message) == (
        status,
        reason,
        message.format(lease_in_words(board.facts.running.lease)),
    )


@pytest.mark.parametrize(
    "own, does",
    [
        (Claimed(), MakeClaim()),
        # Answered in this session: the next one is waited for, and nobody asks at the same moment as all others.
        (Claimed(IS_NODE, ACCEPTED, 3, 99.0), None),
        (Claimed(IS_NODE, ACCEPTED, 2, 99.0), MakeClaim(rests=True)),
        (Claimed(UNKNOWN, OLDER, 3, 0.0), None),
        (Claimed(UNKNOWN, OLDER, 2, 99.0), MakeClaim()),
        (Claimed(UNKNOWN, Done(), 3, 0.0), None),
        # Not answered: asked again after a while, and at once in the next session.
        (Claimed(UNKNOWN, AWAY, 3, 100.0 - ASK_AGAIN_S), MakeClaim()),
        (Claimed(UNKNOWN, AWAY, 3, 101.0 - ASK_AGAIN_S), None),
        (Claimed(IS_NODE, AWAY, 2, 99.0), MakeClaim()),
        # Told to wait: asked again when the registry says so, whatever becomes of the session.
        (Claimed(NEVER, WAIT, 3, 95.0), MakeClaim()),
        (Claimed(NEVER, WAIT, 2, 96.0), None),
    ],
)
def test_when_a_claim_is_made(tmp_path: Path, own: Claimed, does: MakeClaim | None) -> None:
    claimant = claimant_of(Silent(unavailable), board_with(), tmp_path, FakeClock())
    decision = claimant.plan(Inputs(Session(3, is_connected=True), own), 100.0)
    assert (decision.does, decision.ends) == (does, None)


def test_a_refusal_is_final(tmp_path: Path) -> None:
    """Whatever the machine was before; nothing is asked any more."""
    claimant = claimant_of(Silent(unavailable), board_with(), tmp_path, FakeClock())
    for before in (Claimed(), Claimed(WAS_NODE, ACCEPTED, 2)):
        decision = claimant.plan(Inputs(Session(3), before.after(REFUSED, 3, 100.0)), 100.0)
        assert isinstance(decision.ends, ClonedNodeError)
        assert (decision.ends.message, decision.ends.hint) == ("a copy", "leave")
        assert [(said.status, said.reason, said.final) for said in decision.says] == [
            (Status.FALSE, "ClonedNode", True)
        ]
        assert decision.does is None


class Alone:
    """A claimant, and a registry that answers as it is told."""

    def __init__(self, directory: Path, *answers: Callable[[], Answer]) -> None:
        self.answers, self.refusal = list(answers), directory / "refusal"
        self.clock, self.board = FakeClock(), board_of_a_member(directory)
        self.conditions = ConditionSet(self.clock, ["Leased"])
        self.channel = Silent(lambda: self.answers.pop(0)() if len(self.answers) > 1 else self.answers[0]())
        self.claimant = claimant_of(self.channel, self.board, self.refusal, self.clock)

    async def settle(self, after_s: float = 0) -> None:
        await self.clock.advance(after_s)
        await settle(self.claimant, self.board, self.conditions, self.clock)

    @property
    def admission(self) -> Admission:
        return self.board.facts.admission

    @property
    def leased(self) -> Said:
        return leased_on(self.board)


@pytest.mark.parametrize("answer, tries", [(unavailable, 3), (too_old, 1), (Done, 1)])
async def test_the_network_works_without_an_answer(answer: Callable[[], Answer], tries: int, tmp_path: Path) -> None:
    """EasyTier starts after the patience with it; a registry that is away is asked again, an older one is not."""
    node = Alone(tmp_path, answer)
    for after_s in (0, ASK_AGAIN_S, ASK_AGAIN_S):
        await node.settle(after_s)
    assert node.channel.asked == tries
    assert node.admission.may_start
    assert node.admission.may_report(0), "in this session"
    assert not node.admission.may_report(1), "in the next one the registry is asked first"
    assert node.leased.reason == "Leased"
    node.board.given(session=Session(number=1, is_connected=True))
    await node.settle()
    assert node.channel.asked == tries + 1


async def test_a_registry_that_goes_away_while_a_machine_waits_ends_the_wait(tmp_path: Path) -> None:
    """It had to wait, and then nobody answers any more."""
    node = Alone(tmp_path, lambda: WAIT, unavailable)
    await node.settle()
    assert node.leased.reason == "OtherMachine"
    assert not node.admission.may_start
    await node.settle(5)
    assert node.admission.may_start
    assert node.leased.status is Status.TRUE


async def test_a_machine_that_was_refused_waits_for_the_registrys_word(tmp_path: Path) -> None:
    """A copy boots again while the relay is out of reach: it does not take the address for as long as that lasts."""
    (tmp_path / "refusal").write_text("a copy")
    node = Alone(tmp_path, unavailable, unavailable, lambda: ACCEPTED)
    node.board.given(session=Session(number=1, is_connected=True))
    for after_s in (0, ASK_AGAIN_S):
        await node.settle(after_s)
        assert node.leased.reason == "ClonedNode"
        assert not node.admission.may_start
        assert not node.admission.may_report(1)
        assert node.refusal.exists()
    await node.settle(ASK_AGAIN_S)
    assert node.admission.may_start
    assert node.channel.asked == 3
    assert node.leased.status is Status.TRUE
    assert not node.refusal.exists()
