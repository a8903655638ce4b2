"""SIGKILL at any moment: what was acknowledged stays, nothing is given twice, and there is one network."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_world import World

from edgelink.registry.payloads import Envelope

LIVES = 30
FIRST_STARTS = 12
SEED = 20260101


class Victims:
    """Lives of a registry, each ended by SIGKILL."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def live(self, directory: Path, life: int, delay_ms: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(directory, life, delay_ms, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == "killed"


@pytest.fixture
def victims() -> Iterator[Victims]:
    script = Path(__file__).with_name("registry_victim.py")
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield Victims(process)


def acknowledged(directory: Path) -> tuple[set[str], list[Envelope]]:
    """Networks that were seen, and leases that were acknowledged, in all lives so far."""
    networks: set[str] = set()
    leases: list[Envelope] = []
    for file in sorted(directory.glob("acks-*")):
        network, *envelopes = file.read_text().splitlines() or [""]
        networks |= {network} - {""}
        leases += [Envelope.model_validate_json(line) for line in envelopes]
    return networks, leases


def check(directory: Path) -> int:
    """Open the registry as the next daemon would, and hold it against what was acknowledged."""
    world = World(directory / "state")
    networks, acks = acknowledged(directory)
    assert networks <= {f"{world.network.network_id} {world.network.secret}"}
    kept = world.store.lease_envelopes()
    for envelope in acks:
        assert envelope in kept.values()
    leases = world.store.leases()
    ranks = [lease.preferred_rank for lease in leases if lease.preferred_rank is not None]
    assert len({lease.overlay_ip for lease in leases}) == len({lease.hostname for lease in leases}) == len(leases)
    assert len(set(ranks)) == len(ranks)
    assert world.network.relay_ip not in {lease.overlay_ip for lease in leases if not lease.is_relay}
    # A lease, its broker password and its history entry came together or not at all.
    history = world.store.history()
    assert sorted(entry["node_id"] for entry in history if entry["action"] == "granted") == sorted(kept)
    assert {user.subject for user in world.store.broker_users() if user.kind == "node"} >= {
        lease.node_id for lease in leases if not lease.is_relay
    }
    assert world.store.epoch() == len(history)
    world.store.close()
    return len(acks)


def test_acknowledged_leases_survive_kills(victims: Victims, tmp_path: Path) -> None:
    """Killed at 30 random moments, the registry keeps every lease it acknowledged, unchanged, and shares none."""
    dice = random.Random(SEED)
    acks, longest_ms = 0, 60.0
    for life in range(LIVES):
        victims.live(tmp_path, life, dice.uniform(1, longest_ms))
        before, acks = acks, check(tmp_path)
        longest_ms *= 1 if acks > before else 1.3  # a busy machine needs longer lives
    assert acks > 20  # else the kills came too early to mean anything


def test_a_first_start_that_is_killed_leaves_one_network(victims: Victims, tmp_path: Path) -> None:
    """Killed while keys, database and network are made, the next start has one whole network, and keeps it."""
    dice = random.Random(SEED)
    early = 0
    for start in range(FIRST_STARTS):
        directory = tmp_path / str(start)
        directory.mkdir()
        victims.live(directory, 1, 2 * start)
        early += not acknowledged(directory)[0]
        check(directory)
        victims.live(directory, 2, dice.uniform(0, 25))
        check(directory)
    assert early > 1  # else the kills came too late to mean anything
