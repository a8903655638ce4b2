"""A robot's env worker without Ray, to be stopped and killed: ``robot_worker.py SETTINGS-JSON ECHO-ADDRESS TOKEN``.

For each line of its input it hands over one more version of the policy, and says when the robot had it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.settings import ControlSettings

_HIDDEN = 64


def main() -> None:
    settings, address, token = sys.argv[1:]
    robot = RobotEnvironment(ControlSettings.from_json(settings), (address, token))
    policy = weights(robot.spaces.features, robot.spaces.outputs, discrete=robot.spaces.is_discrete)
    robot.load_policy(1, policy)
    print("ready", flush=True)
    for version, _ in enumerate(sys.stdin, 2):
        robot.load_policy(version, policy)
        while robot.policy_version != version:
            time.sleep(0.001)
        time.sleep(0.001)  # the one word comes right after the other
        print(robot._block.words.policy_ns, flush=True)
    robot.close()


def weights(features: int, outputs: int, *, discrete: bool) -> dict[str, np.ndarray]:
    """Of two hidden layers, as the learner makes them by default."""
    generator = np.random.default_rng(0)
    found, inputs = {}, features
    for layer in range(2):
        found[f"policy/layer{layer}/weight"] = generator.normal(0, 0.1, (_HIDDEN, inputs)).astype(np.float32)
        found[f"policy/layer{layer}/bias"] = np.zeros(_HIDDEN, np.float32)
        inputs = _HIDDEN
    found["policy/head/weight"] = generator.normal(0, 0.1, (outputs, inputs)).astype(np.float32)
    found["policy/head/bias"] = np.zeros(outputs, np.float32)
    if not discrete:
        found["policy/log_std"] = np.full(outputs, -1.0, np.float32)
    return found


if __name__ == "__main__":
    main()
