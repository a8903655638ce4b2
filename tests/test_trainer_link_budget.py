"""What a placement asks of measured links, what limits it, and which other placement is named."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from telling import Words
from test_trainer_transport import Wire

from edgelink.training.trainer.experience.pieces import FIRST, coming
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.link_budget.links import Link, Measured, measured
from edgelink.training.trainer.link_budget.of_run import Gradients, RunBudget, Tally, links_of_run, work_of_report
from edgelink.training.trainer.link_budget.predict import Prediction, better, predict
from edgelink.training.trainer.link_budget.traffic import (
    CHUNK_BYTES,
    FRAGMENT_BYTES,
    REST_BYTES,
    RLINF_BY_ENV,
    RLINF_BY_ROLLOUT,
    Seats,
    Work,
    crossings,
    flows,
    observation_bytes,
    other_seats,
    talking_pairs,
)
from edgelink.training.trainer.link_budget.words import duration, lines, mbit, rounded, size, to_dict, warning
from edgelink.training.trainer.offers import Told

CLOUD, EDGE_1, EDGE_2 = 0, 1, 2
NAMES = {CLOUD: "cloud", EDGE_1: "edge-1", EDGE_2: "edge-2"}
AT_EDGES = Seats(actor=(CLOUD,), rollout=(EDGE_1, EDGE_2), env=(EDGE_1, EDGE_2))
REMOTE_POLICY = Seats(actor=(CLOUD,), rollout=(CLOUD,), env=(EDGE_1,))
POLICY_AT_EDGE = Seats(actor=(CLOUD,), rollout=(EDGE_1,), env=(EDGE_1,))
IMAGE = observation_bytes((224, 224, 3), "uint8")
IMAGES = Spaces((224, 224, 3), "uint8", 4)


def links(mbit: float, rtt_ms: float, edges: tuple[int, ...] = (EDGE_1, EDGE_2)) -> Measured:
    ways = [way for edge in edges for way in ((CLOUD, edge), (edge, CLOUD))]
    return Measured({way: Link(*way, rtt_ms=rtt_ms, mbit_per_s=mbit) for way in ways}, NAMES)


def work(**changes: object) -> Work:
    """Small observations, 8 environments of 64 steps on each of two workers."""
    plain = Work(16, 8, 10_000, (512, 512), env_steps_per_s=(1000.0, 1000.0), update_s=0.1)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_transfer_starts_slowly_and_then_has_the_rate() -> None:
    """What fits into the first window takes half a round trip; of much, the rate alone counts."""
    link = Link(0, 1, rtt_ms=100, mbit_per_s=20)
    assert link.transfer_s(0) == 0
    assert link.transfer_s(1_000) == pytest.approx(0.05, abs=0.001)
    assert link.transfer_s(50_000) == pytest.approx(0.05 + 0.2 + 14_000 * 8 / 20e6)
    assert link.transfer_s(100e6) == pytest.approx(100 * 8 / 20, rel=0.03)
    assert Link(0, 1, rtt_ms=0.2, mbit_per_s=1000).transfer_s(1e6) == pytest.approx(0.008, rel=0.2)


def test_each_observation_crosses_once_and_weights_once_for_each_node() -> None:
    """Two workers on one node get one copy of the weights; what stays on a node is no traffic."""
    both = Seats(actor=(CLOUD,), rollout=(EDGE_1, EDGE_1), env=(EDGE_1, EDGE_1))
    moved = flows(both, work())
    assert {(flow.source, flow.target) for flow in moved} == {(EDGE_1, CLOUD), (CLOUD, EDGE_1)}
    weights = [flow.size_bytes for flow in moved if flow.what == "weights"]
    assert weights == [10_000]
    assert sum(flow.size_bytes for flow in moved if flow.what == "observations") == 2 * 512 * 16
    steps = sum(flow.size_bytes for flow in moved if flow.what == "actions and rewards")
    assert steps == 2 * 512 * (8 + REST_BYTES)
    assert crossings(AT_EDGES, work().rules) == [1, 1]
    assert flows(Seats((CLOUD,), (CLOUD,), (CLOUD,)), work(fragment_steps=(512,))) == []


@pytest.mark.parametrize(
    ("seats", "by_env", "by_rollout"),
    [
        (REMOTE_POLICY, 3, 1),
        (POLICY_AT_EDGE, 5, 3),
        (Seats((CLOUD,), (EDGE_2,), (EDGE_1,)), 5, 3),
        (Seats((CLOUD,), (CLOUD,), (CLOUD,)), 0, 0),
    ],
)
def test_how_often_an_observation_crosses_under_rlinf(seats: Seats, by_env: int, by_rollout: int) -> None:
    """Its channels are on node 0: also from one process to its neighbour at an edge, an image goes there and back."""
    assert crossings(seats, RLINF_BY_ENV) == [by_env]
    assert crossings(seats, RLINF_BY_ROLLOUT) == [by_rollout]


def test_only_pairs_that_talk_are_measured() -> None:
    """Not one edge and the other."""
    assert talking_pairs(AT_EDGES) == [(CLOUD, EDGE_1), (CLOUD, EDGE_2)]
    apart = Seats((CLOUD,), (EDGE_2,), (EDGE_1,))
    assert talking_pairs(apart) == [(CLOUD, EDGE_2), (EDGE_1, EDGE_2)]
    assert talking_pairs(apart, RLINF_BY_ENV) == [(CLOUD, EDGE_1), (CLOUD, EDGE_2)], "by node 0"
    assert talking_pairs(Seats((CLOUD,), (CLOUD,), (CLOUD,))) == []


@pytest.mark.parametrize(
    ("mbit", "rtt_ms", "lag", "limit"),
    [
        (1000.0, 0.2, 2, "the environments"),
        (20.0, 100.0, 2, "the environments"),
        (0.1, 100.0, 2, "the link edge-1 → cloud"),
        (20.0, 3000.0, 1, "the round trip to edge-1"),
    ],
)
def test_what_limits_is_named(mbit: float, rtt_ms: float, lag: int, limit: str) -> None:
    found = predict(AT_EDGES, work(max_policy_lag=lag), links(mbit, rtt_ms))
    assert found.limit == limit
    assert found.env_steps_per_s is not None
    assert found.env_steps_per_s <= 2000 + 1e-6


def test_a_synchronous_loop_pays_for_the_round_trip() -> None:
    """Collect, send, learn, send back: one after the other."""
    near = predict(AT_EDGES, work(), links(1000, 0.2)).env_steps_per_s
    far = predict(AT_EDGES, work(), links(1000, 400)).env_steps_per_s
    assert near is not None
    assert far is not None
    assert near == pytest.approx(1024 / (0.512 + 0.1), rel=0.02)
    assert far < 0.45 * near


def test_a_learner_that_is_slow_limits_whatever_the_links_are() -> None:
    found = predict(AT_EDGES, work(update_s=5.0, max_policy_lag=2), links(1000, 1))
    assert found.limit == "the learner"
    assert found.env_steps_per_s == pytest.approx(1024 / 5)


def test_loads_are_what_the_pace_makes_of_the_bytes() -> None:
    found = predict(AT_EDGES, work(max_policy_lag=3, wanted_env_steps_per_s=1024), links(1, 10))
    up = next(load for load in found.loads if (load.source, load.target) == (EDGE_1, CLOUD))
    assert up.update_bytes == 512 * (16 + 8 + REST_BYTES) + FRAGMENT_BYTES
    assert up.mbit_per_s == pytest.approx(up.update_bytes * 8e-6)
    assert up.share == pytest.approx(up.mbit_per_s)
    assert up.carries_env_steps_per_s == pytest.approx(1024 / up.mbit_per_s)


def test_a_placement_that_cannot_be_carried_names_the_better_one(words: Words) -> None:
    """Five crossings of an image over a narrow link; with the policy in the cloud there are three."""
    robot = Work(
        IMAGE, 28, 2e6, (100,), max_policy_lag=1, env_steps_per_s=(15.0,), wanted_env_steps_per_s=4.0,
        rules=RLINF_BY_ENV,
    )  # fmt: skip
    narrow = links(30, 50, (EDGE_1,))
    found = predict(POLICY_AT_EDGE, robot, narrow)
    assert found.is_too_much
    others = better(POLICY_AT_EDGE, robot, narrow, env_may_move=False)
    assert [name for name, _ in others] == ["rollout beside actor"]
    # One after the other, each step's 1/15 s, two round trips of 50 ms, and four times 40 ms for the image.
    assert found.env_steps_per_s == pytest.approx(3.1, abs=0.05)
    assert others[0][1].env_steps_per_s == pytest.approx(5.1, abs=0.05)
    assert not others[0][1].is_too_much
    words(warning(found, robot, narrow, others))
    words(warning(found, robot, narrow, []))


@pytest.mark.parametrize(
    ("changed", "mbit", "rtt_ms"),
    [
        ({}, 0.1, 100.0),
        ({"update_s": 50.0}, 1000.0, 1.0),
        ({"env_steps_per_s": (10.0, 10.0)}, 1000.0, 1.0),
        ({}, 20.0, 3000.0),
        ({"rules": RLINF_BY_ENV, "max_policy_lag": 0}, 1000.0, 100.0),
    ],
    ids=["a narrow link", "a slow learner", "slow environments", "a long way", "the way of each action"],
)
def test_what_is_advised_is_about_what_limits(
    changed: dict[str, object], mbit: float, rtt_ms: float, words: Words
) -> None:
    """Smaller observations make no learner faster."""
    wanted = work(**{"max_policy_lag": 1, "wanted_env_steps_per_s": 2500.0, **changed})
    over = links(mbit, rtt_ms)
    found = predict(AT_EDGES, wanted, over)
    assert found.is_too_much
    words(warning(found, wanted, over, []))


def test_turns_with_a_learner_beside_the_environments_have_nothing_to_do_with_links(words: Words) -> None:
    alone = Seats((CLOUD,), (CLOUD,), (CLOUD,))
    turns = work(fragment_steps=(512,), env_steps_per_s=(1000.0,), wanted_env_steps_per_s=900.0)
    found = predict(alone, turns, links(20, 10))
    words(warning(found, turns, links(20, 10), []))
    words(warning(found, replace(turns, rules=RLINF_BY_ENV), links(20, 10), []))


def test_no_process_is_sent_away_from_its_accelerators() -> None:
    """A policy on the GPU of the cloud is not placed beside a robot that has none; nor the other way round."""
    placements = {
        name: [{"node_rank": node, "accelerators": ["0"] if node == CLOUD else []}]
        for name, node in (("actor", CLOUD), ("rollout", CLOUD), ("env", EDGE_1))
    }
    seats = Seats.of(placements)
    assert seats is not None
    anywhere = set(other_seats(REMOTE_POLICY, env_may_move=True, rules=RLINF_BY_ENV))
    assert anywhere - set(other_seats(seats, env_may_move=True, rules=RLINF_BY_ENV)) == {"rollout beside env"}
    placements["env"][0]["accelerators"] = ["0"]
    of_both = Seats.of(placements)
    assert of_both is not None
    assert set(other_seats(of_both, env_may_move=True, rules=RLINF_BY_ENV)) == anywhere
    placements["actor"][0]["accelerators"] = placements["rollout"][0]["accelerators"] = []
    at_edge = Seats.of(placements)
    assert at_edge is not None
    assert set(other_seats(at_edge, env_may_move=True, rules=RLINF_BY_ENV)) == {"rollout beside env"}


def test_where_the_policy_is_elsewhere_each_action_is_waited_for(words: Words) -> None:
    """An environment that waits 80 ms for each makes no 13 steps a second; those that ask together wait together."""
    one = Work(68, 28, 10_000, (200,), rules=RLINF_BY_ENV)
    far = links(1000, 80, (EDGE_1,))
    found = predict(REMOTE_POLICY, one, far)
    assert found.env_steps_per_s == pytest.approx(12.5, rel=0.05)
    words(found.limit)
    together = predict(REMOTE_POLICY, replace(one, environments=20), far)
    assert together.env_steps_per_s == pytest.approx(20 * 12.5, rel=0.4)


def test_beside_the_environment_the_policy_waits_for_twice_the_way_under_rlinf(words: Words) -> None:
    """Its observation goes to the channel in the cloud and back, its action likewise."""
    one = Work(68, 28, 10_000, (200,), rules=RLINF_BY_ENV)
    far = links(1000, 80, (EDGE_1,))
    found = predict(POLICY_AT_EDGE, one, far)
    assert found.env_steps_per_s == pytest.approx(1 / 0.16, rel=0.05)
    words(found.limit)
    (name, other), *_ = better(POLICY_AT_EDGE, one, far, env_may_move=False)
    assert name == "rollout beside actor"
    assert other.env_steps_per_s == pytest.approx(12.5, rel=0.05)


def test_experience_of_a_policy_in_the_cloud_comes_home_before_it_is_learnt_from() -> None:
    """Where the env worker puts trajectories together, their way is a part of the turn; else they are there already."""
    images = Work(IMAGE, 28, 0.0, (100,), environments=100, rules=RLINF_BY_ENV, env_steps_per_s=(100.0,))
    narrow = links(30, 50, (EDGE_1,))
    found = predict(REMOTE_POLICY, images, narrow).env_steps_per_s
    assert found is not None
    once_s = IMAGE * 100 * 8 / 30e6
    assert found == pytest.approx(100 / (1 + 3 * once_s), rel=0.05), "there, back, and home"
    by_rollout = predict(REMOTE_POLICY, replace(images, rules=RLINF_BY_ROLLOUT), narrow).env_steps_per_s
    assert by_rollout == pytest.approx(100 / (1 + once_s), rel=0.05)


class TestUnequalNumbers:
    """Of processes, under RLinf: the environments of all are cut into equal parts."""

    def test_every_process_that_is_worked_with_is_counted_and_measured(self) -> None:
        """One env process whose steps are shared by two policies on other nodes."""
        spread = Seats(actor=(CLOUD,), rollout=(EDGE_1, EDGE_2), env=(CLOUD,))
        assert talking_pairs(spread, RLINF_BY_ROLLOUT) == [(CLOUD, EDGE_1), (CLOUD, EDGE_2)]
        moved = flows(spread, work(fragment_steps=(512,), rules=RLINF_BY_ROLLOUT))
        for edge in (EDGE_1, EDGE_2):
            observations = [flow.size_bytes for flow in moved if (flow.target, flow.what) == (edge, "observations")]
            assert observations == [256 * 16], "there; it is learned from where it came from"
            home = [flow.size_bytes for flow in moved if (flow.source, flow.what) == (edge, "observations")]
            assert home == [256 * 16]
        assert crossings(spread, RLINF_BY_ROLLOUT) == [2, 2]

    def test_a_worker_between_two_policies_works_with_both(self) -> None:
        """The second of three, whose half goes to another node."""
        between = Seats(actor=(CLOUD,), rollout=(CLOUD, EDGE_2), env=(EDGE_1, EDGE_1, EDGE_1))
        found = [(path.worker, path.rollout, path.share) for path in between.paths(RLINF_BY_ENV)]
        assert found == [(0, CLOUD, 1.0), (1, CLOUD, 0.5), (1, EDGE_2, 0.5), (2, EDGE_2, 1.0)]

    def test_learners_on_another_node_get_their_share(self) -> None:
        two = Seats(actor=(CLOUD, EDGE_2), rollout=(CLOUD,), env=(CLOUD,))
        moved = flows(two, work(fragment_steps=(512,), weights_bytes=0, rules=RLINF_BY_ROLLOUT))
        (half,) = [flow for flow in moved if flow.what == "observations"]
        assert (half.source, half.target, half.size_bytes) == (CLOUD, EDGE_2, 256 * 16)

    def test_all_that_is_asked_at_once_shares_the_link(self) -> None:
        """Two policies beyond one link take as long as one; on two links, half as long."""
        images = Work(IMAGE, 28, 0.0, (100,), environments=100, rules=RLINF_BY_ROLLOUT)

        def turn_s(*rollouts: int) -> float:
            seats = Seats(actor=(CLOUD,), rollout=rollouts, env=(CLOUD,))
            found = predict(seats, replace(images, rest_bytes=0.0), links(30, 0)).env_steps_per_s
            assert found is not None
            return 100 / found

        one_way_s = IMAGE * 100 * 8 / 30e6
        assert turn_s(EDGE_1) == pytest.approx(2 * one_way_s, rel=0.01), "there, and home to the learner"
        assert turn_s(EDGE_1, EDGE_1) == pytest.approx(2 * one_way_s, rel=0.01)
        assert turn_s(EDGE_1, EDGE_2) == pytest.approx(one_way_s, rel=0.01)


class TestSeveralLearners:
    """Of the trainer, on two nodes: they add up the gradients of each minibatch."""

    SEATS = Seats(actor=(CLOUD, EDGE_2), rollout=(CLOUD,), env=(CLOUD,))
    OVER = links(80, 100, (EDGE_2,))

    @staticmethod
    def shared(**changes: object) -> Work:
        """A megabyte, ten times an update."""
        return work(fragment_steps=(512,), weights_bytes=0, gradient_bytes=1e6, reductions=10, **changes)

    def test_their_nodes_are_measured(self) -> None:
        assert talking_pairs(self.SEATS) == [(CLOUD, EDGE_2)]
        assert talking_pairs(replace(self.SEATS, actor=(CLOUD, CLOUD))) == []

    def test_gradients_cross_in_both_directions(self) -> None:
        """Once all of them for each minibatch, and the first one's parameters at the beginning of each update."""
        found = predict(self.SEATS, self.shared(), self.OVER)
        crossing = {(load.source, load.target): load.parts["gradients"] for load in found.loads}
        assert crossing == {(CLOUD, EDGE_2): 11e6, (EDGE_2, CLOUD): 10e6}
        three = flows(replace(self.SEATS, actor=(CLOUD, CLOUD, EDGE_2)), self.shared())
        up = [flow.size_bytes for flow in three if (flow.source, flow.what) == (EDGE_2, "gradients")]
        assert up == [pytest.approx(10 * 4 / 3 * 1e6)]

    def test_an_update_waits_for_them(self, words: Words) -> None:
        """Of each, half goes there and back, a half of a round trip each time; a megabyte takes 0.1 s at 80 Mbit/s."""
        once_s = 2 * (0.05 + 0.05)
        found = predict(self.SEATS, self.shared(max_policy_lag=8), self.OVER)
        assert found.env_steps_per_s == pytest.approx(512 / (0.1 + 10 * once_s + 0.15))
        words(found.limit)
        beside = predict(replace(self.SEATS, actor=(CLOUD, CLOUD)), self.shared(max_policy_lag=8), self.OVER)
        assert beside.limit == "the environments"
        wanted = self.shared(max_policy_lag=8, wanted_env_steps_per_s=1000.0)
        words(warning(predict(self.SEATS, wanted, self.OVER), wanted, self.OVER, []))

    def test_what_a_run_took_for_them_is_not_counted_twice(self) -> None:
        """An update's time has it already; on a shorter link it is less."""
        budget = RunBudget(self.SEATS, self.OVER, NAMES, max_policy_lag=8)
        budget.begin(Spaces((4,), "float32", 2), 1e3, (512,), Gradients(1e6, epochs=5, rounds=lambda steps: 2))
        for index in range(12):
            learned = TestOfRun.learned(seconds=2.5)
            learned.abouts = learned.abouts[:1]
            budget.add(learned, 100 + index * 2.5)
        known = work_of_report(json.loads(json.dumps({"link_budget": budget.to_dict()})))
        assert known.update_s == pytest.approx(2.5 - 2.15)
        same, near = (predict(self.SEATS, known, over) for over in (self.OVER, links(80, 0, (EDGE_2,))))
        assert same.env_steps_per_s == pytest.approx(512 / 2.5)
        assert near.env_steps_per_s == pytest.approx(512 / (2.5 - 10 * 0.1 - 0.05))


