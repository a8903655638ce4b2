"""Recordings of a robot as a LeRobot 0.4.4 dataset: read back by LeRobot, and replayed: by others, on the arm's model,
and by us, on the arm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from framework_python import FrameworkPython

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout

LOCK = Path(__file__).with_name("lerobot.lock")
REPLAY = Path(__file__).with_name("lerobot_replay.py")
EDGELINK = Path(sys.executable).with_name("edgelink")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="installs 300 MB: `make soak`"),
]
sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))


READ_IMAGES = """
import sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
dataset = LeRobotDataset("edgelink/seen", root=sys.argv[1])
frames = [dataset[index]["observation.image"].numpy() for index in range(dataset.num_frames)]
np.save(sys.argv[2], np.round(255 * np.moveaxis(np.stack(frames), 1, -1)).astype(np.uint8))
"""


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> FrameworkPython:
    python = FrameworkPython(tmp_path_factory.mktemp("lerobot") / "venv")
    python.install(LOCK)
    return python


def exported(recording: Path, target: Path, lerobot: FrameworkPython) -> None:
    to = ["--to", str(target), "--task", "reach the target", "--python", str(lerobot.python)]
    subprocess.run([EDGELINK, "robot", "export", str(recording), *to], check=True)


def test_what_a_camera_saw_is_read_as_it_was(tmp_path: Path, lerobot: FrameworkPython) -> None:
    """Images go in as images, without loss: each pixel comes back."""
    spaces = Spaces((24, 32, 3), "uint8", None, (-1.0,), (1.0,))
    rows = np.zeros(5, Layout(spaces, 1, 1, 1).row)
    rows["number"] = rows["step"][:, 0] = np.arange(1, 6)
    rows["follows"][1:] = 1
    rows["truncated"][-1] = 1
    rows["observations"] = np.random.default_rng(0).integers(0, 256, rows["observations"].shape)
    head = {"format": 2, "robot": "camera", "name": "c", "spaces": asdict(spaces), "rigs": 1, "action_repeat": 1}
    recording = tmp_path / "c-1.steps"
    recording.write_bytes(json.dumps({**head, "steps_per_s": 10.0}).encode() + b"\n" + rows.tobytes())
    exported(recording, tmp_path / "seen", lerobot)
    read = [str(lerobot.python), "-c", READ_IMAGES, str(tmp_path / "seen"), str(tmp_path / "images.npy")]
    subprocess.run(read, check=True)
    assert (np.load(tmp_path / "images.npy") == rows["observations"][:, 0]).all()


def test_what_a_robot_did_is_read_and_replayed_by_others(tmp_path: Path, lerobot: FrameworkPython) -> None:
    """The arm in real time; its steps as frames; from each, the same action leads to the same observation."""
    from robot_worker import weights

    robot = RobotEnvironment(ControlSettings("arm", directory=str(tmp_path / "robots"), record=str(tmp_path / "r")))
    try:
        robot.load_policy(1, weights(robot.spaces.features, robot.spaces.outputs, discrete=False))
        parts = robot.take(150, 60.0)
    finally:
        robot.close()
    assert parts is not None
    (recording,) = (tmp_path / "r").iterdir()

    exported(recording, tmp_path / "reach", lerobot)
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
    replayed = json.loads(subprocess.run([EDGELINK, *again], check=True, capture_output=True, text=True).stdout)
    assert replayed["commanded"] == replayed["steps"] == 100
    assert replayed["changed"] == 0
    assert replayed["start_off"] == pytest.approx(0, abs=1e-9), "the same seed, the same start"
    assert replayed["off"] < 0.1
