"""The control process of one robot: makes the robot, says what it is, and runs its loop. Started by the attendant.

Its standard input is a socket to the attendant, on which it gets its settings and says hello; after that it talks to
nobody but through shared memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from edgelink.training.trainer.experience.fragment import Observations
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import Robot, load_robot
from edgelink.training.trainer.robot.loop import ControlLoop
from edgelink.training.trainer.robot.realtime import be_on_time
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock

_MESSAGE_BYTES = 1 << 20


def main() -> None:
    """The life of the process."""
    # What ends a terminal or a service must not end the robot's clock in mid-motion: the attendant decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    settings = ControlSettings.from_json(link.recv(_MESSAGE_BYTES).decode())
    try:
        robot = load_robot(settings.robot)(settings.settings)
        _check_shape(robot.observe().observations, robot.spaces, robot.rigs)
        block = SharedBlock(Layout(robot.spaces, robot.rigs, settings.ring_rows))
        loop = ControlLoop(robot, block, settings.deadman, watchdog_s=settings.watchdog_s, seed=settings.settings.seed)
    except Exception as error:  # others' code; it is told to whoever started us
        link.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    notes = be_on_time(settings.priority, settings.cpu)
    hello = {
        "spaces": asdict(robot.spaces),
        "rigs": robot.rigs,
        "rate_hz": robot.rate_hz,
        "action_repeat": robot.action_repeat,
        "resumes": settings.deadman.resume or robot.resumes,
        "notes": notes,
        "pid": os.getpid(),
    }
    with contextlib.suppress(OSError):  # whoever started us did not wait; the robot is at rest
        _command(robot, loop, lambda: socket.send_fds(link, [json.dumps(hello).encode()], [block.descriptor]))
    _leave(robot, block, link)


def _command(robot: Robot, loop: ControlLoop, say_hello: Callable[[], object]) -> None:
    """The robot is stopped at last, whatever ends the loop."""
    try:
        say_hello()
        loop.run()
    finally:
        with contextlib.suppress(BaseException):
            robot.stop()


def _check_shape(seen: Observations, spaces: Spaces, rigs: int) -> None:
    wanted = (rigs, *spaces.observation_shape)
    if np.shape(seen) != wanted or seen.dtype != spaces.observation_dtype:
        raise ValueError(
            f"observe() gave {seen.dtype} of shape {np.shape(seen)}, its spaces say "
            f"{spaces.observation_dtype} of shape {wanted}"
        )


def _leave(robot: Robot, block: SharedBlock, link: socket.socket) -> None:
    report = {}
    with contextlib.suppress(Exception):  # the robot is at rest; what its code says now changes nothing
        report = robot.report()
    with contextlib.suppress(Exception):
        robot.close()
    block.words.ended = 1
    with contextlib.suppress(OSError):
        link.send(json.dumps({"report": report}).encode())


if __name__ == "__main__":
    main()
