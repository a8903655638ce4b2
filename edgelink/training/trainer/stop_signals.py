"""SIGINT, SIGTERM and SIGHUP end the trainer wherever it waits, and never in the middle of a file that it writes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Stopped(BaseException):
    """Asked to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopSignals:
    """Turns the first of them into :class:`Stopped`, in the main thread; the second one ends the process at once."""

    def __init__(self) -> None:
        self._number: int | None = None  # of the one that came
        self._deferrals = 0

    def listen(self) -> None:
        """From now on they are ours, but for those that nohup, or a shell's background, has us ignore."""
        if self._number is None:
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._hear)

    def release(self) -> None:
        """The run is over: what is left to do, nothing need wait for."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == self._hear:
                signal.signal(number, signal.SIG_DFL)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """To ``ray.init``, which takes SIGTERM for itself, and ends the process with its number; then ours again.

        Raises:
            Stopped: it came meanwhile.
        """
        try:
            yield
        except SystemExit as error:
            raise Stopped(signal.SIGTERM) from error
        finally:
            self.listen()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """What is done inside is done whole; a signal that comes meanwhile raises after it.

        So does one that came before and whose exception was lost: Python drops what is raised in a finalizer.

        Raises:
            Stopped: at the end, unless what was done inside failed.
        """
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
        if self._number is not None and not self._deferrals:
            raise Stopped(self._number)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._number = number
        self.release()  # the second time it is meant: Ray ends the workers of a driver that is gone
        # But a terminal that goes hangs up twice: the kernel tells us, and so does `edgelink run`.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if not self._deferrals:
            raise Stopped(number)


def stop_behind(error: BaseException) -> Stopped | None:
    """The stop that ``error`` is, or came of; libraries raise errors of their own when one passes through them."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, Stopped):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None
