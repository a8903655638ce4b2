"""A node asks the registry whether it may be the node: when it claims, and what the answer allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from registry_world import World as RegistryWorld

from edgelink.conditions import ConditionSet, Said, Status
from edgelink.errors import RegistryError, RegistryUnavailableError
from edgelink.files import AT_ONCE
from edgelink.member.admission import ASK_AGAIN_S, PATIENCE_S, Claimant, Claimed, ClonedNodeError, Inputs, MakeClaim
from edgelink.member.lease_follower import Inputs as LeaseInputs
from edgelink.member.lease_follower import Looked, lease_in_words, leased
from edgelink.member.registry_client import Session
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission, Life
from edgelink.protocol.requests import Answer, Claim, Done, Question, Verdict
from edgelink.testing import FakeClock
from edgelink.testing.facts import GivenBoard, board_with, settle

HERE, THERE = ("mac:" + "1" * 32,), ("mac:" + "2" * 32,)


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


def refuses() -> Answer:
    raise RegistryError("not this one", reason="NodeUnknown")


AWAY = RegistryUnavailableError("nobody answers")
REFUSES = RegistryError("not this one", reason="NodeUnknown")
ACCEPTED = Verdict(outcome="accepted")
CHANGED = Verdict(outcome="accepted", reason="MachineChanged", message="elsewhere before")
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
        (Claimed(), REFUSES, UNKNOWN, False),
        (Claimed(), Done(), UNKNOWN, False),
        (Claimed(WAS_NODE), AWAY, IS_NODE, False),
        (Claimed(was_refused=True), AWAY, NEVER, True),
        (Claimed(was_refused=True), REFUSES, UNKNOWN, True),
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
MOVED = (Status.TRUE, "MachineChanged", "{}; elsewhere before")


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
        (Claimed(UNKNOWN, REFUSES, 3, 0.0), None),
        (Claimed(UNKNOWN, REFUSES, 2, 99.0), MakeClaim()),
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


@pytest.mark.parametrize("answer, tries", [(unavailable, 3), (refuses, 1), (Done, 1)])
async def test_the_network_works_without_an_answer(answer: Callable[[], Answer], tries: int, tmp_path: Path) -> None:
    """EasyTier starts after the patience with it; a registry that is away is asked again, one that refuses is not."""
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
