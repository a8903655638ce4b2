"""Slots that bound how many lab nodes of this machine start Ray at once, one per core and two at least.

A node's Ray starts five to seven Python processes. When several labs start theirs together, each misses Ray's own
time-outs, tries again, and makes it worse for the others. Each slot is a locked file, so it is free when its holder
dies, whatever killed it. Only the lab uses them: a node's daemon knows nothing of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgelink.clock import SystemClock
from edgelink.lab.state import LOCK_NAME

_LOOK_S = 0.2
_TELL_S = 10.0  # how long people wait without a word
_HOLDER_BYTES = 200


class RaySlots:
    """The slots whose files are in ``directory``, the same for all labs of a machine."""

    def __init__(self, directory: Path, clock: SystemClock, say: Callable[[str], None], count: int = 0) -> None:
        """``count``: how many there are; 0: as many as this process may use cores, and two at least."""
        self._clock = clock
        self._say = say
        self._files = [
            directory / f"{LOCK_NAME}-ray-{number}" for number in range(count or max(2, len(os.sched_getaffinity(0))))
        ]

    @contextmanager
    def held(self, who: str) -> Iterator[None]:
        """Hold a slot while ``who`` starts its Ray. Waits for one, however long that takes."""
        slot = self.take(who)
        try:
            yield
        finally:
            os.close(slot)

    def take(self, who: str) -> int:
        """Wait for a slot and return it: a file descriptor, whose end frees it.

        Never call this while holding another one: two labs that do would wait for each other.
        """
        tell_s = self._clock.monotonic_s() + _TELL_S
        told = False
        while (slot := self.take_free(who)) is None:
            if not told and self._clock.monotonic_s() >= tell_s:
                told = True
                holders = ", ".join(self.holders())
                self._say(f"  {who} waits: Ray starts on {len(self._files)} nodes of this machine already ({holders})")
            self._clock.block(_LOOK_S)
        return slot

    def take_free(self, who: str) -> int | None:
        """Return a slot, or None when all are held."""
        for file in self._files:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, who.encode()[:_HOLDER_BYTES], 0)
            return descriptor
        return None

    def holders(self) -> list[str]:
        """Return who took each slot last."""
        found = []
        for file in self._files:
            with suppress(OSError):
                found.append(file.read_text(errors="replace"))
        return found