def test_an_environment_moves_only_where_it_may() -> None:
    """A simulator can run beside the learner, a robot cannot."""
    slow = links(0.05, 50)
    names = [name for name, _ in better(AT_EDGES, work(), slow, env_may_move=True)]
    assert names == ["rollout and env beside actor"]
    assert better(AT_EDGES, work(), slow, env_may_move=False) == []


def test_a_tight_link_is_warned_of_and_a_wide_one_is_not() -> None:
    wanted = work(max_policy_lag=3, wanted_env_steps_per_s=1024)
    tight = predict(AT_EDGES, wanted, links(0.18, 10))
    assert (tight.is_tight, tight.is_too_much) == (True, False)
    assert "70 %" in warning(tight, wanted, links(0.18, 10), [])
    assert warning(predict(AT_EDGES, wanted, links(20, 10)), wanted, links(20, 10), []) == ""


def test_a_way_that_was_not_measured_is_said() -> None:
    only_one = links(20, 10, (EDGE_1,))
    found = predict(AT_EDGES, work(), only_one)
    assert found.unmeasured == ((CLOUD, EDGE_2), (EDGE_2, CLOUD))
    assert any("not measured" in line for line in lines(found, work(), only_one))


def test_the_budget_fits_a_terminal_and_is_data() -> None:
    """80 columns; the JSON form has the names of the nodes."""
    images = work(observation_bytes=float(IMAGE), weights_bytes=6.6e9, max_policy_lag=2, rules=RLINF_BY_ROLLOUT)
    wide = links(940, 123)
    found: Prediction = predict(AT_EDGES, images, wide)
    told = lines(found, images, wide)
    assert max(map(len, told)) <= 80, told
    content = json.loads(json.dumps(to_dict(found, images, wide, better(AT_EDGES, images, wide, env_may_move=True))))
    assert {(link["from"], link["to"]) for link in content["links"]} == {
        (a, b) for edge in ("edge-1", "edge-2") for a, b in (("cloud", edge), (edge, "cloud"))
    }
    assert content["sync_s"]["edge-1"] == pytest.approx(6.6e9 * 8 / 940e6, rel=0.05)


