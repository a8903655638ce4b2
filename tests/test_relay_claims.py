"""Which of several machines with one key is the node: the decision, and who speaks with two voices."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from edgelink.protocol.alternation import ALTERNATION_S, Alternation, cloned
from edgelink.relay.claims import (
    ANNOUNCED_S,
    ASKED_S,
    HEARD_S,
    RETURN_S,
    Judgement,
    Outcome,
    Presence,
    Recorded,
    judge,
    merged,
)

FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32
HERE, THERE = ("mac:" + "1" * 32,), ("mac:" + "2" * 32,)
RECORDED = Recorded(FIRST, HERE, datetime(2026, 11, 21, 9, 12, tzinfo=UTC))
ONLINE, LOST, NEVER = Presence(is_online=True, silent_s=3.0), Presence(silent_s=20.0), Presence()
LONG = 3600.0

ACCEPTED, CHANGED = Judgement(Outcome.ACCEPTED), Judgement(Outcome.CHANGED)


@pytest.mark.parametrize(
    "what, recorded, claim, presence, age_s, expected",
    [
        ("the first claim of all", None, (FIRST, HERE), NEVER, 0.0, ACCEPTED),
        ("the same life again", RECORDED, (FIRST, HERE), ONLINE, LONG, ACCEPTED),
        ("the same life, whatever was plugged in", RECORDED, (FIRST, THERE), ONLINE, LONG, ACCEPTED),
        ("a restart", RECORDED, (SECOND, HERE), ONLINE, LONG, ACCEPTED),
        ("a restart where nothing can be read", RECORDED, (SECOND, ()), ONLINE, LONG, ACCEPTED),
        (
            "a clone, or the same robot whose power was cut: what was said before the claim proves nothing",
            RECORDED,
            (SECOND, THERE),
            ONLINE,
            LONG,
            Judgement(Outcome.WAIT, ASKED_S, asks_recorded=True),
        ),
        (
            "a clone, while the original may be a dead connection",
            RECORDED,
            (SECOND, THERE),
            Presence(is_online=True, silent_s=4000.0),
            LONG,
            Judgement(Outcome.WAIT, ASKED_S, asks_recorded=True),
        ),
        (
            "a clone, and all that is known of the original is what the broker kept",
            RECORDED,
            (SECOND, THERE),
            Presence(is_online=True),
            LONG,
            Judgement(Outcome.WAIT, ASKED_S, asks_recorded=True),
        ),
        (
            "the original's link was lost a moment ago",
            RECORDED,
            (SECOND, THERE),
            LOST,
            LONG,
            Judgement(Outcome.WAIT, HEARD_S - 20),
        ),
        ("the original is gone", RECORDED, (SECOND, THERE), Presence(silent_s=HEARD_S), LONG, CHANGED),
        ("the original was not heard for days", RECORDED, (SECOND, THERE), NEVER, LONG, CHANGED),
        (
            "the registry has just begun to listen",
            RECORDED,
            (SECOND, THERE),
            NEVER,
            10.0,
            Judgement(Outcome.WAIT, RETURN_S - 10),
        ),
    ],
)
def test_who_may_be_the_node(
    what: str,
    recorded: Recorded | None,
    claim: tuple[str, tuple[str, ...]],
    presence: Presence,
    age_s: float,
    expected: Judgement,
) -> None:
    """A robot never stands still for a new network card or board; a copy never gets in beside the original."""
    assert judge(recorded, *claim, presence, age_s) == expected, what


@pytest.mark.parametrize(
    "silent_s, claimed_s, is_refused", [(0.9, 1.0, True), (1.1, 1.0, False), (9.0, 100.0, True), (11.0, 100.0, False)]
)
def test_who_speaks_while_another_claims_is_there(silent_s: float, claimed_s: float, is_refused: bool) -> None:
    """The proof is a word of the recorded machine's, said since the claim and a moment ago."""
    presence = Presence(is_online=True, silent_s=silent_s)
    found = judge(RECORDED, SECOND, THERE, presence, LONG, claimed_s=claimed_s)
    assert (found.outcome is Outcome.REFUSED) == is_refused
    assert found.asks_recorded != is_refused


def test_an_easytier_that_outlived_its_daemon_is_waited_for() -> None:
    """Nobody speaks for it, and yet traffic goes there. It keeps nobody else waiting, nor the node itself."""
    announced = {"presence": NEVER, "registry_age_s": LONG, "is_announced": True}
    assert judge(RECORDED, SECOND, THERE, **announced) == Judgement(Outcome.WAIT, ANNOUNCED_S)
    assert judge(RECORDED, SECOND, HERE, **announced) == ACCEPTED
    assert judge(None, SECOND, THERE, **announced) == ACCEPTED


def test_what_a_machine_cannot_see_this_time_is_kept() -> None:
    """Cards that are not there yet early in a boot; those that were taken out are not kept beside others."""
    board = "board:" + "3" * 32
    assert set(merged((*HERE, board), (board,))) == {*HERE, board}
    assert set(merged((*HERE, board), ())) == {*HERE, board}
    assert set(merged((*HERE, board), THERE)) == {*THERE, board}


def voices(*turns: tuple[str, float]) -> Alternation:
    alternation = Alternation()
    for instance, at_s in turns:
        alternation.note("node", instance, at_s)
    return alternation


def in_turns(alternation: Alternation, now_s: float) -> list[str]:
    return cloned(alternation.alternated().items(), now_s)


def test_a_life_that_is_back_after_another_one_is_a_clone() -> None:
    """However long ago the first one began; told of for five minutes."""
    found = voices((FIRST, 0.0), (SECOND, 100_000.0), (FIRST, 100_004.0))
    assert in_turns(found, 100_005.0) == ["node"]
    assert in_turns(found, 100_004.0 + ALTERNATION_S) == []


@pytest.mark.parametrize(
    "turns",
    [
        [(FIRST, 0.0), (FIRST, 1.0), (FIRST, 2.0)],
        [(FIRST, 0.0), (SECOND, 1.0), (SECOND, 2.0)],
        [(FIRST, 0.0), (SECOND, 1.0), (THIRD, 2.0)],  # restarts
        [(FIRST, 0.0), (SECOND, 1.0), (FIRST, ALTERNATION_S + 1)],  # something late
    ],
)
def test_restarts_are_no_clones(turns: list[tuple[str, float]]) -> None:
    """A daemon's lives follow one another."""
    assert in_turns(voices(*turns), turns[-1][1]) == []


def test_nodes_do_not_mix_and_released_ones_are_forgotten() -> None:
    """Each node has its own turns."""
    alternation = voices((FIRST, 0.0), (SECOND, 1.0), (FIRST, 2.0))
    alternation.note("other", FIRST, 3.0)
    assert in_turns(alternation, 3.0) == ["node"]
    alternation.forget_others(["other"])
    assert in_turns(alternation, 3.0) == []
