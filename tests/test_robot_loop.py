"""The control loop, instant by instant: what it does to the robot, and what it never does."""

from __future__ import annotations

import math
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obedient_robot import SPACES, ObedientRobot, policy, weights

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.acting import Actor, PolicyActor, ReplayActor
from edgelink.training.trainer.robot.control import _command
from edgelink.training.trainer.robot.deadman import Cause, DeadmanSettings, State
from edgelink.training.trainer.robot.figures import condition
from edgelink.training.trainer.robot.interface import Limits, Robot, RobotSettings, Sensed, load_robot
from edgelink.training.trainer.robot.limits import ActionLimits
from edgelink.training.trainer.robot.loop import ControlLoop
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock, WeightsReader, WeightsWriter

NS = 1_000_000_000
PERIOD_NS = NS // 100
SETTINGS = DeadmanSettings(
    link_timeout_s=0.2, policy_timeout_s=5.0, stop_after_s=0.3, resume="automatic", resume_after_s=1
)


class Bench:
    """A loop whose time is ours; the link is alive as long as ``link`` is true."""

    def __init__(
        self, settings: DeadmanSettings = SETTINGS, action_repeat: int = 1, commands: list[float] | None = None
    ) -> None:
        self.robot = ObedientRobot(RobotSettings())
        self.robot.action_repeat = action_repeat
        self.block = SharedBlock(Layout(self.robot.spaces, 1, 1000, action_repeat))
        self.words = self.block.words
        actor: Actor = policy(self.robot, self.block)
        if commands is not None:
            each = np.asarray(commands, np.float32).reshape(-1, action_repeat, 1)
            actor = ReplayActor(self.words, each)
        self.loop = ControlLoop(self.robot, self.block, settings, actor)
        self.writer = WeightsWriter(self.block)
        self.reader = RingReader(self.block)
        self.now_ns = 100 * NS
        self.link = True

    def tick(self, count: int = 1) -> list[str]:
        """What was called meanwhile."""
        self.robot.calls.clear()
        for _ in range(count):
            self.now_ns += PERIOD_NS
            if self.link:
                self.words.link_ns = self.now_ns
            self.loop.tick(self.now_ns)
        return list(self.robot.calls)

    @property
    def state(self) -> tuple[State, Cause]:
        return State(self.words.state), Cause(self.words.cause)


def _loop_of(robot: Robot) -> ControlLoop:
    block = SharedBlock(Layout(robot.spaces, 1, 8))
    return ControlLoop(robot, block, SETTINGS, policy(robot, block))


@pytest.fixture
def bench() -> Bench:
    """Running by a first policy."""
    return running(Bench())


def running(bench: Bench) -> Bench:
    assert set(bench.tick(5)) == {"hold"}
    assert bench.state == (State.WAITING, Cause.NO_POLICY)
    bench.writer.publish(1, weights(0.5))
    assert bench.tick() == ["reset", "act"]
    assert bench.state == (State.RUNNING, Cause.NONE)
    return bench


def test_every_instant_commands_one_action_and_makes_one_step(bench: Bench) -> None:
    """Of the newest policy, whose version each step carries."""
    assert bench.tick(3) == ["act"] * 3
    bench.writer.publish(2, weights(-0.5))
    bench.tick(100)
    assert bench.robot.acted[-1] == pytest.approx(-0.5, abs=0.1)
    rows = bench.reader.take(1000)
    assert len(rows) == 103
    assert rows["version"].tolist() == [1] * 4 + [2] * 99
    assert (rows["rewards"] == 1).all()


def test_the_deadman_fires_one_period_after_the_timeout_at_most(bench: Bench) -> None:
    """Hold at 0.2 s of silence, stop 0.3 s later, whatever the policy wants."""
    bench.link = False
    silent_since_ns = bench.now_ns
    while bench.state[0] is State.RUNNING:
        bench.tick()
    assert 0.2 * NS < bench.now_ns - silent_since_ns <= 0.2 * NS + PERIOD_NS
    assert bench.state == (State.HOLDING, Cause.LINK)
    assert set(bench.tick(29)) == {"hold"}
    assert bench.tick() == ["stop"]
    assert bench.tick(100) == []
    assert bench.state == (State.STOPPED, Cause.LINK)
    bench.link = True
    assert "act" not in bench.tick(99)
    assert bench.tick(2)[:2] == ["reset", "act"]
    assert (bench.words.holds, bench.words.stops, bench.words.resumes) == (1, 1, 1)


def test_a_worker_that_is_stuck_is_no_live_link() -> None:
    """From its loop's first round on, each has to be followed by another one, by the robot's own clock."""
    bench = running(Bench(replace(SETTINGS, policy_timeout_s=0.0)))
    bench.tick(1000)
    assert bench.state == (State.RUNNING, Cause.NONE), "a worker that shows nothing of itself yet"
    for _ in range(10):
        bench.words.add("worker_steps")
        bench.tick(round(SETTINGS.worker_timeout_s * 100))
        assert bench.state == (State.RUNNING, Cause.NONE)
    bench.tick(2)
    assert bench.state == (State.HOLDING, Cause.WORKER_STUCK)
    bench.tick(round(SETTINGS.stop_after_s * 100))
    assert bench.state == (State.STOPPED, Cause.WORKER_STUCK)
    for _ in range(11):
        bench.words.add("worker_steps")
        bench.tick(10)
    assert bench.state == (State.RUNNING, Cause.NONE)


