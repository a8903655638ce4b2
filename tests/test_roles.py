"""What the roles decide: ranks, readiness, peers, stopping."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from registry_world import World

from edgelink.conditions import ConditionSet, Status
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, ProcessStopError
from edgelink.ray_cluster.membership import RayMember
from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import Directory, DirectoryEntry, NodeStatus, Role
from edgelink.roles.bootstrap import overlay_peers
from edgelink.roles.lifecycle import StopRequest, end_all, run_until_stopped
from edgelink.roles.node import Node, require_role
from edgelink.roles.peers import PeersReconciler
from edgelink.roles.ranks import rank_map
from edgelink.roles.runs import node_count, readiness
from edgelink.testing import FakeClock


def entry(name: str, ip: str, rank: int | None, role: Role = Role.EDGE) -> DirectoryEntry:
    node_id = "".join(c for c in name if c.isalpha()).ljust(25, "a") + str((rank or 0) + 2)
    return DirectoryEntry(
        node_id=node_id, hostname=name, role=role, overlay_ip=IPv4Address(ip), preferred_rank=rank, verify_key="AA=="
    )


def directory(*entries: DirectoryEntry) -> Directory:
    return Directory(network_id="n", epoch=1, entries=entries)


def test_ranks_are_dense_in_the_order_of_the_preferred_ones() -> None:
    """RLinf wants no gaps; the relay takes no part."""
    found = rank_map(
        directory(
            entry("edge-b", "10.10.0.5", 4),
            entry("relay", "10.10.0.1", None, Role.RELAY),
            entry("cloud", "10.10.0.2", 0, Role.HEAD),
            entry("edge-a", "10.10.0.4", 2),
        )
    )
    assert [(e.hostname, rank) for e, rank in found] == [("cloud", 0), ("edge-a", 1), ("edge-b", 2)]


def status(**conditions: Status) -> NodeStatus:
    return NodeStatus(
        node_id="a" * 26,
        online=True,
        conditions=tuple(
            {"type": kind, "status": value.value, "reason": "Because", "message": "of this"}
            for kind, value in conditions.items()
        ),
    )


EDGE = entry("edge-1", "10.10.0.3", 1)
ALL_TRUE = dict.fromkeys(("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined"), Status.TRUE)


@pytest.mark.parametrize(
    ("found", "node_status", "alive", "step", "said"),
    [
        (None, None, False, "Enrolled", "token create"),
        (EDGE, None, False, "Started", "never seen"),
        (EDGE, NodeStatus(node_id="a" * 26, online=False), False, "Started", "offline"),
        (EDGE, status(**{**ALL_TRUE, "OverlayUp": Status.FALSE}), False, "OverlayUp", "of this"),
        (EDGE, status(**ALL_TRUE), False, "RayJoined", "waiting for Ray"),
        (EDGE, None, True, "RayJoined", "alive in Ray"),
    ],
)
def test_a_missing_node_is_named_with_the_step_it_stands_at(
    found: DirectoryEntry | None, node_status: NodeStatus | None, alive: bool, step: str, said: str
) -> None:
    """Whoever waits is told which machine to look at, and for what."""
    member = RayMember(node_id="r", ip="10.10.0.3", rank=1, alive=True, hostname="edge-1") if alive else None
    result = readiness(1, found, node_status, member)
    assert (result.step, result.ready) == (step, alive)
    assert said in result.message


@pytest.mark.parametrize("wrong", [{}, {"num_nodes": 0}, {"num_nodes": "3"}, {"num_nodes": True}, []])
def test_num_nodes_has_to_be_a_count(wrong: object) -> None:
    """Refused before anyone waits."""
    with pytest.raises(ConfigError, match="num_nodes"):
        node_count(wrong)


def test_nodes_dial_every_listener_at_every_advertised_address() -> None:
    """Schemes and ports are the listeners', hosts are the advertised ones."""
    listeners = ("tcp://0.0.0.0:11010", "udp://0.0.0.0:11011")
    assert overlay_peers(listeners, ("203.0.113.10", "relay.example")) == (
        "tcp://203.0.113.10:11010",
        "tcp://relay.example:11010",
        "udp://203.0.113.10:11011",
        "udp://relay.example:11011",
    )


class Network:
    """Answers for the addresses in ``alive``."""

    def __init__(self) -> None:
        self.alive: set[str] = set()

    async def ping(self, _source: IPv4Address, target: IPv4Address, _timeout_s: float) -> float | None:
        return 1.5 if str(target) in self.alive else None


def peers(network: Network, conditions: ConditionSet, targets: dict[str, IPv4Address] | None) -> PeersReconciler:
    return PeersReconciler(
        own_ip=lambda: IPv4Address("10.10.0.3"),
        targets=lambda: targets,
        conditions=conditions,
        clock=FakeClock(),
        ping=network.ping,
        on_change=lambda: None,
    )


