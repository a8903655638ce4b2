"""Time-outs that are TimeoutErrors in every task and on every Python.

A task that was cancelled once stays marked (``Task.cancelling()``): what cleans up after a cancellation, and, before
Python 3.13, whatever goes on after a task group of which a task failed while the group was already waiting for its end.
Before Python 3.11.3 (Debian 12 has 3.11.2) the end of an :func:`asyncio.timeout` in a marked task is a CancelledError,
which nobody expects there: a reconciler ended without a word, and a clean-up stayed half-done.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType


def timeout(timeout_s: float | None) -> AbstractAsyncContextManager[None]:
    """In place of :func:`asyncio.timeout`, everywhere.

    Args:
        timeout_s: how long the block may take; None: without end.

    Raises:
        TimeoutError: it took longer, also in a task that was cancelled before the block began. One that is cancelled
            while the block runs ends with CancelledError, as ever.
    """
    return _Timeout(timeout_s)


class _Timeout(AbstractAsyncContextManager[None]):
    def __init__(self, timeout_s: float | None) -> None:
        self._timeout = asyncio.timeout(timeout_s)  # noqa: TID251 - what it gets wrong is put right below
        self._task: asyncio.Task[object] | None = None
        self._marks_before = 0

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._task = asyncio.current_task()
        assert self._task is not None  # asyncio.timeout has refused otherwise
        self._marks_before = self._task.cancelling()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)
        if kind is not asyncio.CancelledError or not self._timeout.expired():
            return
        assert self._task is not None
        if self._task.cancelling() <= self._marks_before:  # nobody else has cancelled it meanwhile
            raise TimeoutError from error
