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
from edgelink.protocol.keys import NodeKey
from edgelink.relay.lease_changes import LeaseChange

for way in ("careful", "careless"):
    directory = Path(sys.argv[1]) / way
    world = World(directory)
    if way == "careless":
        world.store._database.execute("PRAGMA synchronous = OFF")
    replies = os.open(directory / "replies", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    token = world.token(uses=100)
    os.write(replies, b"token")
    for number in range(int(sys.argv[2])):
        result = world.enrol(NodeKey.generate(), token, f"edge-{number}")
        os.write(replies, result.reply.model_dump_json().encode())
        world.authority.change_lease(f"edge-{number}", LeaseChange(rank=number + 50))
        os.write(replies, b"changed")
        world.authority.release(f"edge-{number}")
        os.write(replies, b"released")
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Where two registries were at work, one after the other, and their system calls."""
    directory = tmp_path_factory.mktemp("synced")
    calls = "trace=pwrite64,write,fdatasync,fsync"
    argv = [sys.executable, "-c", _PROGRAM, str(directory), str(ENROLMENTS)]
    subprocess.run(
        ["strace", "-f", "-y", "--seccomp-bpf", "-e", calls, "-o", str(directory / "trace"), *argv],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    return directory, (directory / "trace").read_text().splitlines()


def replies_before_their_sync(directory: Path, trace: list[str]) -> tuple[int, int]:
    """How many replies were given, and how many of them while something of the write-ahead log was not synced."""
    log, replies = (str(directory / name) for name in ("registry.sqlite3-wal", "replies"))
    given = early = 0
    is_synced = True
    for line in trace:
        written, synced = _WRITE.search(line), _SYNC.search(line)
        if written and written[1] == log:
            is_synced = False
        elif synced and synced[1] == log:
            is_synced = True
        elif written and written[1] == replies:
            given += 1
            early += not is_synced
    return given, early


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("way", "early"), [("careful", 0), ("careless", 1 + 3 * ENROLMENTS)])
def test_every_reply_comes_after_the_sync(trace: tuple[Path, list[str]], way: str, early: int) -> None:
    """Of a token, an enrolment, a change and a release; with `synchronous = OFF` the same look finds every one."""
    directory, calls = trace
    assert replies_before_their_sync(directory / way, calls) == (1 + 3 * ENROLMENTS, early)
