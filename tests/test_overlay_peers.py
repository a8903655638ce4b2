"""Who of the others answers over the overlay, how often they are asked, and why one is silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from overlay_world import SPEC
from telling import Words

from edgelink.conditions import Condition, ConditionSet, Status
from edgelink.config import Config
from edgelink.facts.derive import board_of, derive_peers
from edgelink.facts.part import run_part
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.overlay.echo import Echo
from edgelink.overlay.echo_proof import Identity, Proof
from edgelink.overlay.peers import AskAll, Do, FindCause, Forget, Inputs, Peers
from edgelink.overlay.peers_known import Known, Look, Seen
from edgelink.overlay.targets import Targets
from edgelink.overlay.traffic import Traffic
from edgelink.testing import FakeClock, eventually
from edgelink.testing.facts import give, settle

RELAY, CLOUD, EDGE, OTHER = (IPv4Address(f"10.10.0.{n}") for n in (1, 2, 4, 5))


class Network:
    """Answers for the addresses in ``alive``; in virtual time, in which a question without an answer takes its time."""

    def __init__(self, targets: Targets | None, is_metered: bool = False) -> None:
        self.clock = FakeClock()
        self.alive: set[IPv4Address] = set()
        self.rtt_ms = 1.5
        self.least_patience_s: dict[IPv4Address, float] = {}  # who answers later than that
        self.proofs: dict[Identity | None, Proof] = {}
        self.asked: list[tuple[float, IPv4Address, float]] = []  # when, whom, with which patience
        self.traffic = Traffic()
        self.kernel_answers = asyncio.Event()  # of the connections that it knows
        self.kernel_answers.set()
        self.cause: Diagnosis | OSError | None = None
        self.closed: list[tuple[float, set[IPv4Address]]] = []
        self.causes_asked: list[tuple[float, list[IPv4Address]]] = []
        self.conditions = ConditionSet(self.clock, ["OverlayUp", "PeersReachable"], ["RelaysReachable"], self._told)
        self.board = board_of(Config())
        derive_peers(self.board, Config())
        give(self.board, overlay_spec=SPEC, targets=targets, is_metered=is_metered)
        self.has_device(True)
        self.peers = Peers(
            board=self.board,
            conditions=self.conditions,
            clock=self.clock,
            ask=self._ask,
            look=self._look,
            why_silent=self._why_silent,
            close=self._close,
        )

    def has_device(self, has_it: bool) -> None:
        says = self.conditions.set_true if has_it else self.conditions.set_false
        says("OverlayUp", "DeviceConfirmed" if has_it else "DeviceMissing", "et0")

    def _told(self, _condition: Condition) -> None:
        give(self.board, conditions=self.conditions.now)

    async def _ask(
        self, source: IPv4Address, target: IPv4Address, timeout_s: float, identity: Identity | None
    ) -> Echo | None:
        assert source == SPEC.overlay_ip.ip
        self.asked.append((self.clock.monotonic_s(), target, timeout_s))
        if self._answers(target, timeout_s):
            return Echo(self.rtt_ms, 101.0, -99.5, self.proofs.get(identity, Proof.UNPROVEN))
        return None

    def _answers(self, target: IPv4Address, timeout_s: float) -> bool:
        return target in self.alive and timeout_s >= self.least_patience_s.get(target, 0.0)

    async def _look(self) -> Traffic:
        await self.kernel_answers.wait()
        return self.traffic

    async def _close(self, addresses: Collection[IPv4Address]) -> list[str]:
        self.closed.append((self.clock.monotonic_s(), set(addresses)))
        return []

    async def _why_silent(self, wanted: Iterable[IPv4Address]) -> Diagnosis | None:
        self.causes_asked.append((self.clock.monotonic_s(), list(wanted)))
        if isinstance(self.cause, OSError):
            raise self.cause
        return self.cause

    async def settle(self) -> float:
        return await settle(self.peers, self.board, self.conditions, self.clock)

    async def step(self) -> None:
        """One step, and the time until the next, with the patience of those who were not answered."""
        begun = len(self.asked)
        again_s = await self.settle()
        asked = self.asked[begun:]
        waited_s = max((patience for _, ip, patience in asked if not self._answers(ip, patience)), default=0.0)
        await self.clock.advance(again_s + waited_s)

    async def run(self, seconds: float) -> None:
        until_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < until_s:
            await self.step()

    async def until(self, reason: str, at_most_s: float) -> float:
        """Run until PeersReachable says ``reason``; how many seconds that took."""
        begun_s = self.clock.monotonic_s()
        while self.reason != reason:
            assert self.clock.monotonic_s() - begun_s <= at_most_s, f"still {self.reason}"
            await self.step()
        return self.clock.monotonic_s() - begun_s

    @property
    def reason(self) -> str:
        return self.conditions.get("PeersReachable").reason

    @property
    def message(self) -> str:
        return self.conditions.get("PeersReachable").message

    def asked_since(self, since_s: float) -> Counter[IPv4Address]:
        return Counter(ip for at_s, ip, _ in self.asked if at_s >= since_s)


def node(is_metered: bool = False) -> Network:
    """An edge: it needs the head and a relay."""
    return Network(Targets({"cloud": CLOUD}, {"relay": RELAY}), is_metered)


async def test_only_answers_count_as_reachable() -> None:
    """A device that is up proves nothing; silence is named, and who is silent."""
    network = node()
    network.has_device(False)
    await network.step()
    assert network.reason == "OverlayDown"
    network.has_device(True)
    await network.step()
    assert network.reason == "Connecting"
    assert not network.board.facts.nobody_answers, "it may take a second"
    await network.until("NobodyAnswers", 10)
    assert network.board.facts.nobody_answers
    network.alive = {RELAY}
    await network.until("PeerSilent", 3)
    assert not network.board.facts.nobody_answers
    assert "cloud (10.10.0.2)" in network.message
    assert not network.board.facts.peers_connected
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    assert network.peers.rtt_ms == {"relay": 1.5, "cloud": 1.5}
    assert network.board.facts.peers_connected


@pytest.mark.parametrize("change", [{"standstills": 1}, {"echo_wishes": 1}, {"is_metered": True}])
async def test_what_makes_all_knowledge_doubtful_has_everybody_asked(change: dict[str, object]) -> None:
    """A sleep, another uplink, one that costs by the byte: nobody waits until it is due."""
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    since_s = network.clock.monotonic_s()
    give(network.board, **change)
    assert network.peers.wakeup.is_set
    await network.settle()
    assert set(network.asked_since(since_s)) == {RELAY, CLOUD}


async def test_one_lost_packet_is_no_outage() -> None:
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    network.alive = set()
    network.peers.ask_now()
    for _ in range(2):
        await network.step()
        assert network.reason == "Reachable"
    network.alive = {RELAY, CLOUD}
    await network.run(30)
    assert network.reason == "Reachable"


async def test_while_nobody_is_asked_no_round_trip_is_told() -> None:
    """The overlay is down, or the directory is not known: the last figure is nobody's answer."""
    network = Network(Targets(relays={"relay": RELAY}))
    network.alive = {RELAY}
    await network.step()
    assert network.peers.rtt_ms == {"relay": 1.5}
    network.has_device(False)
    await network.step()
    assert network.peers.rtt_ms == {}
    network.has_device(True)
    await network.step()
    assert network.peers.rtt_ms == {"relay": 1.5}
    give(network.board, targets=None)
    await network.step()
    assert network.peers.rtt_ms == {}
    assert network.conditions.get("PeersReachable").status is Status.UNKNOWN


