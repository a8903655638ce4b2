"""Edge and head in their reconcile loops, with a pretended Ray."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from fake_ray import FakeRay, ray_config

from edgelink.clock import SystemClock
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, HeadUnreachableError, RayClusterError, UntrustedError, VersionMismatchError
from edgelink.overlay.nft import Table
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler, RayInputs
from edgelink.registry.keys import NodeKey, seal
from edgelink.registry.payloads import ClusterMember, ClusterSpec, DirectoryEntry, Lease, Role
from edgelink.testing.clock import FakeClock, eventually

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
        self.clock: SystemClock | FakeClock = SystemClock()
        self.run_holder: str | None = None
        self.epoch_taken = 0
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
            clock=self.clock,
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
            run_holder=lambda: self.run_holder,
            epoch_taken=lambda _last: self.epoch_taken,
        )

    def make_spec(self, port: int, **changes: Any) -> ClusterSpec:
        member = ClusterMember(
            node_id=self.key.node_id,
            hostname="node-1",
            overlay_ip=LOOPBACK,
            node_rank=changes.pop("node_rank", 1),
            ray_restarts=changes.pop("ray_restarts", 0),
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


async def test_whom_ray_runs_as_is_known_without_a_daemon(tmp_path: Path) -> None:
    """`edgelink report` reads no log that is not that user's."""
    bench = Bench(tmp_path, Role.EDGE)
    assert noted_user_uid(bench.paths) is None
    tools = await bench.edge().ray.prepare()
    assert noted_user_uid(bench.paths) == tools.user.uid


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
    assert [question.split()[1] for question in edge_bench.fake.questions] == ["bury", "wait-alive"]
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


async def test_edge_ends_the_ray_of_a_lost_state_directory(edge_bench: Bench, head_port: int) -> None:
    """Before anything else, also while there is no head to join: what nobody remembers would hold ports and memory."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    await edge_bench.edge().reconcile()
    shutil.rmtree(edge_bench.paths.state)
    edge_bench.paths.state.mkdir()
    edge_bench.spec, edge_bench.key = None, NodeKey.generate()
    successor = edge_bench.edge()
    await successor.reconcile()
    assert successor.ray.node.owned_pids() == []
    assert edge_bench.reason == "HeadNotSeen"


async def test_edge_rests_while_the_head_wants_no_ray(edge_bench: Bench, head_port: int) -> None:
    """`stop --all` travels in the spec: Ray ends, nothing else does; the next life of the head is joined again."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.spec = edge_bench.make_spec(head_port, ray_wanted=False, epoch=2)
    await edge.reconcile()
    assert edge_bench.reason == "RayStopped"
    assert "restart-ray --all" in edge_bench.history[-1].message
    assert edge.ray.node.owned_pids() == []
    successor = edge_bench.edge()
    await successor.reconcile()
    assert len(edge_bench.fake.starts) == 1, "a new daemon leaves it stopped, too"
    edge_bench.spec = edge_bench.make_spec(head_port, incarnation="two", epoch=3)
    await successor.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_edge_restarts_ray_when_the_head_counts_it_up(edge_bench: Bench, head_port: int) -> None:
    """Once a count, also across daemons; a count that was there before anything ran asks for nothing."""
    edge_bench.spec = edge_bench.make_spec(head_port, ray_restarts=3)
    edge = edge_bench.edge()
    await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge_bench.spec = edge_bench.make_spec(head_port, ray_restarts=4, epoch=2)
    successor = edge_bench.edge()
    await successor.reconcile()
    await successor.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert "the head wants it restarted" in [c for c in edge_bench.history if c.reason == "RayReplaced"][-1].message


async def test_edge_restarts_ray_when_asked_here(edge_bench: Bench, head_port: int) -> None:
    """`edgelink restart-ray` on the edge itself: once."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge.restart("asked for here")
    await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert edge_bench.reason == "AliveInRay"


async def test_a_restart_asked_for_during_a_join_is_that_join(
    edge_bench: Bench, head_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts after it was asked for is new; so is what follows a rest."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    bury = edge.ray.bury

    async def asked_meanwhile(*arguments: Any, **options: Any) -> str:
        edge.restart("asked for here")
        return await bury(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(edge.ray, "bury", asked_meanwhile)
        await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge.restart("asked for here")
    edge_bench.spec = edge_bench.make_spec(head_port, ray_wanted=False, epoch=2)
    await edge.reconcile()
    assert edge._take_restart() == ""


async def test_a_join_that_nobody_woke_leaves_the_pause_after_it(
    edge_bench: Bench, head_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at the head now and then is no wake-up, which would skip the back-off."""
    monkeypatch.setattr("edgelink.ray_cluster.edge_reconciler._ASK_HEAD_S", 0.01)
    edge_bench.spec = edge_bench.make_spec(head_port)
    (edge_bench.fake.directory / "fails").touch()
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError, match="no such luck"):
        await edge.reconcile()
    assert not edge.wakeup.is_set


