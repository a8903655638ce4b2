"""Who of the others answers over the overlay, and why one is silent."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address
from itertools import pairwise

from edgelink.conditions import ConditionSet, Status
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.roles.peers import PeersReconciler, Targets, WhySilent
from edgelink.testing import FakeClock


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


async def test_while_nobody_is_asked_no_round_trip_is_told() -> None:
    """The overlay is down, or the directory is not known: the last figure is nobody's answer."""
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "PeersReachable"], ["RelaysReachable"])
    conditions.set_true("OverlayUp", "Up", "up")
    network = Network()
    network.alive = {"10.10.0.1"}
    relay = Targets(relays={"relay": IPv4Address("10.10.0.1")})
    reconciler = peers(network, conditions, relay)
    await reconciler.reconcile()
    assert reconciler.rtt_ms == {"relay": 1.5}
    conditions.set_false("OverlayUp", "CrashLoop", "down")
    await reconciler.reconcile()
    assert reconciler.rtt_ms == {}
    conditions.set_true("OverlayUp", "Up", "up")
    await reconciler.reconcile()
    assert reconciler.rtt_ms == {"relay": 1.5}
    reconciler._targets = lambda: None
    await reconciler.reconcile()
    assert reconciler.rtt_ms == {}


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