def test_a_policy_that_is_too_old_is_not_acted_by(bench: Bench) -> None:
    """A new one brings it back."""
    bench.tick(501)
    assert bench.state == (State.HOLDING, Cause.POLICY)
    bench.writer.publish(2, weights())
    bench.tick(102)
    assert bench.state[0] is State.RUNNING


def test_a_policys_age_counts_from_when_it_came(bench: Bench) -> None:
    """Not from when it was made, which is told by another machine's clock; and not from the one before."""
    bench.tick(400)
    bench.writer.publish(2, weights())
    bench.tick()
    came_ns = bench.now_ns
    while bench.state[0] is State.RUNNING:
        bench.tick()
    assert 5 * NS < bench.now_ns - came_ns <= 5 * NS + PERIOD_NS
    assert bench.words.policy_ns == came_ns


def test_a_policy_that_is_still_the_newest_does_not_grow_old() -> None:
    """Robots alone: none is made while a person has stopped them. Once they may, they go on by the one that there is;
    it grows old when nothing is heard."""
    bench = running(Bench(replace(SETTINGS, resume="manual")))
    bench.words.stop_requests = 1
    for _ in range(60):
        bench.words.weights_confirmed_ns = bench.now_ns
        bench.tick(100)
    assert bench.state == (State.STOPPED, Cause.PERSON)
    bench.words.resume_requests = 1
    assert bench.tick()[:2] == ["reset", "act"]
    assert bench.state == (State.RUNNING, Cause.NONE)
    while bench.state[0] is State.RUNNING:
        bench.tick()
    assert bench.state == (State.HOLDING, Cause.POLICY)
    assert 5 * NS < bench.now_ns - bench.words.weights_confirmed_ns <= 6 * NS + PERIOD_NS


def test_a_policy_is_not_kept_young_by_word_of_a_newer_one(bench: Bench) -> None:
    """Which is there and not copied yet, as large weights are not; what was known of the one before still counts."""
    bench.tick(400)
    bench.words.weights_confirmed_ns = heard_ns = bench.now_ns
    bench.tick(200)
    assert bench.state[0] is State.RUNNING
    bench.words.weights_version = 2
    for _ in range(4):
        bench.tick(100)
        bench.words.weights_confirmed_ns = bench.now_ns
    assert bench.state == (State.STOPPED, Cause.POLICY)
    assert bench.words.policy_confirmed_ns == heard_ns


def test_what_is_no_number_is_never_commanded(bench: Bench) -> None:
    """From the sensors, or from the policy; the robot holds and, as that lasts, stops."""
    acted = len(bench.robot.acted)
    bench.robot.seen[:] = np.nan
    assert bench.tick() == ["hold"]
    assert bench.state == (State.HOLDING, Cause.NOT_A_NUMBER)
    bench.robot.seen[:] = 0
    bench.tick(102)
    assert bench.state[0] is State.RUNNING
    bench.writer.publish(2, weights(float("nan")))
    assert bench.tick() == ["hold"]
    bench.tick(40)
    assert bench.state == (State.STOPPED, Cause.NOT_A_NUMBER)
    bench.writer.publish(3, weights(0.25))
    bench.tick(110)
    assert bench.state[0] is State.RUNNING
    assert np.isfinite(bench.robot.acted[acted:]).all()
    assert bench.words.not_numbers == 2


def test_limits_hold_whatever_the_policy_says(bench: Bench) -> None:
    """Box, rate of change, and the robot's own workspace; each is counted."""
    bench.writer.publish(2, weights(7.0))
    bench.tick(1)
    assert bench.robot.acted[-1] == 1.0
    bench.writer.publish(3, weights(-7.0))
    bench.tick(5)
    assert np.allclose(bench.robot.acted[-5:], [0.5, 0.0, -0.5, -1.0, -1.0])
    assert bench.words.clamped_box == 6
    assert bench.words.clamped_rate == 3
    bench.robot.workspace = lambda sensed, actions: np.maximum(actions, 0)  # type: ignore[method-assign]
    bench.tick()
    assert bench.robot.acted[-1] == 0.0
    assert bench.words.clamped_workspace == 1
    rows = bench.reader.take(1000)
    assert (np.abs(rows["executed"]) <= 1).all()
    assert (np.abs(rows["actions"]) > 6).any(), "the learner sees what the policy drew"


