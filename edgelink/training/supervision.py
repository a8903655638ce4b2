"""When a driver is ended and when it is run again: decided from facts, without doing anything; pure.

A driver tells us its exit status only. Whether a link or node was to blame, or a defect of the program, is judged by
what became of the nodes meanwhile: a node whose Ray died has another Ray node id afterwards, or none.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from edgelink.backoff import Backoff
from edgelink.errors import ExitCode

GONE_AFTER_S = 20.0  # not listed for so long: a restart of the head daemon, or of its watch, is over by then
LOSS_GRACE_S = 30.0  # a driver that notices a lost node by itself may end by itself
HEAD_LOSS_GRACE_S = 5.0  # one whose whole Ray is gone has only itself left to save
RECENT_S = 300.0  # trouble so long before a failure may be its cause: Ray notices a silent node late
_SHORT_LIFE_S = 60.0
_LONG_LIFE_S = 600.0  # after so long a life the delays begin anew
_MOST_AN_HOUR = 10
_HOUR_S = 3600.0
_DEFAULT_RELAUNCHES = 3
_ASKED_FOR = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)}


class OnNodeLoss(StrEnum):
    """What is done when the Ray of one of the run's nodes died under the driver."""

    WAIT = "wait"  # nothing: the driver's own retries may carry it over
    RELAUNCH = "relaunch"  # end the driver, wait for the nodes, run it again
    STOP = "stop"  # end the driver and the run


@dataclass(frozen=True)
class Supervision:
    """What the user asked for."""

    retries: int = 0
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT

    @classmethod
    def of(cls, retries: int | None, on_node_loss: str) -> Supervision:
        """``retries`` None: none, or three where a lost node is to mean a relaunch."""
        policy = OnNodeLoss(on_node_loss)
        default = _DEFAULT_RELAUNCHES if policy is OnNodeLoss.RELAUNCH else 0
        return cls(default if retries is None else retries, policy)

    @property
    def is_any(self) -> bool:
        return self.retries > 0 or self.on_node_loss is not OnNodeLoss.WAIT

    def ends_driver(self, nodes: NodeWatch, now_s: float) -> bool:
        """Whether a driver that still runs has to be ended now."""
        lost_since_s = nodes.lost_since_s
        if lost_since_s is None:
            return False
        if self.on_node_loss is OnNodeLoss.STOP:
            return True
        # Without the Ray that it was connected to, no retry of its own can help a driver.
        is_hopeless = self.on_node_loss is OnNodeLoss.RELAUNCH or nodes.is_head_lost
        grace_s = HEAD_LOSS_GRACE_S if nodes.is_head_lost else LOSS_GRACE_S
        return self.retries > 0 and is_hopeless and now_s - lost_since_s >= grace_s


