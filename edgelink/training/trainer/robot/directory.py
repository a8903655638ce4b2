"""Where a user's robots have their sockets, locks and events. Standard library only: the command line reads it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

DIRECTORY_VARIABLE = "EDGELINK_ROBOT_DIR"
_PREFIX = "edgelink-robots-"


def default_directory() -> Path:
    """``EDGELINK_ROBOT_DIR``, or a directory of this user's in /tmp."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}"


def known_directories() -> list[Path]:
    """Those of all users, which only root can look into."""
    others = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return [default_directory(), *(path for path in others if path != default_directory())]


def own_directory(path: Path) -> Path:
    """``path``, made if it is not there, of this user and closed to others.

    Raises:
        OSError: it is somebody else's.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.lstat().st_uid != os.getuid():
        raise OSError(f"{path} is not this user's directory: whose it is could command the robot; remove it")
    path.chmod(0o700)
    return path
