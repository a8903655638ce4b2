"""The workers of one run: started where the placement says, checked, waited for, and ended. The only user of Ray's API
besides the workers themselves; written for Ray 2.47 to 2.60."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelink.training.trainer.experience.environment import EnvWorker
from edgelink.training.trainer.experience.rollout import RolloutWorker
from edgelink.training.trainer.experience.simulator import Task
from edgelink.training.trainer.failure import TRY_AGAIN, USAGE, TrainerError
from edgelink.training.trainer.learning.learner import Learner
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.package import content_hash
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.slots import Slot, Slots
from edgelink.training.trainer.whereabouts import Whereabouts

_FIRST_NOTICE_S = 10.0
_NOTICE_EVERY_S = 30.0
_CLOSE_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 10.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Here Ray's guesses at reasons begin, of which the out-of-memory killer is always the first.
_GUESSES = ("There are some potential", "Some common causes")
_ROLLOUT_THREADS = 6  # two queued collects, new weights, and questions


@dataclass(frozen=True)
class EnvSettings:
    """How env workers are made."""

    kinds: Sequence[str]  # of each env worker
    width: int
    robots: Sequence[RobotSettings]  # of each env worker; used by robots only
    driver: str
    seed: int
    task: Task = field(default_factory=Task)  # of the simulators


class Crew:
    """All workers of the run. Use as a context manager: leaving it ends them and lets go of Ray."""

    def __init__(self, slots: Slots, package: Path, say: Callable[[str], None], stall_timeout_s: float) -> None:
        self._slots = slots
        self._package = package
        self._say = say
        self._stall_timeout_s = stall_timeout_s
        self._workers: dict[Slot, Any] = {}
        self._pending: dict[Any, Slot] = {}  # so that an error can be told with the worker's name
        self._ray: Any = None

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
                "RAY_ADDRESS is not set", "start the trainer with `edgelink train` on the head", exit_status=USAGE
            )
        _check_answers(address)
        try:
            import ray
        except ImportError as error:
            raise TrainerError(f"this interpreter has no Ray: {error}", "set ray.python to the one that has") from error
        try:
            ray.init(
                address=address,
                namespace=f"edgelink-train-{os.getpid()}-{time.time_ns():x}",
                runtime_env={"py_modules": [str(self._package)]},
                log_to_driver=False,
                logging_level="CRITICAL",  # Ray logs each worker's failure too, at length; it reaches us as exception
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            first_line = str(error).strip().partition("\n")[0]
            raise TrainerError(f"cannot use Ray at {address}: {first_line}", "look at `edgelink status`") from error
        self._ray = ray

    def start(self, learner: Settings, envs: EnvSettings) -> dict[Slot, Whereabouts]:
        """Start every worker on its node and return where each finds itself."""
        node_ids = self._node_ids()
        for index, env in enumerate(self._slots.envs):
            self._make(
                env, EnvWorker, node_ids, envs.kinds[index], envs.width, envs.robots[index], envs.driver,
                envs.seed * 100 + index, envs.task,
            )  # fmt: skip
        spaces = self._spaces()
        self._make(self._slots.learner, Learner, node_ids, learner, spaces)
        for index, (rollout, env) in enumerate(zip(self._slots.rollouts, self._slots.envs, strict=True)):
            arguments = (index, self._workers[env], spaces, envs.seed)
            self._make(rollout, RolloutWorker, node_ids, *arguments, threads=_ROLLOUT_THREADS)
        answers = {self.call(slot, "whereabouts"): slot for slot in self._slots}
        found: dict[Slot, Whereabouts] = {}
        own_hash = content_hash(Path(__file__).parent)
        for answer, value in self.wait_each(list(answers), "workers to start"):
            slot = answers[answer]
            found[slot] = value
            check_whereabouts(slot, value, node_ids[slot.ip], own_hash)
        return {slot: found[slot] for slot in self._slots}

    def _spaces(self) -> Spaces:
        """What the env workers' tasks look like, which is to be the same everywhere."""
        answers = {self.call(slot, "spaces"): slot for slot in self._slots.envs}
        return agreed_spaces(
            {answers[answer]: value for answer, value in self.wait_each(list(answers), "environments")}
        )

    def call(self, slot: Slot, method: str, *arguments: Any) -> Any:
        """Begin a call of ``slot``'s worker; the answer is waited for by ``wait`` or ``wait_any``."""
        answer = getattr(self._workers[slot], method).remote(*arguments)
        self._pending[answer] = slot
        return answer

    def tell(self, slot: Slot, method: str, *arguments: Any) -> None:
        """Begin a call whose answer nobody needs; if the worker is gone, the next ``call`` will say so."""
        getattr(self._workers[slot], method).remote(*arguments)

    def wait(self, answer: Any, purpose: str) -> Any:
        """The value of one answer."""
        return next(self.wait_each([answer], purpose))[1]

    def wait_each(self, answers: Sequence[Any], purpose: str) -> Iterator[tuple[Any, Any]]:
        """(answer, value) of each as it comes; says what is waited for when it takes long.

        Raises:
            TrainerError: a worker failed or is gone, or nothing came for the stall timeout.
        """
        rest = list(answers)
        started_s = time.monotonic()
        notice_s = started_s + _FIRST_NOTICE_S
        while rest:
            ready, rest = self._ray.wait(rest, num_returns=1, timeout=1.0)
            now_s = time.monotonic()
            if ready:
                yield ready[0], self._value(ready[0])
                started_s = time.monotonic()
                notice_s = started_s + _FIRST_NOTICE_S
            elif now_s - started_s > self._stall_timeout_s:
                raise TrainerError(
                    f"no answer for {self._stall_timeout_s:.0f} s while waiting for {purpose}: {self._names(rest)}",
                    "look at `edgelink status` on that node; --resume goes on from the last checkpoint",
                    exit_status=TRY_AGAIN,
                )
            elif now_s >= notice_s:
                notice_s = now_s + _NOTICE_EVERY_S
                self._say(f"waiting {now_s - started_s:.0f} s for {purpose}: {self._names(rest)}")

    def _names(self, answers: Sequence[Any]) -> str:
        return ", ".join(str(self._pending.get(answer, "?")) for answer in answers)

    def _value(self, answer: Any) -> Any:
        slot = self._pending.pop(answer)
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, errors.RayActorError):  # a rollout worker calls one other worker: its environment
                raise self._gone(self._slots.envs[slot.process_rank], cause) from error
            raise TrainerError(f"{slot} failed: {brief(cause)}", "its log is among Ray's on that node") from error
        except errors.RayError as error:
            if "creation task" in str(error):
                raise TrainerError(f"{slot} could not be made: {brief(error)}", "correct the options") from error
            raise self._gone(slot, error) from error

    def _gone(self, slot: Slot, error: BaseException) -> TrainerError:
        return TrainerError(
            f"{slot} is gone: {brief(error)}",
            "look at `edgelink status` on that node; --resume goes on from the last checkpoint",
        )

    def _node_ids(self) -> Mapping[str, str]:
        """Ray node id of each overlay address in the placement."""
        alive: dict[str, list[str]] = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                alive.setdefault(node["NodeManagerAddress"], []).append(node["NodeID"])
        for slot in self._slots:
            found = alive.get(slot.ip, [])
            if len(found) != 1:
                there = ", ".join(sorted(alive)) or "none"
                what = f"{len(found)} Ray nodes have that address" if found else f"Ray's nodes are {there}"
                raise TrainerError(
                    f"{slot} cannot be placed: {what}",
                    "the placement and the Ray cluster do not match; look at `edgelink exec -- ray status`",
                )
        return {address: ids[0] for address, ids in alive.items()}

    def _make(self, slot: Slot, kind: type, node_ids: Mapping[str, str], *arguments: Any, threads: int = 1) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Retries carry calls over a WAN blip; every call is safe to repeat (tickets, iteration and step numbers).
        # A worker that died is not restarted: a robot must not begin anew by itself.
        actor = self._ray.remote(kind).options(
            name=slot.name,
            num_cpus=0,
            max_restarts=0,
            max_task_retries=-1,
            max_concurrency=threads,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_ids[slot.ip], soft=False),
        )
        self._workers[slot] = actor.remote(*arguments)
        return self._workers[slot]