TARGETS = Targets({"cloud": CLOUD}, {"relay": RELAY})
LOOK = Look(TARGETS, False, 0, 0)
HEARD, SILENT, NEW = Known(CLOUD, 110.0, answered_s=100.0), Known(CLOUD, 101.0, 30, 70.0), Known(CLOUD, 101.0, 1)


def seen(cloud: Known, relay: Known, **changes: Any) -> Seen:
    known = {"cloud": cloud, "relay": replace(relay, overlay_ip=RELAY)}
    known = {name: replace(each, answering_since_s=each.answered_s) for name, each in known.items()}
    return replace(Seen(known, LOOK, 100.0, status=Status.TRUE), **changes)


@pytest.mark.parametrize(
    ("own", "changes", "does", "reason"),
    [
        # While nobody can be asked, nobody is known.
        (Seen(), {"overlay_is_up": False}, None, "OverlayDown"),
        (seen(HEARD, HEARD), {"overlay_is_up": False}, Forget(), "OverlayDown"),
        (seen(HEARD, HEARD), {"targets": None}, Forget(), "DirectoryNotSeen"),
        (Seen(), {"targets": None}, None, "DirectoryNotSeen"),
        # A look tells who is due, after a rest. Whatever makes all knowledge doubtful is followed by one.
        (Seen(), {}, LOOK, None),
        (seen(HEARD, HEARD, due=("cloud",)), {}, AskAll(("cloud",), SPEC.overlay_ip.ip), None),
        (seen(HEARD, HEARD), {"targets": Targets()}, replace(LOOK, targets=Targets()), None),
        (seen(HEARD, HEARD), {"is_metered": True}, replace(LOOK, is_metered=True), None),
        (seen(HEARD, HEARD), {"echo_wishes": 1}, replace(LOOK, echo_wishes=1), None),
        (seen(HEARD, HEARD), {"standstills": 1}, replace(LOOK, standstills=1), None),
        (seen(HEARD, HEARD, looked_s=98.0), {}, LOOK, "Reachable"),
        (seen(replace(HEARD, due_s=100.0), HEARD, looked_s=99.0), {}, LOOK, "Reachable"),
        (seen(replace(HEARD, due_s=100.0), HEARD), {}, None, "Reachable"),
        # One lost packet is no outage, and only an answer is one's end.
        (seen(HEARD, HEARD), {}, None, "Reachable"),
        (seen(replace(HEARD, silences=2), HEARD), {}, None, None),
        (seen(SILENT, HEARD), {}, None, "PeerSilent"),
        (seen(NEW, HEARD, status=Status.FALSE), {}, None, "PeerSilent"),
        # Where nobody answers, the cause is looked for first, and again after ten seconds.
        (seen(NEW, NEW, status=Status.UNKNOWN), {}, None, "Connecting"),
        (seen(SILENT, SILENT), {}, FindCause((RELAY, CLOUD), None), None),
        (seen(SILENT, SILENT, why_s=90.0), {}, FindCause((RELAY, CLOUD), None), None),
        (seen(SILENT, SILENT, why_s=90.1), {}, None, "NobodyAnswers"),
        # What the broker's client learns is a reason to look again at once, and no more than once.
        (seen(SILENT, SILENT, why_s=90.1), {"broker_away": "a portal"}, FindCause((RELAY, CLOUD), "a portal"), None),
        (seen(SILENT, SILENT, why_s=90.1, why_broker="x"), {"broker_away": "x"}, None, "NobodyAnswers"),
        # Nobody to ask is fine.
        (Seen(look=Look(Targets(), False, 0, 0), looked_s=100.0), {"targets": Targets()}, None, "Reachable"),
    ],
)
def test_who_is_asked_and_what_is_said(own: Seen, changes: dict[str, Any], does: Do | None, reason: str | None) -> None:
    inputs = replace(Inputs(SPEC, True, TARGETS, False, 0, 0, None, {}, own), **changes)
    decision = node().peers.plan(inputs, 100.0)
    assert (decision.does, decision.says[-1].reason if decision.says else None) == (does, reason)


