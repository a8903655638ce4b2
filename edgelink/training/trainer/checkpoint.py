"""Checkpoints: numbered ``.npz`` files without pickle, written by the driver in the caller's directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def save(directory: Path, about: About, arrays: Mapping[str, Any]) -> Path:
    """Write one checkpoint; a crash leaves no half of one under its name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"checkpoint-{about.iteration:06d}.npz"
    temporary = directory / f".{path.name}.new"
    with temporary.open("wb") as file:
        content: dict[str, Any] = {_ABOUT: np.asarray(json.dumps(asdict(about))), **arrays}
        np.savez(file, **content)
    temporary.replace(path)
    return path


def load_latest(directory: Path) -> tuple[About, dict[str, Any]]:
    """The newest checkpoint in ``directory``.

    Raises:
        TrainerError: there is none, or it cannot be read.
    """
    paths = sorted(directory.glob(_PATTERN))
    if not paths:
        raise TrainerError(
            f"no checkpoint in {directory}", "leave --resume out, or correct --checkpoint-dir", exit_status=USAGE
        )
    try:
        with np.load(paths[-1], allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = About(**json.loads(str(arrays.pop(_ABOUT))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"{paths[-1]} cannot be used: {error}", "remove it to use the one before") from error
    return about, arrays
