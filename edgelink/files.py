"""Files that must survive a crash and must not be read by others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from edgelink.errors import NotRecordedError, UsageError

NO_ROOM = {
    errno.ENOSPC: "free some space there (`df -h` and, for the inodes, `df -i`)",
    errno.EDQUOT: "free some space there, or have the quota raised",
    errno.EROFS: "make it writable again; `dmesg` says why the kernel has made it read-only",
}
_NOT_ALLOWED = "EdgeLink's daemons and files are root's: use sudo"


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600, uid: int = -1, gid: int = -1) -> None:
    """Replace ``path`` with ``data`` so that a crash leaves the old or the new file, never half of one.

    The data and the directory entry are on disk (fsync) when this returns.

    Raises:
        NotRecordedError: it cannot be written; the old file is still there.
    """
    try:
        _write(path, data.encode() if isinstance(data, str) else data, mode, uid, gid)
    except OSError as error:
        raise not_recorded(path, error) from error


def write_named(path: Path, data: bytes | str) -> None:
    """Write a file that a user has named as the place for a command's output, 0600.

    Raises:
        UsageError: something is there that is no file, such as a device, which must not become one.
        NotRecordedError: it cannot be written.
    """
    path = path.resolve()  # of a link, the file that it leads to
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a regular file", hint="name another one")
    write_atomic(path, data)


def not_recorded(path: Path, error: OSError) -> NotRecordedError:
    """``error`` in words: what could not be written, why, and what to do."""
    hint = _NOT_ALLOWED if isinstance(error, PermissionError) else NO_ROOM.get(error.errno or 0, "")
    return NotRecordedError(f"{path}: cannot be written: {error.strerror or error}", hint=hint)


def _write(path: Path, data: bytes, mode: int, uid: int, gid: int) -> None:
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
    """Make ``path`` (and its parents) if needed, and give it ``mode``. Raises NotRecordedError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
        path.chmod(mode)
    except OSError as error:
        raise not_recorded(path, error) from error
    return path


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Be the only one in the block, of those who lock ``directory``. The kernel frees the lock of one who dies."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Files:
    """How files of the state directory are written; a daemon has :class:`edgelink.state_files.StateFiles`."""

    def keep(self, path: Path, content: bytes | str | None) -> None:
        """Have ``path`` hold ``content``, None: be gone; for the next daemon, or for people. Raises NotRecordedError.

        In a daemon nothing is raised: what cannot be written now is written later.
        """
        if content is None:
            self.remove(path)
        else:
            write_atomic(path, content)

    def require(self, path: Path, content: bytes | str) -> None:
        """Have ``path`` hold ``content`` before the caller goes on. Raises NotRecordedError."""
        write_atomic(path, content)

    def refused(self, path: Path, why: str) -> None:
        """Somebody who writes ``path`` in a way of his own could not, and has told his caller; a daemon shows it."""

    @staticmethod
    def remove(path: Path) -> None:
        """Have ``path`` be gone. Raises NotRecordedError."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise not_recorded(path, error) from error


AT_ONCE = Files()