def test_limits_from_an_array_are_limits() -> None:
    """Also those that are a single zero."""
    zero: Any = np.zeros(1, np.float32)
    limits = ActionLimits(Limits(low=zero, max_change_per_s=zero + 100), SPACES, 100.0)
    assert limits.apply(np.full((1, 1), -0.5, np.float32))[0].item() == 0.0


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.5, 0.7, 1.2, 1e-46, sys.float_info.max])
def test_no_action_is_beyond_a_limit_by_a_rounding(limit: float) -> None:
    """Of which 32 bits have only a neighbour: a robot's code that compares with its own limit finds nothing beyond."""
    spaces = Spaces((2,), "float32", None, (-math.inf,), (math.inf,))
    limits = ActionLimits(Limits(low=(-limit,), high=(limit,)), spaces, 100.0)
    for wanted in (-math.inf, math.inf):
        action = limits.boxed(np.full((1, 1), wanted, np.float32)).item()
        assert 0.999999 * min(limit, 3e38) - 1e-40 < abs(action) <= limit


@pytest.mark.parametrize("box", [1.0, 0.3])
def test_a_limit_may_leave_one_action(box: float) -> None:
    """Though 32 bits do not have it; the robot's spaces may say the same, rounded."""
    spaces = Spaces((2,), "float32", None, (min(0.3, 1 - box),), (box,))
    limits = ActionLimits(Limits(low=(0.3,), high=(0.3,)), spaces, 100.0)
    assert limits.boxed(np.zeros((1, 1), np.float32)).item() == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["low", "high", "max_change_per_s"])
@pytest.mark.parametrize("count", [1, 2])
def test_limits_are_one_a_dimension(name: str, count: int) -> None:
    """One number for all of them would be a guess."""
    spaces = Spaces((2,), "float32", None, (-1.0,) * 3, (1.0,) * 3)
    given: Any = {name: (0.5,) * count}
    with pytest.raises(ValueError, match=rf"limits\.{name} .*\b{count}\b.* 3"):
        ActionLimits(Limits(**given), spaces, 100.0)


def test_after_a_hold_the_rate_of_change_counts_from_rest(bench: Bench) -> None:
    """Not from the action before it."""
    bench.writer.publish(2, weights(1.0))
    bench.tick(5)
    bench.words.stop_requests += 1
    assert bench.tick() == ["stop"]
    bench.words.resume_requests += 1
    bench.tick(1)
    assert bench.robot.acted[-1] == pytest.approx(0.5)


def test_after_a_reset_that_takes_no_time_the_rate_of_change_counts_from_rest(bench: Bench) -> None:
    """As after one that takes its time; of those rigs only that were reset."""
    bench.writer.publish(2, weights(1.0))
    bench.tick(5)
    assert bench.robot.acted[-1] == 1.0
    bench.robot.ends = True
    assert bench.tick() == ["reset", "act"]
    assert bench.robot.acted[-1] == pytest.approx(0.5)
    limits = ActionLimits(Limits(max_change_per_s=(50.0,)), bench.robot.spaces, 100.0)
    limits.commanded(np.ones((2, 1), np.float32))
    limits.commanded(np.zeros((2, 1), np.float32), np.array([True, False]))
    allowed, *_ = limits.apply(np.ones((2, 1), np.float32))
    assert allowed[:, 0].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("instants", [0, 1, 3])
def test_after_a_reset_that_takes_instants_the_rate_of_change_counts_from_where_it_led(
    bench: Bench, instants: int
) -> None:
    """Not from where the robot was on its way, or before it."""
    bench.robot.rest = lambda sensed: sensed.observations[:, :1].copy()  # type: ignore[method-assign]
    bench.robot.seen[:] = 0.9
    bench.writer.publish(2, weights(0.9))
    bench.tick(5)
    bench.robot.ends, bench.robot.is_ready = True, not instants
    reset = bench.robot.reset

    def begin(rigs: Any) -> None:
        reset(rigs)
        bench.robot.seen[:] = 0.4 if instants else -0.8  # on its way, or there

    bench.robot.reset = begin  # type: ignore[method-assign]
    assert "act" not in bench.tick(instants)
    bench.robot.seen[:], bench.robot.is_ready = -0.8 if instants else 0.9, True
    bench.tick()
    assert bench.robot.acted[-1] == pytest.approx(-0.3)


def test_a_rest_that_is_no_number_when_it_is_ready_is_a_hold(bench: Bench) -> None:
    """The rate of change would count from what was before."""
    bench.robot.ends, bench.robot.is_ready = True, False
    bench.tick(3)
    bench.robot.rest = lambda sensed: np.full((1, 1), np.nan)  # type: ignore[method-assign]
    bench.robot.is_ready = True
    assert bench.tick() == ["hold"]
    assert bench.state == (State.HOLDING, Cause.NOT_A_NUMBER)


def test_a_hold_holds_on_the_way_to_the_start_too(bench: Bench) -> None:
    """Though the robot is not ready; and the way, once broken off, begins anew."""
    bench.robot.ends, bench.robot.is_ready = True, False
    assert bench.tick(3) == ["reset"]
    bench.link = False
    while bench.state[0] is State.RUNNING:
        bench.tick()
    assert bench.robot.calls == ["hold"]
    assert bench.tick(5) == ["hold"] * 5
    bench.robot.is_ready = bench.link = True
    assert "reset" not in bench.tick(100)
    assert bench.tick(2)[:2] == ["reset", "act"]


