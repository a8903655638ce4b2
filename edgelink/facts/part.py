"""Parts: each decides by facts what to say and what to do, and one loop runs them all.

A part is split in two. :meth:`Part.plan` decides: synchronous, pure, without a clock of its own. :meth:`Part.act` does
one thing, may take its time, and writes down what came of it. So no decision is made on facts that an ``await`` let
grow old: the loop plans again after each action, and at each change while an action runs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet, Said
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board
from edgelink.reconcile import Tries, Wakeup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOOK_S = 30.0  # events tell of changes; this look only makes up for a lost event
_CHANGED_S = 1.0  # after a failure, where something has changed meanwhile


class Action:
    """One thing to do. Actions are frozen dataclasses, so that two of them can be compared.

    ``gives_way``: it is cancelled once the plan wants another action. Never set where a cancellation does harm.
    """

    gives_way: ClassVar[bool] = False


Inputs = TypeVar("Inputs", bound="DataclassInstance")
Do = TypeVar("Do", bound=Action)


@dataclass(frozen=True)
class Decision(Generic[Do]):
    """The decision of a part: what to say, what to do now, and when to look again without a change.

    ``ends``: the error that ends the daemon, because no retry can help. Nothing is done then.
    """

    says: tuple[Said, ...] = ()
    does: Do | None = None
    again_s: float = LOOK_S
    ends: EdgelinkError | None = None


class Part(ABC, Generic[Inputs, Do]):
    """One part of a daemon.

    Attributes:
        name: for logs and the reference.
        condition: tells of an action that failed.
        inputs: the facts that it reads, a frozen dataclass. A field ``own`` holds what only the part itself knows.
        own: that, frozen; replaced by :meth:`act` and the part's watchers, who then wake the part.
        wakeup: makes the part plan again.
    """

    name: ClassVar[str]
    condition: ClassVar[str]
    inputs: type[Inputs]

    def __init__(self, board: Board[Any], own: Any = None) -> None:
        self.wakeup = Wakeup()
        self.own = own
        board.read(self.inputs, self.name, self.wakeup)

    @property
    def changes(self) -> int:
        """How often somebody has told the part of something that is no fact. A failure is tried again soon then."""
        return int(getattr(self.own, "changes", 0))

    def look_again(self) -> None:
        """Plan once more although no fact has changed. ``own`` counts that in its field ``changes``."""
        self.own = replace(self.own, changes=self.changes + 1)
        self.wakeup.set()

    @abstractmethod
    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        """Decide by ``now``, at ``at_s`` on the monotonic clock. Pure: no I/O, no clock, no change of the part."""

    async def act(self, action: Do) -> None:
        """Do one thing and write down what came of it. After a cancellation the next plan goes on as after a crash.

        A part that only says things has no actions.

        Raises:
            EdgelinkError: it failed; the loop says so in the part's condition and tries again.
        """
        raise NotImplementedError(f"{self.name}: {action}")


async def run_part(part: Part[Any, Any], board: Board[Any], conditions: ConditionSet, clock: Clock) -> None:
    """Plan and act until the task is cancelled or a decision ends the daemon.

    An action that was done and changed none of the inputs is not repeated before the decision's ``again_s``.

    Raises:
        EdgelinkError: the plan says that it ends the daemon; its exit code is the daemon's.
    """
    tries = Tries(part.name, part.condition, conditions, clock)
    done: tuple[object, object] | None = None  # inputs and action
    done_at_s = 0.0
    failed: type[Action] | None = None  # what goes well before it is tried again is not the end of its failure
    while True:
        own, changes, tried = part.own, part.changes, None
        now = board.select(part.inputs, own)
        try:
            decision = _planned(part, board, now, conditions, clock)
            if decision.ends is not None:
                break
            wait_s = decision.again_s
            if decision.does is not None:
                left_s = done_at_s + decision.again_s - clock.monotonic_s()
                if (now, decision.does) != done or left_s <= 0:
                    tried = type(decision.does)
                    await _act(part, decision.does, board, conditions, clock)
                    if failed in (None, tried):
                        failed = None
                        tries.went_well()
                    done, done_at_s = (now, decision.does), clock.monotonic_s()
                    continue
                wait_s = left_s
            failed = None
            tries.went_well()
        except Exception as failure:  # the loop is the one place where the unexpected ends
            done, failed, wait_s = None, tried, tries.failed(failure)
            # A wake-up is spent, if it came while the action ran.
            if part.changes != changes or board.select(part.inputs, own) != now:
                wait_s = min(wait_s, _CHANGED_S)
        await part.wakeup.wait(wait_s)
    raise decision.ends


def _planned(
    part: Part[Any, Any], board: Board[Any], now: Any, conditions: ConditionSet, clock: Clock
) -> Decision[Any]:
    at_s = clock.monotonic_s()
    decision: Decision[Any] = part.plan(now, at_s)
    board.decided(part.name, decision, at_s)
    for said in decision.says:
        conditions.say(said)
    return decision


async def _act(part: Part[Any, Any], action: Action, board: Board[Any], conditions: ConditionSet, clock: Clock) -> None:
    """Run the action to its end. Plan again at each change meanwhile: people read what it says, and it may give way.

    Any action gives way to the end of the daemon and to a defect of the plan: both are like a crash to it.
    """
    doing = asyncio.create_task(part.act(action), name=f"{part.name}: {type(action).__name__}")  # noqa: TID251 - owned
    doing.add_done_callback(lambda _done: part.wakeup.set())
    cancellation: asyncio.CancelledError | None = None
    failure: BaseException | None = None
    gave_way = False
    while not doing.done():
        try:
            await part.wakeup.wait(None)
        except asyncio.CancelledError as error:
            cancellation = error
            doing.cancel()
        if doing.done() or gave_way or cancellation is not None:
            continue
        try:
            decision = _planned(part, board, board.select(part.inputs, part.own), conditions, clock)
        except Exception as error:  # the loop says it once the action has ended: it would run beside the next one
            failure, gave_way = error, doing.cancel()
            continue
        is_replaced = action.gives_way and decision.does is not None and decision.does != action
        if is_replaced or decision.ends is not None:
            gave_way = doing.cancel()
    if not doing.cancelled():
        failure = doing.exception() or failure
    if cancellation is not None:
        raise cancellation
    if failure is not None:
        raise failure
