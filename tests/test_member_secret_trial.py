"""A node that hears nothing after the hour of a change tries the next secret by turns: when, and what it never does."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry_world import World

from edgelink.conditions import ConditionSet
from edgelink.errors import OverlayError
from edgelink.facts.part import Action
from edgelink.member.registry_client import Session
from edgelink.member.secret_trial import (
    FIRST_S,
    LONGEST_PATIENCE_S,
    PATIENCE_S,
    TRY_S,
    Inputs,
    Listen,
    SecretTrial,
    Seen,
    Turn,
    Turns,
)
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle

SECOND = st.booleans()


def turns_of(seconds: list[bool]) -> list[tuple[bool, int]]:
    """Whose turn it was, and for how many seconds; ``seconds``: in which somebody was heard."""
    turns, seen = Turns(), []
    for at_s, is_heard in enumerate(seconds):
        turns = turns.after(float(at_s), is_heard=is_heard)
        seen.append(turns.is_next)
    return [(is_next, len(list(group))) for is_next, group in groupby(seen)]


def test_patience_doubles_with_each_turn_in_vain() -> None:
    """2 s of silence, 20 s on the next secret, 20 s, 20 s, 40 s, 20 s, 80 s, …, ten minutes at most."""
    found = turns_of([False] * 4000)
    assert found[:7] == [(False, 2), (True, 20), (False, 20), (True, 20), (False, 40), (True, 20), (False, 80)]
    assert {length for is_next, length in found[:-1] if is_next} == {TRY_S}
    assert max(length for is_next, length in found if not is_next) == LONGEST_PATIENCE_S


@given(st.lists(SECOND, min_size=1, max_size=400))
def test_who_hears_somebody_stays(seconds: list[bool]) -> None:
    """A turn changes only after a silence as long as it may be; so nobody is left who answers."""
    turns, silent_s = Turns(), 0
    for at_s, is_heard in enumerate(seconds):
        was_next = turns.is_next
        turns = turns.after(float(at_s), is_heard=is_heard)
        if turns.is_next != was_next:
            assert silent_s >= (TRY_S if was_next else FIRST_S)
            silent_s = 0
        silent_s = 0 if is_heard else silent_s + 1


CONNECTED, AWAY = Session(number=1, is_connected=True), Session(number=1)
SILENT = Turns(silent_since_s=118.0)
HOUR_S = 100.0
TRYING = Turns(is_next=True, silent_since_s=100.0)
PRESENT, NEXT = 1, 2  # epochs


@pytest.mark.parametrize(
    "session, own, at_s, does",
    [
        # Before the hour nobody has changed, whether he is heard or not.
        (AWAY, Seen(), 99.9, None),
        (CONNECTED, Seen(), 99.9, None),
        # The registry's word has two seconds to come.
        (CONNECTED, Seen(), 101.9, None),
        (CONNECTED, Seen(), 102.0, Listen()),
        # Without it EasyTier is asked every two seconds.
        (AWAY, Seen(), 100.0, Listen()),
        (AWAY, Seen(asked_s=100.0), 102.0, Listen()),
        (AWAY, Seen(lists_others=True, asked_s=100.0), 101.0, None),
        (AWAY, Seen(asked_s=118.0), 119.0, Turn(SILENT, PRESENT)),
        (AWAY, Seen(SILENT, asked_s=119.0), 120.9, None),
        (AWAY, Seen(SILENT, asked_s=120.0), 120.0, Turn(Turns(is_next=True, silent_since_s=120.0), NEXT)),
        (CONNECTED, Seen(SILENT, asked_s=120.0), 120.0, Turn(Turns(is_next=True, silent_since_s=120.0), NEXT)),
        (AWAY, Seen(SILENT, lists_others=True, asked_s=120.0), 120.0, Turn(Turns(), PRESENT)),
        # The broker's answer says nothing of a secret that is only tried.
        (CONNECTED, Seen(TRYING, asked_s=118.0), 120.0, Listen()),
        (CONNECTED, Seen(TRYING, asked_s=119.0), 120.0, None),
        (
            CONNECTED,
            Seen(TRYING, asked_s=120.0),
            120.0,
            Turn(Turns(patience_s=PATIENCE_S, silent_since_s=120.0), PRESENT),
        ),
        (AWAY, Seen(TRYING, lists_others=True, asked_s=120.0), 120.0, Turn(Turns(is_next=True), NEXT)),
    ],
)
def test_whose_turn_it_is(node: Node, session: Session, own: Seen, at_s: float, does: Action | None) -> None:
    told = NetworkTold(hours={PRESENT: 0.0, NEXT: HOUR_S})
    assert node.trial.plan(Inputs(node.membership, told, session, own), at_s).does == does


def test_a_node_that_does_not_know_the_hour_goes_by_the_broker(node: Node) -> None:
    """While it has a session nothing is tried, as nobody may have changed yet."""
    for at_s in (0.0, 1000.0):
        assert node.trial.plan(Inputs(node.membership, NetworkTold(), CONNECTED, Seen()), at_s).does is None
    assert node.trial.plan(Inputs(node.membership, NetworkTold(), AWAY, Seen()), 0.0).does == Listen()


@pytest.mark.parametrize("turns", [Turns(), SILENT, TRYING])
@pytest.mark.parametrize("session", [CONNECTED, AWAY])
def test_nothing_is_tried_without_a_next_secret(node: Node, session: Session, turns: Turns) -> None:
    """Whatever is heard or not: a turn that is under way is given up, and EasyTier is not asked."""
    alone = node.membership.holding(HeldSecret(PRESENT, "the only one"))
    decision = node.trial.plan(Inputs(alone, NetworkTold(), session, Seen(turns)), 1000.0)
    assert decision.does == (None if turns == Turns() else Turn(Turns(), None))


class Node:
    """A node's trial; nobody answers but those in ``heard``."""

    def __init__(self, membership: Membership) -> None:
        self.board = board_with(membership=membership, network=NetworkTold(hours={NEXT: HOUR_S}))
        self.clock = FakeClock()
        self.heard: set[str | None] = set()  # on which secrets somebody answers
        self.changes: list[str | None] = []
        self.is_broken = False
        self.conditions = ConditionSet(self.clock, [SecretTrial.condition])
        self.trial = SecretTrial(board=self.board, overlay=self, clock=self.clock)

    @property
    def secret(self) -> str | None:
        """On which EasyTier is to run."""
        spec = self.board.facts.overlay_spec
        return spec.network_secret if spec else None

    @property
    def membership(self) -> Membership:
        found = self.board.facts.membership
        assert found is not None
        return found

    async def lists_others(self) -> bool:
        if self.is_broken:
            raise OverlayError("no answer")
        return self.secret in self.heard

    async def hour_comes(self) -> None:
        await self.clock.advance(HOUR_S - self.clock.monotonic_s())

    async def let_pass(self, seconds: float) -> None:
        for _ in range(int(seconds / 2)):
            before = self.secret
            await settle(self.trial, self.board, self.conditions, self.clock)
            if self.secret != before:
                self.changes.append(self.secret)
            await self.clock.advance(2)