def test_an_attempt_that_ended_in_a_hold_is_not_gone_on_with(bench: Bench) -> None:
    """Else the policy would act once more where it has failed, and learn from that."""
    bench.link = False
    while bench.state[0] is State.RUNNING:
        bench.tick()
    bench.robot.ends = True
    bench.tick(2)
    bench.reader.take(1000)
    bench.link = True
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]
    bench.tick()
    rows = bench.reader.take(1000)
    assert (rows["terminated"].any(), rows["step"][:, 0].tolist()) == (False, [1])


@pytest.mark.parametrize("kept", [np.full((1, 1), np.nan), np.zeros((1, 2)), np.float32(0)])
def test_what_workspace_spoils_is_not_commanded(bench: Bench, kept: Any) -> None:
    """No number, or too many of them: the robot holds."""
    bench.robot.workspace = lambda sensed, actions: kept  # type: ignore[method-assign]
    assert bench.tick() == ["hold"]
    assert bench.state == (State.HOLDING, Cause.NOT_A_NUMBER)
    assert bench.words.not_numbers == 1
    _assert_stays_at_rest(bench)


def _assert_stays_at_rest(bench: Bench) -> None:
    """The hold becomes a stop, though the robot is one that goes on by itself; newer weights may do better."""
    bench.tick(31)
    assert bench.state == (State.STOPPED, Cause.NOT_A_NUMBER)
    assert bench.tick(400) == []
    bench.robot.workspace = lambda sensed, actions: actions  # type: ignore[method-assign]
    assert bench.tick(400) == []
    bench.writer.publish(2, weights())
    assert bench.tick(102)[:2] == ["reset", "act"]


def test_the_box_has_the_last_word(bench: Bench) -> None:
    """Over what workspace() gives, and over the rate of change from a rest outside it."""
    bench.robot.workspace = lambda sensed, actions: actions + 40  # type: ignore[method-assign]
    bench.tick()
    assert bench.robot.acted[-1] == 1.0
    bench.robot.workspace = lambda sensed, actions: actions  # type: ignore[method-assign]
    bench.robot.rest = lambda sensed: np.full((1, 1), 40.0)  # type: ignore[method-assign]
    bench.words.stop_requests += 1
    bench.tick()
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]
    assert bench.robot.acted[-1] == 1.0


def test_a_rest_that_is_no_number_keeps_the_robot_from_running(bench: Bench) -> None:
    """After a hold as after a reset; what it does once it is back counts from the rest it then has."""
    bench.writer.publish(2, weights(1.0))
    bench.tick(5)
    bench.robot.rest = lambda sensed: np.full((1, 1), np.nan)  # type: ignore[method-assign]
    bench.robot.seen[:] = np.nan
    bench.tick()
    bench.robot.seen[:] = 0
    bench.tick(50)
    assert bench.state == (State.STOPPED, Cause.NOT_A_NUMBER)
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "hold"]
    assert "act" not in bench.tick(20)
    bench.robot.rest = lambda sensed: np.zeros((1, 1), np.float32)  # type: ignore[method-assign]
    while bench.state[0] is not State.RUNNING:
        bench.tick()
    assert bench.robot.acted[-1] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["observations", "rewards"])
def test_what_is_seen_after_a_reset_is_checked_too(bench: Bench, name: str) -> None:
    """And rewards like observations."""
    observe, was_reset = bench.robot.observe, len(bench.robot.calls)

    def spoiled() -> Sensed:
        sensed = observe()
        if bench.robot.calls[was_reset:] == ["reset"]:
            getattr(sensed, name)[:] = np.nan
        return sensed

    bench.robot.observe, was_reset = spoiled, 0  # type: ignore[method-assign]
    bench.robot.ends = True
    assert bench.tick() == ["reset", "hold"]
    assert bench.state == (State.HOLDING, Cause.NOT_A_NUMBER)
    bench.robot.observe = observe  # type: ignore[method-assign]
    _assert_stays_at_rest(bench)


def test_what_is_seen_after_a_first_reset_is_checked_too(bench: Bench) -> None:
    """Of a robot that goes on by itself, which would move to its start again and again."""
    observe = bench.robot.observe

    def spoiled() -> Sensed:
        sensed = observe()
        if bench.robot.calls[-1:] == ["reset"]:
            sensed.observations[:] = np.nan
        return sensed

    bench.link = False
    bench.tick(60)
    bench.link = True
    bench.robot.observe = spoiled  # type: ignore[method-assign]
    assert bench.tick(102).count("reset") == 1
    bench.tick(40)
    bench.robot.observe = observe  # type: ignore[method-assign]
    _assert_stays_at_rest(bench)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="the watchdog has nowhere to go")
def test_the_watchdog_is_on_no_processor_that_the_loop_is_bound_to() -> None:
    """Robot's code that computes there without end, by SCHED_FIFO, would keep it from stopping the robot."""
    loop = Bench().loop
    loop._is_over = True
    where: list[set[int]] = []

    def watch() -> None:
        one = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {one})
        loop._watch()
        where.append(os.sched_getaffinity(0) & {one})

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(20)
    assert where == [set()]


