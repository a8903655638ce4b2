"""The asynchronous loop's decisions: the bound on the lag, stragglers, deaths and returns. Without Ray, by a clock of
its own: workers and learner are simulated to the second, with a link between them."""

from __future__ import annotations

import bisect
import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelink.training.trainer.flow import Arrival, Credit, Flow, FlowSettings

SAMPLES = 10


@dataclass
class World:
    """Workers of given speeds behind a link, and a learner, driven as the trainer's loop does."""

    flow: Flow
    collect_s: list[float]  # of each pair
    link_s: float = 0.0  # one way; new weights take three times as long
    learn_s: float = 0.1
    robots: tuple[int, ...] = ()
    now_s: float = 0.0
    events: list[Any] = field(default_factory=list)
    updates: list[list[Arrival]] = field(default_factory=list)
    idle_s: dict[int, float] = field(default_factory=dict)
    most_under_way: int = 0
    is_cut: bool = False
    _count: Any = field(default_factory=itertools.count)
    _free_at: dict[int, float] = field(default_factory=dict)
    _weights: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    _under_way: dict[int, int] = field(default_factory=dict)

    def run(self, until_s: float) -> None:
        """Until nothing is left to do, or the time is over."""
        if not self.flow.version and not self.updates:
            self.flow.begin(0, self.now_s)
        self._issue()
        while self.flow.left and self.now_s < until_s:
            if self.events and self.events[0][0] <= self.now_s:
                arrival = heapq.heappop(self.events)[2]
                self._under_way[arrival.pair] -= 1
                self.flow.arrived(arrival, self.now_s)
            elif chosen := self.flow.choose(self.now_s):
                self.now_s += self.learn_s
                self.updates.append(chosen)
                version = self.flow.version + 1
                self.flow.learned(version, self.now_s)
                for index in self.flow.pairs:
                    self._weights.setdefault(index, []).append((self.now_s + 3 * self.link_s, version))
                self._issue()
            else:
                self.now_s = min([self.now_s + 0.05, until_s, *(event[0] for event in self.events[:1])])

    def _issue(self) -> None:
        for credit in self.flow.credits():
            self._collect(credit)

    def _collect(self, credit: Credit) -> None:
        index = credit.pair
        known = self._weights.setdefault(index, [(0.0, 0)])
        free_s = max(self._free_at.get(index, 0.0), self.now_s + self.link_s)
        begin_s = free_s
        if credit.least_version is not None:
            # Weights that are still to be made come at an unknown time, but those asked for were made before.
            begin_s = max(free_s, next(at for at, version in known if version >= credit.least_version))
        self.idle_s[index] = self.idle_s.get(index, 0.0) + begin_s - max(self._free_at.get(index, 0.0), 0.0)
        self._free_at[index] = end_s = begin_s + self.collect_s[index] * credit.share
        version = max(version for at, version in known if at <= begin_s)
        self._under_way[index] = self._under_way.get(index, 0) + 1
        self.most_under_way = max(self.most_under_way, self._under_way[index])
        heapq.heappush(
            self.events,
            (end_s + self.link_s, next(self._count), Arrival(index, credit.ticket, version, SAMPLES)),
        )


def world(lag: int, collect_s: list[float], updates: int = 40, **kind: Any) -> World:
    robots = kind.pop("robots", ())
    patience_s = kind.pop("patience_s", 0.0)
    chosen = FlowSettings(max_policy_lag=lag, straggler_patience_s=patience_s)
    flow = Flow(chosen, [index in robots for index in range(len(collect_s))], updates)
    return World(flow, collect_s, robots=robots, **kind)


