"""The deadman: what is wrong leads to a hold, then to a stop, and back only by the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.training.trainer.robot.deadman import Cause, Deadman, DeadmanSettings, State

SETTINGS = DeadmanSettings(link_timeout_s=0.5, stop_after_s=1.0, resume_after_s=2.0)
NS = 1_000_000_000
PERIOD_S = 0.02  # of a control instant


def running(resume: str = "automatic") -> Deadman:
    deadman = Deadman(SETTINGS, resume)
    assert deadman.look(1, Cause.NO_POLICY) is None
    change = deadman.look(2, Cause.NONE)
    assert change is not None
    assert change.state is State.RUNNING
    return deadman


def states(deadman: Deadman, causes: list[tuple[float, Cause]]) -> list[State]:
    """After each (time in s, cause)."""
    found = []
    for at_s, cause in causes:
        deadman.look(round(at_s * NS), cause)
        found.append(deadman.state)
    return found


def test_a_lasting_cause_holds_then_stops() -> None:
    """At once, and after a second of it."""
    causes = [(10.0, Cause.LINK), (10.9, Cause.LINK), (11.0, Cause.LINK), (12.0, Cause.LINK)]
    assert states(running(), causes) == [State.HOLDING, State.HOLDING, State.STOPPED, State.STOPPED]


def test_a_short_cause_holds_and_never_stops() -> None:
    """What came back within the second is not stopped later; it goes on after two good seconds."""
    causes = [(10.0, Cause.LINK), (10.5, Cause.NONE), (11.5, Cause.NONE), (12.4, Cause.NONE), (12.5, Cause.NONE)]
    assert states(running(), causes) == [State.HOLDING] * 4 + [State.RUNNING]


def test_the_good_time_begins_anew_with_each_cause() -> None:
    """A flapping link does not let it go on."""
    flapping = [(10 + second, Cause.LINK if second % 2 else Cause.NONE) for second in range(1, 20)]
    assert State.RUNNING not in states(running(), flapping)


@pytest.mark.parametrize(("bad_s", "good_s"), [(0.9, 0.04), (0.02, 1.9), (0.5, 0.5)])
@pytest.mark.parametrize(("chosen_s", "at_most_s"), [(None, 3.0), (5.0, 5.0)])
def test_a_flapping_link_does_not_hold_it_for_ever(
    bad_s: float, good_s: float, chosen_s: float | None, at_most_s: float
) -> None:
    """A hold under power ends in a stop, however the cause comes and goes."""
    deadman = Deadman(replace(SETTINGS, hold_at_most_s=chosen_s), "automatic")
    deadman.look(1, Cause.NONE)
    times = [10 + instant * PERIOD_S for instant in range(round(20 / PERIOD_S))]
    found = states(deadman, [(s, Cause.LINK if (s - 10) % (bad_s + good_s) < bad_s else Cause.NONE) for s in times])
    held_s = found.index(State.STOPPED) * PERIOD_S
    assert at_most_s - PERIOD_S <= held_s <= at_most_s + PERIOD_S
    assert State.RUNNING not in found[: found.index(State.STOPPED)]


@pytest.mark.parametrize("resume", ["automatic", "manual"])
@pytest.mark.parametrize(("bad_s", "good_s"), [(0.9, 0.01), (0.5, 1.9), (0.02, 1.9)])
def test_ten_minutes_of_a_flapping_link_end_in_a_stop(bad_s: float, good_s: float, resume: str) -> None:
    """Where the link is never good for as long as it takes to go on."""
    deadman = running(resume)
    times = [10 + instant * 0.01 for instant in range(60_000)]
    found = states(deadman, [(s, Cause.LINK if (s - 10) % (bad_s + good_s) < bad_s else Cause.NONE) for s in times])
    assert found[-1] is State.STOPPED
    assert found.count(State.RUNNING) == 0


def test_a_link_that_lets_it_run_for_a_moment_again_and_again_stops_it() -> None:
    """It holds nearly all the time, though each hold is short enough: 0.4 s bad, 2.1 s good."""
    deadman = running()
    times = [10 + instant * PERIOD_S for instant in range(round(600 / PERIOD_S))]
    found = states(deadman, [(s, Cause.LINK if (s - 10) % 2.5 < 0.4 else Cause.NONE) for s in times])
    assert found.index(State.STOPPED) * PERIOD_S < 4.0
    seldom = running()
    found = states(seldom, [(s, Cause.LINK if (s - 10) % 15 < 0.4 else Cause.NONE) for s in times])
    assert State.STOPPED not in found, "it runs for most of the time, and each hold has been earned back"


INTERVALS = st.lists(
    st.tuples(
        st.sampled_from([Cause.NONE, Cause.NONE, Cause.LINK, Cause.POLICY, Cause.NOT_A_NUMBER]), st.integers(1, 300)
    ),
    max_size=30,
)


@given(INTERVALS, st.sampled_from(["automatic", "manual"]), st.sets(st.integers(0, 3000), max_size=5))
def test_law_no_link_keeps_it_under_power_for_longer_than_it_may_be(
    intervals: list[tuple[Cause, int]], resume: str, resumes: set[int]
) -> None:
    """Over any link, and whenever a person lets it go on: it never runs with a cause; a cause that lasts stops it;
    between two stops it holds for no longer than the bound and a quarter of what it ran."""
    deadman = running(resume)
    causes = [cause for cause, instants in intervals for _ in range(instants)]
    held = ran = bad = 0
    before = State.RUNNING
    for instant, cause in enumerate(causes):
        deadman.look(round((10 + instant * PERIOD_S) * NS), cause, may_resume=instant in resumes)
        bad = bad + 1 if cause else 0
        held += before is State.HOLDING
        ran += before is State.RUNNING and instant > 0
        before = deadman.state
        if before is State.STOPPED:
            held = ran = 0
        assert before is not State.RUNNING or cause is Cause.NONE
        if before is State.HOLDING:
            assert (bad - 1) * PERIOD_S < SETTINGS.stop_after_s
            assert held * PERIOD_S < SETTINGS.stop_after_s + SETTINGS.resume_after_s + ran * PERIOD_S / 4 + 1e-6


def test_manually_resumed_it_waits_for_a_person() -> None:
    """However good the link is; a word that comes while the cause lasts is not kept for later."""
    deadman = running("manual")
    assert states(deadman, [(10, Cause.LINK), (11, Cause.LINK)])[-1] is State.STOPPED
    assert deadman.look(12 * NS, Cause.LINK, may_resume=True) is None
    assert states(deadman, [(13, Cause.NONE), (100, Cause.NONE)])[-1] is State.STOPPED
    change = deadman.look(101 * NS, Cause.NONE, may_resume=True)
    assert change is not None
    assert (change.state, change.cause, change.held_s) == (State.RUNNING, Cause.LINK, 91.0)


def test_the_settings_overrule_the_robot() -> None:
    """Who resumes is the robot's choice only where nobody said."""
    for chosen, last in (("manual", State.HOLDING), ("automatic", State.RUNNING)):
        deadman = Deadman(DeadmanSettings(resume=chosen), "automatic" if chosen == "manual" else "manual")
        deadman.look(1, Cause.NONE)
        assert states(deadman, [(10, Cause.LINK), (10.1, Cause.NONE), (12.5, Cause.NONE)])[-1] is last


