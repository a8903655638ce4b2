"""Two nodes that lost each other although both reach a relay: they find out, mend it, and say so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from registry_world import World

from edgelink.conditions import ConditionSet, Status
from edgelink.errors import OverlayError
from edgelink.facts.part import run_part
from edgelink.overlay.pair_heal import Word
from edgelink.overlay.pair_words import PairWords
from edgelink.overlay.pairs import Case, Close, Do, Inputs, Look, NoteLoss, Pairs, Restart, Seen
from edgelink.overlay.status import Peer
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, PairSilence, RelayAddresses, Role
from edgelink.protocol.topics import Topics
from edgelink.testing import FakeClock, eventually
from edgelink.testing.facts import board_with, settle

RELAY_URL, RELAY_END = "tcp://198.51.100.1:11010", ("198.51.100.1", 11010)
NAMES = ("cloud", "edge-1", "edge-2")
REDIALLED_S = 1.0  # EasyTier dials a relay again after a connection was closed


class Node:
    """One node: what its echoes say, whom its EasyTier lists, and what was done to that."""

    def __init__(self, network: Network, name: str, key: NodeKey, *, is_healing: bool = True) -> None:
        self.network, self.name, self.key = network, name, key
        self.silent: dict[str, float] = {}
        self.answering: dict[str, float] = {"relay": -1000.0, **{n: -1000.0 for n in NAMES if n != name}}
        self.listed = {"relay", *(n for n in NAMES if n != name)}
        self.inbox = Inbox()
        self.asked: list[str] = []
        self.closed: list[tuple[float, list[tuple[str, int]]]] = []
        self.restarts: list[float] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.robot_is_moving = False
        self.is_deaf = False  # its EasyTier does not answer
        self.daemon(is_healing=is_healing)

    def daemon(self, *, is_healing: bool = True) -> None:
        """A new life of its daemon."""
        clock = self.network.clock
        self.conditions = ConditionSet(clock, (), ("PairsAlive",))
        self.board = board_with(directory=self.network.directory)
        self.served = 0
        self.pairs = Pairs(
            board=self.board,
            ask_now=self._ask_now,
            overlay=self,
            words=PairWords(self.key, self._send, self.inbox, clock),
            note=lambda what, **fields: self.events.append((what, fields)),
            clock=clock,
            restarted_file=self.network.tmp_path / f"{self.name}.restarted" if is_healing else None,
            robot_moves=lambda: self.robot_is_moving,
        )

    # what its echoes are

    def _ask_now(self, names: list[str]) -> None:
        self.asked += names
        for name in names:
            self.network.settle(self, name)

    # what its overlay is

    async def rows(self) -> list[Peer]:
        if self.is_deaf:
            raise OverlayError("no answer")
        ips = self.network.ips
        return [Peer(ips[name], name, "relay(2)", 1.0, "tcp", "2.6.4") for name in sorted(self.listed)]

    async def close_connections_to(self, relays: list[tuple[str, int]]) -> list[str]:
        now_s = self.network.clock.monotonic_s()
        is_dialling = any(now_s - at_s < REDIALLED_S for at_s, _ in self.closed)
        self.closed.append((now_s, relays))
        is_there = [end for end in relays if end == self.network.connected_to and not is_dialling]
        closed = [f"{host}:{port}" for host, port in is_there]
        if closed and self.network.closing_helps:
            self.network.tell_everything_anew(self)
        return closed

    async def reconcile(self) -> None:
        """One look, and the restart that it wishes."""
        self.board.given(silent=dict(self.silent), answering=dict(self.answering))
        if self.inbox.wakeup.is_set:
            hearing = asyncio.create_task(self.pairs.run())
            await asyncio.sleep(0)
            hearing.cancel()
        await settle(self.pairs, self.board, self.conditions, self.network.clock)
        if (wished := self.board.facts.restart_for_pair.count) != self.served:
            self.served = wished
            self.restarts.append(self.network.clock.monotonic_s())
            self.network.tell_everything_anew(self)

    # the broker

    def _send(self, topic: str, payload: bytes) -> None:
        self.network.sent.append((self.network.clock.monotonic_s(), self.name))
        if self.name in self.network.offline:
            return
        for other in self.network.nodes.values():
            if other is not self and other.name not in self.network.offline:
                other.inbox.put(self.key.node_id, payload)

    @property
    def reason(self) -> str:
        return self.conditions.get("PairsAlive").reason

    @property
    def message(self) -> str:
        return self.conditions.get("PairsAlive").message


class Network:
    """A relay and three nodes in virtual time. A pair gets through when both list each other and both are there."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        world = World(tmp_path)
        self.clock = FakeClock()
        self.sent: list[tuple[float, str]] = []
        self.offline: set[str] = set()
        self.blocked: set[frozenset[str]] = set()  # by a firewall, which nothing of ours opens
        self.closing_helps = True
        self.hardly_asks: set[tuple[str, str]] = set()  # who does not ask whom by itself any more
        self.connected_to: tuple[str, int] | None = RELAY_END  # by TCP
        keys = {name: NodeKey.generate() for name in NAMES}
        for name, key in keys.items():
            role = Role.HEAD if name == "cloud" else Role.EDGE
            world.enrol(key, world.token(role), name, role=role)
        relay = NodeKey.generate()
        world.authority.relay_membership(relay, "relay", previous=None, addresses=("198.51.100.1:8883",))
        self.directory = Directory.model_validate_json(world.authority.directory().body)
        self.relay_id = relay.node_id
        self.nodes: dict[str, Node] = {}
        self.relay_listens_on(RELAY_URL)
        self.ips: dict[str, IPv4Address] = {entry.hostname: entry.overlay_ip for entry in self.directory.entries}
        for name, key in keys.items():
            self.nodes[name] = Node(self, name, key)

    def relay_listens_on(self, *urls: str) -> None:
        addresses = RelayAddresses(overlay_peers=urls, broker_addresses=("198.51.100.1:8883",))
        self.directory = self.directory.model_copy(update={"relays": {self.relay_id: addresses}})
        for node in self.nodes.values():
            node.board.given(directory=self.directory)

    def cut(self, name: str) -> None:
        """Take a node's uplink away: nobody answers it, and it answers nobody."""
        self.offline.add(name)
        self.settle_all()

    def mend(self, name: str) -> None:
        self.offline.discard(name)
        self.settle_all()

    def forget(self, forgetful: str, forgotten: str) -> None:
        """What EasyTier does in an outage at the wrong moment."""
        self.nodes[forgetful].listed.discard(forgotten)
        self.settle_all()

    def tell_everything_anew(self, node: Node) -> None:
        for other in self.nodes.values():
            if other is not node and {node.name, other.name}.isdisjoint(self.offline):
                node.listed.add(other.name)
                other.listed.add(node.name)
        self.settle_all()

    def settle_all(self) -> None:
        for node in self.nodes.values():
            for name in ("relay", *NAMES):
                if name != node.name and (node.name, name) not in self.hardly_asks:
                    self.settle(node, name)

    def settle(self, node: Node, name: str) -> None:
        """Have the node's echoes say what is."""
        now_s = self.clock.monotonic_s()
        answers = {node.name, name}.isdisjoint(self.offline) and frozenset({node.name, name}) not in self.blocked
        if name != "relay":
            answers = answers and name in node.listed and node.name in self.nodes[name].listed
        if answers:
            node.silent.pop(name, None)
            node.answering.setdefault(name, now_s)
        else:
            node.answering.pop(name, None)
            node.silent.setdefault(name, now_s)

    async def run(self, seconds: float) -> None:
        until_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < until_s:
            for node in self.nodes.values():
                await node.reconcile()
            await self.clock.advance(0.5)

    @property
    def closings(self) -> dict[str, int]:
        return {name: len(node.closed) for name, node in self.nodes.items() if node.closed}

    @property
    def restarts(self) -> dict[str, int]:
        return {name: len(node.restarts) for name, node in self.nodes.items() if node.restarts}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    yield Network(tmp_path)