@given(
    st.integers(0, 4),
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4),
    st.floats(0.0, 1.0),
    st.floats(0.01, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_no_experience_is_older_than_the_bound(lag: int, collect_s: list[float], link_s: float, learn_s: float) -> None:
    """However fast or slow workers, link and learner are: all updates are made, no queue is deeper than the bound."""
    sim = world(lag, collect_s, 20, link_s=link_s, learn_s=learn_s)
    sim.run(1e4)
    assert len(sim.updates) == 20
    for version, update in enumerate(sim.updates):
        assert all(0 <= version - arrival.version <= lag for arrival in update)
    assert sim.most_under_way <= lag + 1
    assert sim.flow.counts.lag_max <= lag


def test_a_bound_of_zero_is_the_synchronous_loop() -> None:
    """Everything by the newest weights, everyone in every update, and the slowest waited for however long it takes."""
    sim = world(0, [0.1, 30.0], 5)
    sim.run(1e4)
    assert [[a.version for a in update] for update in sim.updates] == [[n, n] for n in range(5)]
    assert sim.flow.counts.dropped == sim.flow.counts.left_out == 0


def test_a_long_link_costs_nothing_while_the_bound_covers_it() -> None:
    """Fragments of 0.5 s, learning of 0.1 s, 50 ms each way: workers are never idle; the synchronous loop's are."""
    times = {}
    for lag, link_s in ((2, 0.0), (2, 0.05), (0, 0.0), (0, 0.05)):
        sim = world(lag, [0.5, 0.5], 100, link_s=link_s)
        sim.run(1e4)
        times[lag, link_s] = sim.now_s
    assert times[2, 0.05] < 1.02 * times[2, 0.0]
    assert times[0, 0.0] > 1.15 * times[2, 0.0]
    assert times[0, 0.05] > 1.15 * times[0, 0.0]


def test_experience_is_no_older_than_the_link_makes_it() -> None:
    """Fast workers, and a bound of 8: one version behind on a short link; on a long one as many as keep the learner
    busy; and back again."""
    near = world(8, [0.05, 0.05], 100)
    near.run(1e4)
    assert near.flow.counts.lag_max == 1
    far = world(8, [0.05, 0.05], 400, link_s=0.1)
    far.run(1e4)
    assert far.now_s < 1.05 * 400 * far.learn_s, "the link costs next to nothing"
    assert 3 <= far.flow.counts.lag_max <= 6
    moved = world(8, [0.05], 1000, link_s=0.1)
    moved.run(20)
    moved.link_s = 0.0
    moved.run(1e4)
    (last,) = moved.updates[-1]
    assert 999 - last.version == 1


def test_an_evaluation_is_no_long_link() -> None:
    """The learner waits for who evaluates, again and again, and everything is one version behind as before."""
    sim = world(8, [0.05, 0.05], 100)
    for _ in range(10):
        sim.run(sim.now_s + 0.9)
        sim.flow.evaluates(0)
        sim._free_at[0] = sim.now_s + 0.5
        sim.run(sim.now_s + 0.5)
        sim.flow.evaluated(0)
    sim.run(1e4)
    assert len(sim.updates) == 100
    assert sim.now_s > 100 * sim.learn_s + 10 * 0.3, "it was waited for"
    assert sim.flow.counts.lag_max == 1


def test_a_straggler_is_left_out_after_the_patience() -> None:
    """The others wait once, not at every update; what is too old is dropped, and what is in time is learned from."""
    sim = world(1, [0.2, 3.0], 200, patience_s=1.0)
    sim.run(1e4)
    counts = sim.flow.counts
    assert all(sim.updates), "no update without experience"
    assert 0 < counts.left_out < 200
    assert counts.dropped_samples == SAMPLES * counts.dropped > 0
    assert sim.now_s < 0.5 * 200 * 1.0, "not the patience at each of them"
    with_both = sum(len(update) == 2 for update in sim.updates[100:])
    assert with_both > 60, "its fragments are as short as they must be"
    assert counts.dropped < 40


def test_one_that_is_always_too_late_is_waited_for_no_more() -> None:
    """Its fragments become shorter; where that does not help either, the others do not wait at each of them."""
    sim = world(1, [0.2, 6.0], 200, patience_s=1.0)
    sim.run(1e4)
    assert all(len(update) == 1 for update in sim.updates)
    assert sim.now_s < 50, "200 updates of 0.2 s, and a second for the first ten"
    helped = world(2, [0.2, 6.0], 200, patience_s=1.0)
    helped.run(1e4)
    assert sum(len(update) == 2 for update in helped.updates) > 50, "one for which it is enough takes part"


def test_everyone_is_waited_for_within_the_patience() -> None:
    """By default it follows the usual interval, so that a worker that is only slow takes part in every update."""
    sim = world(2, [0.5, 1.5], 30)
    sim.run(1e4)
    assert all(len(update) == 2 for update in sim.updates)
    assert sim.flow.patience_s >= 2.0


def test_robots_never_wait_for_weights() -> None:
    """Their credits name no version; what is too old for lack of new weights is dropped and counted."""
    flow = Flow(FlowSettings(max_policy_lag=1), [True, False], 9)
    flow.begin(4, 0.0)
    assert [(c.pair, c.least_version) for c in flow.credits()] == [(0, None), (1, 4), (1, 4)]
    flow.arrived(Arrival(0, 1, 2, SAMPLES), 0.0)
    flow.arrived(Arrival(1, 1, 4, SAMPLES), 0.0)
    assert flow.choose(0.0) == [], "it is worth waiting for the next one"
    assert [(c.pair, c.ticket, c.share) for c in flow.credits()] == [(0, 2, 1.0)], "as long as before"
    flow.arrived(Arrival(0, 2, 3, SAMPLES), 0.0)
    assert [(a.pair, a.ticket) for a in flow.choose(0.0)] == [(0, 2), (1, 1)]
    assert (flow.counts.dropped, flow.counts.lag_max) == (1, 1)


def test_a_pair_that_died_is_not_waited_for_and_is_used_again_when_it_is_back() -> None:
    """What it had under way is counted as lost; tickets go on, so that no old answer is taken for a new one."""
    flow = Flow(FlowSettings(max_policy_lag=1), [False, False], 9)
    flow.begin(0, 0.0)
    assert [(c.pair, c.ticket) for c in flow.credits()] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    flow.arrived(Arrival(0, 1, 0, SAMPLES), 0.1)
    assert flow.choose(0.1) == [], "the other is waited for"
    flow.lost(1)
    assert flow.pairs == (0,)
    assert [a.pair for a in flow.choose(0.1)] == [0]
    assert flow.counts.lost == 2
    flow.arrived(Arrival(1, 1, 0, SAMPLES), 0.1)  # was on its way
    flow.learned(1, 0.2)
    flow.joined(1, is_robot=False)
    assert [(c.pair, c.ticket, c.least_version) for c in flow.credits()] == [(0, 3, 1), (1, 3, 1), (1, 4, 1)]
    flow.arrived(Arrival(0, 2, 0, SAMPLES), 0.3)
    flow.arrived(Arrival(1, 3, 1, SAMPLES), 0.3)
    assert [a.pair for a in flow.choose(0.3)] == [0, 1]


def test_not_more_is_asked_for_than_can_be_used() -> None:
    """At the end the queue runs empty: no edge collects what nobody learns from."""
    sim = world(3, [0.5], 6)
    sim.run(1e4)
    assert sim.flow.credits() == []
    assert sim.events == []


ROBOT_STEPS, ROBOT_STEP_S = 64, 0.01


@pytest.mark.parametrize("lag", [1, 2, 6])
@pytest.mark.parametrize("learn_s", [0.3, 0.8, 1.8])
def test_a_robot_takes_part_fully_however_slow_the_learner_is(learn_s: float, lag: int) -> None:
    """It goes on while nobody asks, its ring keeps what comes; 50 ms each way, weights take three times as long."""
    link_s, now_s = 0.05, 0.0
    flow = Flow(FlowSettings(max_policy_lag=lag), [True], 60)
    flow.begin(0, now_s)
    in_force_s = [0.0]  # from when on the robot acted by each version
    taken, coming, used = 0, [], []

    def version_of(row: int) -> int:
        return bisect.bisect_right(in_force_s, row * ROBOT_STEP_S) - 1

    while flow.left:
        for credit in flow.credits():
            asked_s, steps = now_s + link_s, int(ROBOT_STEPS * credit.share)
            taken = max(taken, int(asked_s / ROBOT_STEP_S) - 2 * steps)
            while version_of(taken) < flow.version - lag:  # which was offered before it was asked
                taken += 1
            begun, taken = taken, taken + steps
            arrives_s = max(asked_s, taken * ROBOT_STEP_S) + link_s
            coming.append((arrives_s, Arrival(0, credit.ticket, version_of(begun), steps)))
        coming.sort(key=lambda due: due[0])
        arrives_s, arrival = coming.pop(0)
        now_s = max(now_s, arrives_s)
        flow.arrived(arrival, now_s)
        if chosen := flow.choose(now_s):
            now_s += learn_s
            used += [arrival.samples for arrival in chosen]
            flow.learned(flow.version + 1, now_s)
            in_force_s.append(now_s + 3 * link_s)
    assert sum(used) / 60 >= 60
    assert flow.counts.dropped <= 3


def test_a_robot_whose_fragments_are_too_long_for_the_others_makes_shorter_ones() -> None:
    """They went ahead without it, several versions for each of its fragments."""
    sim = world(1, [0.2, 3.0], 200, patience_s=1.0, robots=(1,))
    sim.run(1e4)
    assert sum(len(update) == 2 for update in sim.updates[100:]) > 30
