"""A program on another node, seen from the node that asked for it. See ADR 0044::

    async with remote_program(socket_path, "edge-1", Program(["hostname"], {})) as program:
        async for kind, data in program.output():     # OUTPUT or ERRORS, and bytes
            ...
        status = program.status                       # negative: the signal that ended it

Leaving the block ends the program. The connection is this process's own; the daemon only signs the request.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacl.public import PrivateKey

from edgelink.api.client import call
from edgelink.errors import EdgelinkError, ExitCode, UntrustedError
from edgelink.launch import remote_channel as channel
from edgelink.launch.app_connections_asked import ConnectionsQuestion, Ends, bytes_in
from edgelink.launch.remote_channel import HELLO_WITHIN_S, PORT, Frames, Seal, agreed_key, framed
from edgelink.launch.remote_runner import keep_alive
from edgelink.timeouts import timeout

REFUSED = "ExecRefused"  # by the node, or it has no EdgeLink that listens yet


class RemoteProgramError(EdgelinkError):
    """The program does not run on the other node, or is not heard of any more."""

    reason = "NotRun"


class ConnectionLostError(RemoteProgramError):
    """The connection to the other node broke; the node ends the program, at the latest after ``ride_through``."""

    reason = "ConnectionLost"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


@dataclass(frozen=True)
class Program:
    """What to run. ``env`` comes on top of what the node gives to its own commands. ``cwd``: default its home."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    has_input: bool = False


