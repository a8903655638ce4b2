"""What each update was like, for people and programs: a line, a JSON record, and TensorBoard where it is asked for."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.evaluation import estimate, figure_text
from edgelink.training.trainer.report import Account, mean, rounded
from edgelink.training.trainer.training import Learned
from edgelink.training.trainer.voice import duration_text
from edgelink.training.trainer.whereabouts import Traffic

_NOT_FIGURES = ("samples",)


class Metrics:
    """Fed with each update, after the account has it."""

    def __init__(
        self,
        account: Account,
        iterations: int,
        progress: Path | None,
        tensorboard: Path | None,
        traffic: Callable[[], Traffic],
        say: Callable[[str], None],
        live: Path | None = None,
        *,
        is_restart: bool = False,
    ) -> None:
        """``traffic`` reads the overlay's device on this node; ``say`` tells people what cannot be written; ``live``
        is a file for those who watch; ``is_restart``: this run has written before, from some iteration on in vain."""
        self._say = say
        self._live = live
        self._told: set[str] = set()  # outputs that could not be written
        self._account = account
        self._iterations = iterations
        self._progress = progress
        self._traffic = traffic
        self._before = traffic()
        self._begun_s = time.monotonic()
        self._evaluations: list[dict[str, Any]] = []  # since the last update
        self._last: dict[str, Any] = {}  # the newest record
        self._is_owed = False  # that one waits for its policy to be evaluated
        first = account.first_iteration
        begins_anew_at = first if first > 1 or is_restart else None
        self._curves: _Curves | None = None
        if tensorboard is not None:
            with self._told_once("--tensorboard"):
                self._curves = _Curves(tensorboard, begins_anew_at)

    def evaluated(self, version: int, returns: Sequence[float]) -> None:
        """Told with the next update; where no more comes, with the one before."""
        found = estimate(returns)
        margin = rounded(found.margin) if math.isfinite(found.margin) else None
        told = {"version": version, "return": mean(returns), "margin": margin, "episodes": found.episodes}
        self._evaluations.append(told)

    def update(self, learned: Learned, live_pairs: int) -> None:
        """Write down one update, the last one by ``close``. What cannot be written is told once."""
        self._last = self._record(learned, live_pairs)
        self._is_owed = learned.iteration == self._iterations
        if not self._is_owed:
            self._write(self._last)

    def _write(self, record: dict[str, Any]) -> None:
        evaluations, self._evaluations = self._evaluations, []
        if evaluations:
            record["evaluations"] = [*record.get("evaluations", ()), *evaluations]
        if self._progress is not None:
            with self._told_once("--progress"):
                _append(self._progress, record)
        if self._live is not None:
            with self._told_once("for those who watch"):
                _append(self._live, {**shown(record), "total_steps": self._iterations})
        if self._curves is not None:
            with self._told_once("--tensorboard"):
                self._curves.add(numbers_in(record), record["iteration"])
                for one in evaluations:
                    self._curves.add(numbers_in({"evaluation": one}), one["version"])

    @contextmanager
    def _told_once(self, output: str) -> Iterator[None]:
        """Each by itself: a disk that is full costs what is on it, and not the training."""
        try:
            yield
        except OSError as error:
            if output not in self._told:
                self._say(f"what updates were like cannot be written ({output}): {error}; the training goes on without")
            self._told.add(output)

    def close(self) -> None:
        """No more will come. A record is written again for an evaluation that no other one can tell."""
        if self._is_owed or (self._last and self._evaluations):
            self._write(self._last)
            self._is_owed = False
        if self._curves is not None:
            with suppress(OSError):
                self._curves.close()

    def line(self, learned: Learned, kinds: Sequence[str], pairs: Collection[int]) -> str:
        """One update for people. Each of ``pairs``, which are there, has its column, also without experience in it."""
        told = {about.rank: _mean_text(about.episode_returns) for about in learned.abouts}
        told |= {pair: "–" for pair in pairs if pair not in told}
        returns = "  ".join(f"{kinds[pair]}:{pair} {told[pair]}" for pair in sorted(told))
        samples = sum(about.samples for about in learned.abouts)
        width = len(str(self._iterations))
        done = learned.iteration - self._account.first_iteration + 1
        left_s = (self._iterations - learned.iteration) * (time.monotonic() - self._begun_s) / max(1, done)
        return (
            f"iteration {learned.iteration:>{width}}/{self._iterations}  {duration_text(left_s)} left  "
            f"return {returns}  {self._rate():.0f} steps/s  lag {max(learned.lags)}  {samples} samples"
        )

    def _rate(self) -> float:
        return sum(self._account.learned.values()) / max(1e-3, time.monotonic() - self._begun_s)

    def _record(self, learned: Learned, live_pairs: int) -> dict[str, Any]:
        account, abouts = self._account, learned.abouts
        steps = sum(account.learned.values())
        now = self._traffic()
        offer = learned.made.offer
        return {
            "iteration": learned.iteration,
            "elapsed_s": round(time.monotonic() - self._begun_s, 3),
            "learning_s": round(learned.seconds, 4),
            "env_steps": account.env_steps,
            "env_steps_per_s": round(self._rate(), 1),
            "samples": {str(about.rank): about.samples for about in abouts},
            "returns": {str(about.rank): mean(about.episode_returns) for about in abouts},
            "weights_versions": {str(about.rank): about.weights_version for about in abouts},
            "waited_s": {str(about.rank): round(about.waited_s, 4) for about in abouts},
            "weights_fetch_s": {str(about.rank): round(about.fetch_s, 4) for about in abouts},
            "collect_s": {str(about.rank): round(about.collect_s, 4) for about in abouts},
            "lag": {"mean": round(sum(learned.lags) / len(learned.lags), 3), "max": max(learned.lags)},
            "dropped": account.counts.dropped,
            "left_out": account.counts.left_out,
            "missed_updates": {str(pair): updates for pair, updates in learned.missed.items()},
            "live_pairs": live_pairs,
            "bytes": {**account.sent_bytes, "weights_version": offer.difference_bytes or offer.whole_bytes},
            "bytes_per_env_step": {name: round(size / steps, 3) for name, size in account.sent_bytes.items()},
            "wan_bytes": {
                "received": _difference(now.rx_bytes, self._before.rx_bytes),
                "sent": _difference(now.tx_bytes, self._before.tx_bytes),
            },
            **{name: rounded(value) for name, value in learned.made.figures.items() if name not in _NOT_FIGURES},
        }


def _append(path: Path, content: Mapping[str, Any]) -> None:
    """As one line, whole or not at all: half of one would spoil the next, too."""
    line = json.dumps(content).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        if file.write(line) < len(line):
            os.truncate(file.fileno(), before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def shown(record: Mapping[str, Any]) -> dict[str, float]:
    """What of a record is worth a curve to who watches: a few numbers by name."""
    found = {"step": record["iteration"]}
    if returns := [value for value in record["returns"].values() if value is not None]:
        found["return"] = sum(returns) / len(returns)
    if evaluations := record.get("evaluations"):
        found["evaluation return"] = evaluations[-1]["return"]
    found |= {"env steps/s": record["env_steps_per_s"], "lag": record["lag"]["max"], "learning s": record["learning_s"]}
    found["waited s"] = max(record["waited_s"].values(), default=0.0)
    found["pairs left out"] = len(record["missed_updates"])
    return found


def numbers_in(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numbers of a record by their path, as TensorBoard groups them."""
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            found += numbers_in(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found.append((f"{prefix}{name}", float(value)))
    return found


def tensorboard_for(directory: Path) -> tuple[Any, Any, Any]:
    """TensorBoard's own events, summaries and writer: torch's is the same one, and would import torch for it.

    Raises:
        TrainerError: it is not installed.
    """
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise TrainerError(
            f"no TensorBoard for {directory}: {error}",
            "install tensorboard into the driver's interpreter (ray.python), or leave the option out",
            exit_status=USAGE,
        ) from error
    return event_pb2, summary_pb2, EventFileWriter


class _Curves:
    """What TensorBoard shows of a run."""

    def __init__(self, directory: Path, begins_anew_at: int | None) -> None:
        """``begins_anew_at``: what is there of this step and later ones is of updates that were lost, and is shown no
        more. None: nothing is, for what is there is another run's."""
        self._events, self._summaries, writer = tensorboard_for(directory)
        self._file = writer(str(directory))
        if begins_anew_at is not None:
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._file.add_event(self._events.Event(wall_time=time.time(), step=begins_anew_at, session_log=begun))

    def add(self, numbers: Sequence[tuple[str, float]], step: int) -> None:
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in numbers]
        summary = self._summaries.Summary(value=values)
        self._file.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._file.close()


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _mean_text(values: Sequence[float]) -> str:
    return f"{figure_text(sum(values) / len(values)) if values else '–':>5}"
