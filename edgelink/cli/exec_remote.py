"""Run a command on other nodes: its output comes here, and what is typed and signalled here goes there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from edgelink.cli.layout import say
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError, UsageError
from edgelink.launch.program_output import in_lines, to_terminal
from edgelink.launch.remote_channel import ERRORS, MAX_DATA_BYTES
from edgelink.launch.remote_program import Program, RemoteProgram, remote_program
from edgelink.process.becoming import shell_status

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LONGEST_LINE = 64 * 1024  # is cut into several


def run_on(nodes: Sequence[str], argv: Sequence[str], *, cwd: str | None, has_input: bool) -> int:
    """Run ``argv`` on each of ``nodes`` at once, and return the first exit status in their order that is not 0.

    Raises:
        EdgelinkError: one node alone was asked, and the program does not run there.
    """
    several = len(set(nodes)) > 1
    if several and has_input:
        raise UsageError("-i goes with one NODE", hint="name one node, or leave -i out")
    program = Program(argv, {}, cwd=cwd, has_input=has_input)
    return asyncio.run(_Session(tuple(dict.fromkeys(nodes)), program).run())


class _Session:
    """One command on some nodes."""

    def __init__(self, nodes: tuple[str, ...], program: Program) -> None:
        self._nodes = nodes
        self._program = program
        self._running: dict[str, RemoteProgram] = {}
        self._signalled = 0  # the last signal that came here
        self._times = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        tasks = {node: loop.create_task(self._on(node)) for node in self._nodes}
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._pass_on, number, tasks)
        found = await asyncio.gather(*tasks.values(), return_exceptions=True)
        statuses = [self._status(node, each) for node, each in zip(self._nodes, found, strict=True)]
        return next((status for status in statuses if status), 0)

    def _status(self, node: str, found: int | BaseException) -> int:
        if isinstance(found, EdgelinkError) and len(self._nodes) > 1:
            message = found.message if found.message.startswith(node) else f"{node}: {found.message}"
            say(f"{message}; {found.hint}" if found.hint else message)
            return int(found.exit_code)
        if isinstance(found, asyncio.CancelledError):
            return 128 + self._signalled
        if isinstance(found, BaseException):
            raise found
        return found

    def _pass_on(self, number: int, tasks: dict[str, asyncio.Task[int]]) -> None:
        """Give the signal to the programs. Whoever does not run yet, or got it twice before, is given up."""
        self._signalled = number
        self._times += 1
        for node, task in tasks.items():
            if self._times > 2 or node not in self._running:
                task.cancel()
            else:
                self._running[node].send_signal(number)

    async def _on(self, node: str) -> int:
        async with remote_program(Paths.from_environment().node_socket, node, self._program) as running:
            self._running[node] = running
            loop = asyncio.get_running_loop()
            typing = loop.create_task(_give_input(running)) if self._program.has_input else None
            try:
                await self._show(node, running)
            finally:
                if typing is not None:
                    typing.cancel()
        assert running.status is not None
        return shell_status(running.status)

    async def _show(self, node: str, running: RemoteProgram) -> None:
        """Print what the program says: of one node as it comes, of several in whole lines with the node's name."""
        if len(self._nodes) > 1:
            await in_lines(running.output(), f"{node} | ".encode(), to_terminal, longest=_LONGEST_LINE)
            return
        async for kind, data in running.output():
            await to_terminal(data, kind == ERRORS)


async def _give_input(running: RemoteProgram) -> None:
    while data := await asyncio.to_thread(os.read, sys.stdin.fileno(), MAX_DATA_BYTES):
        await running.send_input(data)
    await running.send_input(b"")
