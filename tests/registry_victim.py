"""A registry that is killed at work: run by test_registry_crash.py, which sends one line a life.

Each line is ``DIRECTORY LIFE DELAY_MS``: a forked child opens the registry in DIRECTORY and enrols nodes, noting in
``acks-LIFE`` what it acknowledged, until it is SIGKILLed after the delay. Forking saves the imports of each life.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from registry_world import World

from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import Role


def live(directory: Path, life: str) -> None:
    acks = os.open(directory / f"acks-{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    world = World(directory / "state")
    world.authority.relay_membership(NodeKey.load_or_create(directory / "relay.key"), "relay")
    os.write(acks, f"{world.network.network_id} {world.network.secret}\n".encode())
    number = 0
    while True:
        number += 1
        key = NodeKey.generate()
        role = Role.HEAD if number % 7 == 0 else Role.EDGE  # at most one of them gets it
        # Every life wants the same hostnames: most are taken already, which is refused, never shared.
        result = world.enrol(key, world.token(role), f"edge-{life if number % 3 else 0}-{number}", role=role)
        if result.reply.lease is not None:
            os.write(acks, result.reply.lease.model_dump_json().encode() + b"\n")


def main() -> None:
    for line in sys.stdin:
        directory, life, delay_ms = line.split()
        child = os.fork()
        if child == 0:
            live(Path(directory), life)
        time.sleep(float(delay_ms) / 1000)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        # An own exit would mean that the victim failed, not that it was killed.
        sys.stdout.write("killed\n" if os.WIFSIGNALED(status) else "failed\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