def test_measured_links_are_made_of_both_directions() -> None:
    """The round trip of all exchanges of a pair; a link that could not be measured is named with the reason."""
    told = [
        {
            "from": "cloud",
            "to": "edge-1",
            "round_trips_ms": [80.0, 82.0, 81.0],
            "mbit_per_s": 18.0,
            "segments": 1000,
            "retransmitted": 5,
            "trickled": 500,
            "held_up": 8,
        },
        {
            "from": "edge-1",
            "to": "cloud",
            "round_trips_ms": [80.0, 140.0, 80.0],
            "mbit_per_s": 4.0,
            "segments": None,
            "trickled": 300,
            "held_up": 0,
        },
        {"from": "cloud", "to": "edge-2", "error": "timed out"},
        {"from": "edge-2", "to": "cloud", "round_trips_ms": [1.0], "mbit_per_s": 0.0},
    ]
    found, problems = measured(told, {"cloud": 0, "edge-1": 1, "edge-2": 2})
    down, up = found.links[0, 1], found.links[1, 0]
    assert (down.rtt_ms, down.mbit_per_s, down.loss) == (80.5, 18.0, 0.005)
    assert (up.rtt_ms, up.mbit_per_s, up.loss) == (80.5, 4.0, None)
    assert down.held_up == up.held_up == 0.005, "8 of 1,600 packets, there and back"
    assert up.lost == 0.005
    assert up.jitter_ms == pytest.approx(59.5)
    assert [problem.partition(":")[0] for problem in problems] == ["cloud → edge-2", "edge-2 → cloud"]
    assert "timed out" in problems[0]
    assert Measured.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    "changed",
    [
        {"mbit_per_s": 0},
        {"mbit_per_s": -1.0},
        {"mbit_per_s": math.nan},
        {"mbit_per_s": math.inf},
        {"rtt_ms": math.nan},
        {"rtt_ms": -1.0},
        {"loss": math.nan},
        {"held_up": math.inf},
    ],
)
def test_links_that_can_be_no_links_are_refused(changed: dict[str, float]) -> None:
    """In a file that somebody has edited: which of them, and what is wrong."""
    content = links(20, 10, (EDGE_1,)).to_dict()
    content["links"][1].update(changed)
    (name,) = changed
    with pytest.raises(ValueError, match=f"1 → 0 .*{name} {changed[name]}"):
        Measured.from_dict(json.loads(json.dumps(content)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (size(999_600), "1 MB"),
        (size(999_400), "999 kB"),
        (size(999.6), "1 kB"),
        (size(1.2345e12), "1,230 GB"),
        (size(17), "17 B"),
        (mbit(999.6), "1 Gbit/s"),
        (mbit(999.4), "999 Mbit/s"),
        (mbit(1234.5), "1.23 Gbit/s"),
        (mbit(0.00005), "0.00005 Mbit/s"),
        (rounded(2.7e6), "2,700,000"),
        (rounded(0.00001234), "0.000012"),
    ],
)
def test_numbers_are_written_without_powers_of_ten(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.00016, "0.16 ms"), (0.0033, "3.3 ms"), (0.12, "0.12 s"), (80, "80 s")]
)
def test_what_takes_less_than_a_tenth_of_a_second_is_told_in_milliseconds(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_a_policy_that_takes_minutes_and_a_pace_of_a_million_are_written_out() -> None:
    """Ten gigabytes at 1 Mbit/s."""
    large = work(weights_bytes=10e9, max_policy_lag=1, wanted_env_steps_per_s=1e6)
    told = lines(predict(AT_EDGES, large, links(1, 0)), large, links(1, 0))
    assert "a new policy (10 GB) is on edge-1 after 80,000 s" in told
    assert told[-1].endswith("; 1,000,000 are wanted")


def test_what_lost_packets_hold_up_is_waited_for() -> None:
    """Each in each direction for some round trips, whatever the policy lag; a full link carries what it carries."""
    clean = links(20, 500)
    lossy = Measured({way: replace(link, held_up=0.01) for way, link in clean.links.items()}, NAMES)
    for lag in (0, 1):
        moved = work(max_policy_lag=lag, env_steps_per_s=(1e6, 1e6))
        before, after = (predict(AT_EDGES, moved, each).env_steps_per_s for each in (clean, lossy))
        assert before is not None
        assert after is not None
        sizes = [flow.size_bytes for flow in flows(AT_EDGES, moved) if EDGE_1 in (flow.source, flow.target)]
        packets = sum(sizes) / 1300
        assert moved.steps / after - moved.steps / before == pytest.approx(0.01 * packets * 2.75 * 0.5)
    narrow = {way: replace(link, mbit_per_s=0.1) for way, link in lossy.links.items()}
    assert predict(AT_EDGES, work(max_policy_lag=4), Measured(narrow, NAMES)).limit == "the link edge-1 → cloud"


def held_up_s(packets_per_s: float, lost: float, one_held_s: float) -> float:
    """What packets in order wait in the mean, each of the lost ones being there so much later; simulated."""
    generator, released_s, waited_s = random.Random(1), 0.0, 0.0
    count = 100_000
    for number in range(count):
        sent_s = number / packets_per_s
        released_s = max(released_s, sent_s + (one_held_s if generator.random() < lost else 0.0))
        waited_s += released_s - sent_s
    return waited_s / count


def waited_s(size_bytes: float, mbit: float, rtt_ms: float, chunk_bytes: int = CHUNK_BYTES) -> float:
    """What the trainer's own fetching waits for, beside the time that the pieces take to pass, in simulated time."""
    count, passes_s = math.ceil(size_bytes / chunk_bytes), chunk_bytes * 8e-6 / mbit
    wire = Wire(2.5 * rtt_ms / 1000, passes_s)
    assert sum(1 for _ in coming(range(count), {}, wire.fetch, lambda: wire.now_s)) == count
    return wire.now_s - count * passes_s


@pytest.mark.parametrize("rtt_ms", [20.0, 100.0, 300.0, 600.0])
@pytest.mark.parametrize("mbit", [2.0, 20.0, 100.0, 1000.0])
@pytest.mark.parametrize("pieces", [1, 4, 5, 12, 40, 100, 400])
def test_pieces_take_as_long_as_the_code_that_fetches_them(rtt_ms: float, mbit: float, pieces: int) -> None:
    """Of new weights, on links of every length and width; also where as many as it takes at most do not fill one."""
    size_bytes = float(pieces * CHUNK_BYTES)
    found = predict(AT_EDGES, work(weights_bytes=size_bytes, max_policy_lag=1), links(mbit, rtt_ms)).sync_s[EDGE_1]
    passes_s = size_bytes * 8e-6 / mbit
    expected_s = rtt_ms / 2000 + waited_s(size_bytes, mbit, rtt_ms) + passes_s
    assert found == pytest.approx(expected_s, rel=0.06)


def test_new_weights_of_the_trainer_come_in_pieces() -> None:
    """Few bytes with their offer; more, or for several workers of a node, are fetched."""
    far = links(100, 200)
    small, large = (predict(AT_EDGES, work(weights_bytes=size), far).sync_s[EDGE_1] for size in (1e4, 20e6))
    assert small == pytest.approx(0.1, rel=0.05)
    assert large == pytest.approx(far.links[CLOUD, EDGE_1].transfer_s(20e6) + waited_s(20e6, 100, 200), rel=0.05)
    both = Seats(actor=(CLOUD,), rollout=(EDGE_1, EDGE_1), env=(EDGE_1, EDGE_1))
    assert predict(both, work(weights_bytes=1e4), far).sync_s[EDGE_1] == pytest.approx(0.6, rel=0.05)


def offer(
    budget: RunBudget,
    worker: int,
    made_s: float,
    there_s: float,
    back_s: float,
    ahead_s: float = 5e5,
    enclosed_bytes: int = 10_000,
) -> None:
    """Of a worker whose clock is ``ahead_s`` before ours."""
    noted_s = made_s + there_s
    budget.offered(worker, Told(made_s, noted_s + ahead_s, noted_s + back_s, enclosed_bytes))


class TestOfRun:
    """One run: what is told before its first update and after its last one."""

    @staticmethod
    def learned(seconds: float = 0.1, samples: int = 512, collect_s: float = 0.5) -> SimpleNamespace:
        sizes = {"observations": samples * 4, "actions": samples * 5}
        abouts = [
            SimpleNamespace(
                rank=rank,
                samples=samples,
                collect_s=collect_s,
                fetch_s=0.2,
                sent_bytes=sizes,
                raw_bytes=sizes,
            )
            for rank in (0, 1)
        ]
        offer = SimpleNamespace(difference_bytes=0, whole_bytes=10_000)
        return SimpleNamespace(seconds=seconds, abouts=abouts, made=SimpleNamespace(offer=offer))

    def tally(self, updates: int = 12, every_s: float = 0.6) -> Tally:
        tally = Tally()
        for index in range(updates):
            tally.add(self.learned(), 100 + index * every_s)
        return tally

    def test_a_run_tells_what_another_prediction_needs(self) -> None:
        """Bytes as they were sent, each worker's own pace, the learner's time; the first updates do not count."""
        tally = self.tally()
        assert tally.env_steps_per_s == pytest.approx(1024 / 0.6)
        found = tally.work(2, max_policy_lag=1)
        assert found is not None
        assert (found.observation_bytes, found.action_bytes, found.rest_bytes) == (4, 5, 0)
        assert found.env_steps_per_s == (1024, 1024)
        assert found.fragment_steps == (512, 512)
        assert Tally().work(2, 1) is None
        alone = RunBudget(AT_EDGES, None, NAMES, max_policy_lag=1)
        for index in range(12):
            alone.add(self.learned(), 100 + index * 0.6)
        assert alone.begin(IMAGES, 1e4, (64, 64)) == alone.end() == []
        assert work_of_report(json.loads(json.dumps({"link_budget": alone.to_dict()}))) == found

    def test_nodes_have_their_names_also_where_nothing_was_measured(self) -> None:
        budget = RunBudget(AT_EDGES, None, NAMES)
        for index in range(4):
            budget.add(self.learned(), 100 + index * 0.6)
        joined_later = 7  # and is in no placement
        budget.counted({EDGE_1: (0.25, 0.5), joined_later: (0.5, 0.25)})
        content = budget.to_dict()
        assert set(content["sync_s"]) == {"edge-1", "edge-2"}
        assert set(content["mbit_per_s"]) == {"edge-1", "node 7"}

    def test_a_worker_that_gave_nothing_limits_nothing(self) -> None:
        """Updates of an asynchronous run do not wait for a slow robot: a short one ends without a fragment of it."""
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(12):
            learned = self.learned()
            learned.abouts = learned.abouts[:1]
            budget.add(learned, 100 + index * 0.6)
        pace, of_the_other = budget.end()
        assert pace == "link budget: 853 env steps/s, predicted 1,024, limited by the environments"
        assert of_the_other.startswith("  edge-1: ")
        content = budget.to_dict()
        assert content["work"]["fragment_steps"] == (512, 0)
        assert content["predicted"]["env_steps_per_s"] == 1024

    def test_a_robot_that_is_slower_than_the_updates_has_a_pace_all_the_same(self) -> None:
        """One step in four updates, of each of two."""
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(10):
            learned = self.learned(samples=1)
            learned.abouts = learned.abouts if index % 4 == 2 else []
            budget.add(learned, 100 + index * 0.6)
        pace, *_ = budget.end()
        assert pace.startswith("link budget: 0.83 env steps/s, predicted ")
        known = work_of_report(json.loads(json.dumps({"link_budget": budget.to_dict()})))
        assert known.fragment_steps == (0.25, 0.25)
        assert known.observation_bytes == 4

    def test_of_a_run_without_its_first_workers_nothing_is_predicted(self) -> None:
        """All that it learned from came from one that joined."""
        budget = RunBudget(POLICY_AT_EDGE, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(10):
            learned = self.learned()
            learned.abouts = learned.abouts[1:]
            budget.add(learned, 100 + index * 0.6)
        assert budget.end() == []
        assert budget.to_dict()["work"] is None

    def test_a_run_is_held_against_its_prediction(self) -> None:
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        assert budget.end() == []
        for index in range(12):
            budget.add(self.learned(), 100 + index * 0.6)
            # Connections, caches and code are new at first; each answer but one waits behind experience.
            offer(budget, 0, index, 0.1 if index > 1 else 60.0, 0.1 + (index != 3))
            offer(budget, 1, index, 0.1 if index % 2 else 0.3, 0.1 + (index != 3), ahead_s=-7e5)
        budget.counted({EDGE_1: (0.25, 0.5), CLOUD: (0.5, 0.25)})
        pace, first, second = budget.end()
        assert pace == "link budget: 1,707 env steps/s, predicted 2,048, limited by the environments"
        # 10 kB at 20 Mbit/s after half a round trip of 100 ms; two updates a second are predicted. What happened is as
        # much for the quickest offer, what the others took longer, and 0.2 s to fetch them.
        number = r"0\.\d+ Mbit/s"
        counted = rf"sent 0.25 Mbit/s \({number}\), received 0.5 Mbit/s \({number}\)"
        assert re.fullmatch(rf"  edge-1: .* 0.25 s \(54 ms\), {counted}", first)
        assert re.fullmatch(r"  edge-2: .* 0.35 s \(54 ms\)", second)
        content = budget.to_dict()
        assert content["env_steps_per_s"] == pytest.approx(1706.67)
        assert content["predicted"]["env_steps_per_s"] == 2048
        assert content["sync_s"] == pytest.approx({"edge-1": 0.254, "edge-2": 0.354}, abs=1e-3)
        assert content["mbit_per_s"]["edge-1"] == {"sent": 0.25, "received": 0.5}
        carried = {(link["from"], link["to"]): link["mbit_per_s"] for link in content["predicted"]["links"]}
        assert carried["edge-1", "cloud"] >= 2 * 512 * 9 * 8e-6, "what fragments are, and their messages"
        assert f"sent 0.25 Mbit/s ({mbit(carried['edge-1', 'cloud'])})" in first

    def test_what_new_weights_take_besides_is_known_of_a_run_that_was(self) -> None:
        """Another prediction counts it again; what the turns take has it already."""
        near, far = links(20, 100), links(20, 400)
        budget = RunBudget(AT_EDGES, near, NAMES, max_policy_lag=1)
        for index in range(12):
            budget.add(self.learned(), 100 + index * 0.6)
            offer(budget, 0, index, 0.1, 0.1)
            offer(budget, 1, index, 0.1 if index % 2 else 0.3, 0.1)
        known = work_of_report({"link_budget": budget.to_dict()})
        assert known.sync_rest_s == pytest.approx((0.2 + 0.3) / 2, abs=1e-3)
        with_rest, without = (predict(AT_EDGES, each, far) for each in (known, replace(known, sync_rest_s=0.0)))
        assert with_rest.sync_s[EDGE_1] == pytest.approx(without.sync_s[EDGE_1] + known.sync_rest_s)
        assert with_rest.env_steps_per_s == without.env_steps_per_s

    def test_a_machine_that_boots_again_has_another_clock(self) -> None:
        """And a run of weeks keeps the last two hours."""
        budget = RunBudget(AT_EDGES, None, NAMES, max_policy_lag=1)
        for index in range(10_000):
            budget.add(self.learned(), 100 + index * 20)
            offer(budget, 0, 20 * index, 0.1, 0.1, ahead_s=5e5 if index < 9_999 else -100.0)
        assert budget.to_dict()["sync_s"]["edge-1"] == pytest.approx(0.3, abs=2e-3)
        assert len(budget._tally.offers[0]._windows) == 240

    def test_new_weights_wait_for_what_is_lost(self) -> None:
        """Of eight packets, one in a hundred holds up the rest, for one to four round trips."""
        clean = links(20, 100)
        lossy = replace(clean, links={way: replace(link, held_up=0.01) for way, link in clean.links.items()})
        of_ten_kb = work(weights_bytes=10_000)
        without, with_loss = (predict(AT_EDGES, of_ten_kb, each).sync_s[EDGE_1] for each in (clean, lossy))
        assert 1 < (with_loss - without) / (8 * 0.01 * 0.1) < 4

    def test_new_weights_wait_for_what_was_lost_before_them(self) -> None:
        """Of other packets, which come on without a turn taken: those with experience are confirmed on this way."""
        clean = links(20, 500)
        lossy = replace(clean, links={way: replace(link, held_up=0.002) for way, link in clean.links.items()})
        small = work(weights_bytes=1300, update_s=0.3)
        for size_bytes in (16, 160):
            rolling = replace(small, observation_bytes=size_bytes, max_policy_lag=4)
            own_s, all_s = (
                predict(AT_EDGES, each, lossy).sync_s[EDGE_1] - predict(AT_EDGES, each, clean).sync_s[EDGE_1]
                for each in (small, rolling)
            )
            loads = {(load.source, load.target): load.mbit_per_s for load in predict(AT_EDGES, rolling, lossy).loads}
            packets_per_s = (loads[CLOUD, EDGE_1] + loads[EDGE_1, CLOUD] / 2) / 8e-6 / 1300
            assert own_s == pytest.approx(0.002 * 2.75 * 0.5, rel=0.1)
            assert all_s == pytest.approx(held_up_s(packets_per_s, 0.002, 2.75 * 0.5), rel=0.15)

    def test_answers_that_always_wait_behind_experience_change_no_time(self) -> None:
        """On a way back that is full, half of the quickest exchange would be seconds; there the way is free."""
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(12):
            budget.add(self.learned(), 100 + index * 0.6)
            offer(budget, 0, index, 0.054, 3.0 + index % 2)
        assert budget.to_dict()["sync_s"]["edge-1"] == pytest.approx(0.254, abs=2e-3)

    def test_the_quickest_exchange_may_have_been_late_there(self) -> None:
        """Its way back was free, while the others' was full: another one was there the soonest."""
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(12):
            budget.add(self.learned(), 100 + index * 0.6)
            there_s, back_s = (0.104, 0.05) if index == 5 else (0.074 if index % 2 else 0.054, 3.0)
            offer(budget, 0, index, there_s, back_s)
        mean_s = (0.104 + 4 * 0.074 + 5 * 0.054) / 10  # the first two updates do not count
        assert budget.to_dict()["sync_s"]["edge-1"] == pytest.approx(0.2 + mean_s, abs=1e-4)

    def test_what_an_offer_brings_takes_its_time_on_one_way_only(self) -> None:
        """10 kB at 2 Mbit/s: 40 ms of the 140 ms there and back; the clocks are set by that, not by halves."""
        budget = RunBudget(AT_EDGES, links(2, 100), NAMES, max_policy_lag=1)
        for index in range(12):
            budget.add(self.learned(), 100 + index * 0.6)
            offer(budget, 0, index, 0.09 if index % 2 else 0.29, 0.05)
        assert budget.to_dict()["sync_s"]["edge-1"] == pytest.approx(0.2 + (0.09 + 0.29) / 2, abs=1e-4)

    @pytest.mark.parametrize(("quickest_bytes", "there_s"), [(0, 0.05), (2_500, 0.051), (11_000, 0.0544)])
    def test_the_quickest_offer_took_what_it_brought(self, quickest_bytes: int, there_s: float) -> None:
        """Which is less or more than the others did; after half a round trip, 10 kB take 4 ms at 20 Mbit/s."""
        budget = RunBudget(AT_EDGES, links(20, 100), NAMES, max_policy_lag=1)
        for index in range(1000):
            budget.add(self.learned(), 100 + index * 0.02)
            is_quickest = index == 500
            size = {"enclosed_bytes": quickest_bytes} if is_quickest else {}
            offer(budget, 0, index * 0.02, there_s if is_quickest else 0.054, 2.0 if is_quickest else 3.0, **size)
        assert budget.to_dict()["sync_s"]["edge-1"] == pytest.approx(0.254, abs=1e-4)

    def test_clocks_that_drift_apart_change_no_time(self) -> None:
        """In the hours of a run they do, by seconds. Of who was offered nothing there is the fetching only."""
        budget = RunBudget(AT_EDGES, None, NAMES, max_policy_lag=1)
        for index in range(500):
            budget.add(self.learned(), 100 + index * 20)
            offer(budget, 0, 20 * index, 0.1 if index % 2 else 0.3, 0.1, ahead_s=5 + index * 20 * 50e-6)
        found = budget.to_dict()["sync_s"]
        assert found["edge-1"] == pytest.approx(0.4, abs=2e-3)
        assert found["edge-2"] == 0.2

    def test_what_a_turn_takes_besides_is_known_of_a_run_that_took_turns(self) -> None:
        """Of 0.9 s a turn, what collecting, updating and the way leave; another prediction counts it again."""
        near, far = links(20, 100), links(20, 400)

        def of_run(lag: int, known: Measured | None) -> Work:
            budget = RunBudget(AT_EDGES, known, NAMES, max_policy_lag=lag)
            for index in range(12):
                budget.add(self.learned(), 100 + index * 0.9)
            return work_of_report({"link_budget": budget.to_dict()})

        turns = of_run(0, near)
        assert 0.05 < turns.rest_s < 0.3 - 0.1  # the way: half a round trip there, half back, and the bytes
        assert predict(AT_EDGES, turns, near).env_steps_per_s == pytest.approx(1024 / 0.9, rel=1e-3)
        longer_s = 1024 / predict(AT_EDGES, turns, far).env_steps_per_s - 0.9  # type: ignore[operator]
        assert longer_s == pytest.approx(0.3, rel=0.1)
        assert of_run(1, near).rest_s == of_run(0, None).rest_s == 0, "turns overlap; the way is not known"

    def test_a_run_that_cannot_be_carried_does_not_begin(self, words: Words) -> None:
        """It names the placement that would do; where no pace is wanted, nothing is refused."""
        narrow = RunBudget(AT_EDGES, links(1, 50), NAMES, max_policy_lag=2, wanted_env_steps_per_s=100.0)
        with pytest.raises(TrainerError, match="100 env steps/s") as told:
            narrow.begin(IMAGES, 10_000, (64, 64))
        assert told.value.exit_status == 75
        words(told.value)
        free = RunBudget(AT_EDGES, links(1, 50), NAMES, max_policy_lag=2)
        said = free.begin(IMAGES, 10_000, (64, 64))
        assert said[0].startswith("link budget")
        assert not any("warning" in line for line in said)
        before = free.to_dict()["before"]
        (up,) = [link for link in before["links"] if (link["from"], link["to"]) == ("edge-1", "cloud")]
        assert up["update_bytes"]["observations"] == 64 * IMAGE

    def test_links_come_by_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """None, or one that cannot be read, is no reason not to train."""
        file = tmp_path / "links.json"
        monkeypatch.delenv("EDGELINK_LINKS", raising=False)
        assert links_of_run() is None
        monkeypatch.setenv("EDGELINK_LINKS", str(file))
        assert links_of_run() is None
        file.write_text("[]")
        assert links_of_run() is None
        file.write_text(json.dumps(links(20, 100).to_dict()))
        assert links_of_run() == links(20, 100)


def test_what_is_large_is_asked_for_until_the_link_is_busy() -> None:
    """Each piece of the trainer's takes a way of 2.5 round trips; turns wait for it."""
    one = Seats((CLOUD,), (EDGE_1,), (EDGE_1,))
    assert (FIRST, CHUNK_BYTES) == (4, 512 * 1024)

    def turn_s(observation_bytes: float, mbit: float, chunk_bytes: int = CHUNK_BYTES) -> float:
        pixels = work(
            observation_bytes=observation_bytes, weights_bytes=0, fragment_steps=(1024,), env_steps_per_s=(1e9,),
            rest_bytes=0, action_bytes=0, update_s=0.0, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        found = predict(one, pixels, links(mbit, 300.0)).env_steps_per_s
        assert found is not None
        return 1024 / found

    small, large = 0.99 * 4 * CHUNK_BYTES / 1024, 1.01 * 4 * CHUNK_BYTES / 1024
    step_s = turn_s(large, 20) - turn_s(small, 20)
    assert step_s == pytest.approx(waited_s(large * 1024, 20, 300) - 0.3, abs=0.05), "objects, where it was an answer"
    much = 2 * 9.4e6 / 1024  # twice what is on its way over a link of 100 Mbit/s
    whole_s = turn_s(much, 100, chunk_bytes=10**9)
    for chunk_bytes in (CHUNK_BYTES, CHUNK_BYTES // 8):
        more_s = waited_s(much * 1024, 100, 300, chunk_bytes) - 0.3
        assert turn_s(much, 100, chunk_bytes) - whole_s == pytest.approx(more_s, rel=0.1)