async def outage(network: Network, name: str, forgetful: str, seconds: float = 30) -> float:
    """An outage of one node, in which another one forgets it; the time at which the link is back."""
    network.cut(name)
    await network.run(seconds / 2)
    network.forget(forgetful, name)
    await network.run(seconds / 2)
    network.mend(name)
    return network.clock.monotonic_s()


async def test_the_side_that_forgot_closes_its_connection_to_the_relay(network: Network) -> None:
    back_s = await outage(network, "edge-1", forgetful="cloud")
    await network.run(12)
    cloud, edge = network.nodes["cloud"], network.nodes["edge-1"]
    assert network.closings == {"cloud": 1}
    assert network.restarts == {}
    at_s, relays = cloud.closed[0]
    assert at_s - back_s <= 8, "10 s from the link's return to the first answer, of which EasyTier takes one"
    assert relays == [RELAY_END]
    assert not cloud.silent
    assert not edge.silent


async def test_one_connection_is_closed_for_all_that_were_forgotten(network: Network) -> None:
    """The second pair is proven a moment later, when there is no connection: that is no reason for a restart."""
    network.closing_helps = False
    network.cut("edge-1")
    await network.run(15)
    for name in ("cloud", "edge-2"):
        network.forget("edge-1", name)
    network.mend("edge-1")
    await network.run(8)
    assert network.closings == {"edge-1": 1}
    assert network.restarts == {}


