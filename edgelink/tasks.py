"""Work of which nothing sticks to the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """``work`` as a task of its own, for a loop that goes on when it fails.

    Two things forget that their task was cancelled, and the loop around them would go on for ever, and the daemon with
    it: a task group that fails in that moment (Python before 3.13), and asyncio.wait_for when its answer comes in that
    moment (before 3.12; the libraries for MQTT and ping use it). Here the cancellation counts, whatever ``work`` makes
    of it; what it returns or raises then is dropped.
    """
    task = asyncio.create_task(work)  # noqa: TID251 - owned: it has ended before this returns
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
            task.cancel()
    if cancellation is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen; or asyncio reports it as never retrieved
    raise cancellation
