"""Somebody with an ordinary account on a node reaches for Ray's session: ``session_thief.py SESSIONS UID``.

Tries to look into ``SESSIONS``, where Ray keeps its sessions, to speak to Ray's sockets, and to put its own code and
directories in the place of Ray's. Prints what succeeded, as a JSON list. Nothing but the standard library: an
ordinary user may not be able to read the rest.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

from thief import become, done, trying


def every(directory: Path, pattern: str) -> list[Path]:
    """What is there, as far as we may see."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def main(sessions: Path, uid: int) -> None:
    become(uid)
    session = sessions / "session_latest"
    with trying("list"):
        list(session.iterdir())
    with trying("read a log"):
        (session / "logs/raylet.out").read_bytes()
    for path in (session / "sockets/raylet", session / "sockets/plasma_store"):
        with trying(f"connect to {path.name}"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
    with trying("replace a socket"):
        (session / "sockets/raylet").rename(session / "sockets/raylet.was")
        (session / "sockets/raylet.was").rename(session / "sockets/raylet")
    with trying("replace a job's code"):
        (session / "runtime_resources").rename(session / "rr.was")
        shutil.copytree(session / "rr.was", session / "runtime_resources")
        (package,) = every(session / "runtime_resources/working_dir_files", "_ray_pkg_*/")
        package.chmod(0o755)
        (package / "policy_code.py").unlink()
        (package / "policy_code.py").write_text("WHO = 'a stranger'\n")
    for directory in (session, sessions, sessions.parent):
        with trying(f"write to {directory}"):
            (directory / "mine").touch()
        with trying(f"replace {directory}"):
            directory.rename(f"{directory}.was")
            Path(f"{directory}.was").rename(directory)
    print(json.dumps(done))


main(Path(sys.argv[1]), int(sys.argv[2]))
