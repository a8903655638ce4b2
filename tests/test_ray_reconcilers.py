"""Edge and head in their reconcile loops, with a pretended Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from fake_ray import FakeRay, ray_config

from edgelink.clock import SystemClock
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import HeadUnreachableError, RayClusterError, UntrustedError, VersionMismatchError
from edgelink.overlay.nft import Table
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler, RayInputs
from edgelink.registry.keys import NodeKey, seal
from edgelink.registry.payloads import ClusterMember, ClusterSpec, DirectoryEntry, Lease, Role
from edgelink.testing.clock import eventually

LOOPBACK = IPv4Address("127.0.0.1")
TOKEN = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def firewalls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the firewall, in order."""
    asked: list[str] = []

    async def apply(table: Table) -> None:
        asked.append(table.script)

    async def remove(_table: Table) -> None:
        asked.append("remove")

    monkeypatch.setattr(Table, "apply", apply)
    monkeypatch.setattr(Table, "remove", remove)
    return asked


class Bench:
    """A node of role ``role`` and what a test can turn on it."""

    def __init__(self, directory: Path, role: Role) -> None:
        self.fake = FakeRay(directory / "fake")
        self.paths = Paths(state=directory / "state", runtime=directory / "run")
        self.paths.state.mkdir()
        self.config = Config(ray=ray_config(self.fake.python, temp_dir=directory / "ray"))
        self.key = NodeKey.generate()
        self.is_ready = True
        self.spec: ClusterSpec | None = None
        self.published: list[ClusterSpec] = []
        self.members: list[tuple[RayMember, ...]] = []
        self.lease = self.lease_of(self.key, role, 0 if role is Role.HEAD else 1)
        self.ranks = [(self.entry(self.lease), self.lease.preferred_rank or 0)]
        self.history: list[Condition] = []

    def lease_of(self, key: NodeKey, role: Role, rank: int) -> Lease:
        return Lease(
            network_id="net",
            node_id=key.node_id,
            hostname=f"node-{rank}",
            role=role,
            overlay_ip=LOOPBACK,
            cidr=IPv4Network("127.0.0.0/24"),
            preferred_rank=rank,
            verify_key=key.verify_key_b64,
            granted_at=datetime.now(UTC),
        )

    @staticmethod
    def entry(lease: Lease) -> DirectoryEntry:
        return DirectoryEntry(**lease.model_dump(include=set(DirectoryEntry.model_fields)))

    def inputs(self) -> RayInputs:
        return RayInputs(
            config=self.config,
            paths=self.paths,
            conditions=ConditionSet(SystemClock(), ["RayJoined"], on_change=self.history.append),
            clock=SystemClock(),
            key=self.key,
            lease=lambda: self.lease,
            overlay_ready=lambda: self.is_ready,
        )

    def edge(self) -> RayEdgeReconciler:
        return RayEdgeReconciler(self.inputs(), cluster_spec=lambda: self.spec)

    def head(self) -> RayHeadReconciler:
        return RayHeadReconciler(
            self.inputs(),
            members=lambda: self.ranks,
            publish=self.published.append,
            on_members=lambda found: self.members.append(tuple(found)),
        )

    def make_spec(self, port: int, **changes: Any) -> ClusterSpec:
        member = ClusterMember(
            node_id=self.key.node_id,
            hostname="node-1",
            overlay_ip=LOOPBACK,
            node_rank=changes.pop("node_rank", 1),
            sealed_ray_token=seal(changes.pop("sealed_for", self.key).verify_key_b64, TOKEN.encode()),
        )
        values: dict[str, Any] = {
            "network_id": "net",
            "epoch": 1,
            "incarnation": "one",
            "head_node_id": self.key.node_id,
            "head_ip": LOOPBACK,
            "ray_port": port,
            "ray_version": "2.60.0",
            "python_version": "3.11.2",
            "token_auth": True,
            "members": (member,),
        }
        return ClusterSpec(**(values | changes))

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


@pytest.fixture
def head_port() -> Any:
    """A port that answers like a GCS would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_edge_waits_for_the_head(edge_bench: Bench, firewalls: list[str]) -> None:
    """No cluster spec is no error: HeadNotSeen, with the firewall in place already and Ray's versions known."""
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "HeadNotSeen"
    assert len(firewalls) == 1
    assert edge.versions == ("2.60.0", "3.11.7")
    assert edge_bench.fake.starts == []


