"""What the roles decide: ranks, readiness, peers, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path

import pytest
from registry_world import World

from edgelink.conditions import ConditionSet, Status
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, OverlayError, ProcessStopError
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.overlay.status import Peer
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.versions import Versions
from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import ConditionReport, Directory, DirectoryEntry, NodeStatus, Role
from edgelink.roles.enrolment import require_role
from edgelink.roles.identities import IdentitiesReconciler
from edgelink.roles.lifecycle import StopRequest, end_all, run_until_stopped
from edgelink.roles.node import Node
from edgelink.roles.peers import PeersReconciler, Targets, WhySilent
from edgelink.roles.ranks import rank_map
from edgelink.roles.readiness import readiness
from edgelink.roles.relay_addresses import overlay_peers, stun_servers
from edgelink.roles.runs import node_count
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
            ConditionReport(type=kind, status=value, reason="Because", message="of this")
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


@pytest.mark.parametrize(
    ("reason", "versions", "brief"),
    [
        ("VersionMismatch", ("2.60.0", "3.10.12"), "overlay up, Ray refused (Python 3.10.12, head has 3.11.7)"),
        ("Joining", ("2.60.0", "3.11.2"), "overlay up, Ray joining"),
        ("PortBusy", ("2.60.0", "3.11.2"), "overlay up, no Ray (PortBusy)"),
        ("DependencyMissing", (None, "3.13.0"), "overlay up, no Ray (DependencyMissing)"),
    ],
)
def test_why_ray_is_not_joined_is_said_in_some_words(reason: str, versions: tuple[str | None, str], brief: str) -> None:
    """Of two versions both sides are named; the Python of a node without Ray is its daemon's, and no reason."""
    told = NodeStatus(
        node_id="a" * 26,
        online=True,
        ray_version=versions[0],
        python_version=versions[1],
        conditions=(
            *(ConditionReport(type=kind, status=Status.TRUE, reason="R", message="m") for kind in list(ALL_TRUE)[:-1]),
            ConditionReport(type="RayJoined", status=Status.FALSE, reason=reason, message="at length"),
        ),
    )
    assert readiness(1, EDGE, told, None, Versions("2.60.0", "3.11.7")).brief == brief


def test_an_overlay_on_its_way_is_not_blamed_on_its_peers() -> None:
    """Its device is there, and nobody was asked yet."""
    told = status(**{**ALL_TRUE, "PeersReachable": Status.UNKNOWN})
    waiting = [
        condition.model_copy(update={"reason": "Connecting"}) if condition.type == "PeersReachable" else condition
        for condition in told.conditions
    ]
    assert readiness(1, EDGE, told.model_copy(update={"conditions": waiting}), None).brief == "overlay coming up"
    assert readiness(1, EDGE, told, None).brief == "overlay up, head or relay silent (Because)"


def test_what_will_be_refused_is_said_before_the_overlay_is_up() -> None:
    """It can be mended meanwhile; what differs without keeping the node out is told also when it has joined."""
    head = Versions("2.60.0", "3.11.7", {"torch": "2.5.1"})
    told = status(**{**ALL_TRUE, "OverlayUp": Status.FALSE}).model_copy(
        update={"ray_version": "2.59.0", "python_version": "3.11.7", "packages": {"torch": "2.4.0"}}
    )
    found = readiness(1, EDGE, told, None, head)
    assert found.brief == "overlay down (Because); Ray will be refused (Ray 2.59.0, head has 2.60.0)"
    joined = readiness(1, EDGE, told, RayMember("r", "10.10.0.3", 1, True, "edge-1"), head)
    assert (joined.brief, joined.warnings) == ("ready", ("torch 2.4.0, head has 2.5.1",))


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


def test_nodes_ask_every_stun_port_at_every_advertised_address() -> None:
    """The two ports of one address come first: two servers tell the kind of NAT. IPv6 is not served."""
    assert stun_servers((3478, 3479), ("203.0.113.10", "[2001:db8::1]", "relay.example")) == (
        "203.0.113.10:3478",
        "203.0.113.10:3479",
        "relay.example:3478",
        "relay.example:3479",
    )