async def test_only_answers_count_as_reachable() -> None:
    """A device that is up proves nothing; silence is named, and who is silent."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"])
    network = Network()
    targets = {"relay": IPv4Address("10.10.0.1"), "cloud": IPv4Address("10.10.0.2")}
    reconciler = peers(network, conditions, targets)
    await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "OverlayDown"
    conditions.set_true("OverlayUp", "Up", "up")
    await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "Connecting"
    for _ in range(60):
        await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "NobodyAnswers"
    network.alive = {"10.10.0.1"}
    await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "PeerSilent"
    assert "cloud (10.10.0.2)" in conditions.get("PeersReachable").message
    network.alive = {"10.10.0.1", "10.10.0.2"}
    await reconciler.reconcile()
    assert conditions.is_true("PeersReachable")
    assert reconciler.rtt_ms == {"relay": 1.5, "cloud": 1.5}
    network.alive = set()
    await reconciler.reconcile()
    assert conditions.is_true("PeersReachable"), "one lost ping is no outage"
    for _ in range(2):
        await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "NobodyAnswers"


async def test_a_directory_that_was_not_seen_yet_is_not_an_answer() -> None:
    """Not knowing whom to ask is Unknown, having nobody to ask is fine."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    await peers(Network(), conditions, None).reconcile()
    assert conditions.get("PeersReachable").status is Status.UNKNOWN
    await peers(Network(), conditions, {}).reconcile()
    assert conditions.is_true("PeersReachable")


async def test_children_are_ended_after_the_tasks_that_would_bring_them_back() -> None:
    """Order of a stop: reconcilers first, then what they keep alive."""
    events: list[str] = []
    stop = StopRequest()

    async def reconciler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("reconciler ended")

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(reconciler())
        await asyncio.sleep(0)
        stop.request()

    async def stop_children() -> None:
        events.append("children ended")

    await run_until_stopped(stop, live, stop_children)
    assert events == ["reconciler ended", "children ended"]


async def test_a_failed_start_ends_what_it_started_and_says_why() -> None:
    """Nothing half-started is left behind, and the error is the one that happened."""
    ended: list[str] = []

    async def live(_tasks: asyncio.TaskGroup) -> None:
        raise ConfigError("no good")

    async def stop_children() -> None:
        ended.append("children")

    with pytest.raises(ConfigError, match="no good"):
        await run_until_stopped(StopRequest(), live, stop_children)
    assert ended == ["children"]


async def test_a_restart_under_systemd_leaves_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade of the daemon is no reason to end a run (ADR 0003)."""
    ended: list[str] = []
    stop = StopRequest()
    stop.request(keep_children=True)

    async def live(_tasks: asyncio.TaskGroup) -> None:
        await asyncio.sleep(0)

    async def stop_children() -> None:
        ended.append("children")

    await run_until_stopped(stop, live, stop_children)
    assert ended == []


async def test_a_crash_of_the_daemon_leaves_the_children_to_the_next_one() -> None:
    """A defect of ours does not end an overlay and a Ray that work (promise 2)."""
    ended: list[str] = []

    async def defective() -> None:
        raise KeyError("a defect")

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(defective())

    async def stop_children() -> None:
        ended.append("children")

    with pytest.raises(KeyError, match="a defect"):
        await run_until_stopped(StopRequest(), live, stop_children)
    assert ended == []


async def test_of_several_failures_one_is_told() -> None:
    """Whoever reads the end of a daemon gets one plain message, never a group of exceptions."""

    async def refused(why: str) -> None:
        raise ConfigError(why)

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(refused("first"))
        tasks.create_task(refused("second"))

    async def stop_children() -> None:
        raise ProcessStopError("does not end")

    with pytest.raises(ConfigError, match="first"):
        await run_until_stopped(StopRequest(), live, stop_children)


async def test_what_does_not_end_keeps_nothing_else_alive() -> None:
    """A Ray that cannot be ended is told, and EasyTier is ended all the same."""
    ended: list[str] = []

    async def stuck() -> None:
        raise ProcessStopError("Ray: still running")

    async def willing() -> None:
        ended.append("easytier")

    with pytest.raises(ProcessStopError, match="still running"):
        await end_all(stuck, willing)
    assert ended == ["easytier"]


class Member(Node):
    """A head with nothing around it, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            role=Role.HEAD,
            config=Config(),
            paths=Paths(state=directory / "state", runtime=directory / "run"),
            clock=FakeClock(),
            enrolment=None,
            informative=("NodesReady", "DriverRunning"),
        )


async def test_a_daemon_says_how_it_is_before_it_is_a_member(tmp_path: Path) -> None:
    """`status` works from the first moment: who this is, and what it waits for."""
    told = Member(tmp_path).status()
    assert (told["role"], told["hostname"], told["phase"], told["ready"]) == ("head", None, "Starting", False)
    assert [condition["type"] for condition in told["conditions"]][:2] == ["Leased", "RegistryConnected"]


async def test_whoever_runs_the_wrong_daemon_is_told_the_right_one(tmp_path: Path) -> None:
    """The hint names a command that exists: on a relay's machine, `edgelink bootstrap`."""
    world = World(tmp_path)
    key = NodeKey.generate()
    membership = world.authority.relay_membership(key, "relay")
    with pytest.raises(ConfigError, match=r"enrolled as relay, not as edge.*`edgelink bootstrap`"):
        require_role(membership, Role.EDGE)