async def test_an_idle_network_is_asked_at_the_cadence() -> None:
    """Bytes cost money on LTE: who is needed every ten seconds, all others together once in twenty."""
    others = {f"edge-{n}": IPv4Address(f"10.10.1.{n}") for n in range(1, 19)}
    network = Network(Targets({"cloud": CLOUD}, {"relay": RELAY}, others=others))
    network.alive = {RELAY, CLOUD, *others.values()}
    await network.run(20)
    since_s = network.clock.monotonic_s()
    await network.run(3600)
    asked = network.asked_since(since_s)
    assert 359 <= asked[RELAY] <= 361
    assert 359 <= asked[CLOUD] <= 361
    assert 170 <= sum(asked[ip] for ip in others.values()) <= 190
    assert set(asked) == network.alive, "each is asked now and then"


# Of an echo and its answer on the uplink, within EasyTier's TCP (docs/explanation/idle.md).
EXCHANGE_BYTES = 396
MOST_ECHO_BYTES = 12_000_000  # a day; the rest of 15 MB is MQTT's and the search for direct paths


@pytest.mark.parametrize("nodes", [3, 20, 50])
@pytest.mark.parametrize("is_metered", [False, True])
async def test_a_days_echoes_stay_within_their_budget(nodes: int, *, is_metered: bool) -> None:
    """Asked by an edge, and asked of it by head and other edges; Ray's traffic lets head and edge hear each other."""
    others = {f"edge-{n}": IPv4Address(f"10.10.1.{n}") for n in range(1, nodes - 1)}
    edge = Network(Targets({"cloud": CLOUD}, {"relay": RELAY}, others=others), is_metered=is_metered)
    metered = frozenset({"edge-0"}) if is_metered else frozenset[str]()
    me = IPv4Address("10.10.1.200")
    head = Network(Targets({}, {"relay": RELAY}, members={"edge-0": me, **others}, metered=metered))
    other = Network(Targets({"cloud": CLOUD}, {"relay": RELAY}, others={"edge-0": me, **others}, metered=metered))
    exchanges = 0.0
    for network, mine in ((edge, None), (head, me), (other, me)):
        network.alive = {RELAY, CLOUD, me, *others.values()}
        network.traffic = Traffic({CLOUD: 1.0} if network is edge else {me: 1.0} if network is head else {})
        await network.run(20)
        since_s = network.clock.monotonic_s()
        await network.run(1200)
        asked = network.asked_since(since_s)
        of_them = sum(asked.values()) if mine is None else asked[mine]
        exchanges += 72 * of_them * (len(others) if network is other else 1)
    assert exchanges * EXCHANGE_BYTES <= (2_000_000 if is_metered else MOST_ECHO_BYTES)


