"""A node follows the network's secret: what it decides by what it is told. Whole networks: ``test_sim_secrets.py``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from session_world import Network

from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.facts.derive import Own, node_status
from edgelink.facts.part import Decision
from edgelink.files import AT_ONCE
from edgelink.member.membership_store import MembershipStore
from edgelink.member.secret_epochs import AskHook, HoldInputs, Inputs, Record, RobotHold, SecretEpochs, TakeUp
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership, put_membership, update_membership
from edgelink.protocol.payloads import NetworkState, Rotation
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, pretend
from edgelink.testing.registry_client import LoneClient

FIRST, SECOND, THIRD = HeldSecret(1, "first"), HeldSecret(2, "second"), HeldSecret(3, "third")
PREPARED = HeldSecret(1, "first", 2, "second")
COMING = Rotation(to_epoch=2, switch_in_s=30.0)
NOW_S, HOUR_S = 1000.0, 1030.0  # on the monotonic clock


def state(epoch: int, rotation: Rotation | None = None) -> NetworkState:
    return NetworkState(network_id="n", generation=0, number=1, secret_epoch=epoch, rotation=rotation)


def told(epoch: int, rotation: Rotation | None = None, **more: Any) -> NetworkTold:
    hours = {epoch: NOW_S - 60} | ({} if rotation is None else {rotation.to_epoch: HOUR_S})
    return NetworkTold(state=state(epoch, rotation), **{"hours": hours, **more})


@dataclass
class Hook:
    """A robot's hook that is never run."""

    is_set: bool = False

    async def wait(self, reason: str, patience_s: float) -> str:
        raise AssertionError(reason)


class Plans:
    """One node's parts, which are asked for their plans only."""

    def __init__(self, directory: Path) -> None:
        network = Network(directory / "relay")
        self.key, self.membership = network.member("edge-1")
        relay = NodeKey.generate()
        network.world.authority.ensure_relay_lease(relay, "relay")
        self.relay = network.world.authority.relay_membership(relay, "relay")
        self.board, self.clock = board, clock = board_with(membership=self.membership), FakeClock()
        self.store = MembershipStore(board, Paths(directory / "node", directory / "run"), AT_ONCE)
        self.hook = Hook()
        self.robot = RobotHold(board=board, hook=self.hook, clock=clock)
        self.epochs = SecretEpochs(
            board=board,
            store=self.store,
            registry=LoneClient(self.membership, self.key, clock, board=board),
            hook=self.hook,
            conditions=ConditionSet(clock, ["Leased", "SecretCurrent"]),
            clock=clock,
            spread=lambda: 0.5,
        )

    def of(self, held: HeldSecret, network: NetworkTold, at_s: float = NOW_S, **more: Any) -> Decision[TakeUp | Record]:
        facts = {"easytier_as_wanted": True, "tries_next_secret": False, "hook_answered": None, **more}
        return self.epochs.plan(Inputs(self.membership.with_secret(held), network, **facts), at_s)


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(tmp_path)


