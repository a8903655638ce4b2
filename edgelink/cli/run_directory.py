"""A run's own directory for as long as the run lasts, and the removal of those that killed runs left behind; the one
that it is called in."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgelink.errors import NotRecordedError, UsageError
from edgelink.files import not_recorded

_PREFIX = "edgelink-run-"


def present_directory() -> Path:
    """Where the caller is, and the driver will be.

    Raises:
        UsageError: somebody has removed it meanwhile.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the present directory is gone: {error.strerror}",
            hint="`cd` into it again, or into the one that took its place",
        ) from error


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """A directory, locked while we live: the kernel tells the next run whether its owner still does.

    Raises:
        NotRecordedError: it cannot be made.
    """
    parent = parent or _temporary()
    sweep(parent)
    directory, lock = _make(parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # it has tried to write a file in each place
        raise NotRecordedError(
            f"a directory for the run cannot be made: {error.strerror}",
            hint="free some space there (`df -h` and `df -i`), or name another place in TMPDIR",
        ) from error


def sweep(parent: Path) -> None:
    """Remove our user's run directories that nobody holds; what cannot be removed stays."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if directory.lstat().st_uid != os.geteuid():
                continue
            lock = _lock(directory)
            if lock is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)


def _make(parent: Path) -> tuple[Path, int]:
    """A directory and its lock; another one, should somebody have swept up the first before it was locked."""
    while True:
        try:
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise not_recorded(parent, error) from error
        with suppress(FileNotFoundError):
            lock = _lock(directory)
            if lock is not None and directory.exists():
                return directory, lock


def _lock(directory: Path) -> int | None:
    """None when somebody holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
