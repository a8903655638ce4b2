"""Where the run writes: tried before anything is started, and no reason to end a training afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.metrics import tensorboard_for
from edgelink.training.trainer.options import Options


def check_outputs(options: Options) -> None:
    """Can each of them be written? Directories that are the trainer's own are made.

    Raises:
        TrainerError: one cannot, by the option's name; or TensorBoard is wanted and not installed.
    """
    if options.tensorboard is not None:
        tensorboard_for(options.tensorboard)
    for option, directory in (("--checkpoint-dir", options.checkpoint_dir), ("--tensorboard", options.tensorboard)):
        if directory is not None:
            _try(option, directory, _make_and_write)
    if options.report is not None:
        _try("--report", options.report, _write_beside)
    if options.progress is not None:
        _try("--progress", options.progress, _append)


def _try(option: str, path: Path, attempt: Callable[[Path], None]) -> None:
    try:
        attempt(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise TrainerError(
            f"{option} {path} cannot be written: {why}",
            "name a place that is there and that you may write to",
            exit_status=USAGE,
        ) from error


def _make_and_write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()


def _append(path: Path) -> None:
    path.open("a").close()


def _write_beside(path: Path) -> None:
    """It is written beside and renamed."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    tempfile.TemporaryFile(dir=path.parent).close()