async def test_a_metered_node_says_so_and_asks_a_silent_head_seldom() -> None:
    network = node(is_metered=True)
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    assert "metered: asked every 60 s" in network.message
    network.alive = {RELAY}
    assert await network.until("PeerSilent", 3 * 60) <= 3 * 60
    since_s = network.clock.monotonic_s()
    await network.run(60)
    assert network.asked_since(since_s)[CLOUD] <= 13


async def test_a_metered_node_is_named_where_it_is_asked_seldom() -> None:
    targets = Targets({}, {"relay": RELAY}, members={"edge-1": EDGE, "edge-2": OTHER})
    head = Network(targets)
    head.alive = {RELAY, EDGE, OTHER}
    await head.until("Reachable", 3)
    assert "metered" not in head.message
    give(head.board, targets=replace(targets, metered=frozenset({"edge-1"})))
    await head.step()
    assert "metered: edge-1, asked every 60 s" in head.message


@pytest.mark.parametrize("is_metered", [False, True])
async def test_a_changed_uplink_that_works_after_a_second_is_known_to_within_the_next(*, is_metered: bool) -> None:
    """EasyTier dials again by itself, and is started anew 2.5 s after the change if nobody has answered since."""
    network = node(is_metered=is_metered)
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    network.alive = set()
    changed_s = network.clock.monotonic_s()
    network.peers.ask_now()
    await network.run(1.2)
    network.alive = {RELAY, CLOUD}
    await network.run(0.8)
    assert network.board.facts.last_answer_s is not None
    assert changed_s < network.board.facts.last_answer_s < changed_s + 2.5


async def test_who_is_heard_anyway_is_asked_for_its_clock_only() -> None:
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    network.traffic = Traffic({CLOUD: 1.0})
    since_s = network.clock.monotonic_s()
    await network.run(600)
    asked = network.asked_since(since_s)
    assert 59 <= asked[RELAY] <= 61
    assert 8 <= asked[CLOUD] <= 11
    assert network.reason == "Reachable"


async def test_many_nodes_are_looked_at_together() -> None:
    """Each was heard at another moment, and is due at another one."""
    members = {f"edge-{number}": OTHER + number for number in range(100)}
    network, looks = Network(Targets(relays={"relay": RELAY}, members=members)), list[float]()
    network.alive = {RELAY, *members.values()}
    await network.run(3)
    network.traffic = Traffic({ip: 0.05 * number for number, ip in enumerate(members.values())})
    look = network.peers._look_at_traffic

    async def counted() -> Traffic:
        looks.append(network.clock.monotonic_s())
        return await look()

    network.peers._look_at_traffic = counted
    await network.run(12)
    assert min(after - before for before, after in pairwise(looks)) >= 0.1


async def test_old_traffic_is_no_answer() -> None:
    """A connection that was heard on longer ago than the period says nothing of now."""
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    network.alive = {RELAY}
    network.traffic = Traffic({CLOUD: 11.0})
    assert await network.until("PeerSilent", 14) <= 14


@pytest.mark.parametrize("traffic", [Traffic(uplink_is_stuck=True), Traffic(stuck=frozenset({RELAY, CLOUD}))])
async def test_a_connection_that_hangs_has_the_others_asked_at_once(traffic: Traffic) -> None:
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    await network.run(2)
    network.alive, network.traffic = set(), traffic
    assert await network.until("NobodyAnswers", 5) <= 5


async def test_silence_is_noticed_within_one_period_and_a_slow_path_is_given_time() -> None:
    network = Network(Targets(relays={"relay": RELAY}))
    network.alive = {RELAY}
    await network.until("Reachable", 3)
    network.alive = set()
    assert await network.until("NobodyAnswers", 15) < 12
    network.alive, network.rtt_ms = {RELAY}, 200.0
    await network.until("Reachable", 3)
    network.asked.clear()
    await network.run(11)
    assert {patience for _, _, patience in network.asked} == {0.8}


