"""One training run, as the driver sees it: connect, start the workers, train, evaluate, report."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer import checkpoint, user_modules
from edgelink.training.trainer.crew import Crew, EnvSettings
from edgelink.training.trainer.crew_checks import COLLECT, StallError, WorkerLostError
from edgelink.training.trainer.experience.balance import steps_per_worker
from edgelink.training.trainer.experience.environment import ROBOT
from edgelink.training.trainer.experience.frames import stacked
from edgelink.training.trainer.experience.simulator import Task
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learner_worker import Made
from edgelink.training.trainer.learning.evaluation import Played, estimate
from edgelink.training.trainer.learning.networks import gradient_bytes
from edgelink.training.trainer.learning.policy import LOG_STD
from edgelink.training.trainer.learning.settings import ROBOT_LOG_STD, Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.link_budget.of_run import Gradients, RunBudget, links_of_run
from edgelink.training.trainer.link_budget.traffic import Seats
from edgelink.training.trainer.metrics import Metrics
from edgelink.training.trainer.options import (
    METRICS_FILE_VARIABLE,
    PLACEMENT_VARIABLE,
    RESUME_AUTO,
    STEP_FILE_VARIABLE,
    TICK_FILE_VARIABLE,
    Options,
    parse,
)
from edgelink.training.trainer.outputs import check_outputs
from edgelink.training.trainer.report import Account, mean, placement_lines, write_json
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.link import EchoServer
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot_notices import hindrances
from edgelink.training.trainer.seeds import derived
from edgelink.training.trainer.slots import Slot, Slots, read_slots
from edgelink.training.trainer.stop_signals import Stopped, StopSignals, stop_behind
from edgelink.training.trainer.training import Learned, Training
from edgelink.training.trainer.voice import Voice
from edgelink.training.trainer.whereabouts import Located, Traffic, Whereabouts, rates

# A report that lacks figures is worth more than a command that does not end. A worker that is busy is asked each
# NOTICE_EVERY_S whether it comes further, and waited for.
_FIGURES_S = 75.0


class Run:
    """State of one run between start and report."""

    def __init__(self, options: Options, slots: Slots, crew: Crew, voice: Voice, signals: StopSignals) -> None:
        self._options = options
        self._config = config = options.config
        self._slots = slots
        self._crew = crew
        self._voice = voice
        self._say = voice.say
        self._signals = signals
        count = len(slots.envs)
        self._kinds = [config.env.kinds[index % len(config.env.kinds)] for index in range(count)]
        self._iteration = 0
        self._last_loss: WorkerLostError | StallError | None = None  # in an evaluation
        self._without_figures: set[str] = set()  # addresses of nodes that did not answer when asked for figures
        self._training_began: tuple[dict[Any, Traffic], float] | None = None  # counters there, and when
        self._started_s = time.monotonic()
        self._metrics: Metrics | None = None
        self._echo: EchoServer | None = None
        self._keeper = checkpoint.Keeper(options.checkpoint_dir, config.run.keep_checkpoints, self._say)
        self.account = Account(config.run.seed, self._kinds)
        self._budget = RunBudget(
            _seats(slots),
            links_of_run(),
            {slot.node_rank: slot.hostname for slot in slots},
            env_may_move=ROBOT not in self._kinds,
            max_policy_lag=config.flow.max_policy_lag,
            wanted_env_steps_per_s=config.flow.wanted_env_steps_per_s or None,
            chunk_bytes=config.flow.chunk_bytes,
        )

    def execute(self) -> None:
        """Everything from connecting to the last evaluation."""
        resumed = self._load_checkpoint()
        policy = None if self._options.policy is None else checkpoint.load(self._options.policy)[1]
        check_outputs(self._options)
        with self._stage("connect"), self._signals.lent():
            self._crew.connect()
            about = None if resumed is None else resumed[0]
            is_own = about is not None and self._options.attempt > 1 and about.run == self._options.run_id
            if about is not None and is_own and about.left_out is not None:
                self._crew.left_out = set(about.left_out)  # what came later joined this run, and may do so again
        with self._stage("start_workers"):
            self._start_workers()
        made = self._first_version(resumed, policy)
        self._foretell(made)
        if resumed is None:
            with self._stage("evaluate_before"):
                self._evaluate_before(made, is_untrained=policy is None)
        try:
            with self._stage("train"):
                made = self._train(made)
            self._conclude(made)
        finally:
            with self._signals.deferred():  # one for both: once there was a stop, it raises at its end
                try:
                    self._keeper.retry()
                finally:
                    if self._metrics is not None:
                        self._metrics.close()
        before, after = self.account.return_before, self.account.return_after
        self._say(
            f"return {before} before, {after} after {self._iteration} iterations, {self.account.seconds:.0f} s in all"
        )
        self._keeper.check()

    def _conclude(self, made: Made) -> None:
        try:
            if self._training_began is not None:
                before, begun_s = self._training_began
                self._budget.counted(rates(before, self._ask_nodes("traffic"), time.monotonic() - begun_s))
            with self._stage("evaluate_after"):
                self.account.return_after = self._evaluate(made, may_move_robots=True)
            self._collect_account()
        finally:  # the training is done, whatever becomes of the edges now
            self.account.seconds = time.monotonic() - self._started_s
            with self._signals.deferred():
                self._write_report()

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
                self._say("started again without --checkpoint-dir: training begins anew")
            return None
        is_optional = is_relaunch or options.resume == RESUME_AUTO  # there may be no checkpoint, or nothing left to do
        if not (options.resume or is_relaunch):
            return None
        try:
            about, arrays = self._newest(options.checkpoint_dir)
        except checkpoint.NoCheckpointError:  # not: there are some, and none can be read
            if not is_optional:
                raise
            self._say("no checkpoint to go on from: training begins anew")
            return None
        if about.iteration >= self._config.run.iterations and not is_optional:
            raise TrainerError(
                f"the checkpoint already has {about.iteration} iterations", "raise run.iterations", exit_status=USAGE
            )
        self._iteration = self.account.iterations = about.iteration
        self.account.first_iteration = about.iteration + 1
        self.account.env_steps_before = about.env_steps
        return about, arrays

    def _newest(self, directory: Path) -> tuple[checkpoint.About, dict[str, Any]]:
        """When we have been started again, this run's own, with what it has learned, before a newer one of another."""
        if self._options.attempt > 1:
            try:
                return checkpoint.load_latest(directory, run=self._options.run_id, on_skip=self._say)
            except checkpoint.NoCheckpointError:
                if not self._options.resume:
                    raise
        return checkpoint.load_latest(directory, on_skip=self._say)

    def _start_workers(self) -> None:
        config, run = self._config, self._config.run
        # A resumed run must not meet the very episodes of its first part again.
        seed = derived(run.seed, self._iteration)
        if ROBOT in self._kinds:
            self._echo = EchoServer(self._crew.own_ip())

        def robot(index: int) -> ControlSettings:
            return self._robot(index, derived(seed, index))

        echo = (self._echo.address, self._echo.token) if self._echo else ("", "")
        task = Task(config.env.task, config.env.options)
        envs = EnvSettings(config.env.per_worker, robot, echo, seed, task)
        algorithm = dict(config.algorithm)
        if ROBOT in self._kinds and algorithm.get("initial_log_std") is None:
            algorithm["initial_log_std"] = ROBOT_LOG_STD
        settings = Settings(run.seed, run.iterations, patience_s=run.patience_s, **algorithm)
        self.account.whereabouts = self._crew.start(settings, config.flow, envs, self._kinds)
        self.account.traffic_before = self._ask_nodes("traffic")
        self._say("workers are up:")
        for line in placement_lines(self.account.whereabouts, self._kinds):
            self._say(line)

    def _robot(self, index: int, seed: int) -> ControlSettings:
        """What the control process of env worker ``index`` is told, if that one has a robot."""
        config = self._config
        about = RobotSettings(index, config.env.per_worker, config.robot.rate_hz, seed, config.robot.options)
        control = dict(config.control)
        tick_file = control.pop("tick_file", "") or os.environ.get(TICK_FILE_VARIABLE, "")
        return ControlSettings(
            config.robot.type,
            name=f"env-{index}",
            settings=about,
            deadman=config.deadman,
            tick_file=tick_file,
            **control,
        )

    def _first_version(
        self, resumed: tuple[checkpoint.About, dict[str, Any]] | None, policy: dict[str, Any] | None
    ) -> Made:
        """``policy``: of the checkpoint to begin with, where nothing is resumed."""
        made: Made
        if resumed is None and policy is not None:
            beginning = [self._crew.call(slot, "begin_with", policy) for slot in self._slots.learners]
            made, *_ = [self._crew.wait(answer, "the policy to begin with") for answer in beginning]
            self._say(f"it begins with the policy of {self._options.policy}")
            return made
        if resumed is None:
            made = self._crew.wait(self._crew.call(self._slots.learner, "latest"), "the untrained policy")
            return made
        about, arrays = resumed
        run = self._config.run
        loading = [self._crew.call(slot, "load_state", arrays) for slot in self._slots.learners]
        made, *_ = [self._crew.wait(answer, "the checkpoint to be loaded") for answer in loading]
        self.account.return_before = about.return_before
        self._say(f"resumed after iteration {about.iteration}")
        narrowest = float(np.min(arrays.get(f"net/{LOG_STD}", 0.0)))
        least = Settings(run.seed, run.iterations, **self._config.algorithm).least_log_std
        if narrowest < least:
            self._say(
                f"its policy has become wider: the logarithm of its deviation was {narrowest:.1f}, and "
                f"algorithm.least_log_std is {least:g}"
            )
        return made

    def _foretell(self, made: Made) -> None:
        """The link budget, before the first step: what the links do not carry moves no robot for nothing."""
        if self._iteration >= self._config.run.iterations:
            return
        assert self._crew.spaces is not None
        samples = [count * width for count, width in zip(self._steps(), self._crew.widths, strict=True)]
        gradients = self._gradients(self._crew.spaces) if len(self._slots.learners) > 1 else None
        for line in self._budget.begin(self._crew.spaces, made.offer.whole_bytes, samples, gradients):
            self._say(line)

    def _gradients(self, spaces: Spaces) -> Gradients:
        """What the learners add up."""
        run, seen = self._config.run, stacked(spaces, self._config.flow.frame_stack)
        settings = Settings(run.seed, run.iterations, **self._config.algorithm).completed(seen)
        return Gradients(gradient_bytes(seen, tuple(settings.hidden)), settings.epochs, settings.rounds)

    def _steps(self) -> list[int]:
        """Of each worker's fragments. A robot has as many rigs as it has, whatever was asked for."""
        return steps_per_worker(self._kinds, self._crew.widths, self._config.flow.fragment_steps)

    def _evaluate_before(self, made: Made, *, is_untrained: bool) -> None:
        """Evaluate the policy that the training begins with: an untrained one on simulators only. No robot is moved by
        that for a figure."""
        if is_untrained and all(kind == ROBOT for kind in self._kinds):
            self._say("the untrained policy is not evaluated: there are only robots, and none moves for that")
            return
        self.account.return_before = self._evaluate(made, may_move_robots=not is_untrained)
        if self._last_loss is not None and not any(map(self._crew.has, self._slots.rollouts)):
            raise self._last_loss

    def _evaluate(self, made: Made, *, may_move_robots: bool) -> float | None:
        """None: nobody is left to do it."""
        for index in self._evaluators(may_move_robots=may_move_robots):
            slot = self._slots.rollouts[index]
            try:
                self._crew.tell(slot, "offer_weights", made.offer)
                played = self._play(index, made.version)
            except (WorkerLostError, StallError) as error:
                self._event("lost", self._slots.envs[index], error.message)
                self._say(f"{error.message}; another one evaluates")
                self._crew.drop(index)
                self._last_loss = error
                continue
            self.account.evaluated_on = f"{self._kinds[index]}:{index}"
            found = estimate(played.returns)
            broken = f"; {played.broken_off} broken off, which do not count" if played.broken_off else ""
            first = "the untrained policy" if self._options.policy is None else "the policy to begin with"
            policy = "the policy" if played.version else first
            after = f" after {self._iteration} iterations" if played.version else ""
            self._say(f"return of {policy}{after}: {found} (95 %), {found.episodes} episodes{broken}")
            if self._metrics is not None:
                self._metrics.evaluated(played.version, played.returns)
            return mean(played.returns)
        self._say(f"the policy of version {made.version} is not evaluated: no pair of workers is left")
        return None

    def _evaluators(self, *, may_move_robots: bool) -> Iterator[int]:
        """Pairs, the next one where the one before is lost: simulators, which need no real time, before robots, and of
        these one that may move before one that is stopped."""
        living = [index for index, slot in enumerate(self._slots.rollouts) if self._crew.has(slot)]
        yield from (index for index in living if self._kinds[index] != ROBOT)
        if not may_move_robots:
            return
        robots = {self._slots.envs[index]: index for index in living if self._kinds[index] == ROBOT}
        found = hindrances(self._crew, robots)
        for slot in sorted(robots, key=lambda slot: (bool(found[slot].words), found[slot].needs_person)):
            if words := found[slot].words:
                self._say(f"no robot may move; the evaluation waits for {slot.name}: {words}")
            yield robots[slot]

    def _play(self, index: int, version: int) -> Played:
        """Episodes that take long are no stall: a robot plays one attempt after the other, and is waited for as long
        as each comes in time; a simulator, as long as it makes steps."""
        episodes, slot = self._config.run.eval_episodes, self._slots.rollouts[index]
        if self._kinds[index] != ROBOT:
            answer = self._crew.call(slot, "evaluate", version, episodes, group=COLLECT)
            found: Played = self._crew.wait_while(answer, "the evaluation", lambda: self._crew.call(slot, "steps"))
            return found
        played = Played([], version)
        while len(played.returns) < episodes:
            answer = self._crew.call(slot, "evaluate", version, self._crew.widths[index], group=COLLECT)
            more: Played = self._crew.wait(answer, "the evaluation")
            played = replace(
                more, returns=[*played.returns, *more.returns], broken_off=played.broken_off + more.broken_off
            )
        return played

    def _train(self, made: Made) -> Made:
        config, run, account = self._config, self._config.run, self.account
        if self._iteration >= run.iterations:
            return made
        training = Training(
            self._crew,
            self._slots,
            self._kinds,
            self._steps(),
            config.flow,
            first_iteration=self._iteration + 1,
            iterations=run.iterations,
            say=self._say,
            on_update=lambda learned: self._updated(learned, list(training.flow.pairs)),
            on_fragment=account.came,
            on_offered=self._budget.offered,
            on_evaluation=self._evaluated,
            on_located=self._located,
            on_event=self._event,
            evaluate_every=run.eval_every,
            evaluation_episodes=run.eval_episodes,
            elastic=config.elastic,
            is_near_learner=all(self._crew.is_near(slot) for slot in self._slots.learners),
            stall_timeout_s=run.patience_s,
        )
        account.counts = training.flow.counts
        self._kinds = account.kinds = training.kinds  # which grow with what joins
        traffic = Located().traffic
        files = self._options.progress, self._options.tensorboard
        live = Path(named) if (named := os.environ.get(METRICS_FILE_VARIABLE)) else None
        is_restart = self._options.attempt > 1
        self._metrics = Metrics(account, run.iterations, *files, traffic, self._say, live, is_restart=is_restart)
        self._training_began = self._ask_nodes("traffic"), time.monotonic()
        try:
            return training.run(made)
        finally:
            self._voice.settle()
            self._slots = training.slots

    def _updated(self, learned: Learned, pairs: list[int]) -> None:
        with self._signals.deferred():
            self._write_down(learned, pairs)
        run = self._config.run
        if self._iteration % run.checkpoint_every == 0 or self._iteration == run.iterations:
            self._save_checkpoint()

    def _write_down(self, learned: Learned, pairs: list[int]) -> None:
        account = self.account
        for about in learned.abouts:
            account.learned[about.rank] += about.samples
            account.frames += about.frames
            account.sent_bytes.update(about.sent_bytes)
            account.raw_bytes.update(about.raw_bytes)
        account.float32_bytes = learned.made.float32_bytes
        self._budget.add(learned, time.monotonic())
        self._iteration = account.iterations = learned.iteration
        assert self._metrics is not None
        self._metrics.update(learned, len(pairs))
        self._voice.progress(self._metrics.line(learned, self._kinds, pairs))
        if step_file := os.environ.get(STEP_FILE_VARIABLE):
            with suppress(OSError):  # for those who watch; training does not depend on it
                Path(step_file).write_text(f"{self._iteration}")

    def _evaluated(self, version: int, returns: Sequence[float]) -> None:
        assert self._metrics is not None
        self._metrics.evaluated(version, returns)
        self.account.evaluations.append({"version": version, "return": mean(returns)})
        self._say(f"return of the policy after iteration {version}: {mean(returns)}")

    def _located(self, slot: Slot, found: Whereabouts, _kind: str) -> None:
        self.account.whereabouts[slot] = found
        if found.notice:
            self._say(found.notice)

    def _event(self, what: str, slot: Slot, why: str) -> None:
        if what == "lost":
            self.account.lost(slot.process_rank)
        self.account.events.append({"what": what, "worker": slot.name, "iteration": self._iteration, "why": why})

    def _save_checkpoint(self) -> None:
        if self._options.checkpoint_dir is None:
            return
        arrays = self._crew.wait(self._crew.call(self._slots.learner, "state"), "a checkpoint")
        before, steps = self.account.return_before, self.account.env_steps
        seed, run, left_out = self._config.run.seed, self._options.run_id, tuple(sorted(self._crew.left_out))
        about = checkpoint.About(self._iteration, seed, before, run=run, env_steps=steps, left_out=left_out)
        with self._signals.deferred():
            self._keeper.save(about, arrays)

    def _collect_account(self) -> None:
        self.account.link_budget = self._budget.to_dict()
        for line in self._budget.end():
            self._say(line)
        self.account.traffic_after = self._ask_nodes("traffic")
        for slot in filter(self._crew.has, self._slots.rollouts):
            with suppress(WorkerLostError):
                self._account_of_rollout(slot)
        for slot in filter(self._crew.has, self._slots.envs):
            with suppress(WorkerLostError):
                self.account.environments[slot] = self._figure(slot, self._crew.call(slot, "report"))

    def _account_of_rollout(self, slot: Slot) -> None:
        self.account.produced.read(slot.process_rank, self._figure(slot, self._crew.call(slot, "produced")))
        self.account.weights_bytes.read(slot.process_rank, self._figure(slot, self._crew.call(slot, "fetched_bytes")))

    def _write_report(self) -> None:
        report = self._options.report
        if report is None:
            return
        try:
            write_json(report, self.account.to_dict())
        except OSError as error:
            self._say(f"the report cannot be written to {report}: {error}")

    def _ask_nodes(self, method: str) -> dict[Any, Traffic]:
        """Ask one worker of each node; of one that is gone there is no answer."""
        firsts: dict[int, Any] = {}
        for slot in filter(self._crew.has, self._slots):
            firsts.setdefault(slot.node_rank, slot)
        answers = {slot: self._crew.call(slot, method) for slot in firsts.values()}
        found: dict[Any, Traffic] = {}
        for slot, answer in answers.items():
            with suppress(WorkerLostError):
                found[slot] = self._figure(slot, answer)
        return found

    def _figure(self, slot: Slot, answer: Any) -> Any:
        """One of a worker's figures for the report. Its node is waited for once.

        Raises:
            WorkerLostError: the worker is gone, or its node does not answer.
        """
        if slot.ip in self._without_figures:
            raise WorkerLostError(slot, TimeoutError("its node does not answer"))
        purpose = "figures for the report"
        try:
            if slot in self._slots.learners:
                return self._crew.wait(answer, purpose, _FIGURES_S)
            rollout = self._slots.rollouts[slot.process_rank]
            return self._crew.wait_while(answer, purpose, lambda: self._crew.call(rollout, "steps"), _FIGURES_S)
        except StallError as error:
            self._without_figures.add(slot.ip)
            self._say(f"{slot} has not answered for {_FIGURES_S:.0f} s; the report goes without figures of its node")
            raise WorkerLostError(slot, error) from error


