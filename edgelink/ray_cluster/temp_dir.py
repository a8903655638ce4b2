"""Ray's directory on this node, which only Ray's user may enter; the sessions in it have the same path on every node.

Ray opens its own directories to every user of the machine (mode 0777), sockets and the code of jobs included. So the
sessions lie in a directory of ours that is closed to others. A worker takes the path of the sessions from its GCS.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from edgelink.config import Paths
from edgelink.errors import ConfigError
from edgelink.files import Files
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.ray_cluster.interpreter import MAX_ANSWER_BYTES, SYSTEM_PATH, RayUser, identity_arguments
from edgelink.timeouts import timeout

DEFAULT_DIRECTORY = Path("/var/lib/edgelink-ray")  # short: the path of a socket has at most 107 bytes
_GCS_STORE = "gcs"
_SESSIONS = "sessions"
_TIMEOUT_S = 20.0
_SESSION = "session_"
_OPEN_TO_OTHERS, _WRITABLE, _WRITABLE_BY_ALL = 0o077, 0o022, 0o002  # the middle one: also by a group that is not root's
# As Ray's user: make what is missing, remove old sessions that nobody uses, and try what Ray does first. A read-only
# file system may be the daemon's own view, from which its unit keeps /home.
_TRIAL = """
import errno, os, shutil, sys, tempfile
sessions, private = sys.argv[1:]
try:
    os.makedirs(private, mode=0o700, exist_ok=True)
    if os.stat(private).st_mode & 0o077: os.chmod(private, 0o700)
    os.makedirs(sessions, exist_ok=True)
    if os.path.islink(sessions) or os.stat(sessions).st_uid != os.geteuid():
        sys.exit(sessions + " was made by another user: remove it")
    sockets = open("/proc/net/unix").read()
    for name in sorted(name for name in os.listdir(sessions) if name.startswith("session_2"))[:-4]:
        old = os.path.join(sessions, name)
        if old + "/" not in sockets: shutil.rmtree(old, ignore_errors=True)
    tempfile.TemporaryFile(dir=sessions).close()
except OSError as error:
    if error.errno != errno.EROFS or not os.path.isdir(private): sys.exit(error.strerror)
"""


def sessions_in(configured: Path | None) -> Path:
    """Return what the head gives to Ray as its `--temp-dir`. ``configured`` is `ray.temp_dir`."""
    return (configured or DEFAULT_DIRECTORY) / _SESSIONS


def gcs_store_in(configured: Path | None) -> Path:
    """Return where the head's GCS keeps its tables. ``configured`` is `ray.temp_dir`."""
    return (configured or DEFAULT_DIRECTORY) / _GCS_STORE


def temp_dir_here(paths: Paths, configured: Path | None) -> Path:
    """Return the directory in which this node's Ray keeps its sessions, or kept them last.

    Before its first start it is the one that is ``configured``.
    """
    with suppress(OSError):
        if noted := usable(paths.ray_temp_dir.read_text(errors="replace").rstrip("\n")):
            return noted
    return sessions_in(configured)


def ray_log_directory(paths: Paths, configured: Path | None) -> Path:
    """Where this node's Ray writes its logs."""
    return temp_dir_here(paths, configured) / "session_latest" / "logs"


def note_temp_dir(paths: Paths, files: Files, directory: Path) -> None:
    """For whoever looks for Ray's logs and disk later, also without a daemon."""
    files.keep(paths.ray_temp_dir, f"{directory}\n")


def usable(text: str) -> Path | None:
    """Return what a GCS or a file names as the directory of the sessions. None: EdgeLink names none like that."""
    return Path(text) if text.startswith("/") and text.isprintable() and Path(text).name == _SESSIONS else None


def temp_dir_of(outputs: tuple[str, ...]) -> Path | None:
    """The directory of a Ray that writes to these files, ``DIRECTORY/session_…/logs/raylet.out``; pure."""
    parents = [Path(output).parents for output in outputs]
    return next((up[2] for up in parents if len(up) > 2 and up[1].name.startswith(_SESSION)), None)


def why_not_private(directory: Path, uid: int) -> str:
    """Say who else than root and the user ``uid`` may enter Ray's ``directory``; empty where nobody may."""
    if why := why_replaceable(directory, uid):
        return why
    with suppress(OSError):
        if (mode := directory.stat().st_mode) & _OPEN_TO_OTHERS:
            return f"{directory} is open to other users (mode {stat.S_IMODE(mode):04o})"
    return ""


