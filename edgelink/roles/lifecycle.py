"""How a daemon lives and ends: named tasks under one owner, stopped in order by a signal or a request.

Ctrl+C, ``edgelink stop`` and a container's SIGTERM end this node's children with the daemon. Under systemd
(NOTIFY_SOCKET is set) SIGTERM is a restart or an upgrade: the children are left to the next daemon, which adopts them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from edgelink.log import get_logger


class StopRequest:
    """Whether, and how, the daemon was asked to end."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.keep_children = False

    def request(self, *, keep_children: bool = False) -> None:
        self.keep_children = keep_children
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.request)
        under_systemd = "NOTIFY_SOCKET" in os.environ
        loop.add_signal_handler(signal.SIGTERM, lambda: self.request(keep_children=under_systemd))


async def run_until_stopped(
    stop: StopRequest,
    life: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]],
    stop_children: Callable[[], Awaitable[None]],
) -> None:
    """Run ``life(task_group)`` and all tasks it spawns until ``stop``; then end the children in order.

    The tasks are cancelled before the children are stopped, so that no reconciler brings back what is being ended.

    Raises:
        Exception: what ended ``life`` or one of its tasks, unwrapped when it is a single one. The children of a
            failed start are ended too: nothing half-started is left behind.
    """
    log = get_logger("daemon")
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_cancel_when_stopped(stop, tasks.create_task(_live(life), name="life")), name="stop")
    except* _Stopped:
        pass
    except* Exception as group:
        failure = _single(group)
    if stop.keep_children:
        log.info("daemon.leaving_children", why="systemd restarts or upgrades this daemon; the next one adopts them")
    else:
        await stop_children()
    if failure is not None:
        raise failure


class _Stopped(Exception):  # noqa: N818 - ends a task group, is not an error
    pass


async def _live(life: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        await life(tasks)
        await asyncio.Event().wait()  # tasks that end on their own do not end the daemon


async def _cancel_when_stopped(stop: StopRequest, life: asyncio.Task[None]) -> None:
    await stop.wait()
    life.cancel()
    raise _Stopped


def _single(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
