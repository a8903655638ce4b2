"""A disk that is full whenever a test says so: new content cannot be written, what is there stays."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from edgelink import files


class Disk:
    """``is_full``: from the next write on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._really_write = files._write
        monkeypatch.setattr(files, "_write", self._write)

    def _write(self, path: Path, *arguments: Any) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self._really_write(path, *arguments)