async def test_an_adopted_ray_is_asked_about_once_the_overlay_is_up(edge_bench: Bench, head_port: int) -> None:
    """Before that nobody could answer; the Ray itself is left alone."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    await edge_bench.edge().reconcile()
    asked = len(edge_bench.fake.questions)
    edge_bench.is_ready = False
    successor = edge_bench.edge()
    await successor.reconcile()
    assert (edge_bench.reason, len(edge_bench.fake.questions)) == ("WaitingForOverlay", asked)
    edge_bench.is_ready = True
    await successor.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


async def test_edge_does_not_wait_for_a_gcs_that_was_replaced(edge_bench: Bench, gcs: StandInGcs) -> None:
    """The same without a cluster spec that tells of it: the GCS at the head's address is another one now."""
    hangs = edge_bench.fake.directory / "hangs"
    hangs.touch()
    edge = edge_bench.edge()
    edge_bench.spec = edge_bench.make_spec(gcs.port)

    async def replace_gcs() -> None:
        await eventually(lambda: edge_bench.fake.starts)
        gcs.refuses = True
        edge.wakeup.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replace_gcs())
        with pytest.raises(RayClusterError) as caught:
            await edge.reconcile()
    assert caught.value.condition_reason == "HeadReplaced"
    assert edge.ray.node.owned_pids() == []


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


async def test_edge_takes_the_heads_ride_through(edge_bench: Bench, head_port: int) -> None:
    """Ray's patience is the spec's; another value starts Ray anew, and commands run with the same."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    before = int(edge_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"])
    edge_bench.spec = edge_bench.make_spec(head_port, ride_through_s=3000, epoch=2)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    after = edge_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"]
    assert before < 3000 < int(after)
    assert edge.command_environment()["RAY_gcs_rpc_server_reconnect_timeout_s"] == after


async def test_edge_refuses_a_ride_through_of_its_own(edge_bench: Bench, head_port: int) -> None:
    """One network, one value: both are named, nothing is started. The same value is no disagreement."""
    edge_bench.config = edge_bench.config.model_copy(update={"ride_through": 60})
    edge_bench.spec = edge_bench.make_spec(head_port, ride_through_s=300)
    with pytest.raises(ConfigError, match=r"1 min .* disagrees with the head's 5 min") as caught:
        await edge_bench.edge().reconcile()
    assert caught.value.condition_reason == "RideThroughDisagrees"
    assert edge_bench.fake.starts == []
    edge_bench.spec = edge_bench.make_spec(head_port, ride_through_s=60)
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "AliveInRay"


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


async def kill_raylet(edge: RayEdgeReconciler) -> None:
    assert edge.ray.node.record is not None
    os.kill(edge.ray.node.record.raylet.pid, signal.SIGKILL)
    await edge.ray.node.wait_for_end()


async def test_ray_is_told_of_a_raylets_end_at_once_and_before_the_next_start(
    edge_bench: Bench, head_port: int
) -> None:
    """Whatever Ray still lists under our address or name is taken out of it, so that two never live side by side."""
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    asked = len(edge_bench.fake.questions)
    edge_bench.is_ready = False
    await kill_raylet(edge)
    await edge.reconcile()
    assert edge_bench.reason == "WaitingForOverlay"
    (burial,) = edge_bench.fake.questions[asked:]
    assert burial.endswith(f"bury --address 127.0.0.1:{head_port} --ip 127.0.0.1 --node {edge_bench.key.node_id}")
    assert edge.dead_ray_node_id == "f00d"
    edge_bench.is_ready = True
    await edge.reconcile()
    assert [question.split()[1] for question in edge_bench.fake.questions[asked:]] == ["bury", "bury", "wait-alive"]
    assert edge_bench.reason == "AliveInRay"


async def test_nothing_is_started_beside_a_former_ray_that_ray_calls_alive(edge_bench: Bench, head_port: int) -> None:
    """A Ray that lets nobody be buried is waited for."""
    undead = edge_bench.fake.directory / "undead"
    undead.touch()
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError, match=r"dead.*no such call") as caught:
        await edge.reconcile()
    assert caught.value.condition_reason == "FormerRayAlive"
    assert edge_bench.fake.starts == []
    undead.unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_a_raylet_that_ends_again_and_again_is_a_crash_loop(edge_bench: Bench, head_port: int) -> None:
    """The third short life shows as a loop, with the raylet's last words, and is waited for; another head forgives."""
    clock = edge_bench.clock = FakeClock()
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    shown = []
    for _ in range(3):
        await clock.advance(10)
        await edge.reconcile()
        assert edge_bench.reason == "AliveInRay"
        record = edge.ray.node.record
        assert record is not None
        words = edge_bench.paths.logs / "raylet.err"
        words.write_text(
            "[2026-11-21 11:52:05,604 I 1 1] (raylet) hello\n[2026-11-21 11:52:05,604 C 1 1] out of luck\n"
        )
        edge.ray.node.record = replace(record, outputs=(str(words),))
        edge_bench.history.clear()
        await kill_raylet(edge)
        await edge.reconcile()
        shown.append(edge_bench.history[0])
    assert [condition.reason for condition in shown] == ["RayExited", "RayExited", "CrashLoop"]
    assert all("out of luck" in condition.message for condition in shown)
    assert not any("hello" in condition.message for condition in shown)
    starts = len(edge_bench.fake.starts)
    assert await edge.reconcile() > 0
    assert (edge_bench.reason, len(edge_bench.fake.starts)) == ("CrashLoop", starts)
    edge_bench.spec = edge_bench.make_spec(head_port, incarnation="another", epoch=2)
    (edge_bench.fake.directory / "cluster").write_text("another")
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_failing_starts_are_a_crash_loop_too(edge_bench: Bench, head_port: int) -> None:
    """Pauses grow between them, and what `ray start` said stays visible meanwhile."""
    clock = edge_bench.clock = FakeClock()
    (edge_bench.fake.directory / "fails").touch()
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    for number, reason in ((1, "RayStartFailed"), (2, "RayStartFailed"), (3, "CrashLoop")):
        for _ in range(2):  # a second look, before the pause is over, starts nothing
            with pytest.raises(RayClusterError, match="no such luck") as caught:
                await edge.reconcile()
            assert (caught.value.condition_reason, len(edge_bench.fake.starts)) == (reason, number)
        await clock.advance(10)


