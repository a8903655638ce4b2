"""A thread that owns an object: whoever asks for something of it, it is done there, one thing after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class OwnerThread:
    """Makes the calls that other threads ask for.

    No ThreadPoolExecutor: its threads are waited for when the process ends, also where a simulator hangs in a step.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def call(self, function: Callable[[], _T]) -> _T:
        """What ``function`` returns or raises there. If the caller is interrupted, it goes on to its end."""
        future: Future[_T] = Future()

        def work() -> None:
            try:
                result = function()
            except BaseException as error:  # whatever it is, it belongs to whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(work)
        return future.result()

    def _serve(self) -> None:
        while True:
            self._calls.get()()  # without a name, which would keep the last result until the next call
