"""Checkpoints: numbered ``.npz`` files without pickle, written by the driver in the caller's directory."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.failure import USAGE, TrainerError

_PATTERN = "checkpoint-*.npz"
_ABOUT = "about"


@dataclass(frozen=True)
class About:
    """What a resumed run must know besides the learner's arrays."""

    iteration: int
    seed: int
    return_before: float  # of the untrained policy
    format: int = 1
    run: str = ""  # EDGELINK_RUN_ID of the run that wrote it


def save(directory: Path, about: About, arrays: Mapping[str, Any], keep: int = 0) -> Path:
    """Write one checkpoint; a crash leaves no half of one under its name.

    Args:
        keep: so many of this run's, the newest, stay; 0: all. Those of other runs are not touched.

    Raises:
        TrainerError: an array has numbers that are nan or infinite.
    """
    if names := _not_finite(arrays):
        raise TrainerError(
            f"iteration {about.iteration} is not kept as a checkpoint: {names} is nan or infinite",
            "the training has diverged: lower algorithm.learning_rate, and go on from the last checkpoint by --resume",
        )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"checkpoint-{about.iteration:06d}.npz"
    temporary = directory / f".{path.name}.new"
    with temporary.open("wb") as file:
        content: dict[str, Any] = {_ABOUT: np.asarray(json.dumps(asdict(about))), **arrays}
        np.savez(file, **content)
        file.flush()
        os.fsync(file.fileno())  # a machine that loses power right after the renaming must not find an empty file
    temporary.replace(path)
    if keep:
        _thin_out(directory, about, keep)
    return path


def _thin_out(directory: Path, about: About, keep: int) -> None:
    older = [path for path in sorted(directory.glob(_PATTERN)) if path.name <= f"checkpoint-{about.iteration:06d}.npz"]
    for path in older[:-keep]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            if _about(path).run == about.run:
                path.unlink()


def _about(path: Path) -> About:
    with np.load(path, allow_pickle=False) as file:
        return About(**json.loads(str(file[_ABOUT])))


def load_latest(
    directory: Path, *, run: str | None = None, on_skip: Callable[[str], None] = lambda _why: None
) -> tuple[About, dict[str, Any]]:
    """The newest checkpoint in ``directory`` that can be read; those that cannot are told to ``on_skip``.

    Args:
        run: only checkpoints that this run wrote; None: whoever did.

    Raises:
        TrainerError: there is none.
    """
    broken = 0
    for path in sorted(directory.glob(_PATTERN), reverse=True):
        try:
            about, arrays = _read(path)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            broken += 1
            on_skip(f"{path} cannot be used ({error}); taking the one before")
            continue
        if run is None or about.run == run:
            return about, arrays
    what = "no checkpoint that can be read" if broken else "no checkpoint"
    raise TrainerError(f"{what} in {directory}", "leave --resume out, or correct --checkpoint-dir", exit_status=USAGE)


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