class Network:
    """Answers for the addresses in ``alive``."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.timeouts_s: list[float] = []

    async def ping(self, _source: IPv4Address, target: IPv4Address, timeout_s: float) -> float | None:
        self.timeouts_s.append(timeout_s)
        return 1.5 if str(target) in self.alive else None


def peers(
    network: Network,
    conditions: ConditionSet,
    targets: Targets | None,
    why_silent: WhySilent | None = None,
    clock: FakeClock | None = None,
) -> PeersReconciler:
    return PeersReconciler(
        own_ip=lambda: IPv4Address("10.10.0.3"),
        targets=lambda: targets,
        conditions=conditions,
        clock=clock or FakeClock(),
        ping=network.ping,
        on_change=lambda: None,
        why_silent=why_silent,
    )


async def test_only_answers_count_as_reachable() -> None:
    """A device that is up proves nothing; silence is named, and who is silent."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    network = Network()
    targets = Targets({"cloud": IPv4Address("10.10.0.2")}, {"relay": IPv4Address("10.10.0.1")})
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


async def test_silence_is_noticed_within_seconds_and_a_slow_path_is_given_time() -> None:
    """A look every two seconds; how long an answer is waited for follows the path's own time."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    network = Network()
    network.alive = {"10.10.0.1"}
    reconciler = peers(network, conditions, Targets(relays={"relay": IPv4Address("10.10.0.1")}))
    worst_s = await reconciler.reconcile()
    network.timeouts_s.clear()
    network.alive = set()
    while conditions.is_true("PeersReachable"):
        worst_s += await reconciler.reconcile()
    assert worst_s + sum(network.timeouts_s) < 7
    reconciler.rtt_ms = {"relay": 200.0}
    conditions.set_true("PeersReachable", "Reachable", "slow")
    network.timeouts_s.clear()
    await reconciler.reconcile()
    assert network.timeouts_s == [0.8]


async def test_silence_is_told_with_its_likeliest_cause() -> None:
    """What EasyTier lists and says is put into the condition, until somebody answers."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    network, asked = Network(), list[list[IPv4Address]]()

    async def why_silent(wanted: Iterable[IPv4Address]) -> Diagnosis:
        asked.append(list(wanted))
        return Diagnosis("NetworkRefused", "another secret")

    reconciler = peers(network, conditions, Targets(relays={"relay": IPv4Address("10.10.0.1")}), why_silent)
    for _ in range(20):
        await reconciler.reconcile()
        assert conditions.get("PeersReachable").reason == "Connecting"
    await reconciler.reconcile()
    found = conditions.get("PeersReachable")
    assert (found.status, found.reason) == (Status.FALSE, "NetworkRefused")
    assert "10.10.0.1" in found.message
    assert "another secret" in found.message
    assert asked[-1] == [IPv4Address("10.10.0.1")]
    network.alive = {"10.10.0.1"}
    await reconciler.reconcile()
    assert conditions.is_true("PeersReachable")
    assert reconciler.last_answered_s is not None


async def test_the_cause_of_a_silence_is_asked_for_at_times_only() -> None:
    """Each question is a process of easytier-cli: every 10 s of an outage, and at once in the next."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    network, clock, asked_s = Network(), FakeClock(), list[float]()

    async def why_silent(_wanted: Iterable[IPv4Address]) -> Diagnosis:
        asked_s.append(clock.monotonic_s())
        return Diagnosis("RelayUnreachable", f"said at {clock.monotonic_s():g}")

    reconciler = peers(network, conditions, Targets(relays={"relay": IPv4Address("10.10.0.1")}), why_silent, clock)

    async def outage(seconds: float) -> None:
        network.alive = {"10.10.0.1"}
        await reconciler.reconcile()
        network.alive = set()
        until_s = clock.monotonic_s() + seconds
        while clock.monotonic_s() < until_s:
            await clock.advance(await reconciler.reconcile())

    await outage(60)
    assert len(asked_s) == 6
    assert all(later - before > 9.9 for before, later in pairwise(asked_s))
    assert f"said at {asked_s[-1]:g}" in conditions.get("PeersReachable").message
    await outage(3)
    assert len(asked_s) == 7


class EasyTierList:
    """What ``identities`` asks for: EasyTier's list, and when it was asked."""

    def __init__(self, logs: Path, rows: list[Peer]) -> None:
        self.clock, self.rows, self.asked_s = FakeClock(), rows, list[float]()
        self.cloned: list[str] = []
        self.conditions = ConditionSet(self.clock, [], ["AddressesUnique"])
        self.reconciler = IdentitiesReconciler(
            rows=self._ask,
            holders=dict,
            close_dead=self._close_dead,
            logs=logs,
            conditions=self.conditions,
            clock=self.clock,
            cloned=lambda: self.cloned,
        )

    async def _ask(self) -> list[Peer]:
        self.asked_s.append(self.clock.monotonic_s())
        return self.rows

    async def _close_dead(self) -> list[str]:
        return []

    async def talk(self, seconds: float) -> int:
        """EasyTier writes to its log ten times a second; how often it was asked meanwhile."""
        before = len(self.asked_s)
        for _ in range(round(seconds * 10)):
            await self.reconciler.reconcile()
            await self.clock.advance(0.1)
        return len(self.asked_s) - before


