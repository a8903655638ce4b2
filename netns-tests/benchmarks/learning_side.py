"""One side of the comparison with a reference PPO: `learning_side.py edgelink|reference TASK SEED`; prints JSON.

Both sides are run by one interpreter with one torch, on one thread. A policy is judged by the same episodes on both
sides: those of the same seeds, with the likeliest action.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

EPISODES, FIRST_SEED = 100, 10_000
DEVICE = os.environ.get("DEVICE", "cpu")  # as torch calls it; of the updates, and on the reference's side of all
ARM = "edgelink.training.trainer.robot.arm.task:ArmReach-v0"


@dataclass(frozen=True)
class Task:
    env_id: str
    steps: int  # environment steps, the same on both sides
    environments: int
    fragment: int  # steps of each environment in one update
    edgelink: dict[str, Any] = field(default_factory=dict)  # of algorithm:
    reference: dict[str, Any] = field(default_factory=dict)  # of Stable-Baselines3's PPO
    reference_fragment: int = 0  # where it is not the same
    is_normalised: bool = False  # VecNormalize on the reference's side


# The reference has the settings that its authors publish for the task (RL Baselines3 Zoo); for the arm, its defaults.
LEARNED = {
    "cartpole": Task(
        "CartPole-v1", 50_000, 8, 128, {},
        {"batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}, 32,
    ),
    "pendulum": Task(
        "Pendulum-v1", 100_000, 4, 1024,
        {
            "discount": 0.95, "learning_rate": 1e-3, "epochs": 20, "minibatch": 128,
            "schedule": "constant", "normalise_observations": False,
        },
        {"gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4},
    ),
    "lunar lander": Task(
        "LunarLander-v3", 1_000_000, 16, 512,
        {
            "discount": 0.999, "trace": 0.98, "learning_rate": 1e-3, "epochs": 4, "entropy_bonus": 0.01,
            "normalise_observations": True, "normalise_rewards": True,
        },
        {"gamma": 0.999, "gae_lambda": 0.98, "n_epochs": 4, "ent_coef": 0.01}, 1024,
    ),
    "arm": Task(
        ARM, 100_000, 8, 256,
        {"discount": 0.95, "learning_rate": 1e-3, "minibatch": 128, "schedule": "constant"}, {}, is_normalised=True,
    ),
}  # fmt: skip
# For pace everything is the same on both sides: samples of an update, passes, minibatches.
PACED = {
    "cartpole": Task(
        "CartPole-v1", 32_768, 8, 256, {"epochs": 10, "minibatch": 64}, {"n_epochs": 10, "batch_size": 64}
    ),
    "pendulum": Task(
        "Pendulum-v1", 16_384, 8, 256, {"epochs": 10, "minibatch": 64}, {"n_epochs": 10, "batch_size": 64},
        is_normalised=True,
    ),
}  # fmt: skip


def edgelink(task: Task, seed: int) -> dict[str, Any]:
    from edgelink.training.trainer.experience.fragment import Fragment
    from edgelink.training.trainer.experience.simulator import Simulator
    from edgelink.training.trainer.experience.simulator import Task as Simulated
    from edgelink.training.trainer.learning.learner import Learner
    from edgelink.training.trainer.learning.policy import act
    from edgelink.training.trainer.learning.settings import Settings
    from edgelink.training.trainer.learning.spaces import viewed

    simulator = Simulator(task.environments, seed, Simulated(task.env_id))
    spaces, generator = simulator.spaces, np.random.default_rng(seed)
    updates = -(-task.steps // (task.environments * task.fragment))
    learner = Learner(Settings(seed, updates, device=DEVICE, **task.edgelink), spaces)
    update, observations, update_s = learner.latest(), simulator.reset(), 0.0
    begun_s = time.perf_counter()
    for iteration in range(1, updates + 1):
        seen, taken, chances, answers = [], [], [], []
        for _ in range(task.fragment):
            actions, log_probs = act(spaces, update.weights, observations, generator)
            step = simulator.step(actions)
            seen.append(observations)
            taken.append(actions)
            chances.append(log_probs)
            answers.append(step)
            observations = step.observations
        fragment = Fragment(
            0, iteration, update.version, np.stack(seen), np.stack(taken), np.stack(chances),
            np.stack([step.rewards for step in answers]),
            np.stack([step.terminated for step in answers]),
            np.stack([step.truncated for step in answers]),
            np.concatenate([step.final_observations[step.truncated] for step in answers]),
            observations,
        )  # fmt: skip
        learning_s = time.perf_counter()
        update = learner.update(iteration, fragment)
        update_s += time.perf_counter() - learning_s
    seconds = time.perf_counter() - begun_s

    def choose(observation: Any) -> Any:
        row = viewed(spaces, [observation])
        actions, _ = act(spaces, update.weights, row, generator, deterministic=True)
        if spaces.is_discrete:
            return int(actions[0])
        return np.clip(actions[0], spaces.action_low, spaces.action_high).astype(np.float32)

    return told(task, updates * task.environments * task.fragment, seconds, update_s, choose)


def reference(task: Task, seed: int) -> dict[str, Any]:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    environments = make_vec_env(task.env_id, task.environments, seed=seed)
    if task.is_normalised:
        environments = VecNormalize(environments)
    fragment = task.reference_fragment or task.fragment
    model = PPO("MlpPolicy", environments, n_steps=fragment, seed=seed, device=DEVICE, **task.reference)
    train, update_s = model.train, 0.0

    def timed() -> None:
        nonlocal update_s
        begun_s = time.perf_counter()
        train()
        update_s += time.perf_counter() - begun_s

    model.train = timed  # type: ignore[method-assign]
    begun_s = time.perf_counter()
    model.learn(task.steps)
    seconds = time.perf_counter() - begun_s

    def choose(observation: Any) -> Any:
        seen = environments.normalize_obs(observation) if task.is_normalised else observation
        return model.predict(seen, deterministic=True)[0]

    return told(task, model.num_timesteps, seconds, update_s, choose)


def told(task: Task, steps: int, seconds: float, update_s: float, choose: Callable[[Any], Any]) -> dict[str, Any]:
    """Pace, and the return on the episodes that judge both sides."""
    import gymnasium

    environment = gymnasium.make(task.env_id, disable_env_checker=True)
    returns = []
    for seed in range(FIRST_SEED, FIRST_SEED + EPISODES):
        observation, _ = environment.reset(seed=seed)
        total, has_ended = 0.0, False
        while not has_ended:
            observation, reward, terminated, truncated, _ = environment.step(choose(observation))
            total += float(reward)
            has_ended = terminated or truncated
        returns.append(total)
    return {
        "return": float(np.mean(returns)),
        "steps": steps,
        "samples_per_s": steps / seconds,
        "update_samples_per_s": steps / update_s,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    side, name, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    task = (PACED if os.environ.get("PACE") else LEARNED)[name]
    print(json.dumps({"edgelink": edgelink, "reference": reference}[side](task, seed)))


if __name__ == "__main__":
    main()
