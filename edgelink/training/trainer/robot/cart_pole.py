"""The built-in cell: carts with poles, simulated in the control process; their clock is the control loop's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import AUTOMATIC, Robot, RobotSettings, Sensed

STEP_S = 0.02  # the step of the CartPole task: what is learned on the simulator holds here
ATTEMPT_S = 10.0  # 500 steps, as in CartPole-v1

# The constants of the CartPole task (Barto, Sutton, Anderson 1983).
_GRAVITY, _CART_KG, _POLE_KG, _HALF_POLE_M, _FORCE_N = 9.8, 1.0, 0.1, 0.5, 10.0
_MAX_POSITION_M, _MAX_ANGLE_RAD = 2.4, 12 * 2 * math.pi / 360


class CartPoleCell(Robot):
    """``settings.rigs`` carts. To hold and to stop, each is put back to its start and kept there."""

    resumes = AUTOMATIC
    observation_names = ("cart.pos", "cart.vel", "pole.pos", "pole.vel")
    action_names = ("cart.push",)

    def __init__(self, settings: RobotSettings) -> None:
        # The observations of CartPole-v1: position (m), speed (m/s), angle (rad), spin (rad/s).
        self.spaces = Spaces(observation_shape=(4,), observation_dtype="float32", action_count=2)
        self.rigs = settings.rigs
        self.rate_hz = settings.rate_hz or 100.0
        self.action_repeat = max(1, round(STEP_S * self.rate_hz))
        self._period_s = 1.0 / self.rate_hz
        self._generator = np.random.default_rng(settings.seed)
        self._states = self._start(self.rigs)
        self._age_s = np.zeros(self.rigs)
        self._is_home = np.ones(self.rigs, dtype=np.bool_)

    def reset(self, rigs: Bools) -> None:
        self._states[rigs] = self._start(int(np.count_nonzero(rigs)))
        self._age_s[rigs] = 0.0
        self._is_home |= rigs

    def observe(self) -> Sensed:
        failed = (np.abs(self._states[:, 0]) > _MAX_POSITION_M) | (np.abs(self._states[:, 2]) > _MAX_ANGLE_RAD)
        return Sensed(
            self._states.astype(np.float32),
            np.full(self.rigs, 1.0 / self.action_repeat, np.float32),
            failed,
            self._age_s >= ATTEMPT_S - self._period_s / 2,
        )

    def act(self, actions: Actions) -> None:
        """Push each cart left (0) or right (1) for one control period."""
        self._states = _pushed(self._states, actions, self._period_s)
        self._age_s += self._period_s
        self._is_home[:] = False

    def hold(self) -> None:
        if not self._is_home.all():
            self.reset(~self._is_home)

    def stop(self) -> None:
        self.hold()

    def _start(self, count: int) -> Any:
        return self._generator.uniform(-0.05, 0.05, size=(count, 4))


def _pushed(states: Any, actions: Actions, duration_s: float) -> Any:
    """The states ``duration_s`` later."""
    position, speed, angle, spin = states.T
    force = np.where(actions == 1, _FORCE_N, -_FORCE_N)
    sine, cosine = np.sin(angle), np.cos(angle)
    mass = _CART_KG + _POLE_KG
    push = (force + _POLE_KG * _HALF_POLE_M * spin**2 * sine) / mass
    spin_change = (_GRAVITY * sine - cosine * push) / (_HALF_POLE_M * (4.0 / 3.0 - _POLE_KG * cosine**2 / mass))
    speed_change = push - _POLE_KG * _HALF_POLE_M * spin_change * cosine / mass
    return np.stack(
        [
            position + duration_s * speed,
            speed + duration_s * speed_change,
            angle + duration_s * spin,
            spin + duration_s * spin_change,
        ],
        axis=1,
    )
