"""The simulated arm as a robot: its control process talks to the arm's own process as to a device."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.arm.model import ATTEMPT_STEPS, FEATURES, JOINTS, STEP_S, reward
from edgelink.training.trainer.robot.arm.plant import BEGIN, BRAKE, COMMAND, PERIOD_S, SPEEDS, STATE
from edgelink.training.trainer.robot.interface import AUTOMATIC, Limits, Robot, RobotSettings, Sensed

_READY_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 3.0
_SILENCE_S = 0.2  # the arm tells its state every 4 ms; a device that is silent is not to be commanded
_MAX_CHANGE_PER_S = 200.0  # from full speed to full speed the other way in 10 ms
_MIN_TIP_M = 0.02  # the finger tip stays above the table
_JOINT_NAMES = ("turn", "shoulder", "elbow")
_AXES = ("x", "y", "z")


class ArmRobot(Robot):
    """Options: ``priority``, of the arm's own process in SCHED_FIFO (default 60)."""

    resumes = AUTOMATIC
    observation_names = (
        *(f"{joint}.{what}" for what in ("pos", "vel") for joint in _JOINT_NAMES),
        *(f"{what}.{axis}" for what in ("to_target", "target") for axis in _AXES),
    )
    action_names = tuple(f"{joint}.vel" for joint in _JOINT_NAMES)

    def __init__(self, settings: RobotSettings) -> None:
        self.spaces = Spaces(
            observation_shape=(FEATURES,),
            observation_dtype="float32",
            action_count=None,
            action_low=(-1.0,) * JOINTS,
            action_high=(1.0,) * JOINTS,
        )
        self.limits = Limits(max_change_per_s=(_MAX_CHANGE_PER_S,) * JOINTS)
        self.rate_hz = settings.rate_hz or 100.0
        self.action_repeat = max(1, round(STEP_S * self.rate_hz))
        self._seed = settings.seed
        self._actions = np.zeros(JOINTS, np.float32)
        self._instants = 0
        self._silent = 0
        self._begun = 0  # attempts
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "edgelink.training.trainer.robot.arm.plant"]
            command.append(settings.options.get("priority", "60"))
            self._plant = subprocess.Popen(command, stdin=theirs.fileno())
        self._wire = ours
        ours.settimeout(_READY_TIMEOUT_S)
        self._state: tuple[Any, ...] = STATE.unpack(ours.recv(STATE.size) or self._gone())
        ours.setblocking(False)

    def reset(self, rigs: Bools) -> None:
        del rigs
        self._begun += 1
        self._instants = 0
        self._send(BEGIN, float(self._seed * 100_000 + self._begun))

    def observe(self) -> Sensed:
        self._read()
        begun, _, distance_m, *numbers = self._state
        return Sensed(
            np.asarray([numbers], np.float32),
            np.asarray([reward(distance_m, self._actions) / self.action_repeat], np.float32),
            np.zeros(1, np.bool_),
            np.asarray([self._instants >= ATTEMPT_STEPS * self.action_repeat]),
            is_ready=begun == self._begun,
        )

    def act(self, actions: Actions) -> None:
        self._actions = actions[0]
        self._instants += 1
        self._send(SPEEDS, *actions[0].tolist())

    def hold(self) -> None:
        """Under power, at a speed of zero."""
        self._send(SPEEDS)

    def stop(self) -> None:
        """Brakes on."""
        with contextlib.suppress(OSError):
            self._send(BRAKE)

    def workspace(self, sensed: Sensed, actions: Actions) -> Actions:
        """Not into the table: what would bend the arm further down is taken away when the tip is low."""
        seen = sensed.observations[0]
        tip_height_m = seen[11] - seen[8]  # the target's, less the way up to it
        if tip_height_m > _MIN_TIP_M:
            return actions
        shoulder_rad, fore_rad = seen[1], seen[1] + seen[2]  # of upper and fore arm, from upright
        lowering = np.array([np.sin(shoulder_rad) + np.sin(fore_rad), np.sin(fore_rad)])  # of shoulder and elbow
        kept = actions.copy()
        kept[0, 1:3] = np.where(np.sign(lowering) == np.sign(kept[0, 1:3]), 0.0, kept[0, 1:3])
        return kept

    def close(self) -> None:
        self._wire.close()
        try:
            self._plant.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._plant.kill()
            self._plant.wait()

    def report(self) -> dict[str, Any]:
        return {"attempts": self._begun, "plant_pid": self._plant.pid}

    def _read(self) -> None:
        """The newest state on the wire; the others are left behind."""
        self._silent += 1
        with contextlib.suppress(BlockingIOError):
            while True:
                self._state = STATE.unpack(self._wire.recv(STATE.size) or self._gone())
                self._silent = 0
        if self._silent > _SILENCE_S * self.rate_hz:
            raise TimeoutError(f"the arm has not told its state for {_SILENCE_S:g} s, {_SILENCE_S / PERIOD_S:.0f} due")

    def _send(self, what: int, *numbers: float) -> None:
        with contextlib.suppress(BlockingIOError):  # it does not listen just now, and brakes by itself
            self._wire.send(COMMAND.pack(what, *numbers, *[0.0] * (JOINTS - len(numbers))))

    def _gone(self) -> bytes:
        raise ConnectionError(f"the arm's process has ended with status {self._plant.poll()}")