@pytest.mark.parametrize("method", ["observe", "workspace", "reset"])
def test_what_the_watchdog_has_stopped_is_not_moved_in_the_same_instant(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Wherever in it the robot's code was stuck."""
    inner = getattr(bench.robot, method)

    def slow(*given: Any) -> Any:
        bench.loop._is_stuck = True  # as the watchdog does from its thread
        return inner(*given)

    bench.robot.ends = method == "reset"
    monkeypatch.setattr(bench.robot, method, slow)
    assert set(bench.tick()) - {"reset"} == {"stop"}
    assert bench.state == (State.STOPPED, Cause.STALLED)


@pytest.mark.parametrize("method", ["observe", "workspace", "reset"])
def test_a_resume_that_was_said_while_the_robot_was_stuck_lifts_no_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Who said it was told that the robot is stalled: once it is back, a person lets it go on."""
    inner = getattr(bench.robot, method)

    def slow(*given: Any) -> Any:
        bench.loop._is_stuck = True  # as the watchdog does from its thread
        bench.words.resume_requests += 1
        return inner(*given)

    bench.robot.ends = method == "reset"
    with monkeypatch.context() as stuck:
        stuck.setattr(bench.robot, method, slow)
        bench.tick()
    assert bench.tick(400) == []
    assert bench.state == (State.STOPPED, Cause.STALLED)
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]


@pytest.mark.parametrize(("late_s", "suspended_s"), [(0.5, 0.0), (0.0, 8.0)])
def test_a_robot_whose_process_stood_still_is_stopped(bench: Bench, late_s: float, suspended_s: float) -> None:
    """Whether the process was frozen or the machine asleep: a person says that it may go on."""
    suspended_ns = bench.loop._suspended_ns
    bench.loop._note_gap(NS // 20, suspended_ns)
    assert bench.tick() == ["act"]
    bench.loop._note_gap(round(late_s * NS), suspended_ns + round(suspended_s * NS))
    assert bench.tick() == ["stop"]
    assert bench.state == (State.STOPPED, Cause.STALLED)
    bench.loop._note_gap(0, suspended_ns + round(suspended_s * NS))
    assert bench.tick(400) == []
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]


@pytest.mark.parametrize("method", ["observe", "reset", "act", "hold"])
@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_process_that_stood_still_within_an_instant_stops_its_robot(
    monkeypatch: pytest.MonkeyPatch, method: str, is_asleep: bool
) -> None:
    """Though the watchdog's thread stood still with it, or its clock did: nothing is commanded by what was seen before;
    what the robot did after its last command nobody knows."""
    bench = Bench(replace(SETTINGS, link_timeout_s=0))
    monkeypatch.setattr(bench.loop, "_watch", lambda: None)
    inner, stop = getattr(bench.robot, method), bench.robot.stop

    def freeze(*given: Any) -> Any:
        found = inner(*given)
        if is_asleep:
            bench.loop._suspended_ns -= 2 * NS
        else:
            bench.words.busy_since_ns -= 2 * NS
        return found

    def close() -> None:
        stop()
        bench.words.close_request = 1

    monkeypatch.setattr(bench.robot, method, freeze)
    monkeypatch.setattr(bench.robot, "stop", close)
    if method != "hold":
        bench.writer.publish(1, weights(0.5))
    bench.loop.run()
    before = {"observe": [], "reset": ["reset"], "act": ["reset", "act"], "hold": ["hold"]}[method]
    assert bench.robot.calls[: len(before) + 1] == [*before, "stop"]
    assert "act" not in bench.robot.calls[len(before) :]
    assert bench.words.stalls == 1


def test_the_loop_compares_its_instants_with_the_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each it looks whether it stood still before."""
    asleep_ns = bench.loop._suspended_ns + 9 * NS
    monkeypatch.setattr("edgelink.training.trainer.robot.loop.suspended_ns", lambda: asleep_ns)
    monkeypatch.setattr(bench.loop, "tick", lambda at_ns: setattr(bench.loop, "_is_over", True))
    bench.loop.run()
    assert bench.loop._is_stuck


@pytest.mark.parametrize("failure", [OSError("no \udce4nswer"), SystemExit(3)])
def test_a_stop_that_raises_is_called_until_it_returns(bench: Bench, failure: BaseException) -> None:
    """And that is said; whoever fixed it lets the robot go on."""
    stops = []

    def stop() -> None:
        stops.append(bench.now_ns)
        if len(stops) <= 3:
            raise failure

    bench.robot.stop = stop  # type: ignore[method-assign]
    bench.link = False
    bench.tick(52)
    bench.link = True
    assert len(stops) >= 1
    assert bench.words.stop_fails == len(stops)
    assert bench.block.read_message().startswith(f"stop() fails: {type(failure).__name__}: ")
    bench.words.resume_requests += 1
    assert bench.tick(10) == []
    assert len(stops) == 4
    assert (bench.words.stop_fails, bench.block.read_message()) == (0, "")
    assert bench.state == (State.STOPPED, Cause.FAULT)
    assert bench.tick(400) == []
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]