async def test_an_ordinary_outage_has_nothing_closed_and_nothing_restarted(network: Network) -> None:
    for name in NAMES:
        for seconds in (5, 30, 90):
            network.cut(name)
            await network.run(seconds)
            network.mend(name)
            await network.run(30)
    assert network.closings == {}
    assert network.restarts == {}
    assert {node.reason for node in network.nodes.values()} == {"NoneLost"}


async def test_a_node_that_is_switched_off_costs_a_few_words(network: Network) -> None:
    """Others name it three times, and the clock goes on for an hour."""
    network.cut("edge-2")
    for name in ("cloud", "edge-1"):
        network.nodes[name].listed.discard("edge-2")
    await network.run(3600)
    assert network.closings == {}
    assert network.restarts == {}
    assert sorted(name for _, name in network.sent) == ["cloud"] * 3 + ["edge-1"] * 3


async def test_a_moment_in_which_both_reach_the_relay_first_is_no_loss(network: Network) -> None:
    network.forget("cloud", "edge-1")
    await network.run(4)
    network.tell_everything_anew(network.nodes["cloud"])
    await network.run(10)
    assert {node.reason for node in network.nodes.values()} == {"NoneLost"}
    assert network.closings == {}


async def test_two_edges_heal_as_head_and_edge_do(network: Network) -> None:
    await outage(network, "edge-1", forgetful="edge-2")
    await network.run(12)
    assert network.closings == {"edge-2": 1}
    assert not network.nodes["edge-1"].silent


async def test_it_is_told_while_it_lasts_and_afterwards(network: Network) -> None:
    """Condition, events and figures name the pair, since when, and by what it was healed."""
    await outage(network, "edge-1", forgetful="cloud")
    cloud, edge = network.nodes["cloud"], network.nodes["edge-1"]
    network.closing_helps = False
    await network.run(8)
    found = cloud.conditions.get("PairsAlive")
    assert (found.status, found.reason) == (Status.FALSE, "PairLost")
    assert "edge-1" in found.message
    assert "cloud" in edge.message
    network.tell_everything_anew(cloud)
    await network.run(10)
    assert (cloud.reason, edge.reason) == ("Healed", "Healed")
    assert "edge-1" in cloud.message
    assert "the relay" in cloud.message
    assert "the other side" in edge.message
    assert [what for what, _ in cloud.events] == ["pair_lost", "pair_healed"]
    assert cloud.events[1][1]["by"] == "close"
    assert cloud.pairs.figures.lost == {"edge-1": 1}
    assert cloud.pairs.figures.healed == {("edge-1", "close"): 1}
    assert edge.pairs.figures.healed == {("cloud", "other"): 1}


async def test_where_closing_does_not_help_the_side_that_lists_restarts_its_easytier(network: Network) -> None:
    network.closing_helps = False
    back_s = await outage(network, "edge-1", forgetful="cloud")
    await network.run(20)
    assert network.closings == {"cloud": 1}
    assert network.restarts == {"edge-1": 1}
    assert 9 <= network.nodes["edge-1"].restarts[0] - back_s <= 14
    assert network.nodes["edge-1"].pairs.figures.healed == {("cloud", "restart"): 1}


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_relay_that_is_reached_by_websocket_is_one_of_tcp(network: Network, scheme: str) -> None:
    network.relay_listens_on(f"{scheme}://198.51.100.1:11010")
    await outage(network, "edge-1", forgetful="cloud")
    await network.run(12)
    assert network.nodes["cloud"].closed[0][1] == [RELAY_END]
    assert network.restarts == {}
    assert not network.nodes["cloud"].silent


