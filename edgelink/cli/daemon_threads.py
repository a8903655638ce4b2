"""Threads for blocking calls that nobody has to wait for when the daemon ends.

asyncio resolves names in its default executor, whose threads are joined at the end of the program: a resolver that does
not answer would hold a daemon that has already ended its children for half a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class DaemonThreads(ThreadPoolExecutor):
    """One thread a call, which the end of the program does not wait for. asyncio insists on the base class."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # whatever it is, it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="blocking-call", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001 - as it is
        """Nothing to wait for: the threads end with the program."""


def run_daemon(daemon: Coroutine[Any, Any, None]) -> None:
    """Run a daemon's life to its end, whatever still hangs in a thread; does not return from a reload.

    The process stays, and with it its pid, what systemd knows of it, and its place before its children.
    """
    from edgelink.daemon.lifecycle import ReloadRequested

    async def live() -> None:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        await daemon

    try:
        asyncio.run(live())
    except ReloadRequested:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one more comes too early for the new program to hear it
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
