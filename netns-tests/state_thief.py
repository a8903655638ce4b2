"""Somebody with an ordinary account on a node reaches for EdgeLink's own files: ``state_thief.py UID DIRECTORY…``.

Tries to read, change, replace and shadow everything in each directory, and to connect to each socket there. Prints as
JSON what succeeded, and what could be read. Nothing but the standard library: an ordinary user may not be able to read
the rest.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from thief import become, done, trying

read: dict[str, str] = {}


def everything_below(directory: Path) -> Iterator[Path]:
    """What is there, as far as we may see; links are not followed."""
    for place, names, files in os.walk(directory):
        yield from (Path(place, name) for name in (*names, *files))


def attack(path: Path) -> None:
    mine = path.with_name(f"{path.name}.mine")
    mode = path.lstat().st_mode
    with trying(f"replace {path}"):
        path.rename(mine)
        mine.rename(path)
    if not path.parent.stat().st_mode & stat.S_ISVTX:  # where all may make names, such as /var/tmp
        with trying(f"put a link beside {path}"):
            mine.symlink_to("/etc/passwd")
            mine.unlink()
    with trying(f"open up {path}"):
        path.chmod(0o777)
    if stat.S_ISSOCK(mode):
        with trying(f"connect to {path}"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
    elif stat.S_ISREG(mode):
        with trying(f"write to {path}"), path.open("ab"):
            pass
        with trying(f"link to {path}"):
            os.link(path, f"/dev/shm/{os.getpid()}")
            Path(f"/dev/shm/{os.getpid()}").unlink()
        with suppress(OSError):
            read[str(path)] = path.read_bytes().decode(errors="replace")
    elif stat.S_ISDIR(mode):
        with trying(f"write to {path}"):
            (path / "mine").touch()
            (path / "mine").unlink()


def main(uid: int, directories: list[Path]) -> None:
    become(uid)
    for directory in directories:
        for path in (directory, *everything_below(directory)):
            attack(path)
    print(json.dumps({"done": done, "read": read}))


main(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