async def test_an_answer_after_a_silence_is_noticed_within_two_seconds() -> None:
    """And then everybody is asked at once, also those that nothing here waits for."""
    network = Network(Targets({"cloud": CLOUD}, {"relay": RELAY}, others={"edge-2": OTHER}))
    network.alive = {RELAY, CLOUD, OTHER}
    await network.run(5)
    network.alive = set()
    await network.run(60)
    network.alive = {RELAY, CLOUD, OTHER}
    since_s = network.clock.monotonic_s()
    assert await network.until("Reachable", 2) <= 2
    await network.step()
    assert network.asked_since(since_s)[OTHER] >= 1
    assert network.clock.monotonic_s() - since_s <= 4
    assert network.board.facts.silent == {}


async def test_silence_is_told_with_its_likeliest_cause() -> None:
    """What EasyTier lists and says is put into the condition, until somebody answers."""
    network = Network(Targets(relays={"relay": RELAY}))
    network.cause = Diagnosis("NetworkRefused", "another secret")
    await network.step()
    assert network.reason == "Connecting"
    await network.until("NetworkRefused", 10)
    found = network.conditions.get("PeersReachable")
    assert found.status is Status.FALSE
    assert "10.10.0.1" in found.message
    assert "another secret" in found.message
    assert network.causes_asked[-1][1] == [RELAY]
    network.alive = {RELAY}
    await network.until("Reachable", 3)
    assert network.board.facts.last_answer_s is not None


async def test_the_cause_of_a_silence_is_asked_for_at_times_only() -> None:
    """Each question is a process of easytier-cli: every 10 s of an outage, and at once in the next."""
    network = Network(Targets(relays={"relay": RELAY}))
    network.cause = Diagnosis("RelayUnreachable", "no way")
    network.alive = {RELAY}
    await network.until("Reachable", 3)
    network.alive = set()
    await network.until("RelayUnreachable", 15)
    await network.run(57)
    assert len(network.causes_asked) == 6
    assert all(later - before > 9.9 for (before, _), (later, _) in pairwise(network.causes_asked))
    network.alive = {RELAY}
    await network.until("Reachable", 3)
    network.alive = set()
    await network.until("RelayUnreachable", 15)
    assert len(network.causes_asked) == 7


async def test_the_others_are_asked_also_where_the_cause_is_not_found_out() -> None:
    network = Network(Targets(relays={"relay": RELAY}))
    network.cause = OSError("no such protocol")
    with pytest.raises(OSError, match="no such protocol"):
        await network.until("NobodyAnswers", 10)
    network.alive = {RELAY}
    await network.clock.advance(1.0)
    await network.settle()
    assert network.reason == "Reachable"


async def test_a_new_node_is_asked_before_its_silence_is_told() -> None:
    """Also where something happens while the kernel is asked whom it has heard."""
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    give(network.board, targets=Targets({"cloud": OTHER}, {"relay": RELAY}))
    network.kernel_answers.clear()
    peers = network.peers
    running = asyncio.create_task(run_part(peers, network.board, network.conditions, network.clock))
    await eventually(lambda: peers.own.known["cloud"].overlay_ip == OTHER)
    peers.ask_now()
    await eventually(lambda: not peers.wakeup.is_set)
    assert network.reason == "Reachable"
    running.cancel()


async def test_one_relay_of_several_is_enough() -> None:
    """The silence of one is told but costs nothing; that of all does, and so does the head's."""
    network = Network(Targets({"cloud": CLOUD}, {"relay": RELAY, "relay-2": OTHER}))
    network.alive = {RELAY, CLOUD, OTHER}
    await network.until("Reachable", 3)
    assert network.conditions.is_true("RelaysReachable")
    network.alive.remove(RELAY)
    await network.run(15)
    assert network.reason == "Reachable"
    assert network.board.facts.peers_connected
    relays = network.conditions.get("RelaysReachable")
    assert relays.reason == "RelaySilent"
    assert "relay (10.10.0.1)" in relays.message
    assert "relay-2" not in relays.message
    network.alive = {CLOUD}
    await network.until("PeerSilent", 15)
    assert not network.board.facts.peers_connected
    network.alive = {OTHER}
    await network.until("PeerSilent", 15)
    await network.run(15)
    assert "cloud (10.10.0.2)" in network.message