def test_a_fault_stops_at_once_and_needs_a_person() -> None:
    """Also when it comes while the robot is stopped for a lesser reason."""
    for cause in (Cause.FAULT, Cause.STALLED, Cause.PERSON):
        deadman = running()
        assert states(deadman, [(10, cause)]) == [State.STOPPED]
        assert states(deadman, [(11, Cause.NONE), (50, Cause.NONE)])[-1] is State.STOPPED
        deadman = running()
        states(deadman, [(10, Cause.LINK), (11, Cause.LINK), (12, cause)])
        assert states(deadman, [(13, Cause.NONE), (50, Cause.NONE)])[-1] is State.STOPPED


def test_each_new_cause_that_only_a_person_lifts_is_a_change() -> None:
    """Of a stopped robot, too: it is recorded. And whoever was stopped before it ever ran has not run for a while."""
    deadman = Deadman(SETTINGS, "automatic")
    deadman.look(1, Cause.NO_POLICY)
    change = deadman.look(NS, Cause.PERSON)
    assert change is not None
    assert (change.state, change.before) == (State.STOPPED, State.WAITING)
    assert deadman.look(2 * NS, Cause.PERSON) is None
    change = deadman.look(3 * NS, Cause.FAULT)
    assert change is not None
    assert (change.state, change.cause, change.before) == (State.STOPPED, Cause.FAULT, State.STOPPED)
    assert deadman.look(4 * NS, Cause.LINK) is None, "what passes by itself changes nothing"
    change = deadman.look(5 * NS, Cause.NONE, may_resume=True)
    assert change is not None
    assert (change.state, change.held_s) == (State.RUNNING, 4.0)


def test_a_closing_robot_never_runs_again() -> None:
    """Not even by a person."""
    deadman = running()
    assert states(deadman, [(10, Cause.CLOSING)]) == [State.STOPPED]
    assert deadman.look(20 * NS, Cause.NONE, may_resume=True) is None
