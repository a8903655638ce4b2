"""What a short-lived child answers on its pipes: never without bound, since it may be a foreign program.

It is started in a session of its own (``start_new_session``), so that what it leaves behind can be ended with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from edgelink.process import procfs
from edgelink.timeouts import timeout

_LOOK_S = 0.1  # whether it has ended: asyncio tells only once its pipes are closed as well
_LAST_WORDS_S = 1.0  # for what is in its pipes when it has ended: 64 KiB each
_FAREWELL_S = 2.0
_CHUNK_BYTES = 64 * 1024
_COMPLAINT_BYTES = 16 * 1024


class AnswerTooLongError(Exception):
    """More than was agreed on came; the child is still there."""


async def answer_of(process: asyncio.subprocess.Process, max_bytes: int) -> tuple[bytes, bytes]:
    """The whole standard output of ``process``, and the end of its standard error, once it has ended.

    Streams that are not piped are empty. What it started may hold its pipes on: nobody waits for that. The caller does
    :func:`end` it in any case.

    Raises:
        AnswerTooLongError: its output is longer than ``max_bytes``.
    """
    output, complaint = bytearray(), bytearray()
    tasks = [
        asyncio.ensure_future(_read_all(process.stdout, output, max_bytes)),
        asyncio.ensure_future(_read_end(process.stderr, complaint)),
    ]
    try:
        reading = set(tasks)
        while reading and process.returncode is None:
            done, reading = await asyncio.wait(reading, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        if reading:
            done, _ = await asyncio.wait(reading, timeout=_LAST_WORDS_S)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a stream has one reader at a time
    if process.returncode is None:
        await process.wait()
    return bytes(output), bytes(complaint)


async def short_answer(*command: str, timeout_s: float, max_bytes: int) -> tuple[int | None, bytes] | None:
    """Return the exit status and the output of a program. None: it did not answer in time, or said too much.

    Raises:
        OSError: it cannot be run.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with timeout(timeout_s):
            output, _ = await answer_of(process, max_bytes)
    except (TimeoutError, AnswerTooLongError):
        return None
    finally:
        await end(process)
    return process.returncode, output


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill ``process`` and what it left in its session, wait for its end, and close its pipes; idempotent.

    asyncio waits for the end of its pipes as well, which never comes where nobody reads on, or where a process that it
    started has them, too: they are read for a moment, and then left.
    """
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    if transport.is_closing():
        return
    with suppress(ProcessLookupError):
        process.kill()
    for pid in procfs.session_members(process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    try:
        with suppress(TimeoutError):
            async with timeout(_FAREWELL_S):
                rest = bytearray()
                await asyncio.gather(_read_end(process.stdout, rest), _read_end(process.stderr, rest), process.wait())
    finally:
        transport.close()


async def _read_all(stream: asyncio.StreamReader | None, into: bytearray, max_bytes: int) -> None:
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        into += chunk
        if len(into) > max_bytes:
            raise AnswerTooLongError


async def _read_end(stream: asyncio.StreamReader | None, into: bytearray) -> None:
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        into += chunk
        del into[:-_COMPLAINT_BYTES]
