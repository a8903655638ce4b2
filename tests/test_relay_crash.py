"""SIGKILL at any moment: what was acknowledged stays, nothing is given twice, and there is one network.

Killed at named points of each change, and at random under twenty machines that join at once: 15 kills, with
EDGELINK_SOAK=1 300.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from in_memory import IN_MEMORY
from registry_world import World

from edgelink.config import Paths
from edgelink.fault_points import POINTS, RENEWAL_POINTS
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope
from edgelink.relay.database_check import check_registry

pytestmark = pytest.mark.processes

IS_SOAK = os.environ.get("EDGELINK_SOAK") == "1"
LIVES = 300 if IS_SOAK else 15
FIRST_STARTS = 12 if IS_SOAK else 4
TIMES = (1, 2, 3, 5, 8) if IS_SOAK else (3,)
SEED = 20260101


class Victims:
    """Lives of a registry, each ended by SIGKILL."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def live(self, directory: Path, life: int, work: str, when: str) -> float:
        """Returns after how many milliseconds of work it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(directory, life, work, when, file=self._process.stdin, flush=True)
        end, _, worked_ms = self._process.stdout.readline().partition(" ")
        assert end == "killed"
        return float(worked_ms)


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    """One process for all tests: each life is a fork of it, as fresh as the first."""
    script = Path(__file__).with_name("registry_victim.py")
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield Victims(process)


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory: what a SIGKILL leaves of a file is the same there; of its fsync test_relay_synced.py tells."""
    with TemporaryDirectory(dir=IN_MEMORY) as directory:
        yield Path(directory)


def notes(directory: Path) -> Iterator[dict[str, Any]]:
    """What the victims noted, in all lives so far."""
    for file in sorted(directory.glob("acks-*"), key=lambda path: int(path.name.partition("-")[2])):
        yield from map(json.loads, file.read_text().splitlines())


def check(directory: Path) -> int:
    """Open the registry as the next daemon would, and hold it against what was acknowledged; how much that was."""
    world = World(directory / "state")
    kept = world.store.lease_envelopes()
    acknowledged: dict[str, Envelope] = {}
    pending: dict[str, Any] = {}
    count = 0
    for note in notes(directory):
        if "network" in note:
            # The life before was killed: what it had begun was done, or was not; from now on it stays as it is.
            _settle(pending, acknowledged, kept)
            assert note["network"] == f"{world.network.network_id} {world.network.secret}"
        elif "begin" in note:
            pending = note
        elif "lease" in note:
            envelope, pending = Envelope.model_validate(note["lease"]), {}
            acknowledged[json.loads(envelope.body)["node_id"]] = envelope
            count += 1
        else:
            del acknowledged[note["gone"]]
            pending, count = {}, count + 1
            assert ("revoked" in note) == (world.store.revocations.get(note["gone"]) is not None)
    _settle(pending, acknowledged, kept)
    assert {node_id: kept.get(node_id) for node_id in acknowledged} == acknowledged
    leases = world.store.leases()
    ranks = [lease.preferred_rank for lease in leases if lease.preferred_rank is not None]
    assert len({lease.overlay_ip for lease in leases}) == len({lease.hostname for lease in leases}) == len(leases)
    assert len(set(ranks)) == len(ranks)
    assert world.network.relay_ip not in {lease.overlay_ip for lease in leases if not lease.is_relay}
    # A lease, its broker password and its history entry came together or not at all.
    history = world.store.history()
    granted = sorted(entry["node_id"] for entry in history if entry["action"] == "granted")
    gone = {entry["node_id"] for entry in history if entry["action"] in ("released", "replaced")}
    assert sorted(kept) == [node_id for node_id in granted if node_id not in gone]
    users = {user.subject for user in world.store.broker_users() if user.kind == "node"}
    assert {lease.node_id for lease in leases if not lease.is_relay} <= users <= set(kept)
    world.store.close()
    assert check_registry(Paths(directory / "state", directory / "run")).problems == ()
    return count


def _settle(pending: dict[str, Any], acknowledged: dict[str, Envelope], kept: dict[str, Envelope]) -> None:
    """What was begun and not acknowledged may have happened; either all of it or nothing."""
    if not pending:
        return
    node_id, before = pending["node_id"], acknowledged.pop(pending["node_id"], None)
    now = kept.get(node_id)
    if pending["begin"] == "replace":
        assert (now is None) == (pending["by"] in kept)
    if pending["begin"] in ("replace", "release"):
        assert now in (None, before)
    pending.clear()
    if now is not None:
        acknowledged[node_id] = now


@pytest.mark.timeout(3600)
def test_acknowledged_leases_survive_kills(victims: Victims, directory: Path) -> None:
    """Killed at random under twenty machines that join at once, each lease that was acknowledged stays unchanged."""
    dice = random.Random(SEED)
    long_ms = victims.live(directory, 0, "crowd", "enrol.replied*3")
    acks = acks_of_first = check(directory)
    for life in range(1, LIVES):
        victims.live(directory, life, "crowd", f"+{dice.uniform(1, long_ms)}")
        acks = check(directory)
    assert acks > acks_of_first + 20  # else the kills came too early to mean anything


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step_leaves_all_or_nothing(victims: Victims, directory: Path, point: str) -> None:
    """Enrolment, change, replacement and release: the next start goes on with a whole registry."""
    for life, times in enumerate(TIMES):
        victims.live(directory, life, "operator", f"{point}*{times}")
        check(directory)
    victims.live(directory, len(TIMES), "operator", "enrol.replied*3")
    assert check(directory) > 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", [*RENEWAL_POINTS, "told.users"])
def test_a_kill_at_each_step_of_a_renewal_leaves_a_password_that_counts(
    victims: Victims, directory: Path, point: str
) -> None:
    """Node and relay at once, again and again: one of those on the node's disk opens the broker, and it goes on."""
    for life, times in enumerate((1, *TIMES, 5), start=1):
        victims.live(directory, life, "renewals", f"{point}*{times}")
        membership = Membership.load(Paths(directory / "node", directory / "run"))
        world = World(directory / "state")
        if membership is None:
            continue  # killed before it had joined
        recorded = world.store.node_password(membership.lease.node_id)
        assert recorded is not None
        assert any(map(recorded.matches, membership.broker_passwords))
        world.store.close()
    assert sum("renewed" in note for note in notes(directory)) > 3


@pytest.mark.timeout(300)
def test_a_first_start_that_is_killed_leaves_one_network(victims: Victims, directory: Path) -> None:
    """Killed while keys, database and network are made, the next start has one whole network, and keeps it."""
    dice = random.Random(SEED)
    early = 0
    for start in range(FIRST_STARTS):
        start_directory = directory / str(start)
        start_directory.mkdir()
        # Most of them early: a fast machine is done within a few milliseconds.
        victims.live(start_directory, 1, "crowd", str(48 * (start / FIRST_STARTS) ** 3))
        early += not list(notes(start_directory))
        World(start_directory / "state").store.close()
        victims.live(start_directory, 2, "crowd", str(dice.uniform(0, 25)))
        check(start_directory)
    assert early > 1  # else the kills came too late to mean anything
