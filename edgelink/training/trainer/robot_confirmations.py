"""The driver's word to robots that the policy they have is still the newest one.

While robots alone give experience and none of them does, as a person has stopped it, there was an outage or it is
evaluated, no policy is made. Theirs would grow too old (``deadman.policy_timeout_s``), and they would wait for a newer
one for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.robot_notices import Asked
from edgelink.training.trainer.slots import Slot

_EVERY_S = 1.0


class Confirmations:
    """Tells the rollout workers of robots about once a second; the weights do not cross the link again for it."""

    def __init__(self, crew: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        self._crew = crew
        self._clock = clock
        self._next_s = clock()
        self._under_way: dict[Any, Slot] = {}  # by answers that have not come

    def look(self, slots: Iterable[Slot]) -> None:
        """Tell those whose last answer is here: nothing piles up towards a node that is silent. Never waits."""
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + _EVERY_S
        for answer in self._crew.arrived(self._under_way):
            del self._under_way[answer]
            with suppress(TrainerError, KeyError):  # gone: whoever needs it says so
                self._crew.value(answer)
        for slot in slots:
            if slot not in self._under_way.values():
                with suppress(TrainerError):
                    self._under_way[self._crew.call(slot, "nothing_newer")] = slot
