"""Signals and ends of processes through their pidfd, which cannot hit or watch a stranger that got the pid since."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from edgelink.process import procfs
from edgelink.process.identity import Identity
from edgelink.timeouts import timeout


async def signal_and_wait(pids: Iterable[int], signal_number: signal.Signals, timeout_s: float) -> None:
    """Send ``signal_number`` to all of ``pids`` and wait, ``timeout_s`` at most, until they have ended.

    Of one after the other: a Ray may have more processes than a daemon may have descriptors.
    """
    started: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError), _opened(pid) as descriptor:
            start_ticks = procfs.read_stat(pid).start_ticks
            signal.pidfd_send_signal(descriptor, signal_number)
            started[pid] = start_ticks  # it was there to be signalled, so until then nobody else had its pid
    with suppress(TimeoutError):
        async with timeout(timeout_s):
            for pid, start_ticks in started.items():
                await _wait_for_end(pid, start_ticks)


async def wait_for_end(identity: Identity) -> None:
    """Wait until this very process has ended, whoever its parent is; cancel-safe."""
    if identity.boot_id == procfs.boot_id():
        await _wait_for_end(identity.pid, identity.start_ticks)


async def _wait_for_end(pid: int, start_ticks: int) -> None:
    with suppress(ProcessLookupError), _opened(pid) as descriptor:
        # Only now is it certain that the descriptor is of this process and not of one that got its pid since.
        if procfs.read_stat(pid).start_ticks == start_ticks:
            await _readable(descriptor)


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    """The pidfd of a process; ProcessLookupError when it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, resolve)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