def prepared(membership: Membership) -> Membership:
    held = membership.held
    return membership.holding(HeldSecret(held.epoch, held.secret, held.epoch + 1, "the next one"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    world, key = World(tmp_path), NodeKey.generate()
    token = world.token()
    return Node(prepared(world.membership(key, token, world.enrol(key, token))))


async def cut_off(node: Node) -> str | None:
    """Until it tries the next secret; the present one."""
    present = node.secret
    await node.hour_comes()
    await node.let_pass(6)
    assert node.secret == "the next one"
    return present


async def comes_back(node: Node, present: str | None) -> None:
    """And stays there."""
    await node.let_pass(24)
    assert node.secret == present
    await node.let_pass(600)
    assert node.secret == present


async def test_a_node_that_the_network_has_left_finds_it_again(node: Node) -> None:
    """By its own clock, and stays there until the registry's word comes; then nothing has to change any more."""
    present = node.secret
    node.heard = {present}
    await node.let_pass(60)
    await node.hour_comes()
    assert node.changes == []
    node.heard = {"the next one"}
    await node.let_pass(6)
    assert node.changes == ["the next one"]
    await node.let_pass(600)
    assert node.changes == ["the next one"]
    assert node.membership.held.epoch == 1, "on disk nothing changes without the registry's word"
    node.board.given(membership=node.membership.holding(HeldSecret(2, "the next one")))
    assert node.secret == "the next one"
    await node.let_pass(60)
    assert node.changes == ["the next one"]


async def test_a_node_that_is_cut_off_comes_back_to_the_present_secret(node: Node) -> None:
    """The relay died before the hour, and nobody has changed: the node is found where it was."""
    present = await cut_off(node)
    node.heard = {present}
    await comes_back(node, present)


async def test_a_network_that_has_not_changed_is_not_left(node: Node) -> None:
    """The relay's disk is full, or its daemon was killed: the hour has passed, and all are heard on the present one."""
    node.heard = {node.secret}
    await node.hour_comes()
    await node.let_pass(200)
    node.board.given(session=Session(number=1, is_connected=True))
    await node.let_pass(200)
    assert node.changes == []


async def test_a_broker_behind_the_overlay_tells_nothing_any_more(node: Node) -> None:
    """The session looks alive for a keepalive: the hour counts, and that nobody is heard."""
    node.board.given(session=Session(number=1, is_connected=True))
    node.heard = {"the next one"}
    await node.hour_comes()
    await node.let_pass(8)
    assert node.changes == ["the next one"]
    node.board.given(session=Session(number=2, is_connected=True))
    await node.let_pass(600)
    assert node.changes == ["the next one"]


async def test_an_easytier_that_cannot_be_asked_hears_nobody(node: Node) -> None:
    """It may be the one that starts again and again because nobody lets it in."""
    node.is_broken = True
    await cut_off(node)
    assert node.changes == ["the next one"]


async def test_what_a_restored_registry_does_not_know_is_not_tried_any_more(node: Node) -> None:
    """In the middle of its turn, too."""
    present = await cut_off(node)
    node.board.given(membership=node.membership.holding(HeldSecret(1, present or "")))
    assert node.secret == present
    await node.let_pass(200)
    assert node.secret == present


async def test_no_older_secret_is_ever_tried(node: Node) -> None:
    """A next one that is not newer is none; nor does a relay try any: others may hang on it."""
    present = node.secret
    node.board.given(membership=node.membership.model_copy(update={"next_epoch": 1}), tries_next_secret=True)
    assert node.secret == present
    await node.hour_comes()
    await node.let_pass(200)
    assert node.changes == []


async def test_a_relay_tries_nothing(tmp_path: Path) -> None:
    """Others may hang on it, whom it does not know of."""
    authority, key = World(tmp_path).authority, NodeKey.generate()
    authority.ensure_relay_lease(key, "relay")
    relay = Node(prepared(authority.relay_membership(key, "relay")))
    await relay.hour_comes()
    await relay.let_pass(200)
    assert relay.changes == []
