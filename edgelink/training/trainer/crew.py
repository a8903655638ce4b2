"""The workers of one run: started where the placement says, checked, waited for, and ended. The only user of Ray's API
besides the workers themselves; written for Ray 2.47 to 2.60."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgelink.training.trainer.accelerators import LEFT_ALONE_BY_RAY
from edgelink.training.trainer.crew_checks import (
    COLLECT,
    HOLD,
    Patience,
    Pulse,
    WorkerFailedError,
    WorkerLostError,
    agreed_spaces,
    brief,
    check_answers,
    check_spaces,
    check_whereabouts,
    rank_of,
)
from edgelink.training.trainer.experience.environment import ROBOT, EnvWorker, Introduced
from edgelink.training.trainer.experience.frames import stacked
from edgelink.training.trainer.experience.rollout import RolloutWorker
from edgelink.training.trainer.experience.simulator import Task
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.learner_worker import LearnerWorker
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.package import content_hash
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot_confirmations import Confirmations
from edgelink.training.trainer.robot_notices import RobotNotices
from edgelink.training.trainer.seeds import derived
from edgelink.training.trainer.slots import Slot, Slots
from edgelink.training.trainer.whereabouts import Whereabouts

_CLOSE_TIMEOUT_S = 5.0
_SPARE_HELD = 32  # for pairs that join, and for what a silent edge had on its way until Ray gives it up
_ROLLOUT_THREADS = 4  # besides the one that collects: new weights, and questions


@dataclass(frozen=True)
class EnvSettings:
    """How env workers are made."""

    width: int
    robot: Callable[[int], ControlSettings]  # by index of the env worker; used by robots only
    echo: tuple[str, str]  # where the driver answers robots, and to whom
    seed: int
    task: Task = field(default_factory=Task)  # of the simulators


class Crew:
    """All workers of the run. Use as a context manager: leaving it ends them and lets go of Ray."""

    def __init__(
        self, slots: Slots, packages: Sequence[Path], say: Callable[[str], None], stall_timeout_s: float
    ) -> None:
        """``packages`` are what is shipped to the workers."""
        self._slots = slots
        self._packages = packages
        self._say = say
        self._stall_timeout_s = stall_timeout_s
        self._workers: dict[Slot, Any] = {}
        self._pending: dict[Any, Slot] = {}  # so that an error can be told with the worker's name
        self._ray: Any = None
        self.spaces: Spaces | None = None  # of one frame; known once the workers are up
        self.widths: list[int] = []  # environments, or rigs, of each env worker; known at the same time
        self.left_out: set[str] = set()  # addresses of nodes that were there at the start, and not in the placement
        self._made = 0
        self._robots: list[Slot] = []
        self._notices: RobotNotices | None = None
        self._confirmations: Confirmations | None = None  # where robots look at the age of their policy
        self._make_pair: Callable[[int, str, Mapping[str, str]], None] | None = None
        self._hash = ""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray is None:
            return
        # Closing is courtesy: Ray ends the workers whatever they say.
        with contextlib.suppress(self._ray.exceptions.RayError):
            closing = [worker.close.remote() for slot, worker in self._workers.items() if slot in self._slots.envs]
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT_S)
        self._ray.shutdown()

    def connect(self) -> None:
        """Become a driver of the Ray cluster that RAY_ADDRESS names; never start one."""
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            raise TrainerError(
                "RAY_ADDRESS is not set",
                "start the trainer with `edgelink run --cluster FILE -- edgelink train` on the head",
                exit_status=USAGE,
            )
        check_answers(address)
        try:
            import ray
        except ImportError as error:
            raise TrainerError(f"this interpreter has no Ray: {error}", "set ray.python to the one that has") from error
        try:
            ray.init(
                address=address,
                namespace=f"edgelink-train-{os.getpid()}-{time.time_ns():x}",
                runtime_env={
                    "py_modules": [str(package) for package in self._packages],
                    "env_vars": dict(LEFT_ALONE_BY_RAY),  # the workers choose by themselves
                },
                log_to_driver=False,
                logging_level="CRITICAL",  # Ray logs each worker's failure too, at length; it reaches us as exception
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            first_line = str(error).strip().partition("\n")[0]
            raise TrainerError(f"cannot use Ray at {address}: {first_line}", "look at `edgelink status`") from error
        self._ray = ray
        there = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        self.left_out = there - {slot.ip for slot in self._slots}

    def own_ip(self) -> str:
        """This driver's address, by which the workers' nodes reach it."""
        address: str = self._ray.util.get_node_ip_address()
        return address

    def start(
        self, learner: Settings, flow: FlowSettings, envs: EnvSettings, kinds: Sequence[str]
    ) -> dict[Slot, Whereabouts]:
        """Start every worker on its node and return where each finds itself."""
        node_ids = self._node_ids()
        for slot in self._slots:
            if slot.ip not in node_ids:
                there = ", ".join(sorted(node_ids)) or "none"
                raise TrainerError(
                    f"{slot} cannot be placed: Ray's nodes are {there}",
                    "the placement and the Ray cluster do not match; look at `edgelink exec -- ray status`",
                )
        self._robots = [slot for slot, kind in zip(self._slots.envs, kinds, strict=True) if kind == ROBOT]
        self._hash = content_hash(Path(__file__).parent)
        for index, kind in enumerate(kinds):
            self._make_env(index, kind, envs, node_ids)
        self.spaces = spaces = self._spaces()
        counts = {self.call(slot, "count"): slot.process_rank for slot in self._slots.envs}
        found_counts = {counts[answer]: value for answer, value in self.wait_each(list(counts), "environments")}
        self.widths = [found_counts[index] for index in range(len(kinds))]

        def make_pair(index: int, kind: str, node_ids: Mapping[str, str]) -> None:
            fresh = replace(envs, seed=derived(envs.seed, self._made))  # not the episodes of the first time
            self._make_env(index, kind, fresh, node_ids)
            self._make_rollout(index, spaces, fresh.seed, flow, node_ids)

        self._make_pair = make_pair
        seen, learners = stacked(spaces, flow.frame_stack), self._slots.learners
        for rank, slot in enumerate(learners):
            group = (rank, len(learners), slot.accelerators)
            arguments = (learner, seen, flow.chunk_bytes, *group)
            # Room for all fragments that can be on their way: one edge that is silent holds up no other.
            held = len(kinds) * (flow.max_policy_lag + 1) + _SPARE_HELD
            self._make(slot, LearnerWorker, node_ids, *arguments, groups={HOLD: held})
        for index in range(len(kinds)):
            self._make_rollout(index, spaces, envs.seed, flow, node_ids)
        answers = {self.call(slot, "whereabouts"): slot for slot in self._slots}
        found: dict[Slot, Whereabouts] = {}
        for answer, value in self.wait_each(list(answers), "workers to start"):
            slot = answers[answer]
            found[slot] = value
            self.check(slot, value, node_ids)
        self._let_learners_meet()
        told = {slot: found[slot].notice for slot in self._slots.envs if found[slot].notice}
        self._notices = RobotNotices(self, self._say, told)
        if any(envs.robot(slot.process_rank).deadman.policy_timeout_s for slot in self._robots):
            self._confirmations = Confirmations(self)
        return {slot: found[slot] for slot in self._slots}

    def _let_learners_meet(self) -> None:
        first, learners = self._slots.learner, self._slots.learners
        if len(learners) > 1:
            rendezvous = self.wait(self.call(first, "meet", first.ip), "the first learner")
            joining = [self.call(slot, "join", rendezvous) for slot in learners]
            told = dict(self.wait_each(joining, "the learners to meet"))
            if notice := told[joining[0]]:
                self._say(notice)

    def check(
        self, slot: Slot, found: Whereabouts | Introduced, node_ids: Mapping[str, str] | None = None
    ) -> Whereabouts:
        """Is the worker where it was to be, with this driver's code and the training's task? Raises TrainerError."""
        whereabouts = found.whereabouts if isinstance(found, Introduced) else found
        check_whereabouts(slot, whereabouts, (node_ids or self._node_ids()).get(slot.ip, ""), self._hash)
        if isinstance(found, Introduced) and self.spaces is not None:
            check_spaces(slot, found.spaces, self.spaces)
        if self._notices is not None and whereabouts.notice:
            self._notices.said(slot, whereabouts.notice)
        return whereabouts

    def has(self, slot: Slot) -> bool:
        """Whether there is a worker, as far as is known."""
        return slot in self._workers

    def is_near(self, slot: Slot) -> bool:
        """Whether a worker is on this driver's node, so that what is fetched for it crosses no link twice."""
        own: str = self._ray.get_runtime_context().get_node_id()
        return self._node_ids().get(slot.ip) == own

    def remake(self, index: int, kind: str) -> dict[Any, Slot] | None:
        """Begin to make a pair anew, or one more, where its node is in Ray: the answers in which its two workers say
        what ``check`` wants to know. None: there is no such node at present."""
        rollout, env = self._slots.rollouts[index], self._slots.envs[index]
        node_ids = self._node_ids()
        if env.ip not in node_ids or self._make_pair is None:
            return None
        self._make_pair(index, kind, node_ids)
        return {self.call(env, "introduced"): env, self.call(rollout, "whereabouts"): rollout}

    def drop(self, index: int) -> None:
        """End what is left of a pair; its answers are waited for no more."""
        for worker in self.leave_out(index):
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(worker)

    def leave_out(self, index: int) -> list[Any]:
        """Ask a pair for nothing more, and wait for none of its answers. Its workers, returned, end with the run."""
        slots = (self._slots.rollouts[index], self._slots.envs[index])
        for answer in [answer for answer, slot in self._pending.items() if slot in slots]:
            del self._pending[answer]
        return [self._workers.pop(slot) for slot in slots if slot in self._workers]

    def newcomers(self) -> list[tuple[int, str, str]]:
        """Rank, address and name of nodes in Ray that have a node rank, no worker, and were not there at the start: who
        was there and is not in the placement was left out on purpose."""
        known = self.left_out | {slot.ip for slot in self._slots}
        found = []
        for node in self._ray.nodes():
            rank, address = rank_of(node), node["NodeManagerAddress"]
            if node["Alive"] and rank is not None and address not in known:
                known.add(address)  # one that was started again is there twice until Ray gives up the one before
                found.append((rank, address, node.get("NodeManagerHostname", "")))
        return found

    def take_in(self, slots: Slots) -> None:
        """The placement has grown."""
        self._slots = slots

    def call(self, slot: Slot, method: str, *arguments: Any, returns: int = 1, group: str | None = None) -> Any:
        """Begin a call of ``slot``'s worker; its answer, or a list of them, is waited for by ``wait`` or ``ready``.

        Raises:
            WorkerLostError: there is none at present.
        """
        worker = self._workers.get(slot)
        if worker is None:
            raise WorkerLostError(slot, OSError("its process has ended"))
        answer = getattr(worker, method).options(num_returns=returns, concurrency_group=group).remote(*arguments)
        for one in answer if returns > 1 else [answer]:
            self._pending[one] = slot
        return answer

    def tell(self, slot: Slot, method: str, *arguments: Any) -> None:
        """Begin a call whose answer nobody needs; if the worker is gone, the next ``call`` will say so."""
        if (worker := self._workers.get(slot)) is not None:
            getattr(worker, method).remote(*arguments)

    def ready(self, answers: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those of ``answers`` that are here, as soon as one is, or none after the timeout."""
        self._mind_robots()
        if not answers:
            time.sleep(timeout_s)
            return []
        found, _ = self._ray.wait(list(answers), num_returns=1, timeout=timeout_s)
        if found and len(answers) > 1:
            found, _ = self._ray.wait(list(answers), num_returns=len(answers), timeout=0)
        return list(found)

    def arrived(self, answers: Iterable[Any]) -> list[Any]:
        """Those that are here; waits for none."""
        asked = list(answers)
        return list(self._ray.wait(asked, num_returns=len(asked), timeout=0)[0]) if asked else []

    @property
    def waits_for_a_person(self) -> bool:
        """Whether a robot is stopped or held until a person lets it go on."""
        return self._notices is not None and self._notices.waits_for_a_person

    def _patience(self) -> Patience:
        return Patience(self._say, self._stall_timeout_s, is_excused=lambda: self.waits_for_a_person)

    def _mind_robots(self) -> None:
        if self._notices is not None:
            robots = [slot for slot in self._robots if slot in self._workers]
            self._notices.look(robots)
            if self._confirmations is not None:
                self._confirmations.look([self._slots.rollouts[slot.process_rank] for slot in robots])

    def forget(self, answer: Any) -> None:
        """Its value is not asked for here: what it holds is let go of with the caller's last reference."""
        self._pending.pop(answer, None)

    def wait(self, answer: Any, purpose: str, within_s: float | None = None) -> Any:
        """The value of one answer.

        Args:
            within_s: how long it is waited for. None: for the stall timeout.
        """
        return next(self.wait_each([answer], purpose, within_s))[1]

    def wait_while(self, answer: Any, purpose: str, steps: Callable[[], Any], within_s: float | None = None) -> Any:
        """The value of one answer that may take any time, as long as whoever works on it comes further.

        Args:
            steps: begins to ask how many steps it has done.
            within_s: how long it is waited for without one. None: for the stall timeout.
        """
        patience = self._patience() if within_s is None else Patience(self._say, within_s)
        pulse, begun_s = Pulse(steps), time.monotonic()
        while True:
            ready = self.ready([answer, *([] if pulse.answer is None else [pulse.answer])], 1.0)
            if answer in ready:
                self.forget(pulse.answer)
                return self.value(answer)
            if ready and pulse.comes_further(done := self.value(pulse.answer)):
                patience.begin()
                self._say(f"waiting {time.monotonic() - begun_s:.0f} s for {purpose}: {done} steps so far")
            pulse.ask()
            patience.check(purpose, [self._pending.get(answer, "?")])

    def wait_each(
        self, answers: Sequence[Any], purpose: str, within_s: float | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """(answer, value) of each as it comes; says what is waited for when it takes long.

        Raises:
            TrainerError: a worker failed or is gone, or nothing came for the stall timeout.
        """
        rest = list(answers)
        patience = self._patience() if within_s is None else Patience(self._say, within_s)
        while rest:
            self._mind_robots()
            ready, rest = self._ray.wait(rest, num_returns=1, timeout=1.0)
            if ready:
                yield ready[0], self.value(ready[0])
                patience.begin()
            else:
                patience.check(purpose, [self._pending.get(answer, "?") for answer in rest])

    def value(self, answer: Any) -> Any:
        """What an answer that is here holds.

        Raises:
            WorkerLostError: whoever was asked is gone, or what it takes to answer.
            WorkerFailedError: it has raised; names the env worker if it is one of a pair.
        """
        slot = self._pending.pop(answer)
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            is_environment = slot in self._slots.rollouts  # a rollout worker calls one other worker: its environment
            env = self._slots.envs[slot.process_rank] if is_environment else slot
            if isinstance(cause, errors.RayActorError) or (is_environment and isinstance(cause, OSError | EOFError)):
                raise WorkerLostError(env, cause) from error
            if isinstance(cause, TrainerError):  # which knows what to do, and whether to try again
                failed = TrainerError(f"{slot}: {cause.message}", cause.hint, exit_status=cause.exit_status)
            else:
                failed = TrainerError(f"{slot} failed: {brief(cause)}", "its log is among Ray's on that node")
            raise WorkerFailedError(env, failed) from error
        except errors.RayError as error:
            if "creation task" in str(error):
                hint = "a module that it lacks, install there for Ray's interpreter; else correct the options"
                failed = TrainerError(f"{slot} could not be made: {brief(error)}", hint)
                raise WorkerFailedError(slot, failed) from error
            raise WorkerLostError(slot, error) from error

    def _spaces(self) -> Spaces:
        """What the env workers' tasks look like, which is to be the same everywhere."""
        answers = {self.call(slot, "spaces"): slot for slot in self._slots.envs}
        return agreed_spaces(
            {answers[answer]: value for answer, value in self.wait_each(list(answers), "environments")}
        )

    def _node_ids(self) -> Mapping[str, str]:
        """Ray node id of each overlay address; of two that have one, none."""
        alive: dict[str, list[str]] = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                alive.setdefault(node["NodeManagerAddress"], []).append(node["NodeID"])
        return {address: ids[0] for address, ids in alive.items() if len(ids) == 1}

    def _make_env(self, index: int, kind: str, envs: EnvSettings, node_ids: Mapping[str, str]) -> None:
        seed, robot = derived(envs.seed, index), envs.robot(index)
        robot = replace(robot, settings=replace(robot.settings, seed=seed))  # another one when it is made anew
        slot = self._slots.envs[index]
        arguments = (kind, envs.width, robot, envs.echo, seed, envs.task, slot.accelerators)
        self._make(slot, EnvWorker, node_ids, *arguments)

    def _make_rollout(
        self, index: int, spaces: Spaces, seed: int, flow: FlowSettings, node_ids: Mapping[str, str]
    ) -> None:
        environment = self._workers[self._slots.envs[index]]
        arguments = (index, environment, spaces, seed, flow.frame_stack, flow.max_policy_lag, flow.chunk_bytes)
        groups = {COLLECT: 1}
        self._make(
            self._slots.rollouts[index], RolloutWorker, node_ids, *arguments, threads=_ROLLOUT_THREADS, groups=groups
        )

    def _make(
        self,
        slot: Slot,
        kind: type,
        node_ids: Mapping[str, str],
        *arguments: Any,
        threads: int = 1,
        groups: Mapping[str, int] | None = None,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Retries carry calls over a WAN blip; every call is safe to repeat (tickets and iterations).
        # A worker that died is not restarted by Ray: its pair is made anew by us, or not.
        self._made += 1
        name = slot.name if self._made <= len(list(self._slots)) else f"{slot.name}#{self._made}"
        remote = self._ray.remote(concurrency_groups=dict(groups))(kind) if groups else self._ray.remote(kind)
        actor = remote.options(
            name=name,
            num_cpus=0,
            max_restarts=0,
            max_task_retries=-1,
            max_concurrency=threads,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_ids[slot.ip], soft=False),
        )
        self._workers[slot] = actor.remote(*arguments)