async def test_edge_leaves_a_ray_that_its_head_disowns(edge_bench: Bench, gcs: StandInGcs) -> None:
    """Another GCS at the head's address, and no cluster spec to tell of it: the old raylet is ended, a new one joins.

    The spec that tells of that GCS at last finds it joined already.
    """
    clock = edge_bench.clock = FakeClock()
    edge_bench.spec = edge_bench.make_spec(gcs.port)
    edge = edge_bench.edge()
    await edge.reconcile()
    gcs.refuses = True
    await clock.advance(10)
    (edge_bench.fake.directory / "disowned").touch()
    (edge_bench.fake.directory / "cluster").write_text("two")
    with pytest.raises(RayClusterError):  # the stand-in goes on saying that it lists nobody
        await asyncio.wait_for(edge.reconcile(), 60)
    (edge_bench.fake.directory / "disowned").unlink()
    gcs.refuses = False
    await clock.advance(10)
    await edge.reconcile()
    starts = len(edge_bench.fake.starts)
    assert starts == 3
    edge_bench.spec = edge_bench.make_spec(gcs.port, incarnation="two", epoch=2)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == starts


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


async def test_head_numbers_above_what_the_network_has_seen(head_bench: Bench) -> None:
    """A head whose disk is an older copy, or was lost: no edge follows a number that it has passed."""
    head_bench.epoch_taken = 9
    head = head_bench.head()
    await head.reconcile()
    head_bench.epoch_taken = 14  # heard when a session with the relay has come about
    await head.reconcile()
    head_bench.epoch_taken = 0
    await head.reconcile()
    assert [spec.epoch for spec in head_bench.published] == [10, 15]


def listed(*rows: tuple[str, int]) -> tuple[RayMember, ...]:
    return tuple(RayMember(f"{ip}-{rank}", ip, rank, alive=True, hostname="host") for ip, rank in rows)