@pytest.mark.parametrize("is_beside", [False, True])
def test_after_a_stop_that_has_raised_once_only_a_person_lets_it_go_on(bench: Bench, is_beside: bool) -> None:
    """Though the next call returns, and the robot is one that goes on by itself; also where the watchdog called it."""
    failures = [OSError("brake")]
    inner = bench.robot.stop

    def stop() -> None:
        if failures:
            raise failures.pop()
        inner()

    bench.robot.stop = stop  # type: ignore[method-assign]
    if is_beside:
        assert not bench.loop.stop()
    bench.link = False
    bench.tick(60)
    bench.link = True
    assert (bench.words.stop_fails, bench.block.read_message()) == (0, "")
    assert bench.state == (State.STOPPED, Cause.FAULT)
    assert bench.tick(400) == []
    bench.words.resume_requests += 1
    assert bench.tick() == ["reset", "act"]


def test_a_robot_is_not_stopped_before_stop_has_returned(bench: Bench) -> None:
    """Until then it may be moving, and that is what is said."""
    is_stopping, may_return = threading.Event(), threading.Event()

    def stop() -> None:
        is_stopping.set()
        may_return.wait()

    bench.robot.stop = stop  # type: ignore[method-assign]
    bench.words.stop_requests += 1
    instant = threading.Thread(target=bench.tick)
    instant.start()
    try:
        assert is_stopping.wait(20)
        assert bench.state[0] is State.RUNNING
        assert condition(bench.words, 3600) == "stopping"
        bench.robot.stop = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        assert not bench.loop.stop(), "as the watchdog calls it, beside the call that hangs"
        assert condition(bench.words, 3600) == "stopping"
    finally:
        may_return.set()
        instant.join()
    assert bench.state[0] is State.STOPPED
    assert condition(bench.words, 3600) == "stopped"


def test_it_does_not_end_before_stop_has_returned(bench: Bench) -> None:
    """Though the run is over; but in the end it does."""
    bench.robot.stop = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    bench.words.close_request = 1
    bench.tick(900)
    assert not bench.loop._is_over
    bench.tick(200)
    assert bench.loop._is_over


@pytest.mark.parametrize("error", [SystemExit(1), OSError("\udcff"), KeyboardInterrupt()])
def test_whatever_the_robots_code_raises_stops_it(bench: Bench, error: BaseException) -> None:
    """Also what ends a program elsewhere, and what cannot be written down; first the stop, then the words."""
    bench.robot.fault = error  # type: ignore[assignment]
    assert bench.tick() == ["stop"]
    assert bench.state == (State.STOPPED, Cause.FAULT)
    assert bench.block.read_message().startswith(type(error).__name__)


def test_the_robot_is_stopped_whatever_ends_the_loop() -> None:
    """Also when nobody takes the hello."""

    def refuse() -> None:
        raise BrokenPipeError

    bench = Bench()
    with pytest.raises(BrokenPipeError):
        _command(bench.loop, refuse)
    assert bench.robot.calls == ["stop"]


def test_a_robot_that_waits_for_its_first_policy_ends_with_its_worker() -> None:
    """Nobody is left who could bring one."""
    bench = Bench()
    bench.tick(5)
    bench.words.worker_is_gone = 1
    assert bench.tick() == ["stop"]
    assert bench.loop._is_over


def test_what_a_robot_overwrites_is_not_what_is_recorded(bench: Bench) -> None:
    """A robot may give the same arrays at every instant, and change the ones that it gets."""
    bench.tick()
    bench.reader.take(1000)
    shared = bench.robot.observe()
    bench.robot.observe = lambda: shared  # type: ignore[method-assign]
    bench.tick()
    shared.observations[:] = 7
    act = bench.robot.act

    def convert(actions: Any) -> None:
        act(actions)
        actions *= 180 / np.pi

    bench.robot.act = convert  # type: ignore[method-assign]
    bench.tick(2)
    rows = bench.reader.take(1000)
    assert rows["observations"][:2].max() == 0
    assert rows["executed"].reshape(-1) == pytest.approx(bench.robot.acted[1 : 1 + len(rows)])


def test_a_fault_of_the_robots_code_stops_it_until_a_person_says_so(bench: Bench) -> None:
    """Its words are kept; a good link changes nothing; nothing of the robot is called meanwhile."""
    bench.robot.fault = OSError("gripper does not answer")
    assert bench.tick() == ["stop"]
    assert bench.state == (State.STOPPED, Cause.FAULT)
    assert bench.block.read_message() == "OSError: gripper does not answer"
    bench.robot.fault = None
    bench.words.stop_requests += 1
    assert bench.tick(400) == []
    bench.words.resume_requests += 1  # one word lifts all that was before it
    assert bench.tick()[:2] == ["reset", "act"]
    assert bench.block.read_message() == "", "the next stop has another reason"


def test_an_episode_ends_and_the_next_begins_within_an_instant(bench: Bench) -> None:
    """The last observation goes with its step; where the robot has to move to its start, nothing is commanded."""
    bench.robot.seen[:] = 3
    bench.robot.ends = True
    assert bench.tick() == ["reset", "act"]
    bench.robot.ends, bench.robot.is_ready = True, False
    assert bench.tick(3)[0] == "reset"
    assert "act" not in bench.robot.calls
    bench.robot.is_ready = True
    assert bench.tick(2) == ["act"] * 2
    rows = bench.reader.take(1000)
    assert rows["terminated"][:, 0].tolist() == [True, True, False]
    assert rows["follows"].tolist() == [0, 1, 0]
    assert rows["next_observations"][0, 0, 0] == 3


