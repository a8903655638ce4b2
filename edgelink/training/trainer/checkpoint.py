"""Checkpoints: numbered ``.npz`` files without pickle, written by the driver in the caller's directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.disk import sync_directory
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.finite import diverged

_PATTERN = "checkpoint-*.npz"
_NAME = re.compile(r"checkpoint-(?P<number>\d+)(?:-(?P<run>.+))?\.npz")
_ABOUT = "about"
# RuntimeError: what zipfile says of a file that seems to be packed in a way that it does not know.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile)


class NoCheckpointError(TrainerError):
    """There is no file that could be one."""


@dataclass(frozen=True)
class About:
    """What a resumed run must know besides the learner's arrays."""

    iteration: int
    seed: int
    return_before: float | None  # of the untrained policy; None: nobody could play it
    format: int = 1
    run: str = ""  # EDGELINK_RUN_ID of the run that wrote it
    env_steps: int = 0  # that the policy has learned from, over all parts of the training
    left_out: Sequence[str] | None = None  # addresses of nodes that were there at the start, and are not to be used
    written_s: float = field(default=0.0, compare=False)  # seconds since 1970; 0: before this was written down


def save(directory: Path, about: About, arrays: Mapping[str, Any], keep: int = 0) -> Path:
    """Write one checkpoint; a crash leaves no half of one under its name.

    Args:
        keep: so many of this run's, the newest, stay; 0: all. Those of other runs are not touched.

    Raises:
        OSError: the directory does not take it; those of before are as they were.
        TrainerError: an array has numbers that are nan or infinite.
    """
    if names := _not_finite(arrays):
        raise diverged(f"iteration {about.iteration} is not kept as a checkpoint: {names} is nan or infinite")
    directory.mkdir(parents=True, exist_ok=True)
    tail = f"-{_plain(about.run)}" if about.run else ""  # no run puts its files over those of another
    path = directory / f"checkpoint-{about.iteration:06d}{tail}.npz"
    temporary = directory / f".{path.name}.new"
    for half in directory.glob(f".checkpoint-*{tail}.npz.new") if tail else ():  # of an attempt that was killed
        with contextlib.suppress(OSError):
            half.unlink()  # it takes room that this one needs
    try:
        with temporary.open("wb") as file:
            content: dict[str, Any] = {
                _ABOUT: np.asarray(json.dumps(asdict(replace(about, written_s=time.time())))),
                **arrays,
            }
            np.savez(file, **content)
            file.flush()
            os.fsync(file.fileno())  # a machine that loses power right after the renaming must not find an empty file
        temporary.replace(path)
        sync_directory(directory)  # before older ones are removed
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()  # half of one would take what little room there is
        raise
    if keep:
        _thin_out(directory, about, keep)
    return path


class Keeper:
    """Writes the checkpoints of one run. A disk that does not take one is told of, and ends no training."""

    def __init__(self, directory: Path | None, keep: int, say: Callable[[str], None]) -> None:
        """``directory``: None where nothing is to be kept; ``keep``: as :func:`save` has it."""
        self._directory = directory
        self._keep = keep
        self._say = say
        self._written: int | None = None  # iteration of the newest one that this run wrote
        self._owed: tuple[About, Mapping[str, Any]] | None = None  # the newest one that could not be written
        self._why = ""

    def save(self, about: About, arrays: Mapping[str, Any]) -> None:
        """Write one, or say why not: once, and again when it works.

        Raises:
            TrainerError: an array has numbers that are nan or infinite.
        """
        is_told = self._owed is not None
        assert self._directory is not None
        try:
            save(self._directory, about, arrays, self._keep)
        except OSError as error:
            self._owed, self._why = (about, arrays), error.strerror or str(error)
            if not is_told:
                self._say(f"{self._failure()}; the training goes on, and each next one is tried; {self._hint()}")
            return
        self._owed, self._written = None, about.iteration
        if is_told:
            self._say(f"checkpoints are written again: that of iteration {about.iteration} is in {self._directory}")

    def retry(self) -> None:
        """No more will come: what could not be written is tried once more."""
        if self._owed is not None:
            self.save(*self._owed)

    def check(self) -> None:
        """Raises TrainerError where the newest checkpoint is not on disk."""
        if self._owed is not None:
            raise TrainerError(f"the training is done, but {self._failure()}", self._hint())

    def _failure(self) -> str:
        assert self._owed is not None
        before = "" if self._written is None else f"; the newest one there is that of iteration {self._written}"
        return (
            f"the checkpoint of iteration {self._owed[0].iteration} cannot be written to {self._directory}: {self._why}"
            f"{before}"
        )

    def _hint(self) -> str:
        return (
            f"free space there, or make it writable (`df -h {self._directory}`); --resume goes on from the newest one"
        )


