"""A board for tests, on which a test writes whatever facts it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.facts.board import Board
from edgelink.facts.derive import derive_all
from edgelink.facts.facts import Facts, contradictions
from edgelink.facts.part import Decision, Part


def give(board: Board[Facts], **facts: Any) -> None:
    """Write facts on any board, whoever their writer is."""
    for name, value in facts.items():
        board._put(name, value)


def pretend(board: Board[Facts], **facts: Any) -> None:
    """Write facts as they are, with nothing derived from them: for stand-ins that have only what a test needs."""
    board._facts = replace(board._facts, **facts)
    for name in facts:
        for wakeup in board._readers[name].values():
            if wakeup is not None:
                wakeup.set()


async def settle(part: Part[Any, Any], board: Board[Facts], conditions: ConditionSet, clock: Clock) -> float:
    """Have a part plan and act until there is nothing to do at this moment; when it looks again, in seconds.

    Fails when it never comes to rest. Raises what the part says ends the daemon.
    """
    done: object = None
    for _ in range(100):
        now = board.select(part.inputs, part.own)
        decision: Decision[Any] = part.plan(now, clock.monotonic_s())
        for said in decision.says:
            conditions.say(said)
        if decision.ends is not None:
            raise decision.ends
        if decision.does is None or (now, decision.does) == done:
            return decision.again_s
        done = (now, decision.does)
        await part.act(decision.does)
    raise AssertionError(f"{part.name} does not come to rest: {decision.does}")


class GivenBoard(Board[Facts]):
    """The parts under test claim and read as ever; :meth:`given` stands for all other parts.

    ``history`` has the facts after each change.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.history: list[Facts] = []

    def given(self, **facts: Any) -> None:
        """Write facts, whoever their writer is."""
        give(self, **facts)

    def _put(self, name: str, value: object) -> None:
        super()._put(name, value)
        self.history.append(self.facts)
        if found := contradictions(self.facts):
            raise AssertionError("; ".join(found))


def board_with(*, config: Config | None = None, **facts: Any) -> GivenBoard:
    """A board with these facts and what is derived from them."""
    board = GivenBoard(Facts())
    derive_all(board, config or Config())
    board.given(**facts)
    return board
