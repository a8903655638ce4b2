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

from edgelink.log import redact
from edgelink.wording import printable

_TAIL_BYTES = 64 * 1024


def read_end(path: Path, *, owner_uid: int | None = None, max_bytes: int = _TAIL_BYTES) -> bytes:
    """The last ``max_bytes`` of a regular file; empty when it cannot be read, or when it is not ``owner_uid``'s.

    Who owns the directory could put a link to anything there, or a pipe, which would be waited for.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or owner_uid not in (None, status.st_uid):
            return b""
        file.seek(max(0, status.st_size - max_bytes))
        return file.read(max_bytes)


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