def agreed_spaces(found: Mapping[Slot, Spaces]) -> Spaces:
    """The spaces that all env workers have.

    Raises:
        TrainerError: two of them differ: one policy cannot learn from both.
    """
    (first, expected), *others = sorted(found.items(), key=lambda item: item[0].process_rank)
    for slot, spaces in others:
        if spaces != expected:
            raise TrainerError(
                f"the environments are not of one task: {first} has {expected}, {slot} has {spaces}",
                "let simulators and robots show and do the same",
                exit_status=USAGE,
            )
    return expected


def check_whereabouts(slot: Slot, found: Whereabouts, node_id: str, own_hash: str) -> None:
    """Is the worker where it was to be, and does it run this driver's code?

    Raises:
        TrainerError: no.
    """
    if found.ray_node_id != node_id or found.node_ip != slot.ip:
        raise TrainerError(f"{slot} was started elsewhere, on {found.hostname} ({found.node_ip})")
    if found.code_hash != own_hash:
        raise TrainerError(
            f"{slot} runs other trainer code ({found.code_hash[:12]}) than this driver ({own_hash[:12]})",
            "an edgelink package in that node's PYTHONPATH hides the shipped one; remove it",
        )


def brief(error: BaseException) -> str:
    """One line out of what Ray says: the exception a worker raised while it was made, or how it died."""
    text = _COLOURS.sub("", str(error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if "creation task" in lines[0]:
        return lines[-1]
    for line in lines:
        if "Worker exit detail:" in line:
            detail = line.partition("Worker exit detail:")[2]
            for guesses in _GUESSES:
                detail = detail.partition(guesses)[0]
            return f"its process died: {detail.strip().rstrip('.')}"
    return lines[0].rstrip(".")


def _check_answers(address: str) -> None:
    """Ray itself tries for minutes, with a warning every few seconds."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return  # "auto" and the like
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise TrainerError(
            f"no Ray at {address}: {error}", "look at `edgelink status` on the head", exit_status=TRY_AGAIN
        ) from error