@pytest.mark.parametrize("urls", [["udp://198.51.100.1:11010"], [RELAY_URL, "udp://198.51.100.1:11010"]])
async def test_where_the_relay_is_reached_by_udp_only_the_side_that_forgot_restarts(
    network: Network, urls: list[str]
) -> None:
    """At once: there is nothing to close, also where a firewall keeps TCP from a relay that has both."""
    network.connected_to = None
    network.relay_listens_on(*urls)
    back_s = await outage(network, "edge-1", forgetful="cloud")
    await network.run(60)
    assert network.restarts == {"cloud": 1}
    assert network.nodes["cloud"].restarts[0] - back_s <= 8
    assert not network.nodes["edge-1"].silent
    assert network.nodes["cloud"].pairs.figures.healed == {("edge-1", "restart"): 1}


async def test_what_a_firewall_blocks_costs_one_restart_and_no_more(network: Network) -> None:
    """Both list each other: nothing is closed, one side tries a restart, and then it is only told."""
    network.blocked.add(frozenset({"edge-1", "cloud"}))
    network.settle_all()
    await network.run(1800)
    assert network.closings == {}
    assert sum(network.restarts.values()) == 1
    assert network.nodes["cloud"].reason == "PairLost"


async def test_a_pair_that_the_other_side_has_healed_is_asked_before_a_restart(network: Network) -> None:
    """A node that nobody here waits for is asked every few seconds only."""
    network.cut("edge-1")
    await network.run(20)
    network.forget("edge-2", "edge-1")
    network.mend("edge-1")
    network.hardly_asks.add(("edge-1", "edge-2"))
    await network.run(30)
    assert network.closings == {"edge-2": 1}
    assert network.restarts == {}
    assert network.nodes["edge-1"].reason == "Healed"


async def test_at_most_one_restart_in_ten_minutes_also_of_the_next_daemon(network: Network) -> None:
    network.closing_helps = False
    edge = network.nodes["edge-1"]
    for _ in range(3):
        await outage(network, "edge-1", forgetful="cloud")
        await network.run(20)
        edge.daemon()
    assert len(edge.restarts) == 1
    await network.run(600)
    assert len(edge.restarts) == 2


async def test_while_a_robot_moves_nothing_is_restarted_for_another_one(network: Network) -> None:
    network.closing_helps = False
    network.nodes["edge-1"].robot_is_moving = True
    await outage(network, "edge-1", forgetful="edge-2")
    await network.run(60)
    assert network.restarts == {}
    network.nodes["edge-1"].robot_is_moving = False
    await network.run(10)
    assert network.restarts == {"edge-1": 1}, "once it stands"


LOST = Case(940.0, first_said_s=999.0, last_said_s=999.0, lost_at="12:00:00", lost_s=945.0)
DEAF = Word(999.0, silent_for_s=59.0, relay_answers_for_s=59.0, lists_us=False)
RESTARTED = replace(LOST, restarted=True)
CLOSED, NONE_FOUND = replace(LOST, closed=True), replace(LOST, closed=True, found_none=True)


@pytest.mark.parametrize(
    ("lost", "case", "changes", "does"),
    [
        # This node lists the other one, which does not list this one: the restart is ours.
        ("edge-2", LOST, {}, Restart("edge-2")),
        ("cloud", LOST, {}, Restart("cloud")),
        ("edge-2", LOST, {"robot_moves": True}, None),
        ("cloud", LOST, {"robot_moves": True}, Restart("cloud")),
        ("cloud", LOST, {"restarted_s": 401.0}, None),
        ("cloud", LOST, {"restarted_s": 400.0}, Restart("cloud")),
        ("edge-2", RESTARTED, {}, None),
        # A proof, and the words for it, come first.
        ("edge-2", replace(LOST, lost_at=""), {}, NoteLoss("edge-2", 60.0)),
        ("edge-2", LOST, {"words": {}}, None),
        ("edge-2", LOST, {"words": {"edge-2": replace(DEAF, at_s=993.9)}}, None),
        # This node does not list the other one: it closes once, and restarts where there was nothing to close.
        ("edge-2", LOST, {"listed": frozenset()}, Close("edge-2", (RELAY_END,))),
        ("edge-2", CLOSED, {"listed": frozenset(), "words": {"edge-2": replace(DEAF, lists_us=True)}}, None),
        (
            "edge-2",
            NONE_FOUND,
            {"listed": frozenset(), "words": {"edge-2": replace(DEAF, lists_us=True)}},
            Restart("edge-2"),
        ),
        # An EasyTier that does not say whom it lists is left alone.
        ("edge-2", LOST, {"listed": None}, None),
        # Whoever looks away for half a second looks again first.
        ("edge-2", LOST, {"at_s": 999.5}, Look()),
        ("edge-2", replace(LOST, silent_since_s=930.0), {}, Look()),
    ],
)
def test_what_is_done_about_a_dead_pair(
    network: Network, lost: str, case: Case, changes: dict[str, Any], does: Do | None
) -> None:
    node, listed = network.nodes["edge-1"], frozenset(network.ips.values())
    seen = replace(Seen(1000.0, {lost: case}, {lost: DEAF}, listed, 999.0), **changes)
    inputs = Inputs(network.directory, {lost: 940.0}, {"relay": 900.0}, seen)
    decision = node.pairs.plan(inputs, 1000.0)
    assert decision.does == does
    told = [said.reason for said in decision.says]
    assert told == ([] if does == Look() else ["PairLost" if case.lost_at else "NoneLost"])
    assert node.pairs.plan(replace(inputs, answering={"edge-2": 900.0}), 1000.0).does in (None, Look()), "no relay"
    node.daemon(is_healing=False)
    only_told = node.pairs.plan(inputs, 1000.0)
    assert (only_told.does, only_told.says) == (None if isinstance(does, Close | Restart) else does, decision.says)


