"""The output files of children: their last words, without secrets, and never without bound.

A child writes its file in append mode, so the file may be overwritten in place and truncated under it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from edgelink.log import redact
from edgelink.wording import printable

_TAIL_BYTES = 64 * 1024


def read_end(path: Path, *, owner_uid: int | None = None, max_bytes: int = _TAIL_BYTES) -> bytes:
    """The last ``max_bytes`` of a regular file; empty when it cannot be read, or when it is not ``owner_uid``'s.

    Who owns the directory could put a link to anything there, or a pipe, which would be waited for.
    """
    found = _open(path, owner_uid)
    if found is None:
        return b""
    with found as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
        return file.read(max_bytes)


def _open(path: Path, owner_uid: int | None) -> BinaryIO | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or owner_uid not in (None, status.st_uid):
        file.close()
        return None
    return file


class Follower:
    """The whole lines that a file gets from now on; also of one that was cut or replaced, or that is yet to come.

    Read under the same conditions as by :func:`read_end`.
    """

    def __init__(self, path: Path, *, owner_uid: int | None = None) -> None:
        self._path = path
        self._owner_uid = owner_uid
        self._inode, self._offset = 0, 0
        self._begun = b""  # a line without its end
        found = _open(path, owner_uid)
        if found is not None:
            with found as file:
                status = os.fstat(file.fileno())
                self._inode, self._offset = status.st_ino, status.st_size

    def new_lines(self) -> list[str]:
        """What came since the last call, redacted; of a flood the end."""
        found = _open(self._path, self._owner_uid)
        if found is None:
            return []
        with found as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._begun = status.st_ino, 0, b""
            if status.st_size - self._offset > _TAIL_BYTES:
                self._offset, self._begun = status.st_size - _TAIL_BYTES, b""
            file.seek(self._offset)
            data = file.read(_TAIL_BYTES)
            self._offset = file.tell()
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [redact(line.decode(errors="replace")) for line in lines]


def tail(path: Path, lines: int, *, owner_uid: int | None = None) -> str:
    """The last ``lines`` lines of ``path``, redacted and printable; empty where :func:`read_end` reads nothing."""
    data = read_end(path, owner_uid=owner_uid)
    return printable(redact("\n".join(data.decode(errors="replace").splitlines()[-lines:])))


def scrub(path: Path, secrets: Iterable[str]) -> int:
    """Overwrite every occurrence of ``secrets`` in ``path`` with asterisks of the same length.

    The length stays and nothing is cut, so the child may go on appending meanwhile. Returns how many were found.
    """
    found = 0
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    with os.fdopen(descriptor, "r+b") as file:
        data = file.read()
        for secret in (secret.encode() for secret in secrets if secret):
            position = data.find(secret)
            while position >= 0:
                os.pwrite(file.fileno(), b"*" * len(secret), position)
                found += 1
                position = data.find(secret, position + len(secret))
    return found


def bound(path: Path, max_bytes: int) -> bool:
    """Move the last ``max_bytes`` of ``path`` to ``path.1`` and empty it, when it has grown beyond them.

    Copy and truncate: the child's descriptor stays valid. Lines written between the two steps are lost, and all of
    them where the disk has no room for the copy: an output that goes on growing would leave it none.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(f"{path.name}.1")
    try:
        with path.open("rb") as source, os.fdopen(_open_private(older), "wb") as target:
            source.seek(max(0, os.fstat(source.fileno()).st_size - max(max_bytes, _TAIL_BYTES)))
            shutil.copyfileobj(source, target)
    except OSError:
        with suppress(OSError):
            older.unlink(missing_ok=True)
    with suppress(OSError):
        os.truncate(path, 0)
    return True


def _open_private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