async def test_head_ends_its_ray_after_the_edges(head_bench: Bench) -> None:
    """First it says so, then it waits for the others, then it ends its own; a successor leaves it so."""
    other = NodeKey.generate()
    head_bench.ranks.append((head_bench.entry(head_bench.lease_of(other, Role.EDGE, 1)), 1))
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    head._watch.members = listed(("127.0.0.1", 0), ("10.10.0.3", 1))
    await head.reconcile()
    assert head_bench.published[-1].ray_wanted is False
    assert head_bench.reason == "RayStopping"
    assert "10.10.0.3" in head_bench.history[-1].message
    assert head.ray.node.is_running
    head._watch.members = listed(("127.0.0.1", 0))
    await head.reconcile()
    assert head_bench.reason == "RayStopped"
    assert head.ray.node.owned_pids() == []
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.reason == "RayStopped"
    assert head_bench.published[-1] == head_bench.published[-2], "said again, for a relay that has forgotten it"
    successor.wishes.want_ray(True)
    await successor.reconcile()
    assert head_bench.reason == "AliveInRay"
    assert head_bench.published[-1].ray_wanted
    sealed = head_bench.published[-1].member(other.node_id)
    assert sealed is not None
    assert sealed.sealed_ray_token is not None


async def test_head_does_not_wait_for_ever_for_an_edge(head_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose daemon is gone keeps its Ray until it is back."""
    monkeypatch.setattr("edgelink.ray_cluster.head_reconciler.EDGES_STOP_S", 0.0)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    head._watch.members = listed(("127.0.0.1", 0), ("10.10.0.3", 1))
    await head.reconcile()
    assert head_bench.reason == "RayStopped"


async def test_head_does_not_wait_for_ever_for_an_adopted_gcs_that_does_not_answer(
    head_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline holds also where nobody can be asked who is left."""
    monkeypatch.setattr("edgelink.ray_cluster.head_reconciler.EDGES_STOP_S", 0.0)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    (head_bench.fake.directory / "unlisted").touch()
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.reason == "RayStopped"
    assert successor.ray.node.owned_pids() == []


async def test_head_restarts_its_ray_when_asked(head_bench: Bench) -> None:
    """A new incarnation, which every edge follows; once, also across daemons."""
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_restart(head_bench.key.node_id)
    await head.reconcile()
    await head_bench.head().reconcile()
    assert len(head_bench.fake.starts) == 2
    assert len({spec.incarnation for spec in head_bench.published}) == 2
    (member,) = head_bench.published[-1].members
    assert member.ray_restarts == 1


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


async def test_a_change_of_ride_through_waits_for_the_run(head_bench: Bench) -> None:
    """Ray stays, and the spec that sent the edges after it, until the run has ended."""
    await head_bench.head().reconcile()
    head_bench.config = head_bench.config.model_copy(update={"ride_through": 60})
    head_bench.run_holder = "pid 1"
    head = head_bench.head()
    await head.reconcile()
    await head.reconcile()
    assert len(head_bench.fake.starts) == 1
    assert {(spec.epoch, spec.ride_through_s) for spec in head_bench.published} == {(1, 300)}
    before = head_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"]
    assert head.ride_through_s == 300
    assert head.driver_variables()["RAY_gcs_rpc_server_reconnect_timeout_s"] == before
    head_bench.run_holder = None
    await head.reconcile()
    assert len(head_bench.fake.starts) == 2
    assert head_bench.published[-1].ride_through_s == head.ride_through_s == 60


async def test_a_forced_restart_reaches_an_edge_while_a_change_waits_for_the_run(head_bench: Bench) -> None:
    """Only the counter goes out: what else has changed here still waits."""
    other = NodeKey.generate()
    head_bench.ranks.append((head_bench.entry(head_bench.lease_of(other, Role.EDGE, 1)), 1))
    await head_bench.head().reconcile()
    head_bench.config = head_bench.config.model_copy(
        update={"ray": head_bench.config.ray.model_copy(update={"num_cpus": 1})}
    )
    head_bench.run_holder = "pid 1"
    head = head_bench.head()
    await head.reconcile()
    assert {spec.epoch for spec in head_bench.published} == {1}
    head.wishes.want_restart(other.node_id)
    await head.reconcile()
    await head.reconcile()
    assert len(head_bench.fake.starts) == 1
    assert [spec.epoch for spec in head_bench.published].count(2) == 1
    member = head_bench.published[-1].member(other.node_id)
    assert member is not None
    assert member.ray_restarts == 1
    assert member.sealed_ray_token is not None


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
