"""What the driver tells of robots that are stopped where it is not, and what it tells them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from edgelink.training.trainer.crew_checks import WorkerLostError
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.robot_confirmations import Confirmations
from edgelink.training.trainer.robot_notices import RobotNotices
from edgelink.training.trainer.slots import Slot

ARM = Slot("env", 0, 1, "10.10.0.3", "edge-1")
ROLLOUT = Slot("rollout", 0, 1, "10.10.0.3", "edge-1")
STOPPED = Hindrance("robot env-0 is stopped")
RUNNING = Hindrance()


class Crew:
    """One whose workers answer when ``answers`` is set."""

    def __init__(self) -> None:
        self.answer: Hindrance | Exception | None = None
        self.said: list[str] = []
        self.asked = 0
        self.now_s = 100.0
        self.is_gone = False

    def call(self, slot: Slot, method: str) -> Any:
        assert (slot, method) in [(ARM, "hindrance"), (ROLLOUT, "nothing_newer")]
        if self.is_gone:
            raise WorkerLostError(slot, OSError("killed"))
        self.asked += 1
        return self.asked

    def arrived(self, answers: Iterable[Any]) -> list[Any]:
        return list(answers) if self.answer is not None else []

    def value(self, _answer: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def crew() -> Crew:
    return Crew()


def look(crew: Crew, notices: RobotNotices, answer: Hindrance | Exception | None) -> list[str]:
    """What is said once it has been asked and answered."""
    crew.said.clear()
    crew.answer = None
    crew.now_s += 10
    notices.look([ARM])
    crew.answer = answer
    notices.look([ARM])
    return list(crew.said)


def test_a_robot_that_needs_a_person_is_told_from_one_that_goes_on_by_itself(crew: Crew) -> None:
    """For as long as that is so."""
    notices = notices_of(crew)
    look(crew, notices, STOPPED)
    assert not notices.waits_for_a_person
    look(crew, notices, replace(STOPPED, needs_person=True))
    assert notices.waits_for_a_person
    look(crew, notices, RUNNING)
    assert not notices.waits_for_a_person


def test_a_robot_that_is_gone_is_not_waited_for(crew: Crew) -> None:
    """Whoever was to let it go on has nothing to let go on: what hangs then is a stall again."""
    notices = notices_of(crew)
    look(crew, notices, replace(STOPPED, needs_person=True))
    notices.look([])
    assert not notices.waits_for_a_person


def notices_of(crew: Crew, told: dict[Slot, str] | None = None) -> RobotNotices:
    return RobotNotices(crew, crew.said.append, told or {}, lambda: crew.now_s)


def test_each_change_is_said_once(crew: Crew) -> None:
    """Nothing for as long as the robot runs."""
    notices = notices_of(crew)
    assert look(crew, notices, RUNNING) == []
    assert look(crew, notices, STOPPED) == [STOPPED.words]
    assert look(crew, notices, STOPPED) == []
    (goes_on,) = look(crew, notices, RUNNING)
    assert goes_on.startswith(f"{ARM}: ")
    assert look(crew, notices, RUNNING) == []


def test_what_was_said_at_the_start_is_not_said_again(crew: Crew) -> None:
    """A stop from before the run."""
    notices = notices_of(crew, {ARM: STOPPED.words})
    assert look(crew, notices, STOPPED) == []
    (goes_on,) = look(crew, notices, RUNNING)
    assert goes_on.startswith(f"{ARM}: ")


def test_nobody_is_asked_twice_at_once_or_all_the_time(crew: Crew) -> None:
    """A worker behind a dark link has one question to answer when it is back."""
    notices = notices_of(crew)
    for _ in range(100):
        crew.now_s += 1
        notices.look([ARM])
    assert crew.asked == 1
    crew.answer = RUNNING
    for _ in range(20):
        crew.now_s += 1
        notices.look([ARM])
    assert 3 <= crew.asked <= 6


def test_a_worker_that_is_gone_is_asked_anew(crew: Crew) -> None:
    """Once there is one again; that it was gone is said by who needs it."""
    notices = notices_of(crew)
    assert look(crew, notices, WorkerLostError(ARM, OSError("killed"))) == []
    assert look(crew, notices, KeyError(1)) == []
    assert look(crew, notices, STOPPED) == [STOPPED.words]


@pytest.mark.parametrize("answer", [None, RUNNING, WorkerLostError(ROLLOUT, OSError("killed")), KeyError(1)])
def test_a_robot_is_told_once_a_second_that_its_policy_is_the_newest(crew: Crew, answer: Any) -> None:
    """One behind a dark link, which has not answered, once; that one is gone is said by who needs it."""
    confirmations = Confirmations(crew, lambda: crew.now_s)
    crew.answer = answer
    for _ in range(100):
        crew.now_s += 0.1
        confirmations.look([ROLLOUT])
    assert 9 <= crew.asked <= 11 if answer is not None else crew.asked == 1
    told, crew.is_gone = crew.asked, True
    crew.now_s += 5
    confirmations.look([ROLLOUT])
    assert crew.asked == told
