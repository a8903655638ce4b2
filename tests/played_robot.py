"""A robot's control process that a test plays, and the env worker's end of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from obedient_robot import SPACES

from edgelink.training.trainer.robot import environment
from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.interface import Sensed
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock
from edgelink.training.trainer.robot.step_recorder import StepRecorder

SETTINGS = ControlSettings("obedient_robot:ObedientRobot", name="one", deadman=DeadmanSettings(), ring_rows=8)
NAMES = Names(("rail.pos", "rail.vel"), ("rail.vel",))
HELLO: dict[str, Any] = {"rate_hz": 100.0, "action_repeat": 2, "names": NAMES.to_dict()}


class Robot:
    """A control process as the others see it; ``play`` writes steps, each with a reward of 1."""

    def __init__(self, ring_rows: int = SETTINGS.ring_rows) -> None:
        self.block = SharedBlock(Layout(SPACES, 1, ring_rows, HELLO["action_repeat"]))
        self.recorder = StepRecorder(self.block)
        self.version = 1

    def play(self, steps: int, *, is_new: bool = True, ends: bool = False) -> None:
        """Of an attempt that is new or goes on, to its end or not."""
        if is_new:
            self.recorder.reset(np.ones(1, np.bool_))
        for step in range(steps):
            seen, one = np.zeros((1, 2), np.float32), np.ones((1, 1), np.float32)
            self.recorder.begin(0, self.version, seen, one, one[0])
            self.recorder.commanded(0, one / 2)
            self.recorder.commanded(1, one)
            is_end = np.asarray([ends and step == steps - 1])
            sensed = Sensed(seen, one[0], is_end, np.zeros(1, np.bool_))
            self.recorder.reward(sensed)
            self.recorder.finish(sensed)


@contextmanager
def attached_to(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RobotEnvironment, socket.socket]]:
    """An env worker's end of ``robot``, and the attendant's end of the socket between them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    about = {"spaces": asdict(SPACES), "rigs": 1, "pid": 1, "stop": None, "resumes": "manual"}
    hello = json.dumps({**about, **HELLO}).encode()
    socket.send_fds(theirs, [hello], [robot.block.descriptor])
    monkeypatch.setattr(environment, "_start", lambda settings: ours)
    worker = RobotEnvironment(replace(SETTINGS, ring_rows=robot.block.layout.ring_rows))
    yield worker, theirs
    theirs.close()
    worker.close()
