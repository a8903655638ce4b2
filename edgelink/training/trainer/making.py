"""Pairs of workers that are gone, or not there yet: when each is made, how long that may take, and when it is tried
again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.slots import Slot
from edgelink.training.trainer.whereabouts import Whereabouts

NODES_EVERY_S = 3.0  # Ray's nodes are looked at
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0  # before a pair is made anew
_STEADY_S = 120.0  # a pair that has lived so long begins with the first pause again


class Maker(Protocol):
    """What is needed of the crew."""

    def remake(self, index: int, kind: str) -> dict[Any, Slot] | None: ...
    def value(self, answer: Any) -> Any: ...
    def check(self, slot: Slot, found: Any) -> Whereabouts: ...
    def drop(self, index: int) -> None: ...


@dataclass
class _Gone:
    """A pair without workers, or one whose workers are being made."""

    next_s: float
    answers: dict[Any, Slot] | None = None
    until_s: float = 0.0  # while it is being made


class Making:
    """Times are those of ``clock``, in seconds."""

    def __init__(
        self,
        crew: Maker,
        say: Callable[[str], None],
        on_located: Callable[[Slot, Whereabouts, int], None],
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """``on_located`` is told where each worker of a pair is; ``timeout_s``: how long the making of one may take."""
        self._crew = crew
        self._say = say
        self._on_located = on_located
        self._clock = clock
        self._timeout_s = timeout_s
        self._gone: dict[int, _Gone] = {}
        self._pauses_s: dict[int, float] = {}  # before the last making of each
        self._lives_since_s: dict[int, float] = {}

    @property
    def answers(self) -> dict[Any, int]:
        """What is waited for, and of which pair."""
        return {answer: index for index, gone in self._gone.items() for answer in gone.answers or ()}

    @property
    def gone(self) -> list[int]:
        """Pairs that are not there, whether they are being made or not."""
        return list(self._gone)

    @property
    def slots(self) -> list[Slot]:
        """Workers that are being made and have not answered."""
        return [slot for gone in self._gone.values() for slot in (gone.answers or {}).values()]

    def lives(self, index: int) -> None:
        """A pair is there, from now on."""
        self._lives_since_s[index] = self._clock()
        self._gone.pop(index, None)

    def lost(self, index: int) -> None:
        """It is gone; it is made anew after a pause, which grows with each death soon after."""
        now_s = self._clock()
        is_steady = now_s - self._lives_since_s.get(index, now_s) >= _STEADY_S
        if is_steady:
            self._pauses_s.pop(index, None)
        self._put_off(index)

    def expect(self, index: int) -> None:
        """There is one more, to be made at once."""
        self._gone[index] = _Gone(self._clock())

    def begin(self, kind_of: Callable[[int], str | None]) -> None:
        """Begin with those whose time has come, and give up those that take too long.

        Args:
            kind_of: what the env worker of a pair is to be; None: the pair is not to be made.
        """
        now_s = self._clock()
        for index, gone in list(self._gone.items()):
            if gone.answers is not None:
                if now_s >= gone.until_s:
                    who = " and ".join(str(slot) for slot in gone.answers.values())
                    self._give_up(index, f"{who} did not start within {self._timeout_s:.0f} s")
            elif now_s >= gone.next_s and (kind := kind_of(index)) is not None:
                gone.next_s = now_s + max(NODES_EVERY_S, self._pauses_s.get(index, 0.0))
                gone.answers = self._crew.remake(index, kind)
                gone.until_s = now_s + self._timeout_s

    def located(self, answer: Any) -> int | None:
        """One of ``answers`` is here: the pair, if it is whole with that."""
        index = self.answers.get(answer)
        if index is None:  # its pair was given up because of the other one
            return None
        answers = self._gone[index].answers
        assert answers is not None
        slot = answers.pop(answer)
        try:
            found = self._crew.check(slot, self._crew.value(answer))
        except TrainerError as error:
            self._give_up(index, f"{error.message} ({error.hint})" if error.hint else error.message)
            return None
        self._on_located(slot, found, index)
        if answers:
            return None
        self.lives(index)
        return index

    def _give_up(self, index: int, why: str) -> None:
        self._crew.drop(index)
        self._say(f"{why}; it is tried again in {self._put_off(index):.0f} s")

    def _put_off(self, index: int) -> float:
        """The pause before it is tried again."""
        before_s = self._pauses_s.get(index)
        pause_s = _FIRST_PAUSE_S if before_s is None else min(_LONGEST_PAUSE_S, 2 * before_s)
        self._pauses_s[index] = pause_s
        self._gone[index] = _Gone(self._clock() + pause_s)
        return pause_s
