"""Where Ray keeps its session on this node: as the head's `ray.temp_dir` says, which a worker takes from its GCS."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from edgelink.config import Paths
from edgelink.errors import ConfigError
from edgelink.files import Files
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.ray_cluster.interpreter import MAX_ANSWER_BYTES, SYSTEM_PATH, RayUser, identity_arguments
from edgelink.timeouts import timeout

DEFAULT_TEMP_DIR = Path("/tmp/ray")  # noqa: S108 (Ray's own default)
_TIMEOUT_S = 20.0
_SESSION = "session_"
# What Ray does first. A read-only file system may be the daemon's own view, from which its unit keeps /home.
_TRIAL = """
import errno, os, sys, tempfile
try:
    os.makedirs(sys.argv[1], exist_ok=True)
    tempfile.TemporaryFile(dir=sys.argv[1]).close()
except OSError as error:
    if error.errno != errno.EROFS: sys.exit(error.strerror)
"""


def temp_dir_here(paths: Paths, configured: Path | None) -> Path:
    """The directory that this node's Ray uses, or used last; before its first start the one that is ``configured``."""
    with suppress(OSError):
        if noted := usable(paths.ray_temp_dir.read_text(errors="replace").rstrip("\n")):
            return noted
    return configured or DEFAULT_TEMP_DIR


def ray_log_directory(paths: Paths, configured: Path | None) -> Path:
    """Where this node's Ray writes its logs."""
    return temp_dir_here(paths, configured) / "session_latest" / "logs"


def note_temp_dir(paths: Paths, files: Files, directory: Path) -> None:
    """For whoever looks for Ray's logs and disk later, also without a daemon."""
    files.keep(paths.ray_temp_dir, f"{directory}\n")


def usable(text: str) -> Path | None:
    """What a GCS or a file names as the directory; None where that is none."""
    return Path(text) if text.startswith("/") and text.isprintable() else None


def temp_dir_of(outputs: tuple[str, ...]) -> Path | None:
    """The directory of a Ray that writes to these files, ``DIRECTORY/session_…/logs/raylet.out``; pure."""
    parents = [Path(output).parents for output in outputs]
    return next((up[2] for up in parents if len(up) > 2 and up[1].name.startswith(_SESSION)), None)


async def check_temp_dir(directory: Path, python: Path, user: RayUser) -> None:
    """Raises ConfigError where Ray cannot make its session in ``directory``: tried as its user, before `ray start`."""
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            "-c",
            _TRIAL,
            directory,
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
    if why:
        raise ConfigError(
            f"Ray's directory {directory} cannot be used by {user.name}, as whom Ray runs here: {why}",
            hint=f"let {user.name} write there, or set ray.temp_dir on the head: every node uses the head's",
            reason="RayTempDir",
        )