async def test_edge_joins_what_the_spec_says(edge_bench: Bench, head_port: int) -> None:
    """Address, rank and token of the spec reach `ray start`; joined means that Ray lists us."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert f"--address=127.0.0.1:{head_port}" in edge_bench.fake.starts[0]
    environment = edge_bench.fake.environment
    assert environment["RLINF_NODE_RANK"] == "1"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(edge_bench.token_file)
    assert stat.S_IMODE(edge_bench.token_file.stat().st_mode) == 0o600
    assert edge_bench.token_file.read_text() == TOKEN
    assert TOKEN not in str(edge_bench.fake.starts) + str(environment) + str(edge_bench.history)
    assert "wait-alive" in edge_bench.fake.questions[0]
    assert edge.command_environment()["RAY_ADDRESS"] == f"127.0.0.1:{head_port}"
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1


async def test_edge_does_not_start_before_the_overlay(edge_bench: Bench, head_port: int) -> None:
    """Ray's addresses would not exist yet."""
    edge_bench.spec, edge_bench.is_ready = edge_bench.make_spec(head_port), False
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "WaitingForOverlay"
    assert edge_bench.fake.starts == []


async def test_edge_leaves_a_running_ray_alone(edge_bench: Bench, head_port: int) -> None:
    """A new daemon adopts, also while overlay, registry and head are all away."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    await edge_bench.edge().reconcile()
    edge_bench.spec, edge_bench.is_ready = None, False
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


@pytest.mark.parametrize("change", [{"incarnation": "two"}, {"node_rank": 2, "epoch": 2}])
async def test_edge_follows_a_new_head_and_a_new_rank(
    edge_bench: Bench, head_port: int, change: dict[str, Any]
) -> None:
    """Another life of the head, or another rank of ours, starts Ray anew; an epoch alone does not."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.spec = edge_bench.make_spec(head_port, epoch=7)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge_bench.spec = edge_bench.make_spec(head_port, **change)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert edge_bench.reason == "AliveInRay"


async def test_edge_does_not_wait_for_a_head_that_was_replaced(edge_bench: Bench, head_port: int) -> None:
    """A head that ends while an edge joins it leaves `ray start` hanging; the next head is joined at once."""
    hangs = edge_bench.fake.directory / "hangs"
    hangs.touch()
    edge = edge_bench.edge()
    edge_bench.spec = edge_bench.make_spec(head_port)

    async def replace_head() -> None:
        await eventually(lambda: edge_bench.fake.starts)
        edge.wakeup.set()  # the same head said something else: no reason to begin again
        await eventually(lambda: not edge.wakeup.is_set)
        edge_bench.spec = edge_bench.make_spec(head_port, incarnation="two", epoch=2)
        edge.wakeup.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replace_head())
        with pytest.raises(RayClusterError, match="a new one while this node was joining"):
            await edge.reconcile()
    assert edge.ray.node.owned_pids() == []
    hangs.unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 2


async def test_edge_that_is_left_out_stops_ray(edge_bench: Bench, head_port: int) -> None:
    """Who is no member any more takes no part."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.spec = edge_bench.make_spec(head_port, members=())
    await edge.reconcile()
    assert edge_bench.reason == "NotAMember"
    assert edge.ray.node.owned_pids() == []
    with pytest.raises(RayClusterError):
        edge.command_environment()


@pytest.mark.parametrize("change", [{"ray_version": "2.59.0"}, {"python_version": "3.12.1"}])
async def test_edge_refuses_other_versions(edge_bench: Bench, head_port: int, change: dict[str, str]) -> None:
    """Both sides' versions are in the message."""
    edge_bench.spec = edge_bench.make_spec(head_port, **change)
    with pytest.raises(VersionMismatchError) as caught:
        await edge_bench.edge().reconcile()
    assert "2.60.0" in str(caught.value)
    assert next(iter(change.values())) in str(caught.value)


async def test_edge_does_not_run_into_a_dead_head(edge_bench: Bench, head_port: int) -> None:
    """`ray start` would wait for ever: the port is tried first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    edge_bench.spec = edge_bench.make_spec(port)
    with pytest.raises(HeadUnreachableError):
        await edge_bench.edge().reconcile()
    assert edge_bench.fake.starts == []


async def test_edge_refuses_a_token_for_somebody_else(edge_bench: Bench, head_port: int) -> None:
    """What cannot be unsealed is not used."""
    edge_bench.spec = edge_bench.make_spec(head_port, sealed_for=NodeKey.generate())
    with pytest.raises(UntrustedError):
        await edge_bench.edge().reconcile()


async def test_edge_is_not_joined_until_ray_lists_it(edge_bench: Bench, head_port: int) -> None:
    """A raylet that runs is no proof."""
    (edge_bench.fake.directory / "unlisted").touch()
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError) as caught:
        await edge.reconcile()
    assert caught.value.condition_reason == "NotListedByRay"
    (edge_bench.fake.directory / "unlisted").unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


async def test_raylets_end_wakes_the_edge_and_ray_is_started_again(edge_bench: Bench, head_port: int) -> None:
    """The watch carries no decision, it wakes; the next look cleans up and joins again."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(edge.run())
        await asyncio.sleep(0)
        assert edge.ray.node.record is not None
        os.kill(edge.ray.node.record.raylet.pid, signal.SIGKILL)
        await edge.wakeup.wait(5)
        assert not edge.ray.node.is_running
        watch.cancel()
    await edge.reconcile()
    assert "RayExited" in [condition.reason for condition in edge_bench.history]
    assert edge_bench.reason == "AliveInRay"