class NodeWatch:
    """What became of a run's nodes since its driver was started; fed with the head daemon's reports.

    ``lost`` names those whose Ray died: a Ray node id never comes back. ``troubled`` adds those that were only silent.
    """

    def __init__(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        self._ids = {int(node["node_rank"]): node["ray_node_id"] for node in nodes if node.get("ray_node_id")}
        self._missing_since_s: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._lost: dict[int, float] = {}
        self._trouble: dict[int, float] = {}  # when last seen in trouble

    def update(self, nodes: Iterable[Mapping[str, Any]], now_s: float) -> None:
        for node in nodes:
            rank = int(node["node_rank"])
            if rank not in self._ids:
                continue
            self._names[rank] = node.get("hostname") or f"rank {rank}"
            found = node.get("ray_node_id")
            if found is None and not node.get("ray_known", True):
                self._missing_since_s.pop(rank, None)  # nobody can say who is there: no sign of a death
            elif found is None:
                self._missing_since_s.setdefault(rank, now_s)
            else:
                self._missing_since_s.pop(rank, None)
                if found != self._ids[rank]:
                    self._lost.setdefault(rank, now_s)
            if found != self._ids[rank] or node.get("online") is False:
                self._trouble[rank] = now_s

    def tick(self, now_s: float) -> None:
        """Time has passed without a report."""
        for rank, since_s in self._missing_since_s.items():
            self._trouble[rank] = now_s
            if now_s - since_s >= GONE_AFTER_S:
                self._lost.setdefault(rank, now_s)

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(self._names[rank] for rank in sorted(self._lost))

    @property
    def lost_since_s(self) -> float | None:
        return min(self._lost.values(), default=None)

    @property
    def is_head_lost(self) -> bool:
        """Ray's own head died, and with it everything that the driver was connected to."""
        return 0 in self._lost

    def troubled(self, now_s: float) -> tuple[str, ...]:
        recent = {rank for rank, last_s in self._trouble.items() if now_s - last_s <= RECENT_S}
        return tuple(self._names[rank] for rank in sorted(recent | set(self._lost)))


@dataclass(frozen=True)
class Ended:
    """How one attempt ended."""

    exit_status: int
    lived_s: float
    at_s: float
    by_us: bool = False  # it was ended because of a lost node
    by_user: bool = False  # Ctrl+C, or a signal to us
    lost: tuple[str, ...] = ()
    troubled: tuple[str, ...] = ()
    step: float | None = None  # how far it was, where it says so

    def looks_like_a_defect(self, before: Ended | None) -> bool:
        """Soon after its start, with nothing wrong in the cluster, and no further than the attempt before."""
        if before is not None and self.step is not None and (before.step is None or self.step > before.step):
            return False
        return not self.by_us and not self.troubled and self.lived_s < _SHORT_LIFE_S


@dataclass(frozen=True)
class Decision:
    """What is done after an attempt; ``why`` is a sentence for people, empty where there is nothing to say."""

    relaunch: bool
    exit_status: int
    why: str
    delay_s: float = 0.0


def decide(supervision: Supervision, attempts: Sequence[Ended], backoff: Backoff) -> Decision:
    """What to do now that the last of ``attempts`` has ended."""
    last = attempts[-1]
    what = _in_words(last)
    if last.by_user:
        why = "stopped on request: CMD and what it started here have ended"
        return Decision(relaunch=False, exit_status=last.exit_status, why=why)
    if last.exit_status in _ASKED_FOR and not last.by_us and not last.troubled:
        return Decision(relaunch=False, exit_status=last.exit_status, why="")
    if not last.by_us and last.exit_status == ExitCode.OK:
        return Decision(relaunch=False, exit_status=ExitCode.OK, why="")
    if last.lost and supervision.on_node_loss is OnNodeLoss.STOP:
        why = f"{what}; the run ends, as --on-node-loss stop asks"
        return Decision(relaunch=False, exit_status=ExitCode.NODE_LOST, why=why)
    refusal = _refusal(supervision, attempts)
    if refusal is not None:
        status = ExitCode.NODE_LOST if last.by_us else last.exit_status
        is_worth_saying = supervision.is_any or bool(last.lost)
        return Decision(relaunch=False, exit_status=status, why=f"{what}; {refusal}" if is_worth_saying else "")
    if last.lived_s >= _LONG_LIFE_S:
        backoff.reset()
    why = f"{what}; running it again, {len(attempts)} of {supervision.retries}"
    return Decision(relaunch=True, exit_status=last.exit_status, why=why, delay_s=backoff.next_s())


def relaunch_backoff() -> Backoff:
    """The delays between attempts."""
    return Backoff(first_s=4.0, cap_s=300.0)


def _refusal(supervision: Supervision, attempts: Sequence[Ended]) -> str | None:
    """Why the driver is not run again; None: it is."""
    last = attempts[-1]
    if not last.by_us and last.exit_status in (ExitCode.USAGE, ExitCode.CONFIG):
        return "that says its command line or configuration is wrong: it is not run again"
    if supervision.retries == 0:
        return "it is not run again without --retries"
    if len(attempts) > supervision.retries:
        return f"all {supervision.retries} retries are used up"
    recent = [attempt for attempt in attempts if last.at_s - attempt.at_s < _HOUR_S]
    if len(recent) > _MOST_AN_HOUR:
        return f"it has ended {len(recent)} times within an hour: something has to be mended first"
    before, previous = (None, None, *attempts)[-3:-1]
    if previous is not None and previous.looks_like_a_defect(before) and last.looks_like_a_defect(previous):
        return "twice in a row soon after its start, and with nothing wrong in the cluster: a defect of the program"
    return None


def _in_words(ended: Ended) -> str:
    if ended.by_us:
        return f"the driver was ended because Ray on {', '.join(ended.lost)} died under it"
    status = f"the driver ended with status {ended.exit_status} after {ended.lived_s:.0f} s"
    if ended.lost:
        return f"{status}; Ray on {', '.join(ended.lost)} had died"
    if ended.troubled:
        return f"{status}; {', '.join(ended.troubled)} had been silent"
    return f"{status}; no node had died or been silent"
