"""Reads a dataset by LeRobot and replays it on the simulated arm; run by the interpreter that has LeRobot."""

from __future__ import annotations

import json
import sys
from itertools import pairwise

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from edgelink.training.trainer.robot.arm.model import STEP_S, TIMESTEP_S, ArmModel

SAME = 1e-4  # float32, and a hundred steps of physics


def main() -> None:
    """Prints what the dataset says of itself, and of each step, how far the replayed observation is from it."""
    dataset = LeRobotDataset("edgelink/reach", root=sys.argv[1])
    frames = [dataset[index] for index in range(dataset.num_frames)]
    arm, off = ArmModel(), []
    for frame, following in pairwise(frames):
        if int(frame["episode_index"]) != int(following["episode_index"]):
            continue
        arm.restore(frame["observation.state"].numpy())
        arm.advance(frame["action"].numpy(), round(STEP_S / TIMESTEP_S))
        off.append(float(np.abs(arm.observation() - following["observation.state"].numpy()).max()))
    told = {
        "fps": dataset.fps,
        "episodes": dataset.num_episodes,
        "frames": dataset.num_frames,
        "task": frames[0]["task"],
        "states": dataset.features["observation.state"]["names"],
        "actions": dataset.features["action"]["names"],
        "first_episode": [frame["action"].tolist() for frame in frames if int(frame["episode_index"]) == 0],
        "rewards": [round(float(frame["next.reward"]), 4) for frame in frames],
        "replayed": len(off),
        "replayed_same": sum(distance < SAME for distance in off),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
