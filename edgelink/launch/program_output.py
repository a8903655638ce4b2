"""What a program prints, on its way to the terminal of who started it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from edgelink.launch.remote_channel import ERRORS

Write = Callable[[bytes, bool], Awaitable[None]]  # the text, and whether it is of the error stream


async def to_terminal(text: bytes, is_error: bool) -> None:  # noqa: FBT001 - as Write is called
    """Print ``text`` in a thread. Whoever reads slowly makes the program wait, and no signal."""
    stream = sys.stderr.buffer if is_error else sys.stdout.buffer

    def write() -> None:
        stream.write(text)
        stream.flush()

    await asyncio.to_thread(write)


async def in_lines(output: AsyncIterator[tuple[bytes, bytes]], prefix: bytes, write: Write, *, longest: int) -> None:
    """Write what a program prints in whole lines, each with ``prefix``. A line above ``longest`` bytes is cut."""
    rest = {False: b"", True: b""}
    try:
        async for kind, data in output:
            is_error = kind == ERRORS
            *lines, rest[is_error] = (rest[is_error] + data).split(b"\n")
            while len(rest[is_error]) > longest:
                lines.append(rest[is_error][:longest])
                rest[is_error] = rest[is_error][longest:]
            await write(b"".join(prefix + line + b"\n" for line in lines), is_error)
    finally:
        for is_error, line in rest.items():
            if line:
                await write(prefix + line + b"\n", is_error)
