"""Start a program on a node, here or elsewhere, and follow it: the same to whoever asks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from edgelink.launch.app_connections_asked import Ends
from edgelink.launch.apps_file import Where
from edgelink.launch.remote_channel import MAX_DATA_BYTES, OUTPUT
from edgelink.launch.remote_program import Program, RemoteProgramError, remote_program
from edgelink.launch.remote_runner import end_group
from edgelink.process import import_hook
from edgelink.timeouts import timeout
from edgelink.training.driver import END_WITH_US

_GRACE_S = 5.0  # as on other nodes


class Running(Protocol):
    """A program that runs, or has run: ``status`` is None, or negative where a signal ended it."""

    status: int | None
    connection: Ends | None  # the one that it ends with, as its node has it; None: it is on this machine

    def give_up(self) -> None:
        """Treat that connection as broken: its other end is gone."""

    def output(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield OUTPUT or ERRORS with what it wrote, until it has ended. Raises EdgelinkError."""

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to what it has started."""

    async def send_input(self, data: bytes) -> None:
        """Give it ``data`` on its standard input; empty: that is all."""


class Starter(Protocol):
    """Starts programs on nodes."""

    def start(self, where: Where, program: Program) -> AbstractAsyncContextManager[Running]:
        """Run the program until the block ends. Raises EdgelinkError where it does not start."""


class LocalProgram:
    """A program on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.status: int | None = None
        self.connection: Ends | None = None
        self._process = process

    def give_up(self) -> None:
        """There is no connection that could break."""

    async def output(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Both streams come as one, in the order in which they were written."""
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(MAX_DATA_BYTES):
            yield OUTPUT, data
        self.status = await self._process.wait()

    def send_signal(self, number: int) -> None:
        end_group(self._process.pid, number)

    async def send_input(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not data:
            self._process.stdin.close()
            return
        self._process.stdin.write(data)
        with suppress(OSError):
            await self._process.stdin.drain()


class NodePrograms:
    """Programs here are the caller's own; those elsewhere run as that node's configuration says (ADR 0044)."""

    def __init__(self, socket_path: Path, environ: Mapping[str, str]) -> None:
        self._socket_path = socket_path
        self._environ = environ

    def start(self, where: Where, program: Program) -> AbstractAsyncContextManager[Running]:
        if where.is_here:
            return self._here(program)
        return remote_program(self._socket_path, where.hostname, program)

    @asynccontextmanager
    async def _here(self, program: Program) -> AsyncIterator[Running]:
        try:
            process = await asyncio.create_subprocess_exec(
                *END_WITH_US,
                *program.argv,
                env=import_hook.kept_in_front({**self._environ, **program.env}),
                cwd=program.cwd,
                stdin=asyncio.subprocess.PIPE if program.has_input else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise RemoteProgramError(f"{program.argv[0]} cannot be started here: {error.strerror}") from error
        try:
            yield LocalProgram(process)
        finally:
            end_group(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with timeout(_GRACE_S):
                    await process.wait()
            end_group(process.pid, signal.SIGKILL)
            await process.wait()


async def answer_of(
    starter: Starter, where: Where, argv: Sequence[str], *, text: bytes | None = None
) -> tuple[int, str]:
    """Run a short program on a node, and return its exit status and what it printed. Raises EdgelinkError."""
    program = Program(argv, {}, has_input=text is not None)
    printed = bytearray()
    async with starter.start(where, program) as running:
        if text is not None:
            await running.send_input(text)
            await running.send_input(b"")
        async for kind, data in running.output():
            if kind == OUTPUT and len(printed) < MAX_DATA_BYTES:
                printed += data
    assert running.status is not None
    return running.status, printed.decode(errors="replace")