async def test_on_the_head_a_silent_member_is_named_and_ray_may_start_all_the_same() -> None:
    network = Network(Targets(relays={"relay": RELAY}, members={"edge-1": EDGE}, others={"edge-2": OTHER}))
    network.alive = {RELAY, EDGE, OTHER}
    await network.until("Reachable", 3)
    network.alive = {RELAY}
    await network.until("PeerSilent", 14)
    assert "edge-1 (10.10.0.4)" in network.message
    assert "edge-2" not in network.message
    assert network.board.facts.peers_connected
    network.alive = {RELAY, EDGE}
    await network.until("Reachable", 3)
    await network.run(120)
    assert network.reason == "Reachable"
    assert "edge-2" in network.message, "it is told of, and not counted"


async def test_a_silent_node_was_heard_last_when_a_connection_with_it_was() -> None:
    """Also where no echo was ever answered, as behind a firewall that lets none in, or since this daemon started."""
    network = Network(Targets(relays={"relay": RELAY}, members={"edge-1": EDGE}))
    network.alive, network.traffic = {RELAY}, Traffic({EDGE: 0.5})
    await network.until("PeerSilent", 15)
    await network.run(10)
    heard_s = network.board.facts.unheard["edge-1"]
    assert heard_s is not None
    assert heard_s > network.clock.monotonic_s() - 5
    network.traffic = Traffic({EDGE: 200.0})
    await network.run(10)
    assert network.board.facts.unheard == {"edge-1": heard_s}, "nothing is heard earlier than it was"
    network.traffic = Traffic()
    await network.run(10)
    assert network.board.facts.unheard == {"edge-1": heard_s}


async def test_a_node_with_another_address_is_somebody_new() -> None:
    network = Network(Targets(relays={"relay": RELAY}))
    network.alive = {RELAY}
    await network.until("Reachable", 3)
    give(network.board, targets=Targets(relays={"relay": OTHER}))
    await network.until("NobodyAnswers", 5)


async def test_clocks_are_compared() -> None:
    network = node()
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    assert network.peers.clock_offsets_ms == {"relay": 100.25, "cloud": 100.25}


HEADS, RELAYS = Identity("head", UUID(int=1)), Identity("relay", UUID(int=2))
PROVING = Targets(
    {"cloud": CLOUD},
    {"relay": RELAY},
    identities={"cloud": HEADS, "relay": RELAYS},
    provers=frozenset({"cloud"}),
)


def proving() -> Network:
    """An edge whose head and relay are there and prove it."""
    network = Network(PROVING)
    network.alive = {RELAY, CLOUD}
    network.proofs = {HEADS: Proof.PROVEN, RELAYS: Proof.PROVEN}
    return network


async def test_the_first_answer_of_a_head_that_proves_itself_lets_ray_start() -> None:
    network = proving()
    await network.settle()
    assert network.board.facts.peers_connected
    assert network.board.facts.proven == {"cloud", "relay"}
    assert len(network.asked) == 2, "one question to each"


async def test_somebody_else_at_the_heads_address_is_named_and_ray_does_not_start() -> None:
    network = proving()
    network.proofs[HEADS] = Proof.WRONG
    await network.until("PeerNotWhoItSays", 1)
    assert "cloud (10.10.0.2)" in network.message
    facts = network.board.facts
    assert facts.impostors == {CLOUD}
    assert not facts.peers_connected
    assert facts.answering.keys() == {"relay"}
    assert not facts.nobody_answers


@pytest.mark.parametrize("then", ["is silent", "proves nothing"])
async def test_an_impostor_stays_one_until_the_right_node_answers(then: str) -> None:
    network = proving()
    network.proofs[HEADS] = Proof.WRONG
    await network.until("PeerNotWhoItSays", 1)
    if then == "is silent":
        network.alive.remove(CLOUD)
    network.proofs[HEADS] = Proof.UNPROVEN
    await network.run(90)
    assert network.board.facts.impostors == {CLOUD}
    assert network.reason == "PeerNotWhoItSays"
    network.alive, network.proofs[HEADS] = {RELAY, CLOUD}, Proof.PROVEN
    await network.until("Reachable", 3)  # asked as a silent node would be
    assert network.board.facts.impostors == frozenset()
    assert network.board.facts.peers_connected


async def test_one_who_comes_while_ray_runs_is_found_with_the_next_question() -> None:
    network = proving()
    await network.until("Reachable", 1)
    await network.run(30)
    network.proofs[HEADS] = Proof.WRONG
    assert await network.until("PeerNotWhoItSays", 11) <= 11


