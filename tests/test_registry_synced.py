"""fsync comes before the reply: seen at the system calls of a registry at work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENROLMENTS = 5
_WRITE = re.compile(r"(?:pwrite64|write)\(\d+<([^>]+)>")
_SYNC = re.compile(r"(?:fdatasync|fsync)\(\d+<([^>]+)>\)\s*= 0")

_PROGRAM = """
import os, sys
from pathlib import Path
from registry_world import World
from edgelink.registry.keys import NodeKey
from edgelink.registry.lease_changes import LeaseChange

world = World(Path(sys.argv[1]))
if sys.argv[2] == "careless":
    world.store._database.execute("PRAGMA synchronous = OFF")
replies = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
token = world.token(uses=100)
os.write(replies, b"token")
for number in range(int(sys.argv[4])):
    result = world.enrol(NodeKey.generate(), token, f"edge-{number}")
    os.write(replies, result.reply.model_dump_json().encode())
    world.authority.change_lease(f"edge-{number}", LeaseChange(rank=number + 50))
    os.write(replies, b"changed")
    world.authority.release(f"edge-{number}")
    os.write(replies, b"released")
"""


def replies_before_their_sync(directory: Path, way: str) -> tuple[int, int]:
    """How many replies were given, and how many of them while something of the write-ahead log was not synced."""
    trace, replies = directory / "trace", directory / "replies"
    calls = "trace=pwrite64,write,fdatasync,fsync"
    argv = [sys.executable, "-c", _PROGRAM, str(directory / "state"), way, str(replies), str(ENROLMENTS)]
    subprocess.run(
        ["strace", "-f", "-y", "--seccomp-bpf", "-e", calls, "-o", str(trace), *argv],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    given = early = 0
    is_synced = True
    for line in trace.read_text().splitlines():
        written, synced = _WRITE.search(line), _SYNC.search(line)
        if written and written[1].endswith("registry.sqlite3-wal"):
            is_synced = False
        elif synced and synced[1].endswith("registry.sqlite3-wal"):
            is_synced = True
        elif written and written[1] == str(replies):
            given += 1
            early += not is_synced
    return given, early


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("way", "early"), [("careful", 0), ("careless", 1 + 3 * ENROLMENTS)])
def test_every_reply_comes_after_the_sync(tmp_path: Path, way: str, early: int) -> None:
    """Of a token, an enrolment, a change and a release; with `synchronous = OFF` the same look finds every one."""
    assert replies_before_their_sync(tmp_path, way) == (1 + 3 * ENROLMENTS, early)
