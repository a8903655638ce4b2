"""A node follows the network's secret: what it decides by what it is told. Whole networks: ``test_sim_secrets.py``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from session_world import Network

from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.facts.part import Decision
from edgelink.files import AT_ONCE
from edgelink.member.membership_store import MembershipStore
from edgelink.member.secret_epochs import AskHook, HoldInputs, Inputs, Record, RobotHold, SecretEpochs, TakeUp, Tell
from edgelink.protocol.held_secret import HeldSecret, HookAnswer, NetworkTold
from edgelink.protocol.membership import Membership, put_membership, update_membership
from edgelink.protocol.payloads import NetworkAnswer, NetworkState, Rotation
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with
from edgelink.testing.registry_client import LoneClient

FIRST, SECOND, THIRD = HeldSecret(1, "first"), HeldSecret(2, "second"), HeldSecret(3, "third")
PREPARED = HeldSecret(1, "first", 2, "second")
PATIENCE = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
PREPARE = Rotation(rotation_id="a" * 32, to_epoch=2, phase="prepare", hold_until=PATIENCE)
COMMITTED = PREPARE.model_copy(update={"phase": "committed"})


def state(epoch: int, rotation: Rotation | None = None) -> NetworkState:
    return NetworkState(network_id="n", generation=0, number=1, secret_epoch=epoch, rotation=rotation)


def told(epoch: int, rotation: Rotation | None = None, **more: Any) -> NetworkTold:
    return NetworkTold(state=state(epoch, rotation), **more)


@dataclass
class Hook:
    """A robot's hook that is never run."""

    is_set: bool = False

    async def wait(self, reason: str, patience_s: float) -> str:
        raise AssertionError(reason)


class Plans:
    """One node's parts, which are asked for their plans only."""

    def __init__(self, directory: Path) -> None:
        key, self.membership = Network(directory / "relay").member("edge-1")
        board, clock = board_with(membership=self.membership), FakeClock()
        self.hook = Hook()
        self.robot = RobotHold(board=board, hook=self.hook)
        self.epochs = SecretEpochs(
            board=board,
            store=MembershipStore(board, Paths(directory / "node", directory / "run"), AT_ONCE),
            registry=LoneClient(self.membership, key, clock, board=board),
            hook=self.hook,
            conditions=ConditionSet(clock, ["Leased", "SecretCurrent"]),
            clock=clock,
        )

    def of(self, held: HeldSecret, network: NetworkTold, **more: Any) -> Decision[TakeUp | Tell | Record]:
        facts = {"easytier_as_wanted": True, "tries_next_secret": False, "hook_answer": None, "own": None, **more}
        return self.epochs.plan(Inputs(self.membership.with_secret(held), network, **facts), 0.0)

    def answer(self, held: HeldSecret, network: NetworkTold, **more: Any) -> NetworkAnswer:
        does = self.of(held, network, **more).does
        assert isinstance(does, Tell)
        return does.answer


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(tmp_path)


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
    plans.hook.is_set = True
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
    plans.hook.is_set = True
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
    plans.hook.is_set = is_set
    decision = plans.robot.plan(HoldInputs(plans.membership.with_secret(held), heard, answer), 0.0)
    assert decision.does == (AskHook("a" * 32, 2) if is_asked else None)


def test_an_older_secret_is_never_written_back(tmp_path: Path) -> None:
    """Whoever writes a copy of the membership from memory, or gets a reply of an older registry."""
    paths = Paths(tmp_path / "node", tmp_path / "run")
    _, stale = Network(tmp_path / "relay").member("edge-1")
    put_membership(paths, stale)

    def on_disk() -> Membership:
        found = Membership.load(paths)
        assert found is not None
        return found

    current = HeldSecret(5, "the fifth", 6, "the sixth")
    assert update_membership(paths, lambda present: present.holding(current))
    assert on_disk().held == current
    put_membership(paths, stale)
    assert on_disk().held == current
    written = update_membership(paths, lambda _: stale.model_copy(update={"addresses": ("192.0.2.1:8883",)}))
    assert written is not None
    assert on_disk().held.epoch == 5
    assert on_disk().addresses == ("192.0.2.1:8883",)
    assert update_membership(Paths(paths.state / "none", paths.runtime), lambda m: m) is None
