"""What a short-lived child answers on its pipes: never without bound, since it may be a foreign program."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_FAREWELL_S = 2.0
_CHUNK_BYTES = 64 * 1024
_COMPLAINT_BYTES = 16 * 1024


class AnswerTooLongError(Exception):
    """More than was agreed on came; the child is still there."""


async def answer_of(process: asyncio.subprocess.Process, max_bytes: int) -> tuple[bytes, bytes]:
    """The whole standard output of ``process``, and the end of its standard error, once it has ended.

    Streams that are not piped are empty.

    Raises:
        AnswerTooLongError: its output is longer than ``max_bytes``; the caller does :func:`end` it.
    """
    tasks = [
        asyncio.ensure_future(_read_all(process.stdout, max_bytes)),
        asyncio.ensure_future(_read_end(process.stderr)),
    ]
    try:
        output, complaint = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a stream has one reader at a time
    await process.wait()
    return output, complaint


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill ``process`` and wait for its end; idempotent.

    asyncio waits for the end of its pipes as well, which never comes where nobody reads on, or where a process that it
    started has them, too: they are read for a moment, and then left.
    """
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await asyncio.gather(_read_end(process.stdout), _read_end(process.stderr), process.wait())


async def _read_all(stream: asyncio.StreamReader | None, max_bytes: int) -> bytes:
    data = b""
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        data += chunk
        if len(data) > max_bytes:
            raise AnswerTooLongError
    return data


async def _read_end(stream: asyncio.StreamReader | None) -> bytes:
    data = b""
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        data = (data + chunk)[-_COMPLAINT_BYTES:]
    return data
