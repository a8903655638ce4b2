"""Recordings of a robot as a LeRobot 0.4.4 dataset: read back by LeRobot, and replayed: by others, on the arm's model,
and by us, on the arm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from framework_python import FrameworkPython

from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.settings import ControlSettings

LOCK = Path(__file__).with_name("lerobot.lock")
REPLAY = Path(__file__).with_name("lerobot_replay.py")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="installs 300 MB: `make soak`"),
]
sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))


def test_what_a_robot_did_is_read_and_replayed_by_others(tmp_path: Path) -> None:
    """The arm in real time; its steps as frames; from each, the same action leads to the same observation."""
    from robot_worker import weights

    lerobot = FrameworkPython(tmp_path / "venv")
    lerobot.install(LOCK)
    robot = RobotEnvironment(ControlSettings("arm", directory=str(tmp_path / "robots"), record=str(tmp_path / "r")))
    try:
        robot.load_policy(1, weights(robot.spaces.features, robot.spaces.outputs, discrete=False))
        parts = robot.take(150, 60.0)
    finally:
        robot.close()
    assert parts is not None
    (recording,) = (tmp_path / "r").iterdir()

    edgelink = Path(sys.executable).with_name("edgelink")
    to = ["--to", str(tmp_path / "reach"), "--task", "reach the target", "--python", str(lerobot.python)]
    subprocess.run([edgelink, "robot", "export", str(recording), *to], check=True)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    read = [str(lerobot.python), str(REPLAY), str(tmp_path / "reach")]
    told = json.loads(subprocess.run(read, env=env, check=True, capture_output=True, text=True).stdout)

    assert told["fps"] == 50
    assert told["episodes"] >= 2
    assert told["frames"] == robot.report()["recorded_steps"] >= 150
    assert told["task"] == "reach the target"
    assert told["rewards"][:150] == [round(float(reward), 4) for reward in parts["rewards"][:, 0]]
    # The arm has a clock of its own: under load a command may come a period later than the step says.
    assert told["replayed_same"] >= 0.9 * told["replayed"]

    again = ["robot", "replay", str(tmp_path / "reach"), "--episode=0", f"--python={lerobot.python}", "--json"]
    replayed = json.loads(subprocess.run([edgelink, *again], check=True, capture_output=True, text=True).stdout)
    assert replayed["commanded"] == replayed["steps"] == 100
    assert replayed["changed"] == 0
    assert replayed["start_off"] == 0, "the same seed, the same start"
    assert replayed["off"] < 0.1