async def test_a_head_that_could_prove_itself_and_does_not_lets_all_run_and_nothing_start(words: Words) -> None:
    """Its responder is away, or was started a moment ago: asked as a silent node would be, not once in a period."""
    network = proving()
    network.proofs[HEADS] = Proof.UNPROVEN
    await network.until("Reachable", 1)
    assert not network.board.facts.peers_connected
    words(network.message)
    await network.run(90)
    assert network.board.facts.doubted == {CLOUD}
    assert network.reason == "Reachable", "nobody is fenced for a missing proof"
    assert network.board.facts.impostors == frozenset()
    network.proofs[HEADS] = Proof.PROVEN
    await network.run(1)
    assert network.board.facts.peers_connected
    assert network.board.facts.doubted == frozenset()
    assert "prove" not in network.message


@pytest.mark.parametrize("outage_s", [30, 60, 120])
async def test_an_outage_fences_nobody_and_forgets_no_proof(outage_s: int) -> None:
    network = proving()
    await network.until("Reachable", 1)
    network.alive = set()
    await network.run(outage_s)
    facts = network.board.facts
    assert not facts.impostors
    assert facts.doubted == {CLOUD}
    network.alive = {RELAY, CLOUD}
    await network.until("Reachable", 3)
    assert network.board.facts.peers_connected
    assert network.board.facts.doubted == frozenset()


async def test_a_head_with_another_key_has_to_prove_itself_anew() -> None:
    """The operator gave its address to another node."""
    network = proving()
    await network.until("Reachable", 1)
    another = Identity("another", UUID(int=3))
    give(network.board, targets=replace(PROVING, identities={"cloud": another, "relay": RELAYS}))
    await network.settle()
    assert not network.board.facts.peers_connected
    network.proofs[another] = Proof.PROVEN
    await network.run(1)
    assert network.board.facts.peers_connected


async def test_a_node_that_nothing_here_needs_is_kept_out_as_well_and_told_of(words: Words) -> None:
    other = Identity("edge-2", UUID(int=4))
    network = proving()
    give(
        network.board,
        targets=replace(PROVING, others={"edge-2": OTHER}, identities={**PROVING.identities, "edge-2": other}),
    )
    network.alive.add(OTHER)
    network.proofs[other] = Proof.WRONG
    await network.run(3)
    assert network.reason == "Reachable"
    words(network.message)
    assert network.board.facts.impostors == {OTHER}
    assert network.board.facts.peers_connected


async def test_what_a_connection_says_does_not_put_off_the_question_to_an_impostor() -> None:
    """The impostor's own TCP is heard, too."""
    network = proving()
    network.proofs[HEADS] = Proof.WRONG
    await network.until("PeerNotWhoItSays", 1)
    network.traffic = Traffic({CLOUD: 0.1})
    network.proofs[HEADS] = Proof.PROVEN
    await network.until("Reachable", 3)


async def test_connections_with_an_impostor_are_closed_for_as_long_as_it_is_one() -> None:
    """Whatever is made meanwhile, where no firewall of ours is: every two seconds."""
    network = proving()
    await network.until("Reachable", 1)
    network.proofs[HEADS] = Proof.WRONG
    await network.until("PeerNotWhoItSays", 12)
    begun_s = network.clock.monotonic_s()
    await network.run(10)
    assert network.closed[0][0] <= begun_s + 2
    assert {CLOUD} == set.union(*(addresses for _, addresses in network.closed))
    assert all(later - before <= 2 for (before, _), (later, _) in pairwise(network.closed))
    network.proofs[HEADS] = Proof.PROVEN
    await network.until("Reachable", 3)
    closed = len(network.closed)
    await network.run(20)
    assert len(network.closed) == closed


@pytest.mark.parametrize("evidence", ["it answers without a proof", "only its connections are heard"])
async def test_a_head_that_is_heard_and_does_not_prove_itself_is_told_with_the_time_since_when(evidence: str) -> None:
    """Once the registry's word is against it for that time, it is somebody else."""
    network = proving()
    await network.until("Reachable", 1)
    begun_s = network.clock.monotonic_s()
    network.proofs[HEADS] = Proof.UNPROVEN
    if evidence == "only its connections are heard":
        network.alive.remove(CLOUD)
        network.traffic = Traffic({CLOUD: 1.0}, sockets={CLOUD: frozenset({7})})
    await network.run(70)
    since_s = network.board.facts.unproven["cloud"]
    assert begun_s - 1 <= since_s <= begun_s + 12
    assert network.board.facts.impostors == frozenset()
    give(network.board, disowned={"cloud": since_s - 1})
    await network.run(10)
    assert network.board.facts.impostors == frozenset(), "that was another time"
    give(network.board, disowned={"cloud": since_s})
    await network.run(10)
    assert network.board.facts.impostors == {CLOUD}
    assert network.reason == "PeerNotWhoItSays"
    network.alive, network.proofs[HEADS] = {RELAY, CLOUD}, Proof.PROVEN
    await network.until("Reachable", 8)
    assert network.board.facts.unproven == {}
    await network.run(20)
    assert network.board.facts.impostors == frozenset(), "a word that was heard does not count twice"