async def test_an_easytier_that_does_not_say_whom_it_lists_is_left_alone(network: Network) -> None:
    network.nodes["cloud"].is_deaf = True
    await outage(network, "edge-1", forgetful="cloud")
    await network.run(60)
    assert network.closings == {}
    assert "cloud" not in network.restarts


async def test_words_that_are_not_the_nodes_own_count_for_nothing(network: Network) -> None:
    """Forged, of another network, about somebody else, or of nobody who holds a lease."""
    cloud, edge = network.nodes["cloud"], network.nodes["edge-1"]
    network.forget("cloud", "edge-1")
    edge.listed.discard("cloud")  # says three times so, and no more
    await network.run(15)
    cloud.closed.clear()
    stranger = NodeKey.generate()

    def word(key: NodeKey, **changes: Any) -> bytes:
        said = {
            "network_id": network.directory.network_id,
            "peer": cloud.key.node_id,
            "silent_for_s": 99.0,
            "relay_answers_for_s": 99.0,
        }
        silence = PairSilence.model_validate(said | {"lists_peer": True} | changes)
        return key.sign(Kind.PAIR_SILENCE, silence).model_dump_json().encode()

    network.offline.add("edge-1")  # it says nothing itself from here on
    cloud.daemon()
    for _ in range(20):
        for node_id, payload in [
            (edge.key.node_id, word(stranger)),
            (edge.key.node_id, word(edge.key, network_id="another")),
            (edge.key.node_id, word(edge.key, peer=network.nodes["edge-2"].key.node_id)),
            (stranger.node_id, word(stranger)),
            (edge.key.node_id, b"{}"),
            (edge.key.node_id, b"\xff"),
        ]:
            cloud.inbox.put(node_id, payload)
        await network.run(1)
    assert cloud.closed == []
    assert cloud.reason == "NoneLost"


async def test_a_word_is_heard_at_once_after_one_for_somebody_else(network: Network) -> None:
    """What a node says of whom it misses is for one node, and comes to all."""
    cloud, edge = network.nodes["cloud"], network.nodes["edge-1"]
    pairs = cloud.pairs
    hearing = asyncio.create_task(pairs.run())
    running = asyncio.create_task(run_part(pairs, cloud.board, cloud.conditions, network.clock))

    def say(peer: Node) -> None:
        said = {"network_id": network.directory.network_id, "peer": peer.key.node_id, "lists_peer": True}
        silence = PairSilence.model_validate(said | {"silent_for_s": 1.0, "relay_answers_for_s": 1.0})
        cloud.inbox.put(edge.key.node_id, edge.key.sign(Kind.PAIR_SILENCE, silence).model_dump_json().encode())

    say(network.nodes["edge-2"])
    await eventually(lambda: pairs.own.at_s == network.clock.monotonic_s())
    assert cloud.asked == []
    say(cloud)
    await eventually(lambda: cloud.asked == ["edge-1"])
    hearing.cancel()
    running.cancel()


async def test_a_topic_is_the_nodes_own(network: Network) -> None:
    topics = Topics(network.directory.network_id)
    node_id = network.nodes["edge-1"].key.node_id
    assert topics.parse_silence(topics.silence(node_id)) == node_id
    assert topics.parse_silence(topics.status(node_id)) is None