def test_a_step_of_several_instants_holds_what_each_commanded() -> None:
    """And the sum of their rewards: a row comes with every fourth instant."""
    bench = running(Bench(action_repeat=4))
    bench.tick(3)
    bench.writer.publish(2, weights(-0.5))
    assert bench.tick(9).count("act") == 9
    rows = bench.reader.take(1000)
    assert rows["rewards"][:, 0].tolist() == [4, 4, 4]
    assert rows["executed"].shape == (3, 1, 4, 1)
    assert rows["executed"].reshape(-1).tolist() == pytest.approx(bench.robot.acted[:12])
    assert rows["executed"][1, 0, :, 0].tolist() == pytest.approx([0.0, -0.5, -0.5, -0.5], abs=1e-3)


@pytest.mark.parametrize("ends", [False, True])
def test_a_robot_that_is_not_ready_is_not_commanded_within_a_step(ends: bool) -> None:
    """The step is broken off and not recorded, nor does its attempt count as whole; one that has ended begins anew."""
    bench = running(Bench(action_repeat=4))
    bench.tick(5)
    bench.robot.is_ready, bench.robot.ends = False, ends
    assert bench.tick(3) == (["reset"] if ends else [])
    bench.robot.is_ready = True
    assert bench.tick(9) == ["act"] * 9
    rows = bench.reader.take(1000)
    assert rows["step"][:, 0].tolist() == ([1, 1, 2] if ends else [1, 0, 0])
    assert rows["follows"].tolist() == [0, 0, 1]