async def test_an_outage_is_no_time_without_a_proof() -> None:
    """What is heard first after it need not be the echo."""
    network = proving()
    await network.until("Reachable", 1)
    network.alive = set()
    network.traffic = Traffic({CLOUD: 5.0})
    await network.run(4)
    network.traffic = Traffic({CLOUD: 90.0})
    await network.run(90)
    assert network.board.facts.unproven == {}
    network.traffic = Traffic({CLOUD: 0.1})
    await network.run(2)
    since_s = network.board.facts.unproven.get("cloud", float("inf"))
    assert since_s >= network.clock.monotonic_s() - 7


async def test_who_is_heard_and_silent_for_long_is_waited_for_longer() -> None:
    """A full queue on LTE takes seconds, and looks like that."""
    network = proving()
    await network.until("Reachable", 1)
    network.alive.remove(CLOUD)
    network.traffic = Traffic({CLOUD: 0.5}, sockets={CLOUD: frozenset({7})})
    await network.run(55)
    assert network.asked[-1][2] == 5.0


async def test_a_new_connection_with_the_head_has_it_asked_at_once() -> None:
    """Who took its address is connected to within a second. What is heard there would put off the question."""
    network = proving()
    network.traffic = Traffic({CLOUD: 0.5}, sockets={CLOUD: frozenset({7})})
    await network.run(20)
    network.proofs[HEADS] = Proof.WRONG
    await network.run(20)
    assert network.reason == "Reachable", "it is heard, and not asked"
    network.traffic = Traffic({CLOUD: 0.5}, sockets={CLOUD: frozenset({8})})
    assert await network.until("PeerNotWhoItSays", 3) <= 3


async def test_a_full_queue_holds_no_connection_back_for_long() -> None:
    """Echoes take three seconds behind a training's own packets, and its connections go on. Not for a blink only."""
    network = proving()
    await network.until("Reachable", 1)
    network.least_patience_s = {CLOUD: 3.0}
    network.traffic = Traffic({CLOUD: 0.5}, sockets={CLOUD: frozenset({7})})
    held_s, until_s = 0.0, network.clock.monotonic_s() + 200
    while (at_s := network.clock.monotonic_s()) < until_s:
        await network.step()
        held_s += (network.clock.monotonic_s() - at_s) * bool(network.board.facts.doubted)
    assert held_s <= 3
    network.alive.remove(CLOUD)
    await network.run(90)
    assert network.board.facts.doubted == {CLOUD}, "who never answers is doubted"


async def test_an_answer_without_a_proof_ends_no_doubt_about_a_silent_head() -> None:
    """Who takes its address may refuse echoes. No connection begins until the next question either."""
    network = proving()
    await network.until("Reachable", 1)
    network.alive = {RELAY}
    await network.until("PeerSilent", 20)
    assert network.board.facts.doubted == {CLOUD}
    network.alive, network.proofs[HEADS] = {RELAY, CLOUD}, Proof.UNPROVEN
    for _ in range(10):
        await network.step()
        assert network.board.facts.doubted == {CLOUD}
    assert network.reason == "Reachable"
    network.proofs[HEADS] = Proof.PROVEN
    await network.run(1)
    assert network.board.facts.doubted == frozenset()


async def test_acknowledgements_that_come_after_a_silence_end_no_doubt() -> None:
    """A thief sends them in the stead of the head that is away, to be taken for it behind a full queue."""
    network = proving()
    await network.until("Reachable", 1)
    network.alive = {RELAY}
    await network.until("PeerSilent", 20)
    network.traffic = Traffic({CLOUD: 0.0})
    for _ in range(20):
        await network.step()
        assert network.board.facts.doubted == {CLOUD}


async def test_one_lost_echo_holds_nothing_back() -> None:
    network = proving()
    await network.until("Reachable", 1)
    network.alive = {RELAY}
    network.peers.ask_now()
    for _ in range(2):
        await network.step()
    assert network.board.facts.doubted == frozenset()
    network.alive = {RELAY, CLOUD}
    await network.run(30)
    assert network.board.facts.doubted == frozenset()