def why_replaceable(directory: Path, uid: int) -> str:
    """Say who else than root and the user ``uid`` may put something else in the place of ``directory``.

    Empty where nobody may. A sticky directory such as /tmp lets nobody replace what belongs to another user. What we
    may not look at, others may not change.
    """
    for path in dict.fromkeys((directory, *directory.parents, *directory.resolve().parents)):
        try:
            found = path.lstat()
        except OSError:
            continue
        if found.st_uid not in (0, uid):
            return f"{path} belongs to the user id {found.st_uid}"
        if path == directory and not stat.S_ISDIR(found.st_mode):
            return f"{path} is a link or a file"
        writable = found.st_mode & (_WRITABLE if found.st_gid else _WRITABLE_BY_ALL)
        if path != directory and writable and not found.st_mode & stat.S_ISVTX and not stat.S_ISLNK(found.st_mode):
            return f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def give_directory(directory: Path, user: RayUser) -> None:
    """Make ``directory`` and give it to ``user``. Only root can, and only below directories that root alone can change.

    What a former user of Ray left there is removed: it may be anything.

    Raises:
        OSError: it cannot be made, or a Ray of the former user still runs there.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid == user.uid:
        return
    _refuse_beside_ray(directory / _SESSIONS)  # which would not find its files any more
    os.chown(directory, 0, 0)  # from here on its former user puts nothing there
    remove_sessions(directory)
    directory.chmod(0o700)
    os.chown(directory, user.uid, user.gid)


def remove_sessions(directory: Path = DEFAULT_DIRECTORY) -> None:
    """Remove what Ray has left in the default directory.

    Raises:
        OSError: it cannot be removed, or a Ray of another network runs there.
    """
    _refuse_beside_ray(directory / _SESSIONS)
    for left in (directory / _SESSIONS, directory / _GCS_STORE):
        with suppress(FileNotFoundError):
            left.unlink() if left.is_symlink() else shutil.rmtree(left)


def _refuse_beside_ray(sessions: Path) -> None:
    """Raise OSError where a Ray has its sockets in ``sessions``."""
    if f"{sessions}/" in Path("/proc/net/unix").read_text(errors="replace"):
        raise OSError(errno.EBUSY, f"another Ray runs in {sessions}")


async def check_temp_dir(
    sessions: Path, python: Path, user: RayUser, *, default_directory: Path = DEFAULT_DIRECTORY
) -> None:
    """Make Ray's directory, closed to others, and try as ``user`` whether Ray can make a session there.

    Root makes nothing but ``default_directory``: the head names the others.

    Raises:
        ConfigError: Ray cannot use it, or another user could change what is in it.
    """
    private = sessions.parent
    try:
        if private == default_directory and os.geteuid() == 0:
            await asyncio.to_thread(give_directory, private, user)
    except OSError as error:
        raise _unusable(private, error.strerror or str(error), user) from error
    if why := why_replaceable(private, user.uid):
        raise _unusable(private, why, user)
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            "-c",
            _TRIAL,
            sessions,
            private,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": SYSTEM_PATH, "HOME": str(user.home), "LANG": "C.UTF-8"},
            start_new_session=True,
            **identity_arguments(user),
        )
    except OSError:  # the interpreter is gone, say: `ray start` tells of it
        return
    try:
        async with timeout(_TIMEOUT_S):
            _, complaint = await answer_of(process, MAX_ANSWER_BYTES)
        words = (complaint.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        why = words if process.returncode else ""
    except TimeoutError:
        why = f"no answer within {_TIMEOUT_S:g} s"
    except AnswerTooLongError:
        why = ""  # what the interpreter prints is told of where it is asked something
    finally:
        await end(process)
    if why := why or why_not_private(private, user.uid):
        raise _unusable(private, why, user)


def _unusable(directory: Path, why: str, user: RayUser) -> ConfigError:
    owners = "root" if user.name == "root" else f"root and {user.name}"
    return ConfigError(
        f"Ray's directory {directory} cannot be used by {user.name}, as whom Ray runs here: {why}",
        hint=f"only {owners} may change it and what is above it: `install -d -m 700 -o {user.name} "
        f"{directory}`, or set ray.temp_dir on the head: every node uses the head's",
        reason="RayTempDir",
    )
