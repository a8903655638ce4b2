"""A node whose Ray is pretended, in its reconcile loop, and the fixtures of its tests.

A bench of the reconciler alone, with processes of the kernel: what `ray start` leaves behind, how it fails, and who is
killed. In a :class:`sim.Sim` Ray is a list of members.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_ray import FakeRay, ray_config

from edgelink.clock import SystemClock
from edgelink.condition_table import Place
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Config, Paths
from edgelink.facts.board import Board
from edgelink.facts.derive import derive_patience
from edgelink.facts.facts import Facts
from edgelink.overlay.nft import Applied, Table
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import NodeKey, seal
from edgelink.protocol.payloads import ClusterMember, ClusterSpec, Lease, Role
from edgelink.ray_cluster.cluster_spec import FILE_NAME
from edgelink.ray_cluster.held_run import HeldRun, Ranks
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler, RayInputs
from edgelink.testing.clock import FakeClock
from edgelink.testing.facts import give
from edgelink.testing.payloads import cluster_spec, entry_of, lease

LOOPBACK = IPv4Address("127.0.0.1")
TOKEN = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def firewalls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the firewall, in order."""
    asked: list[str] = []

    async def apply(table: Table) -> Applied:
        asked.append(table.script)
        return Applied("", is_made=False)

    async def remove(_table: Table) -> None:
        asked.append("remove")

    monkeypatch.setattr(Table, "apply", apply)
    monkeypatch.setattr(Table, "remove", remove)
    return asked


class Told(Board[Facts]):
    """The board of one daemon, and the registry's client, which publishes what a head states."""

    def __init__(self, published: list[ClusterSpec], file: Path) -> None:
        super().__init__(Facts())
        self._file = file
        self._published = published

    def _put(self, name: str, value: Any) -> None:
        is_news = name == "stated_cluster" and value != self.facts.stated_cluster
        super()._put(name, value)
        if is_news:
            assert value.body == json.loads(self._file.read_bytes())["body"], "it is on disk first"
            spec = ClusterSpec.model_validate_json(value.body)
            self._published.append(spec)
            give(self, cluster_spec=spec)


class Bench:
    """A node of role ``role`` and what a test can turn on it."""

    def __init__(self, directory: Path, role: Role) -> None:
        self.fake = FakeRay(directory / "fake")
        self.paths = Paths(state=directory / "state", runtime=directory / "run")
        self.paths.state.mkdir()
        self.config = Config(ray=ray_config(self.fake.python, temp_dir=directory / "ray"))
        self.key = NodeKey.generate()
        self.clock: SystemClock | FakeClock = SystemClock()
        self.published: list[ClusterSpec] = []
        self.lease = self.lease_of(self.key, role, 0 if role is Role.HEAD else 1)
        self.history: list[Condition] = []
        self.board = self._new_board()
        self._facts: dict[str, Any] = {}
        self.give(peers_connected=True, host_patience_s=self.config.ride_through_s)
        self.give_secret(1)
        self.ranks = ((entry_of(self.lease), self.lease.preferred_rank or 0),)

    def give(self, **facts: Any) -> None:
        """What the rest of the daemon knows, in this life and the next."""
        self._facts |= facts
        give(self.board, **facts)

    def give_secret(self, epoch: int) -> None:
        """The network has its secret of this epoch."""
        self.give(running=SimpleNamespace(lease=self.lease, held=HeldSecret(epoch, "secret")))

    def hears(self, port: int, **changes: Any) -> None:
        """The head's word has come, and what the host needs to follow it is done."""
        spec = self.make_spec(port, **changes)
        self.give(cluster_spec=spec, host_patience_s=spec.ride_through_s)

    def lease_of(self, key: NodeKey, role: Role, rank: int) -> Lease:
        known = {"node_id": key.node_id, "verify_key": key.verify_key_b64, "cidr": IPv4Network("127.0.0.0/24")}
        return lease(f"node-{rank}", LOOPBACK, rank, role=role, **known)

    @property
    def ranks(self) -> Ranks:
        """Who is to join Ray."""
        return self.board.facts.publishable

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self.give(publishable=ranks)

    def put_out(self, *node_ids: str) -> None:
        """The operator has put these nodes out of the network."""
        self.give(network=SimpleNamespace(state=SimpleNamespace(revoked=node_ids)))

    def _new_board(self) -> Board[Facts]:
        board = Told(self.published, self.paths.state / FILE_NAME)
        derive_patience(board, self.config, Place(self.lease.role.value))
        return board

    def grant(self, *, is_granted: bool) -> None:
        """A run relies on all nodes, or none does any more."""
        self.give(run=HeldRun("pid 1", self.ranks) if is_granted else None)

    def inputs(self) -> RayInputs:
        self.board = self._new_board()
        self.give(**self._facts)
        return RayInputs(
            board=self.board,
            config=self.config,
            paths=self.paths,
            conditions=ConditionSet(SystemClock(), ["RayJoined"], on_change=self.history.append),
            clock=self.clock,
            key=self.key,
            ray=LocalRay(self.config, self.paths, self.clock),
        )

    def edge(self) -> RayEdgeReconciler:
        return RayEdgeReconciler(self.inputs())

    def head(self) -> RayHeadReconciler:
        return RayHeadReconciler(self.inputs())

    def make_spec(self, port: int, **changes: Any) -> ClusterSpec:
        member = ClusterMember(
            node_id=self.key.node_id,
            hostname="node-1",
            overlay_ip=LOOPBACK,
            node_rank=changes.pop("node_rank", 1),
            ray_restarts=changes.pop("ray_restarts", 0),
            sealed_ray_token=seal(changes.pop("sealed_for", self.key).verify_key_b64, TOKEN.encode()),
        )
        values = {"ray_port": port, "python_version": "3.11.2", "members": (member,), **changes}
        return cluster_spec(self.lease, **values)

    @property
    def reason(self) -> str:
        return self.history[-1].reason

    @property
    def token_file(self) -> Path:
        return self.paths.runtime / "ray/token"


@pytest.fixture
async def edge_bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, Role.EDGE)
    yield bench
    await bench.edge().stop()


@pytest.fixture
async def head_bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, Role.HEAD)
    yield bench
    await bench.head().stop()


REFUSAL = b"\0\0\0\1\5\0\0\0\1"  # HTTP/2: headers alone, end of the stream


class StandInGcs:
    """A port that can be reached; asked something, it hangs up, or refuses once ``refuses`` is set."""

    def __init__(self) -> None:
        self.refuses = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    if self.refuses:
                        connection.sendall(REFUSAL)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def gcs() -> Iterator[StandInGcs]:
    made = StandInGcs()
    yield made
    made.close()


@pytest.fixture
def head_port(gcs: StandInGcs) -> int:
    return gcs.port
