"""Upgrades from the version before under what runs, and the way back: real EasyTier, broker and Ray.

``EDGELINK_PREVIOUS`` names the other version: a checkout, or a revision of this repository (`make neighbours`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import children
from machines import Machine, leases, registered, wait_for_condition

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.protocol.membership import Membership

_PREVIOUS = os.environ.get("EDGELINK_PREVIOUS", "")
_ROOT = Path(__file__).parent.parent
EDGES = ("edge-1", "edge-2")
MEMBERS = (CLOUD, *EDGES)
NODES = (RELAY, *MEMBERS)
BACKUP = "/etc/edgelink/before.tar"  # a directory of each node's own
KEPT = ("easytier-core", "raylet", "gcs_server")
_COUNT = "import ray; ray.init(); print('alive:', sum(node['Alive'] for node in ray.nodes()))"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("easytier"),
    pytest.mark.skipif(
        not _PREVIOUS, reason="EDGELINK_PREVIOUS names no other version: nothing shows that it can be upgraded"
    ),
]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the other version's package."""
    if Path(_PREVIOUS).is_dir():
        return Path(_PREVIOUS).resolve()
    directory = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "archive", _PREVIOUS, "edgelink"], cwd=_ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, f"EDGELINK_PREVIOUS={_PREVIOUS} is no checkout and no revision: {archive.stderr!r}"
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return directory