OWN_ROW = Peer(IPv4Address("10.10.0.3"), "edge-1", "Local", None, "", "2.0.3", peer_id="1")
OTHER_ROW = Peer(IPv4Address("10.10.0.1"), "relay", "p2p", 1.0, "tcp", "2.0.3", peer_id="2")


async def test_an_easytier_that_gets_through_to_nobody_is_hardly_asked(tmp_path: Path) -> None:
    """It tells of each try in its log; nobody can be listed twice meanwhile. With others there, a second is enough."""
    nobody = replace(OTHER_ROW, ipv4=None)  # let in for a moment
    for rows in ([OWN_ROW], [OWN_ROW, nobody]):
        world = EasyTierList(tmp_path, rows)
        assert await world.talk(10) in (9, 10), "perhaps it has just been started"
        await world.talk(5)
        assert await world.talk(60) in (5, 6, 7)
    assert await EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW]).talk(10) in (9, 10)


async def test_twins_that_stay_are_looked_at_at_leisure(tmp_path: Path) -> None:
    """Fresh ones are worth every look, a copied disk is not."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW, replace(OTHER_ROW, peer_id="3")])
    assert await world.talk(5) == 50
    await world.talk(90)
    assert world.conditions.get("AddressesUnique").reason == "NodeListedTwice"
    assert await world.talk(10) in (9, 10, 11)


async def test_twins_that_are_both_alive_are_told_within_seconds(tmp_path: Path) -> None:
    """A copied disk: from both something comes all the time. From an earlier life, still listed, nothing does."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW])
    await world.talk(2)

    async def talk(seconds: float, *, is_alive: bool) -> str:
        for second in range(round(seconds)):
            fresh = replace(OTHER_ROW, received=f"{second} kB")
            stale = replace(OTHER_ROW, peer_id="3", lat_ms=1 + second / 10 if is_alive else 1)
            world.rows = [OWN_ROW, fresh, stale]
            await world.talk(1)
        return world.conditions.get("AddressesUnique").reason

    assert await talk(20, is_alive=False) == "StaleTwin"
    assert await talk(5, is_alive=True) == "NodeListedTwice"
    assert "both are alive: relay (10.10.0.1)" in world.conditions.get("AddressesUnique").message
    world.rows = [OWN_ROW, OTHER_ROW]
    await world.talk(6)
    assert world.conditions.get("AddressesUnique").reason == "Unique"


async def test_a_twin_behind_another_node_is_told_after_a_while(tmp_path: Path) -> None:
    """Nothing is known of whether it is alive: of the way to it only its neighbour knows."""
    world = EasyTierList(tmp_path, [OWN_ROW])
    far = replace(OTHER_ROW, cost="relay(2)")
    for second in range(20):
        world.rows = [OWN_ROW, replace(far, lat_ms=second), replace(far, peer_id="3", lat_ms=second)]
        await world.talk(1)
    assert world.conditions.get("AddressesUnique").reason == "StaleTwin"
    await world.talk(90)
    assert world.conditions.get("AddressesUnique").reason == "NodeListedTwice"