def _thin_out(directory: Path, about: About, keep: int) -> None:
    older = [path for path in directory.glob(_PATTERN) if _number(path) <= about.iteration and _is_of(path, about.run)]
    for path in sorted(older, key=_number)[:-keep]:
        with contextlib.suppress(OSError):
            path.unlink()


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found["number"]) if found else -1


def _run(path: Path) -> str:
    """What the name says; empty: nothing."""
    found = _NAME.fullmatch(path.name)
    return (found["run"] or "") if found else ""


def _plain(run: str) -> str:
    return re.sub(r"[^\w.-]", "_", run)


def _is_of(path: Path, run: str) -> bool:
    if name := _run(path):
        return name == _plain(run)
    with contextlib.suppress(*_UNREADABLE):
        return _about(path).run == run
    return False


def _written_s(path: Path) -> float:
    with contextlib.suppress(*_UNREADABLE):
        if at_s := _about(path).written_s:
            return at_s
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _about(path: Path) -> About:
    with np.load(path, allow_pickle=False) as file:
        return About(**json.loads(str(file[_ABOUT])))


def load(path: Path) -> tuple[About, dict[str, Any]]:
    """Read the checkpoint in the file ``path``.

    Raises:
        TrainerError: it cannot be read.
    """
    try:
        return _read(path)
    except _UNREADABLE as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TrainerError(
            f"{path} cannot be read as a checkpoint: {why}",
            "name a checkpoint-NUMBER-RUN.npz that a training has written",
            exit_status=USAGE,
        ) from error


def load_latest(
    directory: Path, *, run: str | None = None, on_skip: Callable[[str], None] = lambda _why: None
) -> tuple[About, dict[str, Any]]:
    """The checkpoint in ``directory`` that was written last and can be read; those that cannot are told to ``on_skip``.

    Args:
        run: only checkpoints that this run wrote; None: whoever did.

    Raises:
        NoCheckpointError: there is none.
        TrainerError: there are files, and none can be read.
    """
    broken: list[str] = []
    found = [path for path in directory.glob(_PATTERN) if run is None or _run(path) in ("", _plain(run))]
    # Of one run by its count, whatever was done to the clock meanwhile; of several by their times.
    key = (lambda path: (_written_s(path), _number(path))) if run is None else _number
    for path in sorted(found, key=key, reverse=True):
        try:
            about, arrays = _read(path)
        except _UNREADABLE as error:
            broken.append(path.name)
            on_skip(f"{path} cannot be used ({error}); taking the one before")
            continue
        if run is None or about.run == run:
            return about, arrays
    if broken:
        raise TrainerError(
            f"no checkpoint that can be read in {directory}: {', '.join(broken)}",
            "put a sound one there, or name another --checkpoint-dir to begin anew",
            exit_status=USAGE,
        )
    raise NoCheckpointError(
        f"no checkpoint in {directory}", "leave --resume out, or correct --checkpoint-dir", exit_status=USAGE
    )


def _read(path: Path) -> tuple[About, dict[str, Any]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = About(**json.loads(str(arrays.pop(_ABOUT))))
    if names := _not_finite(arrays):
        raise ValueError(f"{names} is nan or infinite")
    return about, arrays


def _not_finite(arrays: Mapping[str, Any]) -> str:
    """Names of arrays that nothing can go on from."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    return ", ".join(name for name, array in found.items() if array.dtype.kind == "f" and not np.isfinite(array).all())