class RemoteProgram:
    """A program that runs on ``node``. ``status`` is None until it has ended."""

    def __init__(
        self, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal, frames: Frames
    ) -> None:
        self.node = node
        self.status: int | None = None
        self.pid: int | None = None
        self.user: str = ""
        self.connection: Ends | None = _ends_of(writer)
        self._reader = reader
        self._writer = writer
        self._seal = seal
        self._frames = frames

    async def output(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield OUTPUT or ERRORS with what the program wrote, until it has ended.

        Raises:
            RemoteProgramError: it could not be started, or the connection broke.
        """
        async for kind, data in self._told():
            if kind in (channel.OUTPUT, channel.ERRORS):
                yield kind, data
            elif kind == channel.ENDED:
                self.status = int(json.loads(data)["status"])
                return
            elif kind == channel.FAILED:
                raise self._failed(json.loads(data))
        raise ConnectionLostError(
            f"{self.node}: the connection broke before the program ended",
            hint=f"the node ends the program once it notices; `edgelink ping {self.node}` shows whether it answers",
        )

    async def started(self) -> None:
        """Wait until the program runs. Raises RemoteProgramError as :meth:`output` does."""
        if self.pid is None:
            content = json.loads(await self._first(channel.STARTED))
            self.pid, self.user = int(content["pid"]), str(content["user"])

    async def connections(self) -> Mapping[Ends, int]:
        """Return what the node answers to a question about connections. Raises RemoteProgramError."""
        return bytes_in(json.loads(await self._first(channel.CONNECTIONS)))

    async def send_input(self, data: bytes) -> None:
        """Give ``data`` to the program's standard input; empty: it ends."""
        if not data:
            self._writer.write(self._seal.seal(channel.INPUT_END))
        for begin in range(0, len(data), channel.MAX_DATA_BYTES):
            self._writer.write(self._seal.seal(channel.INPUT, data[begin : begin + channel.MAX_DATA_BYTES]))
        with suppress(OSError):
            await self._writer.drain()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and to what it has started."""
        self._writer.write(self._seal.seal(channel.SIGNAL, str(int(number)).encode()))

    def give_up(self) -> None:
        """Treat the connection as broken."""
        self._writer.transport.abort()

    async def _first(self, wanted: bytes) -> bytes:
        """Return what the node says first. Raises RemoteProgramError where it is of another kind."""
        kind, data = await anext(self._told(), (b"", b""))
        if kind != wanted:
            closed = {"error": "it has closed the connection"}
            raise self._failed(json.loads(data) if kind == channel.FAILED else closed)
        return data

    def _failed(self, told: Mapping[str, str]) -> RemoteProgramError:
        return RemoteProgramError(f"{self.node}: {told['error']}", hint=told.get("hint", ""), reason=told.get("reason"))

    async def _told(self) -> AsyncIterator[tuple[bytes, bytes]]:
        pending = self._frames.feed(b"")
        while True:
            for frame in pending:
                yield self._seal.open(frame)
            try:
                data = await self._reader.read(channel.MAX_DATA_BYTES)
            except OSError:
                return
            if not data:
                return
            pending = self._frames.feed(data)


def _ends_of(writer: asyncio.StreamWriter) -> Ends | None:
    """Return both ends of a connection as the other end sees them. None: it is gone."""
    node, here = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    return (f"{node[0]}:{node[1]}", f"{here[0]}:{here[1]}") if node and here else None


@asynccontextmanager
async def remote_program(socket_path: Path, node: str, program: Program) -> AsyncIterator[RemoteProgram]:
    """Run a program on ``node`` until the block ends.

    Args:
        socket_path: of this machine's daemon.
        node: its name.

    Raises:
        EdgelinkError: the node does not answer, refuses, or cannot start the program; or this user may not ask.
    """
    order = {"argv": list(program.argv), "env": dict(program.env), "cwd": program.cwd, "has_input": program.has_input}
    async with _asked(socket_path, node, order) as running:
        await running.started()
        yield running


async def remote_connections(socket_path: Path, node: str, question: ConnectionsQuestion) -> Mapping[Ends, int]:
    """Ask a node about connections of its apps. No process is started there.

    Raises:
        EdgelinkError: as :func:`remote_program`.
    """
    async with _asked(socket_path, node, {"connections": question.to_dict()}) as asked:
        return await asked.connections()


@asynccontextmanager
async def _asked(socket_path: Path, node: str, order: Mapping[str, Any]) -> AsyncIterator[RemoteProgram]:
    """Connect to a node, and have it get a signed request with ``order``."""
    found: Any = await asyncio.to_thread(call, socket_path, "POST", "/exec/look", {"node": node})
    own = PrivateKey.generate()
    reader, writer, hello, frames = await hello_of(node, found["overlay_ip"])
    try:
        keep_alive(writer.get_extra_info("socket"), int(found["ride_through_s"]))
        body = {
            "node": node,
            "hello": hello.decode(),
            "asker_key": b64encode(bytes(own.public_key)).decode(),
            **order,
        }
        signed: Any = await asyncio.to_thread(call, socket_path, "POST", "/exec/sign", body)
        seal = Seal(agreed_key(own, b64decode(signed["node_key"])), is_asker=True)
        writer.write(framed(bytes(own.public_key)) + seal.seal(channel.REQUEST, signed["request"].encode()))
        yield RemoteProgram(node, reader, writer, seal, frames)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def hello_of(node: str, overlay_ip: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes, Frames]:
    """Return the connection, the node's hello, and what cuts the rest into frames.

    Raises:
        RemoteProgramError: it takes no programs from this node, or does not answer.
    """
    silent = RemoteProgramError(
        f"{node} does not answer at {overlay_ip}:{PORT}", hint=f"`edgelink ping {node}`", reason="NodeSilent"
    )
    try:
        async with timeout(HELLO_WITHIN_S):
            reader, writer = await asyncio.open_connection(overlay_ip, PORT)
    except (OSError, TimeoutError) as error:
        if isinstance(error, ConnectionRefusedError):
            raise RemoteProgramError(
                f"{node} takes no programs from this node",
                hint=f"`exec.accept` in the configuration of {node} says from whom: from the head, if it says nothing",
                reason=REFUSED,
            ) from error
        raise silent from error
    frames = Frames()
    try:
        async with timeout(HELLO_WITHIN_S):
            while data := await reader.read(channel.MAX_DATA_BYTES):
                for hello in frames.feed(data):
                    return reader, writer, hello, frames
    except TimeoutError as error:  # its kernel answers, and its daemon hangs
        writer.close()
        raise silent from error
    except (OSError, UntrustedError):
        pass
    writer.close()
    raise RemoteProgramError(
        f"{node} closed the connection at once",
        hint=f"`exec.accept` in the configuration of {node} says from whom it takes programs; its log says more",
        reason=REFUSED,
    )
