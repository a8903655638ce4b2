"""Which side of a dead pair does what, and that nothing is done without a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.overlay.pair_heal import FRESH_S, MORE_S, PROOF_S, Pair, Remedy, Word

NOW = 1000.0
NEITHER_LISTS = Word(NOW - 1, silent_for_s=20.0, relay_answers_for_s=5.0, lists_us=False)
# A pair that is dead for 6 s: a relay answers both, the other one lists us, we do not list it.
DEAD = Pair(
    silent_since_s=NOW - 30,
    relay_since_s=NOW - 6,
    is_listed=False,
    word=Word(NOW - 1, silent_for_s=20.0, relay_answers_for_s=5.0, lists_us=True),
)
LONG_DEAD = replace(DEAD, relay_since_s=NOW - 60, word=Word(NOW - 1, 20.0, PROOF_S + MORE_S, lists_us=True))


@pytest.mark.parametrize(
    ("pair", "remedy"),
    [
        (DEAD, Remedy.CLOSE),
        (replace(DEAD, word=None), Remedy.NONE),  # it may be switched off
        (replace(DEAD, relay_since_s=None), Remedy.NONE),  # it is us who are cut off
        (replace(DEAD, relay_since_s=NOW - PROOF_S + 1), Remedy.NONE),  # the way has only just come back
        (replace(DEAD, word=Word(NOW - 1, 20.0, 3.0, lists_us=True)), Remedy.NONE),  # theirs has
        (replace(DEAD, word=Word(NOW - 3, 20.0, 3.0, lists_us=True)), Remedy.CLOSE),  # and goes on, as of its last word
        (replace(DEAD, word=Word(NOW - FRESH_S - 1, 20.0, 60.0, lists_us=True)), Remedy.NONE),  # it may be away again
        (replace(DEAD, silent_since_s=NOW - 0.5), Remedy.NONE),  # said before we missed it
        (replace(DEAD, silent_since_s=NOW - 3, word=Word(NOW - 1, 1.0, 60.0, lists_us=True)), Remedy.NONE),  # new
        (
            replace(DEAD, silent_since_s=NOW - 3, word=Word(NOW - 1, 4.0, 60.0, lists_us=True)),
            Remedy.CLOSE,
        ),  # not to it
        (replace(DEAD, is_listed=True), Remedy.NONE),  # the other side's turn
        (replace(DEAD, closed=True), Remedy.NONE),  # never twice
        (replace(LONG_DEAD, is_listed=True, word=Word(NOW - 1, 20.0, 10.0, lists_us=False)), Remedy.RESTART),
        (
            replace(LONG_DEAD, is_listed=True, word=Word(NOW - 1, 20.0, 8.0, lists_us=False)),
            Remedy.NONE,
        ),  # wait
        (replace(LONG_DEAD, closed=True), Remedy.NONE),  # who lists restarts, and that is the other one
        (replace(LONG_DEAD, is_listed=True), Remedy.RESTART),  # both list: one of them
        (replace(LONG_DEAD, is_listed=True, breaks_tie=False), Remedy.NONE),
        (
            replace(LONG_DEAD, closed=True, word=Word(NOW - 1, 20.0, 10.0, lists_us=False)),
            Remedy.RESTART,
        ),  # none
        (replace(LONG_DEAD, is_listed=True, may_restart=False), Remedy.NONE),
        (replace(DEAD, closed=True, found_none=True), Remedy.RESTART),  # by UDP: there was nothing to close
        (replace(DEAD, closed=True, found_none=True, may_restart=False), Remedy.NONE),
        (replace(DEAD, closed=True, found_none=True, restarted=True), Remedy.NONE),
        (replace(LONG_DEAD, closed=True, found_none=True, restarted=True), Remedy.NONE),  # who lists, from here on
        (replace(DEAD, closed=True, found_none=True, breaks_tie=True, word=NEITHER_LISTS), Remedy.RESTART),
        (replace(DEAD, closed=True, found_none=True, breaks_tie=False, word=NEITHER_LISTS), Remedy.NONE),
        (replace(LONG_DEAD, is_listed=True, restarted=True), Remedy.NONE),
    ],
)
def test_who_does_what(pair: Pair, remedy: Remedy) -> None:
    assert pair.remedy(NOW) is remedy


seconds = st.floats(-100, 100).map(lambda ago_s: NOW + ago_s)
words = st.builds(Word, seconds, st.floats(0, 100), st.floats(0, 100), st.booleans())
pairs = st.builds(
    Pair,
    seconds,
    st.none() | seconds,
    st.booleans(),
    st.none() | words,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(pairs)
def test_nothing_is_done_without_a_proof(pair: Pair) -> None:
    if pair.remedy(NOW) is Remedy.NONE:
        return
    assert pair.word is not None
    assert pair.relay_since_s is not None
    assert NOW - pair.relay_since_s >= PROOF_S
    assert pair.word.at_s >= pair.silent_since_s
    assert NOW - pair.word.at_s <= FRESH_S


@given(st.booleans(), st.booleans())
def test_where_there_is_nothing_to_close_one_side_restarts_at_once(lists: bool, breaks_tie: bool) -> None:
    """Neither lists the other, or one does: the one that does not restarts, and the other one does nothing yet."""
    theirs, ours = Word(NOW - 1, 20.0, 5.0, lists), Word(NOW - 1, 20.0, 5.0, lists_us=False)
    one = replace(DEAD, word=theirs, closed=True, found_none=True, breaks_tie=breaks_tie)
    other = replace(one, is_listed=lists, word=ours, breaks_tie=not breaks_tie)
    assert [pair.remedy(NOW) for pair in (one, other)].count(Remedy.RESTART) == 1
    assert one.remedy(NOW) is Remedy.RESTART or not lists


@given(st.booleans(), st.booleans(), st.booleans())
def test_of_the_two_sides_at_most_one_restarts(lists: bool, is_listed: bool, breaks_tie: bool) -> None:
    """Both know the same, each from its side, and both have tried the gentler way."""
    theirs, ours = Word(NOW - 1, 20.0, 10.0, is_listed), Word(NOW - 1, 20.0, 10.0, lists)
    one = replace(LONG_DEAD, is_listed=lists, word=theirs, closed=True, breaks_tie=breaks_tie)
    other = replace(LONG_DEAD, is_listed=is_listed, word=ours, closed=True, breaks_tie=not breaks_tie)
    assert [pair.remedy(NOW) for pair in (one, other)].count(Remedy.RESTART) == 1


def said(pair: Pair, seconds: float) -> list[float]:
    """When a node says that it misses the other one, from the begin of the silence on."""
    times: list[float] = []
    while True:
        at_s = pair.says_again_at_s(times[0] if times else None, times[-1] if times else None)
        if at_s is None or at_s - pair.silent_since_s > seconds:
            return times
        times.append(at_s)


def test_who_may_be_switched_off_is_told_three_times() -> None:
    pair = Pair(silent_since_s=NOW, relay_since_s=NOW - 100, is_listed=False, word=None)
    assert said(pair, 3600) == [NOW, NOW + 4, NOW + 10]


def test_who_is_listed_is_told_often_at_first_and_for_ten_minutes() -> None:
    pair = Pair(silent_since_s=NOW, relay_since_s=NOW - 100, is_listed=True, word=None)
    times = said(pair, 3600)
    assert times[:3] == [NOW, NOW + 2, NOW + 4]
    assert 30 < len(times) < 40
    assert times[-1] <= NOW + 700


def test_while_no_relay_answers_there_is_nothing_to_say() -> None:
    pair = Pair(silent_since_s=NOW, relay_since_s=None, is_listed=True, word=None)
    assert said(pair, 3600) == []
    assert said(replace(pair, relay_since_s=NOW + 40), 60)[0] == NOW + 40, "once it does, at once"
