"""Where a user's robots have their sockets, locks and latches. Standard library only: the command line reads it.

It is one fixed place, whatever a training's environment and configuration say: a person at the robot must find it. And
it outlives a restart of the machine, as a person's stop does (see ``latch.py``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import BinaryIO

DIRECTORY_VARIABLE = "EDGELINK_ROBOT_DIR"
SOCKET, LOCK = ".sock", ".lock"
_PLACE = Path("/var/tmp")  # noqa: S108 (what is in it is looked at closely)
_PREFIX = "edgelink-robots-"
# Of files there. The sticky bit means only this to them: systemd-tmpfiles, which clears away what is old, leaves them.
FILE_MODE = 0o1600


def run_directory() -> Path:
    """This user's directory in the fixed place. ``EDGELINK_ROBOT_DIR`` is for tests of robots, and for nothing else."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    return Path(chosen) if chosen else _PLACE / f"{_PREFIX}{os.getuid()}"


def known_directories() -> list[Path]:
    """Where robots of this machine may be looked for: this user's directory; for root those of all users.

    Anybody can make a directory there. One that is not what its name says, such as one with a socket of the name of
    somebody else's robot, is passed over.
    """
    found = [Path(chosen)] if (chosen := os.environ.get(DIRECTORY_VARIABLE)) else []
    found += [path for path in sorted(_PLACE.glob(f"{_PREFIX}*")) if _is_what_it_says(path)]
    return list(dict.fromkeys(found))


def open_there(path: Path) -> BinaryIO:
    """One of the files beside a robot's socket, which its user may have made anything of: a pipe would never open.

    Raises:
        OSError: it is not there, or is no file of the directory's user.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    file, found = os.fdopen(descriptor, "rb"), os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, path.parent.stat().st_uid):
        file.close()
        raise OSError(errno.EINVAL, "no file of its directory's user", str(path))
    return file


def is_commanded(directory: Path, name: str) -> bool:
    """Does its control process, or an attendant, live? What else lies there is left from one that was killed."""
    with contextlib.suppress(OSError), open_there(directory / f"{name}{LOCK}") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_attended(directory: Path, name: str) -> bool:
    """Does its attendant live? The socket of one that was killed is there, but nobody listens."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.setblocking(False)
            link.connect(str(directory / f"{name}{SOCKET}"))
    except BlockingIOError:  # so many others ask it
        return True
    except OSError:
        return False
    return True


def _is_what_it_says(path: Path) -> bool:
    """Of the user in its name, closed to others, and this user's own to look into."""
    try:
        found = path.lstat()  # of a link, if it is one
    except OSError:
        return False
    is_closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return is_closed and path.name == f"{_PREFIX}{found.st_uid}" and os.getuid() in (0, found.st_uid)


def make_run_directory() -> Path:
    """``run_directory``, made if it is not there, of this user and closed to others, as ``known_directories`` wants it.

    Raises:
        OSError: it is somebody else's.
    """
    path = run_directory()
    if not _is_own(path):
        raise OSError(f"{path} is not this user's directory: whose it is could command the robot; remove it")
    path.chmod(0o700)
    return path


def usable_directory(path: Path) -> Path:
    """``path``, as a user has named it: made if it is not there, closed to others then; else left as it is.

    Raises:
        OSError: it is somebody else's, or others may write to it: they could make a file there a link to another one
            of this user's.
    """
    why = "it is a link, or another user's"
    if _is_own(path):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & 0o022:
            return path
        why = f"its mode is {mode:o}"
    raise OSError(
        f"control.directory: others than this user may write to {path} ({why}), and could make the robot's file there "
        "a link to any other; name a directory that only Ray's user may write to, or one that is not there yet"
    )


def _is_own(path: Path) -> bool:
    """Is it this user's directory, made if it was not there?"""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not path.is_symlink() and path.lstat().st_uid == os.getuid()


def robot_moves() -> bool:
    """Whether a training commands a robot of this machine."""
    return any(
        is_commanded(directory, lock.name.removesuffix(LOCK))
        for directory in known_directories()
        for lock in directory.glob(f"*{LOCK}")
    )
