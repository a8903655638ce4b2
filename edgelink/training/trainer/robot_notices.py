"""Who trains is not where the robots are: the driver tells which of them is stopped, and why, while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.slots import Slot

_EVERY_S = 5.0
_ANSWERS_WITHIN_S = 5.0  # across a WAN; who does not is not waited for


class Asked(Protocol):
    """What this needs of the crew."""

    def call(self, slot: Slot, method: str) -> Any: ...
    def arrived(self, answers: Iterable[Any]) -> list[Any]: ...
    def value(self, answer: Any) -> Any: ...


class Awaited(Asked, Protocol):
    """What is needed to wait for it."""

    def ready(self, answers: Sequence[Any], timeout_s: float) -> list[Any]: ...
    def forget(self, answer: Any) -> None: ...


def hindrances(crew: Awaited, slots: Iterable[Slot]) -> dict[Slot, Hindrance]:
    """Why the robot of each does not run at this moment; also where the worker does not say so soon."""
    found = {slot: Hindrance("it does not answer") for slot in slots}
    asked: dict[Any, Slot] = {}
    for slot in found:
        with suppress(TrainerError):  # gone: whoever needs it says so
            asked[crew.call(slot, "hindrance")] = slot
    until_s = time.monotonic() + _ANSWERS_WITHIN_S
    while asked and (left_s := until_s - time.monotonic()) > 0:
        for answer in crew.ready(list(asked), left_s):
            slot = asked.pop(answer)
            with suppress(TrainerError):
                found[slot] = crew.value(answer)
    for answer in asked:
        crew.forget(answer)
    return found


class RobotNotices:
    """Asks the env workers of robots now and then; each change is said once.

    Args:
        notices: what was said of a worker's robot as it was made: of a stop from before, which is a person's to end.
    """

    def __init__(
        self,
        crew: Asked,
        say: Callable[[str], None],
        notices: Mapping[Slot, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew = crew
        self._say = say
        self._told: dict[Slot, Hindrance] = {}
        for slot, notice in notices.items():
            self.said(slot, notice)
        self._clock = clock
        self._next_s = clock() + _EVERY_S
        self._asked: dict[Any, Slot] = {}

    def said(self, slot: Slot, notice: str) -> None:
        """By somebody else, of a robot that was made anew."""
        self._told[slot] = Hindrance(notice, needs_person=True)

    @property
    def waits_for_a_person(self) -> bool:
        """Whether a robot goes on only when a person says so."""
        return any(hindrance.needs_person for hindrance in self._told.values())

    def look(self, slots: Iterable[Slot]) -> None:
        """Hear who has answered, ask who has not been asked; never waits. ``slots``: those of robots at present."""
        for answer in self._crew.arrived(self._asked):
            slot = self._asked.pop(answer)
            try:
                self._hear(slot, self._crew.value(answer))
            except (TrainerError, KeyError):  # gone: whoever needs it says so
                self._told.pop(slot, None)
        present = set(slots)
        for slot in self._told.keys() - present:  # lost with its worker: nobody waits for that robot any more
            del self._told[slot]
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + _EVERY_S
        for slot in present:
            if slot not in self._asked.values():
                try:
                    self._asked[self._crew.call(slot, "hindrance")] = slot
                except TrainerError:
                    continue

    def _hear(self, slot: Slot, hindrance: Hindrance) -> None:
        before, words = self._told.get(slot, Hindrance()).words, hindrance.words
        self._told[slot] = hindrance
        if words and words != before:
            self._say(words)
        elif before and not words:
            self._say(f"{slot}: its robot goes on")
