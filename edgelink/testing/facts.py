"""A board for tests, on which a test writes whatever facts it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgelink.config import Config
from edgelink.facts.board import Board
from edgelink.facts.derive import derive_all
from edgelink.facts.facts import Facts


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


def board_with(*, config: Config | None = None, **facts: Any) -> GivenBoard:
    """A board with these facts and what is derived from them."""
    board = GivenBoard(Facts())
    derive_all(board, config or Config())
    board.given(**facts)
    return board
