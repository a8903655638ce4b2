"""Signals and ends of processes through their pidfd, which cannot hit or watch a stranger that got the pid since."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from edgelink.process import procfs
from edgelink.process.identity import Identity
from edgelink.timeouts import timeout


async def signal_and_wait(pids: Iterable[int], signal_number: signal.Signals, timeout_s: float) -> None:
    """Send ``signal_number`` to all of ``pids`` and wait, ``timeout_s`` at most, until they have ended."""
    descriptors = []
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))
    try:
        for descriptor in descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal_number)
        async with timeout(timeout_s):
            for descriptor in descriptors:
                await _readable(descriptor)
    except TimeoutError:
        pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def wait_for_end(identity: Identity) -> None:
    """Wait until this very process has ended, whoever its parent is; cancel-safe."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        # Only now is it certain that the descriptor is of our process and not of one that got its pid since. The
        # start time alone decides: a process that is just dying has no executable any more.
        if identity.boot_id == procfs.boot_id() and procfs.read_stat(identity.pid).start_ticks == identity.start_ticks:
            await _readable(descriptor)
    except ProcessLookupError:
        return
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
