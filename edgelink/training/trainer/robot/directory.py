"""Where a user's robots have their sockets, locks and events. Standard library only: the command line reads it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

DIRECTORY_VARIABLE = "EDGELINK_ROBOT_DIR"
_PREFIX = "edgelink-robots-"


def default_directory() -> Path:
    """``EDGELINK_ROBOT_DIR``, or a directory of this user's in /tmp."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}"


def known_directories() -> list[Path]:
    """Where robots of this machine may be looked for: this user's directory; for root those of all users.

    Anybody can make a directory in /tmp. One that is not what its name says, such as one with a socket of the name of
    somebody else's robot, is passed over.
    """
    found = [Path(chosen)] if (chosen := os.environ.get(DIRECTORY_VARIABLE)) else []
    found += [path for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")) if _is_what_it_says(path)]
    return list(dict.fromkeys(found))


def _is_what_it_says(path: Path) -> bool:
    """Of the user in its name, closed to others, and this user's own to look into."""
    try:
        found = path.lstat()  # of a link, if it is one
    except OSError:
        return False
    is_closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return is_closed and path.name == f"{_PREFIX}{found.st_uid}" and os.getuid() in (0, found.st_uid)


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
