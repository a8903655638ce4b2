"""The simulated arm: its physics, and its reach task as a gymnasium environment."""

from __future__ import annotations

import os
import signal

import gymnasium
import numpy as np
import pytest

from edgelink.training.trainer.robot.arm.model import FEATURES, MAX_SPEED_RAD_S, ArmModel
from edgelink.training.trainer.robot.arm.plant import STATE
from edgelink.training.trainer.robot.arm.robot import ArmRobot
from edgelink.training.trainer.robot.interface import RobotSettings, Sensed

TASK = "edgelink.training.trainer.robot.arm.task:ArmReach-v0"


def test_the_task_is_a_registered_gymnasium_environment() -> None:
    """By its checked id; the same seed gives the same episode, which ends by its time limit."""
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium.make(TASK)
    check_env(environment.unwrapped, skip_render_check=True)
    first, _ = environment.reset(seed=3)
    again, _ = environment.reset(seed=3)
    other, _ = environment.reset(seed=4)
    assert (first == again).all()
    assert (first != other).any()
    lengths = 0
    is_over = False
    while not is_over:
        _, _, terminated, truncated, _ = environment.step(np.zeros(3, dtype=np.float32))
        is_over = terminated or truncated
        lengths += 1
    assert (lengths, terminated) == (100, False)


def test_a_joint_follows_its_commanded_speed() -> None:
    """A share of 0.5 of the greatest speed, for half a second."""
    arm = ArmModel()
    begun_rad = arm.angles_rad[0]
    arm.advance(np.array([0.5, 0.0, 0.0]), 250)
    assert arm.angles_rad[0] - begun_rad == pytest.approx(0.5 * MAX_SPEED_RAD_S * 0.5, rel=0.1)


def test_an_arm_without_commands_stays_where_it_is() -> None:
    """Gravity is compensated: a hold is a speed of zero."""
    arm = ArmModel()
    before_rad = arm.angles_rad.copy()
    arm.advance(np.zeros(3), 1000)
    assert np.abs(arm.angles_rad - before_rad).max() < 0.01


def test_the_arms_process_outlives_the_signals_that_end_a_service() -> None:
    """As a device does: it is still there to be brought to rest, and ends with its wire."""
    robot = ArmRobot(RobotSettings(options={"priority": "0"}))
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(robot._plant.pid, number)
        robot.reset(np.ones(1, np.bool_))
        robot._wire.settimeout(20)
        while STATE.unpack(robot._wire.recv(STATE.size))[0] < 1:
            pass
    finally:
        robot.close()
    assert robot._plant.returncode == 0


@pytest.mark.parametrize("angles_rad", [(0.0, 1.8, 2.0), (0.0, 1.8, 1.0), (0.5, -1.8, -2.0)])
def test_a_low_arm_is_not_bent_further_down(angles_rad: tuple[float, ...]) -> None:
    """Of each joint that way is taken away which brings the tip down; past its lowest, the other one."""
    arm = ArmModel()
    arm.place(np.array(angles_rad))
    seen = Sensed(arm.observation()[None], np.zeros(1), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    height_m = arm.tip_m[2]
    assert height_m < 0.02
    for joint in (1, 2):
        for sign in (-1.0, 1.0):
            action = np.zeros((1, 3), np.float32)
            action[0, joint] = sign
            moved = np.array(angles_rad)
            moved[joint] += sign * 1e-4
            arm.place(moved)
            kept = ArmRobot.workspace(ArmRobot.__new__(ArmRobot), seen, action)
            assert (kept[0, joint] == 0.0) == (arm.tip_m[2] < height_m)


def test_who_goes_to_the_target_gets_more() -> None:
    """A step down the gradient of the distance, against doing nothing."""
    environment = gymnasium.make(TASK)

    def total(is_moving: bool) -> float:
        observation, _ = environment.reset(seed=1)
        result = 0.0
        for _ in range(100):
            action = np.zeros(3, dtype=np.float32)
            if is_moving:
                action = np.clip(20 * _towards(observation), -1, 1).astype(np.float32)
            observation, reward, *_ = environment.step(action)
            result += float(reward)
        return result

    assert total(is_moving=True) > total(is_moving=False) + 10


def _towards(observation: np.ndarray) -> np.ndarray:
    """Joint speeds that move the tip along the way to the target: the transposed Jacobian, by differences."""
    assert len(observation) == FEATURES
    arm, angles, way = ArmModel(), observation[:3].astype(float), observation[6:9]
    arm.place(angles)
    tip = arm.tip_m.copy()
    columns = []
    for joint in range(3):
        arm.place(angles + 1e-4 * np.eye(3)[joint])
        columns.append((arm.tip_m - tip) / 1e-4)
    return np.asarray(columns) @ way
