"""The registry on a real disk that is full, or that the kernel has made read-only: nothing acknowledged is lost.

In a mount namespace of its own, on a tmpfs of three megabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TESTS = Path(__file__).parent.parent / "tests"

_PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from registry_world import World
from edgelink.errors import RegistryError
from edgelink.protocol.keys import NodeKey
from edgelink.relay.tokens import TokenRequest
from edgelink.protocol.payloads import Role

disk = Path(sys.argv[1])

def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

def refusal(world, token):
    reply = world.enrol(NodeKey.generate(), token, f"n-{os.urandom(4).hex()}").reply
    assert reply.lease is None, "it was granted"
    return f"{reply.error_reason}: {reply.error} / {reply.error_hint}"

world = World(disk / "state")
token = world.token(uses=100_000)
acknowledged = {}

def fill():
    for number in range(100_000):
        result = world.enrol(NodeKey.generate(), token, f"n-{os.urandom(4).hex()}")
        if result.reply.lease is None:
            return
        lease = world.lease(result)
        acknowledged[lease.node_id] = lease

def check():
    assert {lease.node_id: lease for lease in world.store.leases()} == acknowledged

fill()
assert len(acknowledged) > 20, len(acknowledged)
print("full", refusal(world, token))
check()
remount("size=16m")
result = world.enrol(NodeKey.generate(), token, "after")
acknowledged[world.lease(result).node_id] = world.lease(result)
check()
world.store.close()
world.open()
check()

# The kernel makes it read-only under the daemon, as after an error of the disk.
world.store.close()
remount("ro")
try:
    world.open()
except RegistryError as error:
    print("read-only", error)
else:
    raise AssertionError("opened for writing on a read-only disk")
remount("rw")
world.open()
check()
result = world.enrol(NodeKey.generate(), token, "at-last")
acknowledged[world.lease(result).node_id] = world.lease(result)
check()
print("kept", len(acknowledged))
"""


def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    """Refused with what to do; every acknowledged lease is there, and it goes on when the disk does."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=3m tmpfs {disk} && exec {sys.executable} -c "$PROGRAM" {disk}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted],
        env={**os.environ, "PROGRAM": _PROGRAM, "PYTHONPATH": os.pathsep.join([str(_TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = {word: text for word, _, text in (line.partition(" ") for line in done.stdout.splitlines())}
    assert "cannot be written" in told["full"]
    assert "free some space" in told["full"]
    assert "Read-only file system" in told["read-only"]
    assert "writable" in told["read-only"]
    assert int(told["kept"]) > 20