async def test_stop_ends_ray_then_the_firewall(edge_bench: Bench, head_port: int, firewalls: list[str]) -> None:
    """Nothing is left, and at no moment does Ray stand without its firewall."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    await edge.stop()
    assert edge.ray.node.owned_pids() == []
    assert firewalls[-1] == "remove"
    assert not edge_bench.token_file.exists()


async def test_head_publishes_once_it_is_alive(head_bench: Bench) -> None:
    """The spec names versions, ranks and the sealed token; each member can open its own."""
    other = NodeKey.generate()
    head_bench.ranks.append((head_bench.entry(head_bench.lease_of(other, Role.EDGE, 1)), 1))
    head = head_bench.head()
    await head.reconcile()
    (spec,) = head_bench.published
    token = (head_bench.paths.state / "ray_token").read_text()
    assert (spec.epoch, spec.ray_version, spec.token_auth) == (1, "2.60.0", True)
    sealed = spec.member(other.node_id)
    assert sealed is not None
    assert sealed.sealed_ray_token is not None
    assert other.unseal(sealed.sealed_ray_token).decode() == token
    assert len(token) == 64
    assert token not in str(head_bench.fake.starts) + str(head_bench.fake.environment)
    await head.reconcile()
    assert len(head_bench.published) == 1


async def test_head_numbers_changes_across_restarts(head_bench: Bench) -> None:
    """A successor gives out the same spec again, with the same incarnation; a new member makes the next epoch."""
    await head_bench.head().reconcile()
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.published[0] == head_bench.published[1]
    assert len(head_bench.fake.starts) == 1
    head_bench.ranks.append((head_bench.entry(head_bench.lease_of(NodeKey.generate(), Role.EDGE, 1)), 1))
    await successor.reconcile()
    assert [spec.epoch for spec in head_bench.published] == [1, 1, 2]
    assert len({spec.incarnation for spec in head_bench.published}) == 1


async def test_a_dead_gcs_makes_a_new_incarnation(head_bench: Bench) -> None:
    """Edges know by it that they have to join anew."""
    head = head_bench.head()
    await head.reconcile()
    record = head.ray.node.record
    assert record is not None
    assert record.gcs is not None
    os.kill(record.gcs.pid, signal.SIGKILL)
    await head.ray.node.wait_for_end()
    await head.reconcile()
    first, second = head_bench.published
    assert first.incarnation != second.incarnation
    assert second.epoch == 2


async def test_head_publishes_nothing_before_the_directory(head_bench: Bench) -> None:
    """After a restart without the registry, an empty member list must not throw the edges out."""
    head_bench.ranks.clear()
    await head_bench.head().reconcile()
    assert head_bench.published == []


async def test_head_restarts_ray_for_a_changed_configuration(head_bench: Bench) -> None:
    """What the operator changed takes effect with the next daemon, and the condition says why."""
    await head_bench.head().reconcile()
    ray = head_bench.config.ray.model_copy(update={"num_cpus": 1})
    head_bench.config = head_bench.config.model_copy(update={"ray": ray})
    await head_bench.head().reconcile()
    assert "--num-cpus=1" in head_bench.fake.starts[1]
    assert "RayReplaced" in [condition.reason for condition in head_bench.history]


async def test_head_grants_what_a_driver_needs(head_bench: Bench) -> None:
    """Address, rank 0, device, token file; refused while Ray is not there."""
    head = head_bench.head()
    with pytest.raises(RayClusterError):
        head.driver_variables()
    await head.reconcile()
    granted = head.driver_variables()
    assert granted["RAY_ADDRESS"] == f"127.0.0.1:{head_bench.config.ray.port}"
    assert granted["RLINF_COMM_NET_DEVICES"] == "et0"
    assert granted["RAY_AUTH_TOKEN_PATH"] == str(head_bench.token_file)


async def test_head_watches_who_is_a_member(head_bench: Bench) -> None:
    """What the helper reports reaches the role; when nobody can say, nobody is there."""
    node = {"node_id": "f00d", "ip": "127.0.0.1", "rank": 0, "alive": True, "hostname": "cloud"}
    line = json.dumps([node | {"accelerator": "NO_ACCEL", "accelerator_count": 0}])
    (head_bench.fake.directory / "members").write_text("noise\n" + line + "\n")
    head = head_bench.head()
    await head.reconcile()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(head.run())
        await eventually(lambda: head_bench.members)
        watch.cancel()
    assert head_bench.members[0] == (RayMember("f00d", "127.0.0.1", 0, True, "cloud"),)
