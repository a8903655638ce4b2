"""The one run at a time of a head: its lock, its record, and what its driver tells (ADR 0009)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from edgelink.errors import RayClusterError
from edgelink.facts.board import Fact
from edgelink.log import get_logger
from edgelink.ray_cluster.held_run import Meeting
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.reconcile import Wakeup
from edgelink.runs.roster import Roster
from edgelink.runs.run_lock import RunLock
from edgelink.runs.standing import Standing
from edgelink.runs.without_ray import WithoutRayBook
from edgelink.training.run_record import RunRecord

MEETING: Final[Fact[Meeting]] = Fact("meeting")

log = get_logger("runs")

_COMES_BACK_S = 30.0  # until then whoever runs has told a daemon that was restarted
_MOST_UNTAKEN = 64  # batches of metrics, and records: the page takes them within seconds


RunPoints = Sequence[tuple[float, Mapping[str, float]]]  # step and values


class RayStoppedError(RayClusterError):
    """Ray was stopped on every node; a run, or one node alone, does not bring it back."""

    reason = "RayStopped"
    retryable = False

    def __init__(self) -> None:
        super().__init__(
            "Ray was stopped on every node by `edgelink stop --all`",
            hint="`edgelink restart-ray --all` starts it again",
        )


class Runs:
    """The one run at a time of a head."""

    def __init__(self, inputs: RayInputs) -> None:
        self._board, self._clock, self._files = inputs.board, inputs.clock, inputs.files
        self._conditions = inputs.conditions
        self.lock = RunLock(inputs.board, inputs.paths.run_lock, self._clock, self._released, self._files)
        without_ray = WithoutRayBook(inputs.board, inputs.paths.state / "without-ray.json", self._files)
        self.roster = Roster(
            inputs.board, inputs.key.node_id, self.lock, without_ray, has_ray=inputs.config.ray.enabled
        )
        self.standing = Standing(inputs, self.roster)
        self._watchers: list[Wakeup] = []
        # What was told, and not taken yet.
        self._points: deque[tuple[str, RunPoints]] = deque(maxlen=_MOST_UNTAKEN)
        self._records: deque[tuple[datetime, RunRecord]] = deque(maxlen=_MOST_UNTAKEN)
        self._put_meeting = inputs.board.claim(MEETING, "runs")
        self._put_meeting(Meeting(may_come_back_until_s=self._clock.monotonic_s() + _COMES_BACK_S))
        self._record_path = inputs.paths.state / "last-run.json"
        self._record = self._read_record()
        if self.lock.holder is not None:
            self.show_granted()
            return
        self._show_no_run()
        if self._record is not None:
            self._record = self._record.ended_without_a_word(self._clock.now())

    @property
    def record(self) -> dict[str, Any] | None:
        """The run in progress, else the last one: its attempts and how they ended."""
        if self._record is None:
            return None
        return {**self._record.model_dump(mode="json"), "in_progress": self.lock.holder is not None}

    def watch(self, wakeup: Wakeup) -> None:
        """Set ``wakeup`` when there are points or a record to take."""
        self._watchers.append(wakeup)

    def _wake_watchers(self) -> None:
        for wakeup in self._watchers:
            wakeup.set()

    def _put_record(self, record: RunRecord) -> None:
        self._record = record
        self._records.append((self._clock.now(), record))
        self._wake_watchers()

    def details(self) -> dict[str, Any]:
        """Return what the head's status tells of runs."""
        return {"run": self.record}

    def moment(self) -> dict[str, Any]:
        """Return what the flight recorder keeps: how far the run in progress is, and whom Ray lists as alive."""
        last = self._record.attempts[-1] if self._record and self._record.attempts and self.lock.holder else None
        alive = sorted(f"{one.rank}:{one.node_id[:8]}" for one in self._board.facts.ray_members if one.alive)
        run = {"attempt": last.number if last else None, "step": last.step if last else None}
        return {"run": run, "ray_alive": alive}

    def open_edges(self) -> None:
        """Have the edges of the run that is about to begin reach each other, until it ends."""
        self._put_meeting(Meeting(is_asked=True))

    def take_points(self) -> list[tuple[str, RunPoints]]:
        """What drivers said since this was last asked, by run."""
        taken = list(self._points)
        self._points.clear()
        return taken

    def take_records(self) -> list[tuple[datetime, dict[str, Any]]]:
        """Each state of the record since this was last asked, with its time."""
        taken = [(at, record.model_dump(mode="json")) for at, record in self._records]
        self._records.clear()
        return taken

    def add_points(self, run_id: str, points: RunPoints) -> None:
        """Keep what a driver said of its steps until somebody takes it."""
        self._points.append((run_id, points))
        self._wake_watchers()

    def note(self, record: RunRecord | None) -> None:
        """Keep the holder's account of its attempts. None: it gave none."""
        if record is None:
            return
        before = self._record
        self._put_record(record)
        if before is None or before.without_steps() != record.without_steps():  # a step is worth no disk write
            self._files.keep(self._record_path, record.model_dump_json())

    def _read_record(self) -> RunRecord | None:
        try:
            return RunRecord.model_validate_json(self._record_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def show_granted(self) -> None:
        """Say whose run relies on the cluster."""
        self._conditions.set_true("DriverRunning", "Granted", f"run granted to {self.lock.holder}")

    def _released(self) -> None:
        self._put_meeting(Meeting())
        if self._record is not None:
            ended = self._record.ended_without_a_word(self._clock.now())
            self._put_record(ended)
            self._files.keep(self._record_path, ended.model_dump_json())
        self._show_no_run()
        self._wake_watchers()

    def _show_no_run(self) -> None:
        self._conditions.set_false("DriverRunning", "NoRun", "no run is in progress")
