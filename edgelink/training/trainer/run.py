"""One training run, as the driver sees it.

An iteration: every rollout worker has sent a fragment → the learner learns from all of them → its new weights go out.
Simulators then collect by the new weights. Robots do not wait for them: two calls are always queued there, so that
their control never pauses, and new weights take effect between two steps.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from edgelink.training.trainer import checkpoint
from edgelink.training.trainer.crew import Crew, EnvSettings
from edgelink.training.trainer.experience.balance import steps_per_worker
from edgelink.training.trainer.experience.environment import ROBOT
from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.learner import Update
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.options import PLACEMENT_VARIABLE, RESUME_AUTO, STEP_FILE_VARIABLE, Options, parse
from edgelink.training.trainer.report import (
    Account,
    append_line,
    mean,
    placement_lines,
    progress_line,
    progress_record,
    write_json,
)
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.slots import Slots, read_slots

_ROBOT_QUEUE = 2


class Stopped(BaseException):
    """Asked to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Run:
    """State of one run between start and report."""

    def __init__(self, options: Options, slots: Slots, crew: Crew) -> None:
        self._options = options
        self._slots = slots
        self._crew = crew
        count = len(slots.envs)
        self._kinds = [options.env_kinds[index % len(options.env_kinds)] for index in range(count)]
        self._steps = steps_per_worker(self._kinds, [options.envs_per_worker] * count, options.robot_steps)
        self._queued: list[deque[Any]] = [deque() for _ in range(count)]  # answers to collect calls, by worker
        self._tickets = [0] * count
        self._iteration = 0
        self._started_s = time.monotonic()
        self.account = Account(options.seed, self._kinds)

    def execute(self) -> None:
        """Everything from connecting to the last evaluation."""
        resumed = self._load_checkpoint()
        with self._stage("connect"):
            self._crew.connect()
        listen()  # anew: ray.init takes SIGTERM for itself
        with self._stage("start_workers"):
            self._start_workers()
        with self._stage("evaluate_before"):
            update = self._first_update(resumed)
        with self._stage("train"):
            update = self._train(update)
        with self._stage("evaluate_after"):
            self.account.return_after = self._evaluate(update)
        self._collect_account()
        self.account.seconds = time.monotonic() - self._started_s
        before, after = self.account.return_before, self.account.return_after
        say(f"return {before} before, {after} after {self._iteration} iterations, {self.account.seconds:.0f} s in all")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun_s = time.monotonic()
        yield
        self.account.stages[name] = time.monotonic() - begun_s

    def _load_checkpoint(self) -> tuple[checkpoint.About, dict[str, Any]] | None:
        """What ``--resume`` asks for; when `edgelink run` has started us again, what the attempt before has saved."""
        options = self._options
        is_relaunch = options.attempt > 1
        if options.checkpoint_dir is None:
            if is_relaunch:
                say("started again without --checkpoint-dir: training begins anew")
            return None
        is_optional = is_relaunch or options.resume == RESUME_AUTO  # there may be no checkpoint, or nothing left to do
        if options.resume:
            run = None
        elif is_relaunch and options.run_id:
            run = options.run_id
        else:
            return None
        try:
            about, arrays = checkpoint.load_latest(options.checkpoint_dir, run=run, on_skip=say)
        except TrainerError:
            if not is_optional:
                raise
            say("no checkpoint to go on from: training begins anew")
            return None
        if about.iteration >= options.iterations and not is_optional:
            raise TrainerError(
                f"the checkpoint already has {about.iteration} iterations", "raise --iterations", exit_status=USAGE
            )
        self._iteration = self.account.iterations = about.iteration
        self.account.first_iteration = about.iteration + 1
        return about, arrays

    def _start_workers(self) -> None:
        options = self._options
        # A resumed run must not meet the very episodes of its first part again.
        seed = options.seed if self._iteration == 0 else options.seed + 7919 * self._iteration
        robots = [
            RobotSettings(
                rank=index,
                rigs=options.envs_per_worker,
                tick_hz=options.robot_tick_hz,
                seed=seed * 100 + index,
                tick_file=options.robot_tick_file and options.robot_tick_file.replace("{rank}", str(index)),
                options=options.robot_options,
            )
            for index in range(len(self._kinds))
        ]
        self.account.whereabouts = self._crew.start(
            Settings(options.seed, options.iterations),
            EnvSettings(self._kinds, options.envs_per_worker, robots, options.robot_driver, seed),
        )
        self.account.traffic_before = self._ask_nodes("traffic")
        say("workers are up:")
        for line in placement_lines(self.account.whereabouts, self._kinds):
            say(line)

    def _first_update(self, resumed: tuple[checkpoint.About, dict[str, Any]] | None) -> Update:
        learner = self._slots.learner
        if resumed is None:
            update: Update = self._crew.wait(self._crew.call(learner, "latest"), "the untrained policy")
            self.account.return_before = self._evaluate(update)
            say(f"return of the untrained policy: {self.account.return_before}")
            return update
        about, arrays = resumed
        update = self._crew.wait(self._crew.call(learner, "load_state", arrays), "the checkpoint to be loaded")
        self.account.return_before = about.return_before
        say(f"resumed after iteration {about.iteration}")
        return update

    def _evaluate(self, update: Update) -> float | None:
        """On a simulator if there is one: it needs no real time."""
        index = next((i for i, kind in enumerate(self._kinds) if kind != ROBOT), 0)
        slot = self._slots.rollouts[index]
        self.account.evaluated_on = f"{self._kinds[index]}:{index}"
        answer = self._crew.call(slot, "evaluate", update.version, update.weights, self._options.eval_episodes)
        return mean(self._crew.wait(answer, "the evaluation"))

    def _train(self, update: Update) -> Update:
        options = self._options
        self._send_weights(update)
        while self._iteration < options.iterations:
            begun_s = time.monotonic()
            self._queue_collects(update)
            fragments, answers = self._next_fragments()
            self._iteration += 1
            learning = self._crew.call(self._slots.learner, "update", self._iteration, *answers)
            update = self._crew.wait(learning, "new weights")
            if self._iteration < options.iterations:
                self._send_weights(update)
            self._account_for(fragments, update, time.monotonic() - begun_s)
            if self._iteration % options.checkpoint_every == 0 or self._iteration == options.iterations:
                self._save_checkpoint()
        return update

    def _queue_collects(self, update: Update) -> None:
        left = self._options.iterations - self._iteration
        for index, slot in enumerate(self._slots.rollouts):
            depth = min(left, _ROBOT_QUEUE) if self._kinds[index] == ROBOT else 1
            while len(self._queued[index]) < depth:
                self._tickets[index] += 1
                arguments: tuple[Any, ...] = (self._tickets[index], self._steps[index])
                self._queued[index].append(self._crew.call(slot, "collect", *arguments, update.version, update.weights))

    def _next_fragments(self) -> tuple[list[Fragment], list[Any]]:
        """The oldest fragment of every worker, as value and as what Ray can pass on to the learner."""
        answers = [queue.popleft() for queue in self._queued]
        values = dict(self._crew.wait_each(answers, "experience"))
        return [values[answer] for answer in answers], answers

    def _send_weights(self, update: Update) -> None:
        """Robots' queued calls were sent with older weights; simulators get theirs with the next call."""
        for index, slot in enumerate(self._slots.rollouts):
            if self._kinds[index] == ROBOT:
                self._crew.tell(slot, "load_weights", update.version, update.weights)

    def _account_for(self, fragments: Sequence[Fragment], update: Update, seconds: float) -> None:
        for fragment in fragments:
            learned = self.account.learned
            learned[fragment.rank] = learned.get(fragment.rank, 0) + fragment.samples
        self.account.iterations = self._iteration
        say(progress_line(self._iteration, self._options.iterations, fragments, self._kinds, seconds))
        if step_file := os.environ.get(STEP_FILE_VARIABLE):
            with suppress(OSError):  # for those who watch; training does not depend on it
                Path(step_file).write_text(f"{self._iteration}")
        if self._options.progress is not None:
            elapsed_s = time.monotonic() - self._started_s
            append_line(self._options.progress, progress_record(self._iteration, fragments, update, elapsed_s))

    def _save_checkpoint(self) -> None:
        if self._options.checkpoint_dir is None:
            return
        arrays = self._crew.wait(self._crew.call(self._slots.learner, "state"), "a checkpoint")
        before = self.account.return_before or 0.0
        about = checkpoint.About(self._iteration, self._options.seed, before, run=self._options.run_id)
        checkpoint.save(self._options.checkpoint_dir, about, arrays)

    def _collect_account(self) -> None:
        self.account.traffic_after = self._ask_nodes("traffic")
        for slot in self._slots.rollouts:
            answer = self._crew.call(slot, "produced")
            self.account.produced[slot.process_rank] = self._crew.wait(answer, "figures for the report")
        for slot in self._slots.envs:
            self.account.environments[slot] = self._crew.wait(self._crew.call(slot, "report"), "figures for the report")

    def _ask_nodes(self, method: str) -> dict[Any, Any]:
        """Ask one worker of each node."""
        firsts: dict[int, Any] = {}
        for slot in self._slots:
            firsts.setdefault(slot.node_rank, slot)
        answers = {slot: self._crew.call(slot, method) for slot in firsts.values()}
        return {slot: self._crew.wait(answer, "figures for the report") for slot, answer in answers.items()}


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str], package: Path) -> int:
    """Run the trainer; ``package`` is the staged copy that is shipped to the workers. Returns the exit status."""
    options = parse(arguments)
    listen()
    try:
        if options.placement is None:
            raise TrainerError(
                f"no placement: {PLACEMENT_VARIABLE} is not set",
                "start the trainer with `edgelink train`, or name a file by --placement",
                exit_status=USAGE,
            )
        slots = read_slots(options.placement)
        with Crew(slots, package, say, options.stall_timeout_s) as crew:
            run = Run(options, slots, crew)
            run.execute()
            if options.report is not None:
                write_json(options.report, run.account.to_dict())
    except TrainerError as error:
        print(f"edgelink train: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    except Stopped as stopped:
        return _stopped(stopped)
    except SystemError as error:
        if isinstance(error.__cause__, Stopped):  # inside a call of Ray's that does not let it through
            return _stopped(error.__cause__)
        raise
    return 0


def _stopped(stopped: Stopped) -> int:
    print(f"edgelink train: stopped by {signal.Signals(stopped.number).name}", file=sys.stderr, flush=True)
    return 128 + stopped.number


def listen() -> None:
    """Turn SIGINT and SIGTERM into :class:`Stopped`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    # The second time it is meant: the default action ends the process at once, and Ray the workers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Stopped(number)
