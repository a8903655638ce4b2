"""The attendant's process, from its start to its end; what it does between is in ``attendant.py``.

The order is what matters: a robot is given power last, and from then on nothing ends without a word to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any, TextIO

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.attendant import Attendant
from edgelink.training.trainer.robot.directory import FILE_MODE, LOCK, make_run_directory
from edgelink.training.trainer.robot.realtime import NS, now_ns, outlive_workers
from edgelink.training.trainer.robot.settings import LOCK_TIMEOUT_S, MAKE_TIMEOUT_S, ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock

_MESSAGE_BYTES = 1 << 20
_LOOK_S = 0.05
_END_TIMEOUT_S = 60.0  # of a control process that nobody wants: it stops its robot, once that is there


class Wish:
    """That all this ends: of a stopping machine, which sends SIGTERM, or of an env worker that is gone."""

    def __init__(self) -> None:
        self.is_told = False

    def check(self, worker: socket.socket) -> None:
        """Raises:
        OSError: nobody wants the robot any more.
        """
        if self.is_told:
            raise OSError("it was told to end (SIGTERM)")
        with contextlib.suppress(BlockingIOError):
            if not worker.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise ConnectionError("its env worker is gone")

    def hear(self, *_: object) -> None:
        """As a signal's handler."""
        self.is_told = True


def main() -> None:
    """The life of the process; its standard input is the socket to the env worker."""
    wish = Wish()
    signal.signal(signal.SIGTERM, wish.hear)  # first: it ends nothing in the middle
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() != 0:
        os._exit(0)  # so that init, or a container's first process, becomes the parent
    outlive_workers()
    worker = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    settings = ControlSettings.from_json(worker.recv(_MESSAGE_BYTES).decode())
    try:
        with only_one(settings, worker, wish) as lock:
            _attend(settings, worker, lock, wish)
    except OSError as error:
        with contextlib.suppress(OSError):  # who wanted it may be gone
            worker.send(json.dumps({"error": str(error)}).encode())


def only_one(settings: ControlSettings, worker: socket.socket, wish: Wish) -> TextIO:
    """The lock without which nobody commands this robot: a run before this one may still bring it to rest.

    Raises:
        OSError: somebody else has it and keeps it, or nobody wants the robot any more.
    """
    path = make_run_directory() / f"{settings.name}{LOCK}"
    lock = path.open("a+")
    path.chmod(FILE_MODE)
    ends_ns = now_ns() + round(LOCK_TIMEOUT_S * NS)
    while True:
        wish.check(worker)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if now_ns() > ends_ns:
                lock.seek(0)
                holder = lock.read().strip()
                lock.close()
                raise OSError(
                    f"another control process commands it (started by pid {holder}) and has not come to rest for "
                    f"{LOCK_TIMEOUT_S:.0f} s; look at `edgelink robot status`"
                ) from None
            select.select([], [], [], _LOOK_S)
            continue
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock


def _attend(settings: ControlSettings, worker: socket.socket, lock: TextIO, wish: Wish) -> None:
    """From the files, without which there is no robot, to its end.

    Raises:
        OSError: the robot is not there, or something that it needs.
    """
    attendant = Attendant(settings, worker)
    control: subprocess.Popen[bytes] | None = None
    block: SharedBlock | None = None
    try:
        control, link = _start_control(settings, lock)
        packet, descriptor = _hear_hello(control, link, worker, wish)
        hello: dict[str, Any] = json.loads(packet)
        block = SharedBlock(
            Layout(Spaces.from_dict(hello["spaces"]), hello["rigs"], settings.ring_rows, hello["action_repeat"]),
            descriptor,
        )
        attendant.adopt(hello, block, control, link)
    except BaseException as error:
        with contextlib.suppress(OSError):  # at once: whoever waits for it need not wait for the rest
            worker.send(json.dumps({"error": str(error)}).encode())
        if control is not None:
            _end(control, link, block, attendant)
        attendant.close()
        if not isinstance(error, OSError):
            raise
        return
    with contextlib.suppress(OSError):  # who wanted it may be gone: its end of the socket says so, and ends us in order
        socket.send_fds(worker, [json.dumps(hello).encode()], [descriptor])
    attendant.run(lambda: wish.is_told)


def _start_control(settings: ControlSettings, lock: TextIO) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """With its settings and the lock, which is thereby held until both are gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(ours, [settings.to_json().encode()], [lock.fileno()])
        control = subprocess.Popen(
            [sys.executable, "-m", "edgelink.training.trainer.robot.control"], stdin=theirs.fileno()
        )
    return control, ours


def _hear_hello(
    control: subprocess.Popen[bytes], link: socket.socket, worker: socket.socket, wish: Wish
) -> tuple[bytes, int]:
    """What the control process says of the robot, and the memory.

    Raises:
        OSError: there is no robot, or nobody wants it any more.
    """
    ends_ns = now_ns() + round(MAKE_TIMEOUT_S * NS)
    while not select.select([link], [], [], _LOOK_S)[0]:
        wish.check(worker)
        if control.poll() is not None and not select.select([link], [], [], 0)[0]:
            raise OSError(f"its control process has ended with status {control.returncode}")
        if now_ns() > ends_ns:
            raise TimeoutError(f"the robot's code has not come back for {MAKE_TIMEOUT_S:.0f} s")
    packet, descriptors, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 1)
    if not packet:
        raise OSError(f"its control process has ended with status {control.wait()}")
    if not descriptors:
        raise OSError(json.loads(packet)["error"])
    os.set_inheritable(descriptors[0], False)
    return packet, descriptors[0]


def _end(
    control: subprocess.Popen[bytes], link: socket.socket, block: SharedBlock | None, attendant: Attendant
) -> None:
    """Of a control process that came too late, or to nobody: it stops its robot. Killed only if it does not end."""
    if block is not None:
        block.words.close_request = 1
    link.close()  # a hello that comes now fails
    try:
        control.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        control.kill()
        control.wait()
        attendant.died("the control process was killed: the robot's code did not come back when it was to end")


if __name__ == "__main__":
    main()
