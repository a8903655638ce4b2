"""The rollout worker: a Ray actor that runs the policy in the env worker next to it and collects experience.

It acts on its own node only, so that control does not wait for the WAN. New weights come in by a thread of their own
and count from the next step on, also in the middle of a fragment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.environment import EVALUATION, TRAINING
from edgelink.training.trainer.experience.fragment import Bools, Fragment, Observations, Step
from edgelink.training.trainer.experience.frames import Stack, stacked
from edgelink.training.trainer.experience.inbox import Inbox
from edgelink.training.trainer.experience.parcel import About, Payload, packed
from edgelink.training.trainer.experience.pieces import Pieces, fetch_by, in_pieces
from edgelink.training.trainer.experience.robot_collect import RobotCollector
from edgelink.training.trainer.experience.stepping import StepClient
from edgelink.training.trainer.experience.weights_codec import Offer
from edgelink.training.trainer.learning.evaluation import Played
from edgelink.training.trainer.learning.finite import check_finite
from edgelink.training.trainer.learning.policy import act
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.whereabouts import Located


class RolloutWorker(Located):
    """Acts in ``environment``, the env worker of the same index."""

    def __init__(
        self,
        rank: int,
        environment: Any,
        spaces: Spaces,
        seed: int,
        depth: int,
        max_policy_lag: int,
        chunk_bytes: int,
    ) -> None:
        """``spaces``: of one frame; ``depth``: of the stack."""
        import ray

        self._put, self._get = ray.put, ray.get
        self._chunk_bytes = chunk_bytes
        self._rank = rank
        self._environment = environment
        self._depth = depth
        self._spaces = stacked(spaces, depth)
        self._generator = np.random.default_rng([seed, rank])
        self._evaluating = np.random.default_rng([seed, rank, 1])  # so that the training is the same with and without
        self._inbox = Inbox(fetch_by(ray))
        self._lock = threading.Lock()
        self._max_lag = max_policy_lag
        self._link: StepClient | None = None
        self._asking = threading.Lock()  # one question at a time
        self._stack: Stack | None = None
        self._observations: Observations | None = None
        self._running = np.zeros(0)  # return of each episode so far; in 32 bits, a long one would add up wrong
        self._lengths = np.zeros(0, dtype=np.int64)  # its steps, likewise
        self._recent: deque[tuple[About, Payload]] = deque(maxlen=max_policy_lag + 2)  # for a call that is repeated
        self.samples = 0
        self._steps = 0  # of each environment of a simulator so far
        self._is_robot: bool | None = None  # not known yet
        self._collector: RobotCollector | None = None

    def offer_weights(self, offer: Offer) -> float:
        """There is this version; it is fetched beside what goes on, and acted by as soon as it is here.

        Returns the time of this process' monotonic clock.
        """
        self._inbox.offer(offer)
        return time.monotonic()

    def nothing_newer(self) -> None:
        """Than what has been offered: a robot that has it may go on by it."""
        if self._is_robot and self._collector is not None:
            self._collector.confirm(self._inbox.newest_offered)

    def collect(
        self, ticket: int, steps: int, least_version: int | None, asked_by: int
    ) -> tuple[About, Payload | Pieces]:
        """``steps`` steps of experience. Tickets count up; one that was served gives the same fragment again.

        Args:
            least_version: begin with these weights or newer ones; None: with those at hand.
            asked_by: the learner's version when it asked.
        """
        about, payload = self._fragment(ticket, steps, least_version, asked_by)
        return about, in_pieces(payload, self._chunk_bytes, self._put)

    def _fragment(self, ticket: int, steps: int, least_version: int | None, asked_by: int) -> tuple[About, Payload]:
        with self._lock:
            for about, payload in self._recent:
                if about.ticket == ticket:
                    return about, payload
            asked_s = time.monotonic()
            version, _ = self._inbox.wait_for(least_version)
            begun_s = time.monotonic()
            fragment, history = self._collect(ticket, steps, version, asked_by)
            check_finite([fragment])  # here it costs this pair; at the learner it would be everybody's
            about, payload = packed(fragment, history)
            self.samples += about.samples
            about = replace(
                about,
                collect_s=time.monotonic() - begun_s,
                waited_s=begun_s - asked_s,
                fetch_s=self._inbox.fetch_s,
                produced=self.samples,
                weights_bytes=self._inbox.fetched_bytes,
            )
            self._recent.append((about, payload))
            return about, payload

    def evaluate(self, version: int, episodes: int, *, deterministic: bool = False) -> Played:
        """``episodes`` episodes or a few more: each environment plays the same number to the end.

        On simulators that are there for this only, with seeds of their own; a robot is the one that there is. The
        training's episodes go on afterwards where they were: begun anew with each evaluation, none would ever come
        further than the training does between two.

        By the newest weights there are, once these are of ``version`` at least. The policy's own random choice is kept
        by default: that is what is trained, and it makes "untrained" mean something.
        """
        with self._lock:
            played_by, weights = self._inbox.wait_for(version)
            if (robot := self._robot()) is not None:
                return robot.evaluate(episodes)
            training = self._observations, self._stack, self._running, self._lengths
            observations = self._reset(EVALUATION)
            each = -(-episodes // len(observations))
            finished: list[list[float]] = [[] for _ in observations]
            while any(len(returns) < each for returns in finished):
                actions, _ = act(
                    self._spaces, weights, self._seen().seen, self._evaluating, deterministic=deterministic
                )
                step = self._step(actions)
                for index, value, _ in self._ended(step):
                    finished[index].append(value)
            self._ask("evaluated")
            self._observations, self._stack, self._running, self._lengths = training
            return Played([value for returns in finished for value in returns[:each]], played_by)

    def steps(self) -> int:
        """Of each environment so far, to train and to evaluate: whether what takes long comes further. 0 of a robot."""
        return self._steps

    def produced(self) -> int:
        """Samples collected so far, whether they reached the learner or not."""
        return self.samples

    def fetched_bytes(self) -> int:
        """Of weights, as they were sent to this worker or to another one on this node."""
        return self._inbox.fetched_bytes

    def _collect(self, ticket: int, steps: int, version: int, asked_by: int) -> tuple[Fragment, Observations]:
        if (robot := self._robot()) is not None:
            fragment = Fragment(rank=self._rank, ticket=ticket, **robot.collect(steps, asked_by))
            return fragment, fragment.observations[:0]
        observations = self._reset() if self._observations is None else self._observations
        stack = self._seen()
        history = stack.history
        seen, taken, chances, answers = [], [], [], []
        ended: list[tuple[int, float, int]] = []
        for _ in range(steps):
            assert self._inbox.policy is not None
            actions, log_probs = act(self._spaces, self._inbox.policy[1], stack.seen, self._generator)
            step = self._step(actions)
            seen.append(observations)
            taken.append(actions)
            chances.append(log_probs)
            answers.append(step)
            ended += self._ended(step)
            observations = step.observations
        fragment = Fragment(
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
        return fragment, history

    def _robot(self) -> RobotCollector | None:
        """What asks the robot, if the environment is one."""
        if self._is_robot is None:
            self._is_robot = self._ask("is_robot")
            inbox = self._inbox
            self._collector = collector = RobotCollector(
                self._ask, lambda: inbox.wait_for(None), lambda: inbox.newest_offered, self._max_lag
            )
            if self._is_robot:
                handing = (inbox.wait_for,)
                threading.Thread(target=collector.hand_over_each, args=handing, name="handing", daemon=True).start()
        return self._collector if self._is_robot else None

    def _reset(self, purpose: str = TRAINING) -> Observations:
        count, observations = self._ask("reset", purpose)
        self._running = np.zeros(count)
        self._lengths = np.zeros(count, dtype=np.int64)
        self._stack = Stack(self._depth, observations)
        self._observations = observations
        return self._observations

    def _seen(self) -> Stack:
        assert self._stack is not None
        return self._stack

    def _step(self, actions: Any) -> Step:
        step: Step = self._ask("step", actions)
        self._steps += 1
        self._observations = step.observations
        ended: Bools = step.terminated | step.truncated
        self._seen().push(step.observations, ended)
        self._running = self._running + step.rewards
        self._lengths = self._lengths + 1
        return step

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._asking:
            if self._link is None:
                self._link = StepClient(self._get(self._environment.serve.remote()))
            try:
                return self._link.call(method, *arguments)
            except EOFError:
                # Ray knows how it died, and says so to whoever calls it.
                self._get(self._environment.traffic.remote())
                raise

    def _ended(self, step: Step) -> Sequence[tuple[int, float, int]]:
        """Index, return and length of each episode that this step ended."""
        ended = np.flatnonzero(step.terminated | step.truncated)
        results = [(int(index), float(self._running[index]), int(self._lengths[index])) for index in ended]
        self._running[ended] = 0.0
        self._lengths[ended] = 0
        return results
