"""Runs one program for another node: a process of its own, so that no restart of the daemon ends what runs.

    remote_runner SOCKET

On that unix socket the daemon hands over the connection and a JSON object: what to run, as whom, and the key of the
connection. The program ends with the connection: its group gets SIGTERM, and SIGKILL five seconds later. An outage
ends nothing within ``ride_through``, because the kernel keeps the connection for so long.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from edgelink.clock import Clock, SystemClock
from edgelink.errors import UntrustedError
from edgelink.launch import remote_channel as channel
from edgelink.launch.remote_channel import Frames, Seal

_GRACE_S = 5.0
_PIPES_S = 1.0  # after the end of the program, for what its children still write
_KEEPALIVE_S = 15
_MOST_WAITING_BYTES = 256 * 1024  # of output that the other end has not taken: the program waits then
_MAX_MESSAGE_BYTES = 2 * 1024 * 1024


class Runner:
    """One program and the connection that it belongs to."""

    def __init__(self, connection: socket.socket, order: dict[str, Any], clock: Clock) -> None:
        self._clock = clock
        self._connection = connection
        self._order = order
        self._seal = Seal(bytes.fromhex(order["key"]), is_asker=False, sent=order["sent"], opened=order["opened"])
        self._frames = Frames()
        self._waiting = bytearray()  # for the other end
        self._input = bytearray()  # for the program
        self._input_ends = False
        self._stdin: int | None = None  # of the program, as long as it is open
        self._selector = selectors.DefaultSelector()
        self._is_connected = True
        self._ended_s: float | None = None  # when the program did
        self._told_to_end_s: float | None = None

    def run(self) -> None:
        """Run the program, and return when it has ended and all is told."""
        keep_alive(self._connection, self._order["ride_through_s"])
        self._connection.setblocking(False)
        try:
            program = self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: a NUL, or = in a name
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._tell(channel.FAILED, {"error": f"{self._order['argv'][0]}: cannot be started: {why}"})
            self._flush()
            return
        try:
            self._tell(channel.STARTED, {"pid": program.pid, "user": self._order["user"]})
            self._serve(program)
        finally:
            end_group(program.pid, signal.SIGKILL)
        self._flush()

    def _start(self) -> subprocess.Popen[bytes]:
        order = self._order
        return subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.PIPE if order["has_input"] else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            user=order["uid"] if os.geteuid() == 0 else None,
            group=order["gid"] if os.geteuid() == 0 else None,
            extra_groups=order["groups"] if os.geteuid() == 0 else None,
            umask=0o022,
        )

    def _serve(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        assert program.stderr is not None
        pipes = {program.stdout.fileno(): channel.OUTPUT, program.stderr.fileno(): channel.ERRORS}
        ended = os.pidfd_open(program.pid)
        told = os.pipe()  # SIGTERM of the daemon that ends
        for each in told:
            os.set_blocking(each, False)
        signal.set_wakeup_fd(told[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        if program.stdin is not None:
            self._stdin = os.dup(program.stdin.fileno())
            program.stdin.close()
            os.set_blocking(self._stdin, False)
        while pipes or self._ended_s is None:
            self._watch(pipes, ended if self._ended_s is None else None, told[0])
            for key, events in self._selector.select(self._patience_s()):
                if key.fd == ended:
                    self._ended_s = self._clock.monotonic_s()
                elif key.fd == told[0]:
                    os.read(told[0], 64)
                    self._tell(channel.FAILED, {"error": "EdgeLink was stopped on the node", "reason": "Stopped"})
                    self._end(program.pid)
                elif key.fd in pipes:
                    self._read_pipe(key.fd, pipes)
                elif key.fd == self._stdin:
                    self._write_input()
                else:
                    if events & selectors.EVENT_WRITE:
                        self._send()
                    if events & selectors.EVENT_READ:
                        self._receive(program)
            self._look_at_times(program.pid, pipes)
        self._tell(channel.ENDED, {"status": program.wait()})

    def _watch(self, pipes: dict[int, bytes], ended: int | None, told: int) -> None:
        """Watch what there is something to do with at this moment."""
        wanted = {told: selectors.EVENT_READ}
        if ended is not None:
            wanted[ended] = selectors.EVENT_READ
        if len(self._waiting) < _MOST_WAITING_BYTES:
            wanted |= dict.fromkeys(pipes, selectors.EVENT_READ)
        if self._is_connected:
            events = selectors.EVENT_WRITE if self._waiting else 0
            events |= selectors.EVENT_READ if len(self._input) < _MOST_WAITING_BYTES else 0
            wanted |= {self._connection.fileno(): events} if events else {}
        if self._stdin is not None and (self._input or self._input_ends):
            wanted[self._stdin] = selectors.EVENT_WRITE
        present = {key.fd: key.events for key in self._selector.get_map().values()}
        for fd in present.keys() - wanted.keys():
            self._selector.unregister(fd)
        for fd, events in wanted.items():
            if fd not in present:
                self._selector.register(fd, events)
            elif present[fd] != events:
                self._selector.modify(fd, events)

    def _patience_s(self) -> float | None:
        """Return how long there is nothing to do if nothing happens. None: for ever."""
        if self._ended_s is not None:  # what its children still write is waited for, unless nobody takes it
            due_s = self._ended_s + _PIPES_S if len(self._waiting) < _MOST_WAITING_BYTES else None
        else:
            due_s = None if self._told_to_end_s is None else self._told_to_end_s + _GRACE_S
        return None if due_s is None else max(0.0, due_s - self._clock.monotonic_s())

    def _look_at_times(self, pid: int, pipes: dict[int, bytes]) -> None:
        now_s = self._clock.monotonic_s()
        if self._told_to_end_s is not None and self._ended_s is None and now_s >= self._told_to_end_s + _GRACE_S:
            end_group(pid, signal.SIGKILL)
            self._told_to_end_s = now_s
        if self._ended_s is not None and now_s >= self._ended_s + _PIPES_S and len(self._waiting) < _MOST_WAITING_BYTES:
            pipes.clear()

    def _read_pipe(self, fd: int, pipes: dict[int, bytes]) -> None:
        data = os.read(fd, channel.MAX_DATA_BYTES)
        if data:
            self._waiting += self._seal.seal(pipes[fd], data) if self._is_connected else b""
        else:
            del pipes[fd]

    def _write_input(self) -> None:
        assert self._stdin is not None
        try:
            if self._input:
                del self._input[: os.write(self._stdin, self._input[: channel.MAX_DATA_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._input.clear()
            self._input_ends = True
        if self._input_ends and not self._input:
            self._selector.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def _receive(self, program: subprocess.Popen[bytes]) -> None:
        try:
            data = self._connection.recv(channel.MAX_DATA_BYTES)
            kinds = [self._seal.open(frame) for frame in self._frames.feed(data)]
        except BlockingIOError:
            return
        except (OSError, UntrustedError):
            data, kinds = b"", []
        if not data:
            self._is_connected = False
            self._waiting.clear()
            self._end(program.pid)
            return
        for kind, text in kinds:
            if kind == channel.INPUT and not self._input_ends:
                self._input += text
            elif kind == channel.INPUT_END:
                self._input_ends = True
            elif kind == channel.SIGNAL and self._ended_s is None:
                with suppress(ValueError):
                    end_group(program.pid, signal.Signals(int(text)))

    def _end(self, pid: int) -> None:
        if self._ended_s is None:
            self._told_to_end_s = self._clock.monotonic_s()
            end_group(pid, signal.SIGTERM)

    def _tell(self, kind: bytes, content: dict[str, Any]) -> None:
        if self._is_connected:
            self._waiting += self._seal.seal(kind, json.dumps(content).encode())

    def _send(self) -> None:
        try:
            del self._waiting[: self._connection.send(self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # what is to be done about it, reading will say
            self._waiting.clear()

    def _flush(self) -> None:
        """Send what is left, and wait until the other end has closed: what it has not taken would be lost."""
        with suppress(OSError):
            self._connection.settimeout(self._order["ride_through_s"])
            self._connection.sendall(self._waiting)
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(channel.MAX_DATA_BYTES):
                pass


def keep_alive(connection: socket.socket, ride_through_s: int) -> None:
    """Have the kernel find out within ``ride_through_s`` that the other end is gone, and not sooner."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(127, max(1, ride_through_s // _KEEPALIVE_S)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ride_through_s * 1000)


def end_group(pid: int, number: int) -> None:
    """Send a signal to the program's group; there may be none any more."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.connect(sys.argv[1])
        text, descriptors, _, _ = socket.recv_fds(daemon, _MAX_MESSAGE_BYTES, 1)
        while data := daemon.recv(_MAX_MESSAGE_BYTES):
            text += data
    with socket.socket(fileno=descriptors[0]) as connection:
        Runner(connection, json.loads(text), SystemClock()).run()


if __name__ == "__main__":
    main()
