"""The loop of the parts: it decides by facts of this moment, does one thing at a time, and survives failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import pytest
from structlog.testing import capture_logs

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet, is_not_so, is_so
from edgelink.errors import RegistryUnavailableError, UsageError
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part, run_part
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.testing import FakeClock, eventually


@dataclass(frozen=True)
class Facts:
    wanted: str
    runs: str


@dataclass(frozen=True)
class Inputs:
    wanted: str
    own: int


@dataclass(frozen=True)
class Start(Action):
    what: str
    gives_way: ClassVar[bool] = True


@dataclass(frozen=True)
class Commit(Action):
    what: str


WANTED: Final[Fact[str]] = Fact("wanted")
RUNS: Final[Fact[str]] = Fact("runs")


class Starter(Part[Inputs, Start | Commit]):
    """Starts what is wanted. A name in capitals must not be interrupted."""

    name = "starter"
    condition = "Started"
    inputs = Inputs

    def __init__(self, board: Board[Facts]) -> None:
        super().__init__(board, own=0)
        self._runs = board.claim(RUNS, self.name)
        self.acts: list[str] = []
        self.during: Callable[[str], Awaitable[object]] = nothing
        self.again_s = 60.0
        self.told = 0

    @property
    def changes(self) -> int:
        return self.told

    def hear(self) -> None:
        self.told += 1
        self.wakeup.set()

    def plan(self, now: Inputs, at_s: float) -> Decision[Start | Commit]:
        if now.wanted == "the end":
            return Decision((is_not_so("Started", "PutOut", "it is over"),), ends=NodeRevokedError("it is over"))
        if now.wanted == "a defect":
            raise ZeroDivisionError
        if not now.wanted:
            return Decision((is_so("Started", "Idle", "nothing is wanted"),))
        action = Commit(now.wanted) if now.wanted.isupper() else Start(now.wanted)
        return Decision((is_not_so("Started", "Starting", f"{now.wanted} starts"),), action, self.again_s)

    async def act(self, action: Start | Commit) -> None:
        self.acts.append(action.what)
        await self.during(action.what)
        self._runs(action.what)


async def nothing(_what: str) -> None:
    pass


class World:
    def __init__(self) -> None:
        self.board = Board(Facts(wanted="", runs=""))
        self.conditions = ConditionSet(FakeClock(), ["Started"])
        self.want = self.board.claim(WANTED, "test")
        self.part = Starter(self.board)
        self.task = asyncio.ensure_future(run_part(self.part, self.board, self.conditions, SystemClock()))

    def says(self) -> str:
        return self.conditions.get("Started").message


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])
    assert made.task.cancelled()


async def test_a_fact_leads_to_an_action_that_is_not_repeated(world: World) -> None:
    """An action that changed nothing that the part reads would be repeated at full speed."""
    world.want("ray")
    await eventually(lambda: world.board.facts.runs == "ray")
    world.part.wakeup.set()
    await eventually(lambda: not world.part.wakeup.is_set)
    assert world.part.acts == ["ray"]


async def test_an_action_is_repeated_after_the_time_that_the_plan_names(world: World) -> None:
    world.part.again_s = 0.001
    world.want("ray")
    await eventually(lambda: len(world.part.acts) > 1)


async def test_an_action_is_repeated_when_what_only_the_part_knows_has_changed(world: World) -> None:
    world.want("ray")
    await eventually(lambda: world.part.acts == ["ray"])
    world.part.own = 1
    world.part.wakeup.set()
    await eventually(lambda: world.part.acts == ["ray", "ray"])


async def test_an_action_gives_way_to_another_one(world: World) -> None:
    """One that takes half a minute must not hold up what came meanwhile."""
    world.part.during = only_short
    world.want("long")
    await eventually(lambda: world.part.acts == ["long"])
    world.want("short")
    await eventually(lambda: world.board.facts.runs == "short")
    assert world.part.acts == ["long", "short"]


async def test_an_action_does_not_give_way_to_none(world: World) -> None:
    """One that has half succeeded would cancel itself."""
    may_end = asyncio.Event()
    world.part.during = lambda _what: wait(may_end)
    world.want("ray")
    await eventually(lambda: world.part.acts == ["ray"])
    world.want("")
    await eventually(lambda: world.says() == "nothing is wanted")
    may_end.set()
    await eventually(lambda: world.board.facts.runs == "ray")


async def test_what_must_not_be_interrupted_runs_to_its_end_while_the_part_goes_on_saying(world: World) -> None:
    may_end = asyncio.Event()
    world.part.during = lambda _what: wait(may_end)
    world.want("COMMIT")
    await eventually(lambda: world.part.acts == ["COMMIT"])
    world.want("other")
    await eventually(lambda: world.says() == "other starts")
    assert world.part.acts == ["COMMIT"]
    may_end.set()
    await eventually(lambda: world.part.acts == ["COMMIT", "other"])


async def test_a_failure_is_said_and_the_action_tried_again(world: World) -> None:
    failures = iter([RegistryUnavailableError("the relay is away"), ZeroDivisionError("a defect")])

    async def fail(_what: str) -> None:
        if failure := next(failures, None):
            raise failure

    world.part.during = fail
    world.want("ray")
    await eventually(lambda: world.board.facts.runs == "ray")
    assert world.part.acts == ["ray"] * 3


async def test_what_goes_well_between_two_tries_is_not_the_end_of_a_failure(world: World) -> None:
    """A part that looks before each try would tell of the failure each time, and never wait longer."""
    failures = iter([RegistryUnavailableError("the relay is away")] * 2)

    async def look_and_fail(what: str) -> None:
        if what == "LOOK":
            world.want("ray")
        elif failure := next(failures, None):
            world.want("LOOK")
            raise failure

    world.part.during = look_and_fail
    with capture_logs() as logs:
        world.want("ray")
        await eventually(lambda: world.board.facts.runs == "ray")
        await eventually(lambda: len(logs) > 1)
    assert world.part.acts == ["ray", "LOOK", "ray", "LOOK", "ray"]
    assert [line["event"] for line in logs] == ["starter.failed", "starter.recovered"]


async def test_a_change_while_an_action_fails_does_not_wait_for_the_next_try(world: World) -> None:
    """Half a minute, where a retry cannot help: but this is another action."""
    may_fail = asyncio.Event()

    async def fail(what: str) -> None:
        if what == "COMMIT":
            await may_fail.wait()
            raise UsageError("it can never be")

    world.part.during = fail
    world.want("COMMIT")
    await eventually(lambda: world.part.acts == ["COMMIT"])
    world.want("ray")
    await eventually(lambda: "ray starts" in world.says())
    may_fail.set()
    await eventually(lambda: world.board.facts.runs == "ray")


async def test_what_a_part_is_told_while_an_action_fails_does_not_wait_for_the_next_try(world: World) -> None:
    """Such as by the kernel: it may be the very thing that the action failed by."""

    async def fail(_what: str) -> None:
        if not world.part.told:
            world.part.hear()
            await eventually(lambda: not world.part.wakeup.is_set)
            raise UsageError("it can never be")

    world.part.during = fail
    world.want("ray")
    await eventually(lambda: world.board.facts.runs == "ray")


async def test_a_defect_of_the_plan_leaves_no_action_behind(world: World) -> None:
    """The loop plans again, and what it does then would be done beside the former action."""
    under_way: list[str] = []

    async def forever(what: str) -> None:
        under_way.append(what)
        try:
            await asyncio.Event().wait()
        finally:
            under_way.remove(what)

    world.part.during = forever
    world.want("COMMIT")
    await eventually(lambda: under_way == ["COMMIT"])
    world.want("a defect")
    await eventually(lambda: world.conditions.get("Started").reason == "InternalError")
    assert under_way == []
    world.want("ray")
    await eventually(lambda: under_way == ["ray"])


@pytest.mark.parametrize("before", ["", "COMMIT"])
async def test_a_final_decision_is_said_and_ends_the_daemon(before: str) -> None:
    """Also while something runs that gives way to nothing else: it is cancelled, as in a crash."""
    made = World()
    made.part.during = lambda _what: asyncio.Event().wait()
    made.want(before)
    await eventually(lambda: made.part.acts == [before] * bool(before))
    made.want("the end")
    with pytest.raises(NodeRevokedError):
        await asyncio.wait_for(made.task, 20)
    assert made.says() == "it is over"
    assert made.board.facts.runs == ""


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_cancellation_is_like_a_crash(at: int) -> None:
    """Cancelled at whatever await, the loop ends, and another one reaches the goal from there."""
    made, turns = World(), 0

    async def take_turns(_what: str) -> None:
        nonlocal turns
        for _ in range(3):
            turns += 1
            if turns == at:
                made.task.cancel()
            await asyncio.sleep(0)

    made.part.during = take_turns
    made.want("ray")
    await asyncio.wait([made.task], timeout=20)
    assert made.task.cancelled()
    assert made.board.facts.runs == ""
    again = asyncio.ensure_future(run_part(made.part, made.board, made.conditions, SystemClock()))
    await eventually(lambda: made.board.facts.runs == "ray")
    again.cancel()
    await asyncio.wait([again])


async def only_short(what: str) -> None:
    if what == "long":
        await asyncio.Event().wait()


async def wait(event: asyncio.Event) -> None:
    await event.wait()