def main(arguments: Sequence[str], package: Path) -> int:
    """Run the trainer; ``package`` is the staged copy that is shipped to the workers. Returns the exit status."""
    options = parse(arguments)
    voice, signals = Voice(), StopSignals()
    try:
        signals.listen()
        if options.placement is None:
            raise TrainerError(
                f"no placement: {PLACEMENT_VARIABLE} is not set",
                "start it with `edgelink run --cluster FILE -- edgelink train`, or name a file by --placement",
                exit_status=USAGE,
            )
        slots = read_slots(options.placement)
        packages = [package, *user_modules.stage(options.config.env.modules, package.parent / "modules")]
        with Crew(slots, packages, voice.say, options.config.run.patience_s) as crew:
            run = Run(options, slots, crew, voice, signals)
            run.execute()
    except (Stopped, Exception) as error:
        signals.release()
        if stopped := stop_behind(error):
            name = "Ctrl+C" if stopped.number == signal.SIGINT else signal.Signals(stopped.number).name
            voice.complain(f"edgelink train: stopped by {name}; nothing of it runs any more. {options.how_to_go_on}")
            return 128 + stopped.number
        if isinstance(error, TrainerError):
            voice.complain(f"edgelink train: {error}")
            return error.exit_status
        raise
    finally:
        signals.release()
        voice.finish()
    return 0


def _seats(slots: Slots) -> Seats:
    actor, rollout, env = (
        tuple(slot.node_rank for slot in part) for part in (slots.learners, slots.rollouts, slots.envs)
    )
    return Seats(actor, rollout, env, frozenset(slot.node_rank for slot in slots if slot.accelerators.indices))
