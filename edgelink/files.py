"""Files that must survive a crash and must not be read by others."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600, uid: int = -1, gid: int = -1) -> None:
    """Replace ``path`` with ``data`` so that a crash leaves the old or the new file, never half of one.

    The data and the directory entry are on disk (fsync) when this returns.
    """
    data = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if uid >= 0 or gid >= 0:
                os.fchown(file.fileno(), uid, gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_directory(path: Path, mode: int = 0o700) -> Path:
    """Make ``path`` (and its parents) if needed, and give it ``mode``."""
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    path.chmod(mode)
    return path