async def test_a_node_with_two_voices_is_told(tmp_path: Path) -> None:
    """By what it says to the registry, whatever EasyTier lists."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW])
    world.cloned = ["edge-2"]
    await world.talk(2)
    found = world.conditions.get("AddressesUnique")
    assert (found.status, found.reason) == (Status.FALSE, "NodeCloned")
    assert "edge-2" in found.message
    world.cloned = []
    await world.talk(6)
    assert world.conditions.is_true("AddressesUnique")


async def test_a_claimed_address_is_told_and_a_fresh_twin_is_not_alarming(tmp_path: Path) -> None:
    """AddressesUnique: by EasyTier's list and the directory; the earlier life of a node goes by itself."""
    clock = FakeClock()
    conditions = ConditionSet(clock, [], ["AddressesUnique"])
    own = Peer(IPv4Address("10.10.0.3"), "edge-1", "p2p", 1.0, "tcp", "2.0.3", peer_id="1")
    rows: list[Peer] | None = None

    async def ask() -> list[Peer]:
        if rows is None:
            raise OverlayError("no answer")
        return rows

    closings = 0

    async def close_dead() -> list[str]:
        nonlocal closings
        closings += 1
        return ["198.51.100.6:40381"]

    reconciler = IdentitiesReconciler(
        rows=ask,
        holders=lambda: {IPv4Address("10.10.0.3"): "edge-1"},
        close_dead=close_dead,
        logs=tmp_path,
        conditions=conditions,
        clock=clock,
    )

    async def reason() -> tuple[Status, str]:
        await clock.advance(1)
        await reconciler.reconcile()
        found = conditions.get("AddressesUnique")
        return found.status, found.reason

    assert await reason() == (Status.UNKNOWN, "NotAsked")
    rows = [own]
    assert await reason() == (Status.TRUE, "Unique")
    assert closings == 0, "nobody's connection is touched while nobody is listed twice"
    rows = [own, replace(own, peer_id="2")]
    assert await reason() == (Status.TRUE, "StaleTwin")
    assert closings == 1
    await clock.advance(91)
    assert await reason() == (Status.FALSE, "NodeListedTwice")
    rows = [own]
    assert await reason() == (Status.TRUE, "Unique")
    rows = [own, replace(own, hostname="spare-robot", peer_id="2")]
    assert await reason() == (Status.FALSE, "AddressClaimedTwice")
    assert "spare-robot" in conditions.get("AddressesUnique").message


async def test_a_directory_that_was_not_seen_yet_is_not_an_answer() -> None:
    """Not knowing whom to ask is Unknown, having nobody to ask is fine."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    await peers(Network(), conditions, None).reconcile()
    assert conditions.get("PeersReachable").status is Status.UNKNOWN
    await peers(Network(), conditions, Targets()).reconcile()
    assert conditions.is_true("PeersReachable")


async def test_one_relay_of_several_is_enough() -> None:
    """The silence of one is told but costs nothing; that of all does, and so does the head's."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    network = Network()
    relays = {"relay": IPv4Address("10.10.0.1"), "relay-2": IPv4Address("10.10.0.9")}
    reconciler = peers(network, conditions, Targets({"cloud": IPv4Address("10.10.0.2")}, relays))
    network.alive = {"10.10.0.1", "10.10.0.2", "10.10.0.9"}
    await reconciler.reconcile()
    assert conditions.is_true("RelaysReachable")
    network.alive.remove("10.10.0.1")
    await reconciler.reconcile()
    assert conditions.is_true("RelaysReachable"), "one lost ping is no outage"
    for _ in range(2):
        await reconciler.reconcile()
    assert conditions.is_true("PeersReachable")
    assert conditions.get("RelaysReachable").reason == "RelaySilent"
    assert "relay (10.10.0.1)" in conditions.get("RelaysReachable").message
    assert "relay-2" not in conditions.get("RelaysReachable").message
    network.alive = {"10.10.0.2"}
    for _ in range(40):
        await reconciler.reconcile()
    assert conditions.get("PeersReachable").reason == "PeerSilent"
    network.alive = {"10.10.0.9"}
    await reconciler.reconcile()
    assert "cloud (10.10.0.2)" in conditions.get("PeersReachable").message


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


async def test_what_revoked_nodes_held_is_dropped_from_then_on(tmp_path: Path) -> None:
    """Looked at at once, and until the registry says otherwise; the same again costs nothing; never its own address."""
    member, world = Member(tmp_path), World(tmp_path / "relay")
    member.membership = world.authority.relay_membership(NodeKey.generate(), "relay")
    own, other = member.membership.lease.overlay_ip, IPv4Address("10.10.0.9")
    guard = member.parts.overlay.guard
    guard.is_in_doubt = False
    member.drop_revoked([other, own])
    assert guard.is_in_doubt
    assert member.exposure.wakeup.is_set
    assert guard.table == rpc_guard(15888, "et0", [other])
    guard.is_in_doubt = False
    member.drop_revoked([own, other])
    assert not guard.is_in_doubt
    member.drop_revoked([])
    assert guard.table == rpc_guard(15888)


async def test_whoever_runs_the_wrong_daemon_is_told_the_right_one(tmp_path: Path) -> None:
    """The hint names a command that exists: on a relay's machine, `edgelink bootstrap`."""
    world = World(tmp_path)
    key = NodeKey.generate()
    membership = world.authority.relay_membership(key, "relay")
    with pytest.raises(ConfigError, match=r"enrolled as relay, not as edge.*`edgelink bootstrap`"):
        require_role(membership, Role.EDGE)
