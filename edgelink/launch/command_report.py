"""Hears from the driver's programs with which words Python started them, and answers whether they may go on.

A shell has done its part by then: arrays, ``${GPUS:-8}`` and scripts within scripts are plain words. The import hook
(ADR 0045) reports them when a program first imports a framework, and waits two seconds at most.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SOCKET = "EDGELINK_RUN_SOCKET"
_MOST_BYTES = 4 * 1024 * 1024  # the kernel lets a command line have 2 MiB
_READ_S = 5.0
_UCRED = struct.Struct("3i")  # process, user and group, as the kernel knows them


@dataclass(frozen=True)
class StartedProgram:
    """``package``: what it imported. ``words``: the whole command line, the interpreter first. ``pid``: its process."""

    package: str
    python: str
    words: tuple[str, ...]
    pid: int = 0


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, may_go_on: Callable[[StartedProgram], bool]) -> None:
        super().__init__(str(path), _Handler)
        self.may_go_on = may_go_on

    def handle_error(self, request: object, client_address: object) -> None:
        """A program that has gone, or that says what nobody understands, is no news."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = _READ_S
    server: _Server

    def handle(self) -> None:
        told = json.loads(self.rfile.readline(_MOST_BYTES))
        pid, _, _ = _UCRED.unpack(self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        started = StartedProgram(str(told["package"]), str(told["python"]), tuple(map(str, told["words"])), pid)
        answer = {"go_on": self.server.may_go_on(started)}
        with suppress(OSError):  # it has gone on meanwhile
            self.wfile.write(json.dumps(answer).encode() + b"\n")


@contextmanager
def command_reports(path: Path, may_go_on: Callable[[StartedProgram], bool]) -> Iterator[dict[str, str]]:
    """Listen at ``path``, and yield what the driver's environment needs to report there.

    Where nobody can listen, such as on a path that is too long for a socket, nobody reports.

    Args:
        may_go_on: called in a thread of its own for each program; False ends the program.
    """
    try:
        server = _Server(path, may_go_on)
    except OSError:
        yield {}
        return
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield {SOCKET: str(path)}
        finally:
            server.shutdown()
            thread.join()
