"""Relay and head daemons on one machine share one EasyTier: one owns it, the other watches and takes over.

Two locks, both of which the kernel frees when a daemon dies: an exclusive one for the owner, and one that every user
of the overlay shares, so that an owner that stops knows whether somebody still needs it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Ownership:
    """The right to start and stop EasyTier on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner: int | None = None
        self._user: int | None = None

    @property
    def is_owner(self) -> bool:
        return self._owner is not None

    def acquire(self) -> bool:
        """Become the owner if nobody else is; idempotent."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._user is None:
            self._user = _lock(self._users_path, fcntl.LOCK_SH)
        if self._owner is None:
            self._owner = _lock(self._path, fcntl.LOCK_EX)
        return self.is_owner

    def is_needed_by_others(self) -> bool:
        """Whether another daemon uses the overlay too; ends our own use."""
        self._end_use()
        alone = _lock(self._users_path, fcntl.LOCK_EX)
        if alone is None:
            return True
        os.close(alone)
        return False

    def release(self) -> None:
        """Give up ownership and use; idempotent."""
        self._end_use()
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _end_use(self) -> None:
        if self._user is not None:
            os.close(self._user)
            self._user = None

    @property
    def _users_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.users")


def _lock(path: Path, kind: int) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
