"""A slow robot beside a fast simulator: what it does is learned from. The real flow, collector and ring, by a clock of
the test's own."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import obedient_robot
import pytest
from played_robot import Robot, attached_to

from edgelink.training.trainer.experience.robot_collect import RobotCollector
from edgelink.training.trainer.flow import Arrival, Credit, Flow, FlowSettings
from edgelink.training.trainer.robot import environment
from edgelink.training.trainer.robot.environment import RobotEnvironment

SIMULATOR, ROBOT = 0, 1
SAMPLES = 192  # of a simulator's fragment
SIMULATED_S = 0.03  # in which it is there


@dataclass
class World:
    """A learner, a simulator that is never what is waited for, and a robot behind a link."""

    flow: Flow
    robot: Robot
    rate_hz: float  # steps of the robot a second
    link_s: float  # one way; weights take three times as long
    learn_s: float
    now_s: float = 0.0
    done: int = 0  # steps of the robot
    learned: int = 0  # of these
    asked: Credit | None = None  # of the robot
    asked_by: int = 0
    steps: int = 0  # of the robot's newest fragment
    _due: list[Any] = field(default_factory=list)
    _count: Any = field(default_factory=itertools.count)
    _offered: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    _row_s: float = 0.0
    _learning_until_s: float | None = None

    def newest(self) -> int:
        """As the robot's worker knows it."""
        return max(version for at_s, version in self._offered if at_s <= self.now_s)

    def policy(self) -> tuple[int, dict[str, Any]]:
        at_hand = max(version for at_s, version in self._offered if at_s + 2 * self.link_s <= self.now_s or not version)
        self.robot.version = at_hand
        return at_hand, obedient_robot.weights()

    def advance(self, seconds: float) -> None:
        """What happens meanwhile, everywhere but in the robot's worker."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.005)
            if self.now_s >= self._row_s + 1 / self.rate_hz:
                self._row_s += 1 / self.rate_hz
                self.robot.play(1, is_new=self.done == 0)
                self.done += 1
            while self._due and self._due[0][0] <= self.now_s:
                self.flow.arrived(heapq.heappop(self._due)[2], self.now_s)
            self._learn()

    def sends(self, pair: int, ticket: int, version: int, samples: int, after_s: float) -> None:
        arrival = Arrival(pair, ticket, version, samples)
        heapq.heappush(self._due, (self.now_s + after_s, next(self._count), arrival))

    def _learn(self) -> None:
        if self._learning_until_s is None:
            self._issue()
            if chosen := self.flow.choose(self.now_s):
                self.learned += sum(arrival.samples for arrival in chosen if arrival.pair == ROBOT)
                self._learning_until_s = self.now_s + self.learn_s
        elif self.now_s >= self._learning_until_s:
            self._learning_until_s = None
            self.flow.learned(self.flow.version + 1, self.now_s)
            self._offered.append((self.now_s + self.link_s, self.flow.version))
            self._issue()

    def _issue(self) -> None:
        for credit in self.flow.credits():
            if credit.pair == ROBOT:
                self.asked, self.asked_by = credit, self.flow.version
            else:
                self.sends(SIMULATOR, credit.ticket, self.flow.version, SAMPLES, SIMULATED_S)

    def run(self, collector: RobotCollector, until_s: float) -> None:
        while self.now_s < until_s:
            if self.asked is None:
                self.advance(0.005)
                continue
            credit, asked_by, self.asked = self.asked, self.asked_by, None
            self.advance(self.link_s)
            self.steps = max(1, int(64 * credit.share))
            parts = collector.collect(self.steps, asked_by)
            self.sends(ROBOT, credit.ticket, parts["weights_version"], len(parts["rewards"]), self.link_s)


def world_of(
    worker: RobotEnvironment, robot: Robot, monkeypatch: pytest.MonkeyPatch, rate_hz: float, link_s: float, **more: Any
) -> tuple[World, RobotCollector]:
    learn_s = more.pop("learn_s", 0.03)
    world = World(Flow(FlowSettings(**more), [False, True], 1_000_000), robot, rate_hz, link_s, learn_s)
    world.flow.begin(0, 0.0)

    def ask(method: str, *arguments: Any) -> Any:
        return getattr(worker, method)(*arguments)

    # Whoever waits lets the world go on.
    clock = SimpleNamespace(monotonic=lambda: world.now_s, sleep=world.advance)
    monkeypatch.setattr(environment, "time", clock)
    lag = world.flow.settings.max_policy_lag
    return world, RobotCollector(ask, world.policy, world.newest, lag)


@pytest.mark.parametrize(
    ("rate_hz", "link_s", "patience_s"),
    [
        (1.0, 0.05, 0.0),
        (1.0, 0.05, 3.0),
        (5.0, 0.05, 0.0),
        (10.0, 0.0, 0.0),
        (10.0, 0.05, 0.0),
        (10.0, 0.15, 0.0),
        (10.0, 0.05, 0.3),
        (30.0, 0.05, 0.0),
    ],
)
def test_what_a_slow_robot_does_is_learned_from(
    monkeypatch: pytest.MonkeyPatch, rate_hz: float, link_s: float, patience_s: float
) -> None:
    """95 % of it at least, also over a link on which the learner makes ten versions in a round trip."""
    robot = Robot(ring_rows=1024)
    with attached_to(robot, monkeypatch) as (worker, _):
        world, collector = world_of(worker, robot, monkeypatch, rate_hz, link_s, straggler_patience_s=patience_s)
        world.run(collector, 120.0)
        lost = worker._stale + world.flow.counts.dropped_samples
    assert world.learned >= 0.95 * (world.done - world.steps), "the last fragment is not complete"
    assert lost <= 0.05 * world.done
