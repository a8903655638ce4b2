"""What is made of Ray's answers: whose they are, whether they are as they must be, and how long they are waited for."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgelink.training.trainer.failure import TRY_AGAIN, USAGE, TrainerError
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.slots import Slot
from edgelink.training.trainer.whereabouts import Whereabouts

COLLECT = "collect"  # the group of calls that are done one after the other, in order
HOLD = "hold"  # a learner's group of calls that wait for what is still on its way to it
_FIRST_NOTICE_S = 10.0
NOTICE_EVERY_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Here Ray's guesses at reasons begin, of which the out-of-memory killer is always the first.
_GUESSES = ("There are some potential", "Some common causes")
_RANK_LABEL, _RANK_RESOURCE = "edgelink.rank", "edgelink-rank-"  # as `edgelink` starts Ray on each node


class WorkerLostError(TrainerError):
    """The process of a worker, or its node, is gone; ``slot`` says whose."""

    def __init__(self, slot: Slot, error: BaseException) -> None:
        super().__init__(
            f"{slot} is gone: {brief(error)}",
            "look at `edgelink status` on that node; --resume goes on from the last checkpoint",
        )
        self.slot = slot


class WorkerFailedError(WorkerLostError):
    """A worker is there, and has raised: what it was doing is lost with it."""

    def __init__(self, slot: Slot, error: TrainerError) -> None:
        TrainerError.__init__(self, error.message, error.hint, exit_status=error.exit_status)
        self.slot = slot


class StallError(TrainerError):
    """Nothing has come for the stall timeout."""


class SpacesDifferError(TrainerError):
    """Two environments are not of one task: one policy cannot learn from both."""


class Patience:
    """Says what is waited for when it takes long, and gives up after the stall timeout."""

    def __init__(
        self,
        say: Callable[[str], None],
        stall_timeout_s: float,
        clock: Callable[[], float] | None = None,
        is_excused: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_excused``: whether it is a person that is waited for, who may take any time."""
        self._is_excused = is_excused
        self._say = say
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock or time.monotonic
        self.begin()

    def begin(self) -> None:
        """Something came."""
        self._started_s = self._excused_s = self._clock()
        self._notice_s = self._started_s + _FIRST_NOTICE_S

    def check(self, purpose: str, names: Sequence[object]) -> None:
        """Nothing has come. Raises StallError once that has gone on for the stall timeout."""
        now_s = self._clock()
        who = ", ".join(str(name) for name in names)
        if self._is_excused():
            self._excused_s = now_s
        if now_s - max(self._started_s, self._excused_s) > self._stall_timeout_s:
            raise StallError(
                f"no answer for {self._stall_timeout_s:.0f} s while waiting for {purpose}: {who}",
                "look at `edgelink status` on that node; --resume goes on from the last checkpoint",
                exit_status=TRY_AGAIN,
            )
        if now_s >= self._notice_s:
            self._notice_s = now_s + NOTICE_EVERY_S
            self._say(f"waiting {now_s - self._started_s:.0f} s for {purpose}: {who}")


class Pulse:
    """Whether whoever works on one long answer comes further: now and then asked for the steps it has done."""

    def __init__(self, ask: Callable[[], Any], clock: Callable[[], float] | None = None) -> None:
        """``ask`` begins to ask; its answer is a number."""
        self._ask = ask
        self._clock = clock or time.monotonic
        self._next_s = self._clock() + NOTICE_EVERY_S
        self._steps = 0
        self.answer: Any = None  # that is waited for

    def ask(self) -> None:
        """If it is time."""
        now_s = self._clock()
        if self.answer is None and now_s >= self._next_s:
            self._next_s = now_s + NOTICE_EVERY_S
            self.answer = self._ask()

    def comes_further(self, steps: int) -> bool:
        """The answer is here: are there more than the time before?"""
        self.answer = None
        before, self._steps = self._steps, steps
        return steps > before


def rank_of(node: Mapping[str, Any]) -> int | None:
    """The node rank that `edgelink` gave to a node of Ray's."""
    label = (node.get("Labels") or {}).get(_RANK_LABEL, "")
    if label.isdigit():
        return int(label)
    ranks = [name.removeprefix(_RANK_RESOURCE) for name in node.get("Resources", {}) if name.startswith(_RANK_RESOURCE)]
    return int(ranks[0]) if ranks and ranks[0].isdigit() else None


def agreed_spaces(found: Mapping[Slot, Spaces]) -> Spaces:
    """The spaces that all env workers have.

    Raises:
        SpacesDifferError: two of them differ.
    """
    (first, expected), *others = sorted(found.items(), key=lambda item: item[0].process_rank)
    for slot, spaces in others:
        if spaces != expected:
            raise SpacesDifferError(
                f"the environments are not of one task: {first} has {expected}, {slot} has {spaces}",
                "let simulators and robots show and do the same",
                exit_status=USAGE,
            )
    return expected


def check_spaces(slot: Slot, found: Spaces, expected: Spaces) -> None:
    """Is the environment of a pair that was made later of the training's task?

    Raises:
        SpacesDifferError: no.
    """
    if found != expected:
        raise SpacesDifferError(
            f"{slot} is not of the training's task: it has {found}, the training is of {expected}",
            "let it show and do what it did when the training began",
            exit_status=USAGE,
        )


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


def check_answers(address: str) -> None:
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
