"""The rollout worker: a Ray actor that runs the policy in the env worker next to it and collects experience.

It acts on its own node only, so that control does not wait for the WAN. Two threads enter it: one collects, the other
brings new weights, which count from the next step on, also in the middle of a fragment.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Fragment, Observations, Step
from edgelink.training.trainer.learning.policy import Weights, act
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.whereabouts import Located

_REMEMBERED = 3  # fragments kept for a repeated call: the deepest queue, and one


class RolloutWorker(Located):
    """Acts in ``environment``, the env worker of the same index."""

    def __init__(self, rank: int, environment: Any, spaces: Spaces, seed: int) -> None:
        import ray

        self._get = ray.get
        self._rank = rank
        self._environment = environment
        self._spaces = spaces
        self._generator = np.random.default_rng([seed, rank])
        self._policy: tuple[int, Weights] = (0, {})
        self._lock = threading.Lock()
        self._observations: Observations | None = None
        self._running: Floats = np.zeros(0, dtype=np.float32)  # return of each episode so far
        self._lengths = np.zeros(0, dtype=np.int64)  # its steps, likewise
        self._step_number = 0
        self._recent: deque[Fragment] = deque(maxlen=_REMEMBERED)
        self.samples = 0

    def load_weights(self, version: int, weights: Weights) -> int:
        """Act by these from the next step on; older ones than those at hand are ignored."""
        if version >= self._policy[0]:
            self._policy = (version, weights)
        return self._policy[0]

    def collect(self, ticket: int, steps: int, version: int = 0, weights: Weights | None = None) -> Fragment:
        """``steps`` steps of experience. Tickets count up; one that was served gives the same fragment again.

        ``weights`` are loaded first: sent along, they cannot be overtaken by the call.
        """
        if weights is not None:
            self.load_weights(version, weights)
        with self._lock:
            for fragment in self._recent:
                if fragment.ticket == ticket:
                    return fragment
            fragment = self._collect(ticket, steps)
            self._recent.append(fragment)
            self.samples += fragment.samples
            return fragment

    def evaluate(self, version: int, weights: Weights, episodes: int) -> list[float]:
        """Returns of ``episodes`` episodes or a few more: each environment plays the same number to the end.

        The policy's own random choice is kept: that is what is trained, and it makes "untrained" mean something.
        """
        self.load_weights(version, weights)
        with self._lock:
            observations = self._reset()
            each = -(-episodes // len(observations))
            finished: list[list[float]] = [[] for _ in observations]
            while any(len(returns) < each for returns in finished):
                actions, _ = act(self._spaces, self._policy[1], observations, self._generator)
                step = self._step(actions)
                for index, value, _ in self._ended(step):
                    finished[index].append(value)
                observations = step.observations
            self._observations = None  # training begins with fresh episodes
            return [value for returns in finished for value in returns[:each]]

    def produced(self) -> int:
        """Samples collected so far, whether they reached the learner or not."""
        return self.samples

    def _collect(self, ticket: int, steps: int) -> Fragment:
        observations = self._reset() if self._observations is None else self._observations
        seen, taken, chances, answers = [], [], [], []
        ended: list[tuple[int, float, int]] = []
        version = self._policy[0]
        for _ in range(steps):
            actions, log_probs = act(self._spaces, self._policy[1], observations, self._generator)
            step = self._step(actions)
            seen.append(observations)
            taken.append(actions)
            chances.append(log_probs)
            answers.append(step)
            ended += self._ended(step)
            observations = step.observations
        self._observations = observations
        return Fragment(
            rank=self._rank,
            ticket=ticket,
            weights_version=version,
            observations=np.stack(seen),
            actions=np.stack(taken),
            log_probs=np.stack(chances),
            rewards=np.stack([step.rewards for step in answers]),
            terminated=np.stack([step.terminated for step in answers]),
            truncated=np.stack([step.truncated for step in answers]),
            cut_observations=np.concatenate([step.final_observations[step.truncated] for step in answers]),
            last_observations=observations,
            episode_returns=tuple(value for _, value, _ in ended),
            episode_lengths=tuple(length for _, _, length in ended),
        )

    def _reset(self) -> Observations:
        count, observations = self._get(self._environment.reset.remote())
        self._running = np.zeros(count, dtype=np.float32)
        self._lengths = np.zeros(count, dtype=np.int64)
        self._step_number = 0
        result: Observations = observations
        return result

    def _step(self, actions: Any) -> Step:
        step: Step = self._get(self._environment.step.remote(self._step_number, actions))
        self._step_number += 1
        self._running = self._running + step.rewards
        self._lengths = self._lengths + 1
        return step

    def _ended(self, step: Step) -> list[tuple[int, float, int]]:
        """Index, return and length of each episode that this step ended."""
        ended = np.flatnonzero(step.terminated | step.truncated)
        results = [(int(index), float(self._running[index]), int(self._lengths[index])) for index in ended]
        self._running[ended] = 0.0
        self._lengths[ended] = 0
        return results