class Mixed:
    """A lab whose nodes run one version or the other, each with its own commands."""

    def __init__(self, lab: Lab, previous: Path, older: frozenset[str]) -> None:
        self.lab = lab
        self.road = Road(lab, SystemClock(), print)
        self._previous = previous
        self._older = set(older)

    def env(self, node: str) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self._previous)} if node in self._older else {}

    def edgelink(self, node: str, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """With the version that the node has."""
        return self.lab.exec(
            node, ["edgelink", *argv], env=self.env(node), stdin=stdin, capture=True, check=True, timeout_s=120
        )

    def start(self, *nodes: str) -> None:
        """Returns when they are ready."""
        for node in nodes:
            self.lab.start(node, env=self.env(node))
        for node in nodes:
            self.road.wait_ready(node)

    def enrol(self, node: str) -> None:
        token = self.edgelink(RELAY, "token", "create", "--role", "head" if node == CLOUD else "edge").stdout
        self.edgelink(node, "join", "-", stdin=token)

    def go_back(self, node: str) -> None:
        """Its daemon, which does not run now, will be the older one."""
        self._older.add(node)

    def upgrade(self, node: str) -> None:
        """Its daemon is another one, and all that it runs goes on."""
        before = self.kept(node)
        self.lab.kill(node)
        self._older.discard(node)
        self.start(node)
        assert self.kept(node) == before, node

    def kept(self, node: str) -> dict[str, int]:
        """The pids of what goes on without a daemon."""
        return {name: pid for name, pid in children(self.lab, node).items() if name in KEPT}

    def schema(self, node: str) -> str:
        """The schema of the registry that its version knows."""
        argv = ["python", "-c", "from edgelink.relay.database import SCHEMA_VERSION; print(SCHEMA_VERSION)"]
        return self.lab.exec(node, argv, env=self.env(node), cwd=Path("/"), capture=True, check=True).stdout

    def where(self, node: str) -> Path:
        """Whose package its commands are of."""
        argv = ["python", "-c", "import edgelink; print(edgelink.__file__)"]
        told = self.lab.exec(node, argv, env=self.env(node), cwd=Path("/"), capture=True, check=True)
        return Path(told.stdout.strip()).parent.parent


def test_an_upgrade_under_what_runs(make_lab: MakeLab, previous: Path, tmp_path: Path) -> None:
    """A network of the version before is upgraded node by node, the relay first, and works after each step: same
    EasyTier, same Ray, same lease. Then all change the network's secret together."""
    mixed = Mixed(make_lab(), previous, frozenset(NODES))
    mixed.lab.up(len(EDGES))
    assert {node for node in NODES if mixed.where(node) == previous} == set(NODES)
    mixed.start(RELAY)
    for node in MEMBERS:
        mixed.enrol(node)
    mixed.start(*MEMBERS)
    work_together(mixed, tmp_path)
    held = leases(mixed.road, NODES)

    for node in NODES:
        mixed.upgrade(node)
        for other in NODES:
            mixed.road.wait_ready(other)
        if node in (RELAY, CLOUD):
            work_together(mixed, tmp_path)
    assert leases(mixed.road, NODES) == held
    work_together(mixed, tmp_path)
    for node in NODES:
        wait_for_condition(mixed.lab, node, "SecretCurrent", "Current")
    change_the_secret(mixed)


def test_going_back(make_lab: MakeLab, previous: Path) -> None:
    """As docs/how-to/install.md has it: an edge reads with the older version what the newer one wrote; a registry with
    a newer schema is refused and left as it is, and goes back by the backup of before; else it goes on as it is.
    All are who they were, and are upgraded again."""
    nodes = (RELAY, CLOUD, "edge-1")
    mixed = Mixed(make_lab(), previous, frozenset(nodes))
    lab = mixed.lab
    lab.up(1)
    mixed.start(RELAY)
    for node in nodes[1:]:
        mixed.enrol(node)
    mixed.start(*nodes[1:])
    held = leases(mixed.road, nodes)
    mixed.edgelink(RELAY, "registry", "backup", BACKUP)
    for node in nodes:
        mixed.upgrade(node)
    for node in nodes:
        mixed.road.wait_ready(node)

    lab.kill("edge-1")
    mixed.go_back("edge-1")
    mixed.start("edge-1")
    assert leases(mixed.road, nodes) == held

    lab.stop(RELAY)
    newer = mixed.schema(RELAY)
    mixed.go_back(RELAY)
    if mixed.schema(RELAY) != newer:
        state = lab.host_path(RELAY, Paths().state)
        before = {path: path.read_bytes() for path in state.rglob("*.sqlite3")}
        refused = lab.exec(RELAY, ["edgelink", "bootstrap"], env=mixed.env(RELAY), capture=True, timeout_s=60)
        assert refused.returncode != 0
        assert "was written by a newer EdgeLink" in refused.stderr
        assert before
        assert {path: path.read_bytes() for path in before} == before
        for path in state.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        mixed.edgelink(RELAY, "registry", "restore", BACKUP)
    mixed.start(RELAY)
    for node in nodes[1:]:
        mixed.road.wait_ready(node)
    assert leases(mixed.road, nodes) == held
    for node in (RELAY, "edge-1"):
        mixed.upgrade(node)
    for node in nodes:
        mixed.road.wait_ready(node)
    assert leases(mixed.road, nodes) == held


def work_together(mixed: Mixed, directory: Path) -> None:
    """Each says of itself that it is ready, the relay that all are there, and a driver finds all of them in Ray."""
    for node in NODES:
        mixed.edgelink(node, "status")
    assert {name for name, node in registered(mixed.lab).items() if node["online"]} >= set(MEMBERS)
    cluster = write_demo_cluster(directory / "cluster.yaml", len(EDGES))
    told = mixed.edgelink(CLOUD, "run", "--cluster", str(cluster), "--", "python", "-c", _COUNT)
    assert f"alive: {len(MEMBERS)}" in told.stdout


def change_the_secret(mixed: Mixed) -> None:
    before = {epoch_of(mixed.lab, node) for node in NODES}
    mixed.edgelink(RELAY, "rotate-secret")
    (epoch,) = {epoch_of(mixed.lab, node) for node in NODES}
    assert epoch > max(before)
    for node in NODES:
        mixed.road.wait_ready(node)


def epoch_of(lab: Lab, node: str) -> int:
    membership = Membership.load(Machine(lab, node).paths)
    assert membership is not None
    return membership.held.epoch