def test_a_row_says_which_step_of_the_attempt_it_is(bench: Bench) -> None:
    """From 1 after each reset, also when the way to the start takes time; 0 once a hold has broken the attempt off."""
    bench.tick(2)
    bench.link = False
    while bench.state[0] is State.RUNNING:
        bench.tick()
    bench.reader.take(1000)
    bench.link = True
    bench.words.resume_requests += 1
    bench.tick(3)
    assert bench.state[0] is State.RUNNING
    bench.robot.ends, bench.robot.is_ready = True, False
    bench.tick(3)
    bench.robot.is_ready = True
    bench.tick(4)
    rows = bench.reader.take(1000)
    assert rows["step"][:, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert rows["follows"].tolist() == [0, 1, 1, 0, 1, 1]
    assert rows["terminated"][:, 0].tolist() == [False, False, True, False, False, False]


def test_it_ends_when_it_is_at_rest_and_nobody_is_left(bench: Bench) -> None:
    """A dead worker is a cause like the link; to close is to stop."""
    bench.words.worker_is_gone = 1
    assert bench.tick() == ["hold"]
    assert not bench.loop._is_over
    bench.tick(30)
    assert bench.state == (State.STOPPED, Cause.WORKER)
    assert bench.loop._is_over
    other = Bench()
    other.words.close_request = 1
    assert other.tick() == ["stop"]
    assert other.loop._is_over


@pytest.mark.parametrize(
    ("limits", "rate_hz", "message"),
    [
        (Limits(low=(-1.0, 0.0)), 100, r"limits\.low .*2 .* 1"),
        (Limits(low=(1.0,), high=(-1.0,)), 100, "low <= high"),
        (Limits(), 10, "possible are 50 to 500"),
    ],
)
def test_what_cannot_be_is_refused(limits: Limits, rate_hz: float, message: str) -> None:
    """Before the robot moves."""
    robot = ObedientRobot(RobotSettings(rate_hz=rate_hz))
    robot.limits = limits
    with pytest.raises(ValueError, match=message):
        _loop_of(robot)


def test_a_step_has_an_instant_at_least() -> None:
    """Before the robot moves, too."""
    robot = ObedientRobot(RobotSettings())
    robot.action_repeat = 0
    with pytest.raises(ValueError, match="action_repeat is 0; it is 1 or more"):
        _loop_of(robot)


@pytest.mark.parametrize("resumes", ["Manual", "", None])
def test_who_resumes_a_robot_is_known(resumes: Any) -> None:
    """Else it would wait for a person, but its stops would not last, as those of neither."""
    robot = ObedientRobot(RobotSettings())
    robot.resumes = resumes
    with pytest.raises(ValueError, match=f"resumes is {resumes!r}; it is 'automatic' or 'manual'"):
        _loop_of(robot)


@pytest.mark.parametrize("name", ["nowhere:X", "json:nothing", ":X"])
def test_a_robot_that_is_not_there_is_named(name: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=f"'{name}'"):
        load_robot(name)


def test_robots_have_names() -> None:
    """Those of EdgeLink, and whatever entry points add; an unknown one is told which there are."""
    assert load_robot("cart-pole").__name__ == "CartPoleCell"
    with pytest.raises(ValueError, match="known are arm, cart-pole"):
        load_robot("franka")


def test_the_robot_in_the_how_to_works() -> None:
    """Taken from the page as it stands there: it goes where it is told, within its limits, and not past its end."""
    page = (Path(__file__).parents[1] / "docs/how-to/robots.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "robots.md", "exec"), names)
    slider = names["Slider"](RobotSettings(options={"goal": "2.0"}))
    block = SharedBlock(Layout(slider.spaces, 1, 1000, slider.action_repeat))
    loop = ControlLoop(slider, block, DeadmanSettings(resume_after_s=0), policy(slider, block))
    WeightsWriter(block).publish(1, weights(7.0))
    for instant in range(2000):
        block.words.link_ns = 100 * NS + instant * NS // 200
        loop.tick(block.words.link_ns)
    assert slider.position_m == pytest.approx(0.9, abs=0.01), "the workspace ends there, ten seconds were enough"
    assert block.words.clamped_box > 0
    assert block.words.clamped_workspace > 0
    rows = RingReader(block)
    assert rows.take(10) is not None
    assert block.words.rows == 499
    assert np.abs(block.ring["executed"]).max() <= 0.3 + 1e-6
    slider.stop()


REPLAYED = [0.1, 0.3, -0.2]


def replaying(commands: list[float] = REPLAYED, action_repeat: int = 1) -> Bench:
    """Waiting, as nobody has said yet that it may begin."""
    bench = Bench(action_repeat=action_repeat, commands=commands)
    assert set(bench.tick(5)) == {"hold"}
    assert bench.state == (State.WAITING, Cause.NO_POLICY)
    bench.words.may_begin = 1
    return bench


def test_an_episode_is_commanded_once_more_and_no_more() -> None:
    """Each recorded command once, in its order, from the start of an attempt; then it holds, and stops."""
    bench = replaying()
    assert bench.tick(4) == ["reset", "act", "act", "act", "hold"]
    assert bench.robot.acted == pytest.approx(REPLAYED)
    assert bench.state == (State.HOLDING, Cause.NO_POLICY)
    rows = bench.reader.take(10)
    assert rows["executed"].reshape(-1) == pytest.approx(REPLAYED)
    assert "act" not in bench.tick(500)
    assert bench.state == (State.STOPPED, Cause.NO_POLICY)


def test_a_steps_commands_are_repeated_one_by_one() -> None:
    """Of an episode whose limits had changed each in another way."""
    commands = [0.1, 0.2, 0.3, 0.4]
    bench = replaying(commands, action_repeat=2)
    assert bench.tick(5)[-1] == "hold"
    assert bench.robot.acted == pytest.approx(commands)
    assert bench.reader.take(10)["executed"].reshape(2, 2) == pytest.approx(np.asarray(commands).reshape(2, 2))


def test_limits_hold_in_a_replay_too() -> None:
    """Box and rate of change: 50 per second are half a unit an instant."""
    bench = replaying([0.5, 7.0, 7.0])
    bench.tick(4)
    assert bench.robot.acted == pytest.approx([0.5, 1.0, 1.0])
    assert bench.words.clamped_box == 2


@pytest.mark.parametrize("what", ["hold", "end", "way"])
def test_what_is_broken_off_is_not_replayed_on(what: str) -> None:
    """By a hold, by the robot that ends its attempt, or that is not ready: the next command does not follow."""
    bench = replaying([0.1] * 50)
    bench.tick(10)
    match what:
        case "hold":
            bench.link = False
            bench.tick(25)
            bench.link = True
        case "end":
            bench.robot.ends = True
        case "way":
            bench.robot.is_ready = False
            bench.tick()
            bench.robot.is_ready = True
    acted = len(bench.robot.acted)
    assert acted < 50
    calls = bench.tick(500)
    assert len(bench.robot.acted) == acted
    assert "reset" not in calls
    assert bench.state[0] is State.STOPPED


def test_a_replay_waits_for_the_robots_way_to_its_start() -> None:
    """Nothing of it is left out."""
    bench = replaying()
    bench.robot.is_ready = False
    assert "act" not in bench.tick(20)
    bench.robot.is_ready = True
    bench.tick(4)
    assert bench.robot.acted == pytest.approx(REPLAYED)


@pytest.mark.parametrize("seed", [0, 3, 2**31 - 1])
def test_a_policys_noise_is_not_what_its_robot_draws_from_the_same_seed(seed: int) -> None:
    """Both are given one: a robot that draws its starts from it would show the policy its noise beforehand."""
    block = SharedBlock(Layout(SPACES, 1, 8))
    WeightsWriter(block).publish(1, weights(log_std=0.0))
    actor = PolicyActor(WeightsReader(block), SPACES, seed)
    assert actor.poll()
    seen = np.zeros((1, 2), np.float32)
    decided = [actor.decide(seen) for _ in range(64)]
    noise = np.asarray([drawn[0][0, 0] for drawn in decided if drawn is not None])
    robots = np.random.default_rng(seed).standard_normal((64, 1), dtype=np.float32)[:, 0]
    assert np.unique(noise).size == 64
    assert not np.isin(noise, robots).any()
    assert abs(np.corrcoef(noise, robots)[0, 1]) < 0.4
