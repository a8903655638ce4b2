"""Ctrl+C in a training: at once where it waits, after what it is writing, and told as what it was."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_crew import PlayedRunCrew, slots_of

from edgelink.training.trainer import checkpoint
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.options import parse
from edgelink.training.trainer.run import Run
from edgelink.training.trainer.stop_signals import STOP_SIGNALS, Stopped, StopSignals, stop_behind
from edgelink.training.trainer.voice import Voice


@pytest.fixture(autouse=True)
def handlers_of_before() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def signals() -> StopSignals:
    return listening()


def listening() -> StopSignals:
    signals = StopSignals()
    signals.listen()
    return signals


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.usefixtures("signals")
def test_a_stop_ends_a_wait_at_once(number: signal.Signals) -> None:
    with pytest.raises(Stopped) as stopped:
        signal.raise_signal(number)
    assert stopped.value.number == number


def test_a_terminal_that_goes_hangs_up_twice(signals: StopSignals) -> None:
    """The kernel tells its processes, and `edgelink run` its driver: what is being written gets done all the same."""
    done = []
    with pytest.raises(Stopped), signals.deferred():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        done.append("written")
    assert done == ["written"]


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listening()
    signal.raise_signal(signal.SIGHUP)


def test_ray_begins_with_a_handler_of_its_own(signals: StopSignals) -> None:
    """What it makes of SIGTERM is a stop like any other, with status 143, and not a failure to be tried again."""

    def init() -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))  # as ray.init has it

    with signals.lent():
        init()
    with pytest.raises(Stopped):  # ours again
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, listening().lent():
        init()
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.number == signal.SIGTERM


def test_a_stop_comes_after_what_is_being_written(signals: StopSignals) -> None:
    """All of it, what it calls included, and not the next thing."""
    done = []
    with pytest.raises(Stopped):
        with signals.deferred():
            with signals.deferred():
                signal.raise_signal(signal.SIGTERM)
                done.append("written")
            done.append("renamed")
        done.append("next")
    assert done == ["written", "renamed"]


def test_a_failure_is_told_before_a_stop(signals: StopSignals) -> None:
    with pytest.raises(TrainerError, match="diverged"), signals.deferred():
        signal.raise_signal(signal.SIGINT)
        raise TrainerError("diverged")


def test_a_stop_that_python_dropped_comes_with_what_is_written_next(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised in whatever runs, a finalizer too; else nothing but SIGKILL would end this training."""
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    Finalized()
    assert dropped == [Stopped]
    with pytest.raises(Stopped), signals.deferred():
        pass


def test_checkpoints_are_whole_whenever_a_stop_comes(tmp_path: Path) -> None:
    """At random times under one after the other: all that are there can be read, and no half of one is."""
    dice = random.Random(20261123)
    arrays = {f"layer_{index}": np.zeros((64, 64), np.float32) for index in range(20)}
    written = 0
    for life in range(40):
        (directory := tmp_path / f"life-{life}").mkdir()
        signals, keeper = listening(), checkpoint.Keeper(directory, 3, pytest.fail)
        timer = threading.Timer(dice.uniform(0.001, 0.03), os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(Stopped):
            timer.start()
            for iteration in itertools.count(1):
                with signals.deferred():
                    keeper.save(checkpoint.About(iteration, 0, None, run="this"), arrays)
        timer.join()
        names = [path.name for path in directory.iterdir()]
        assert [name for name in names if not name.startswith("checkpoint-") or not name.endswith(".npz")] == []
        for name in names:
            with np.load(directory / name) as content:
                assert all((content[layer] == array).all() for layer, array in arrays.items())
        written += len(names)
    assert written > 40


@pytest.mark.parametrize("is_room", [True, False])
def test_a_checkpoint_that_is_owed_is_written_when_a_stop_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: StopSignals, is_room: bool
) -> None:
    """The disk was full, and may have room again by then; what became of the last update is written in any case."""
    directory, progress = tmp_path / "c", tmp_path / "progress"
    failures = [None, OSError(errno.ENOSPC, "No space left"), None if is_room else TrainerError("no way")]
    real = checkpoint.save

    def save(*arguments: Any) -> Path:
        if (failure := failures.pop(0)) is not None:
            raise failure
        return real(*arguments)

    class Stopping(PlayedRunCrew):
        def wait_while(self, answer: Any, purpose: str, steps: Any, within_s: float | None = None) -> Any:
            if len(self.learned) == 8 and "evaluation" in purpose:  # the one after the last update
                signal.raise_signal(signal.SIGTERM)
            return super().wait_while(answer, purpose, steps, within_s)

    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setenv("EDGELINK_RUN_ID", "this")
    arguments = ["--checkpoint-dir", str(directory), "--progress", str(progress), "run.iterations=8", "env.kinds=sim"]
    crew: Any = Stopping([1, 1])
    with pytest.raises((Stopped, TrainerError)) as ended:
        Run(parse([*arguments, "env.per_worker=16"]), slots_of(2), crew, Voice(), signals).execute()
    assert stop_behind(ended.value) is not None
    written = sorted(path.name for path in directory.iterdir())
    assert written == [f"checkpoint-{number:06d}-this.npz" for number in ((5, 8) if is_room else (5,))]
    assert [json.loads(line)["iteration"] for line in progress.read_text().splitlines()] == list(range(1, 9))


def test_the_second_time_a_stop_is_meant(tmp_path: Path) -> None:
    """A write that hangs, on a network file system that is away, is not waited for again."""
    program = (
        "import time\n"
        "from edgelink.training.trainer.stop_signals import StopSignals\n"
        "signals = StopSignals()\n"
        "signals.listen()\n"
        "with signals.deferred():\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        status = Path(f"/proc/{child.pid}/status")
        deadline_s = time.monotonic() + 60
        while "SigCgt:\t0000000000000000" not in status.read_text():  # the handler has run, and given them back
            assert time.monotonic() < deadline_s and child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == -signal.SIGINT


def test_a_stop_is_found_behind_what_a_library_made_of_it() -> None:
    """Ray's calls raise SystemError from it, zipfile's a ValueError while it passes; others' errors are their own."""
    stop = Stopped(signal.SIGINT)
    caused = SystemError("returned a result with an exception set")
    caused.__cause__ = stop
    passing = ValueError("open writing handle")
    passing.__context__ = caused
    assert stop_behind(stop) is stop_behind(caused) is stop_behind(passing) is stop
    assert stop_behind(ValueError("of its own")) is None