@pytest.mark.parametrize(
    "held, heard, takes_up",
    [
        (FIRST, told(1, COMING, given=PREPARED), PREPARED),
        (PREPARED, told(1, COMING, given=PREPARED), None),
        (PREPARED, told(2, given=PREPARED), SECOND),
        (PREPARED, told(2), SECOND),
        (PREPARED, told(1), FIRST),  # of a registry that was lost and restored
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


ASKED, ANSWERED = None, 2


@pytest.mark.parametrize(
    "held, heard, more, reason",
    [
        (FIRST, NetworkTold(), {}, "NotToldYet"),
        (FIRST, told(1), {}, "Current"),
        (FIRST, told(1), {"easytier_as_wanted": False}, "Changing"),
        (FIRST, told(1), {"easytier_as_wanted": None}, "Current"),  # the other daemon of this machine tells of it
        (FIRST, told(2), {}, "BehindNetwork"),
        (SECOND, told(2, behind=state(1)), {}, "RegistryBehind"),
        (PREPARED, told(1, COMING), {"tries_next_secret": True}, "TryingNext"),
        (PREPARED, told(1, COMING), {"hook_answered": ASKED}, "Holding"),
        (PREPARED, told(1, COMING), {"hook_answered": ANSWERED}, "Preparing"),
        (PREPARED, told(1, COMING), {"hook_answered": 3}, "Holding"),  # of another change
        (FIRST, told(1, COMING), {}, "Preparing"),  # it was not given the next one yet
        (SECOND, told(2), {}, "Current"),
    ],
)
def test_what_people_are_told(
    plans: Plans, held: HeldSecret, heard: NetworkTold, more: dict[str, Any], reason: str
) -> None:
    plans.hook.is_set = True
    assert [said.reason for said in plans.of(held, heard, **more).says] == [reason]


@pytest.mark.parametrize(
    "is_relay, late_s, waits_s",
    [
        (False, 0.0, 0.4),
        (False, 0.3, 0.1),  # the word was on its way: the relays are on it already
        (False, 5.0, 0.0),
        (True, 0.0, 0.0),
    ],
)
async def test_relays_come_first(tmp_path: Path, is_relay: bool, late_s: float, waits_s: float) -> None:
    """Whoever changes before them dials a relay that does not let it in. It is on disk meanwhile."""
    plans = Plans(tmp_path)
    membership = plans.relay if is_relay else plans.membership
    paths, clock = Paths(tmp_path / "node", tmp_path / "run"), plans.clock
    put_membership(paths, membership.with_secret(PREPARED))
    plans.board.given(membership=membership)
    plans.store.reload()
    clock.block(late_s)
    plans.board.given(network=told(2, hours={2: 0.0}))
    taking = asyncio.create_task(plans.epochs.act(TakeUp(SECOND)))
    await clock.advance(0)
    on_disk = Membership.load(paths)
    assert on_disk is not None
    assert on_disk.held == SECOND
    assert taking.done() is (waits_s == 0)
    assert plans.board.facts.running.held == (SECOND if taking.done() else PREPARED)
    await clock.advance(waits_s + 0.01)
    await taking
    assert plans.board.facts.running.held == SECOND


@pytest.mark.parametrize(
    "held, heard, more, epoch, hold_s",
    [
        (FIRST, told(1), {}, 1, 60.0),
        (FIRST, told(1, COMING), {}, 1, 60.0),  # it has not been asked, for this node has not the next secret yet
        (PREPARED, told(1, COMING), {"hook_answered": ANSWERED}, 1, 0.0),
        (PREPARED, told(1, COMING), {"hook_answered": 1}, 1, 60.0),
        (PREPARED, told(1, COMING), {"tries_next_secret": True}, 0, 60.0),
        (SECOND, told(2), {"easytier_as_wanted": False}, 0, 60.0),
        (SECOND, told(2), {"easytier_as_wanted": None}, 0, 60.0),
        (SECOND, told(2), {"hook_answered": ANSWERED}, 2, 60.0),
    ],
)
def test_what_the_registry_is_told(
    plans: Plans, held: HeldSecret, heard: NetworkTold, more: dict[str, Any], epoch: int, hold_s: float
) -> None:
    """What it says of EasyTier is confirmed, and a robot holds up the change that it has not answered."""
    facts = {"easytier_as_wanted": True, "tries_next_secret": False, **more}
    board = board_with()
    pretend(board, running=plans.membership.with_secret(held), network=heard, **facts)
    status = node_status(board.select(Own), key=plans.key, device="et0", hold_s=60.0)
    assert (status.secret_epoch, status.hold_s, status.known_network) == (epoch, hold_s, None)


def test_a_state_that_waits_for_room_is_written_down_again_and_again(plans: Plans) -> None:
    decision = plans.of(FIRST, told(1, is_on_disk=False))
    assert (decision.does, decision.again_s) == (Record(), 5.0)


def test_who_was_put_out_ends_whatever_else_there_is_to_do(plans: Plans) -> None:
    decision = plans.of(FIRST, told(2, given=SECOND, is_revoked=True))
    assert isinstance(decision.ends, NodeRevokedError)
    assert decision.does is None
    assert [(said.type, said.final) for said in decision.says] == [("Leased", True)]


@pytest.mark.parametrize(
    "is_set, held, heard, answer, is_asked",
    [
        (True, PREPARED, told(1, COMING), None, True),
        (True, PREPARED, told(1, COMING), 3, True),
        (True, PREPARED, told(1, COMING), ANSWERED, False),
        (True, FIRST, told(1, COMING), None, False),  # the next secret is not on disk yet
        (True, SECOND, told(2), None, False),
        (True, FIRST, told(1), None, False),
        (False, PREPARED, told(1, COMING), None, False),
    ],
)
def test_when_the_robots_hook_is_asked(
    plans: Plans, is_set: bool, held: HeldSecret, heard: NetworkTold, answer: int | None, is_asked: bool
) -> None:
    """Once for each change, when this node could follow it; until the hour."""
    plans.hook.is_set = is_set
    decision = plans.robot.plan(HoldInputs(plans.membership.with_secret(held), heard, answer), NOW_S)
    assert decision.does == (AskHook(2, HOUR_S) if is_asked else None)


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
