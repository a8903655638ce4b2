"""The thread that writes to disks: one that is full or hangs delays nothing but what is to be written."""

from __future__ import annotations

import contextlib
import queue
import threading
import traceback
from collections.abc import Callable

_LOOK_S = 0.02


class DiskThread:
    """Does what it is given, in order, and ``looks`` again and again between; until it is closed."""

    def __init__(self, *looks: Callable[[], None]) -> None:
        self._looks = looks
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Never waits; without ``start`` it is done when that is called, or never."""
        self._work.put(work)

    def close(self, timeout_s: float) -> None:
        """Finish what is there. A disk that still hangs after ``timeout_s`` is left alone."""
        self._is_closing.set()
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_closing.is_set()  # before the last look at everything
            try:
                self._do(self._work.get(timeout=_LOOK_S))
                while True:
                    self._do(self._work.get_nowait())
            except queue.Empty:
                pass
            for look in self._looks:
                self._do(look)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # of one file; the others are written all the same
            with contextlib.suppress(Exception):  # the log may lie on the same full disk
                traceback.print_exc()
