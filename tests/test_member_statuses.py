"""What a node says of itself, and what it makes of the words of others."""

from __future__ import annotations

import json

import pytest
from session_world import Follower, Network, network, status  # noqa: F401

from edgelink.protocol.alternation import cloned
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.life import Life
from edgelink.protocol.payloads import MAX_TEXT, NodeStatus, Role
from edgelink.protocol.statuses import StatusBoard
from edgelink.protocol.transport import Message


async def test_statuses_are_coalesced(network: Network) -> None:
    """A burst of reports becomes the first and the last, half a second apart, retained."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert [s.phase for s in network.statuses_of(key.node_id)] == ["Starting"]
        for phase in ("A", "B", "C"):
            client.publish_status(status(key, phase))
            await follower.clock.advance(0.1)
        await follower.clock.advance(0.5)
        assert [s.phase for s in network.statuses_of(key.node_id)] == ["Starting", "C"]
        client.publish_status(status(key, "C"))  # nothing new
        await follower.clock.advance(5)
        assert len(network.statuses_of(key.node_id)) == 2
        assert b'"C"' in network.broker.retained[network.topics.status(key.node_id)]


async def test_statuses_of_others(network: Network) -> None:
    """The head sees all statuses, each from its own topic only, and forgets who stays silent; an edge sees none."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    edge, follower = Follower(network, key, membership), Follower(network, head_key, head)
    async with edge.running() as edge_client, follower.running() as client:
        assert set(client.statuses) == {key.node_id, head_key.node_id}
        assert edge_client.statuses == {}
        network.say(network.topics.status(key.node_id), status(head_key, "Lie"))
        await follower.clock.advance(0)
        assert client.ignored_messages == 1
        network.broker.stop()
        await follower.clock.advance(0)
        network.broker.start()
        await follower.clock.advance(6)  # the edge's clock stands still: it does not come back
        assert key.node_id in client.statuses
        await follower.clock.advance(31)
        assert set(client.statuses) == {head_key.node_id}


async def test_who_was_switched_off_is_not_expected_to_speak(network: Network) -> None:
    """A broker that starts anew has forgotten its last word; who heard it has not."""
    key, _ = network.member("edge-1")
    follower = Follower(network, *network.member("cloud", Role.HEAD))
    topic = network.topics.status(key.node_id)
    async with follower.running() as client:
        network.say(topic, NodeStatus(node_id=key.node_id, online=False, phase="Stopping"))
        await follower.clock.advance(0)
        assert client.facts.stopped == {key.node_id}
        network.broker.stop()
        network.broker.retained.pop(topic, None)
        await follower.clock.advance(0)
        assert client.facts.stopped == frozenset(), "it may be back, and nobody could say so"
        network.broker.start()
        await follower.clock.advance(40)
        assert client.statuses[key.node_id].is_stopped
        assert client.facts.stopped == frozenset()


async def test_a_metered_node_has_three_of_its_keepalives_to_come_back(network: Network) -> None:
    """Until its next keepalive it does not know that the broker was away."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    edge, follower = Follower(network, key, membership), Follower(network, head_key, head)
    async with edge.running() as edge_client, follower.running() as client:
        edge_client.publish_status(status(key, "Ready").model_copy(update={"metered": True}))
        await edge.clock.advance(1)
        assert client.statuses[key.node_id].metered
        network.broker.stop()
        await follower.clock.advance(0)
        network.broker.start()
        await follower.clock.advance(170)  # the edge's clock stands still: it does not come back
        assert key.node_id in client.statuses
        await follower.clock.advance(20)
        assert set(client.statuses) == {head_key.node_id}


async def test_a_metered_node_is_one_also_once_its_session_has_ended(network: Network) -> None:
    """By its last status: an older node's Last Will does not tell. By its will, to a head that has heard no status."""
    key, membership = network.member("edge-1")
    head = network.member("cloud", Role.HEAD)
    first, second = Follower(network, *head), Follower(network, *head)
    edge = Follower(network, key, membership)
    edge.board.given(is_metered=True)
    async with first.running() as client:
        async with edge.running() as edge_client:
            edge_client.publish_status(status(key, "Ready").model_copy(update={"metered": True}))
            await edge.clock.advance(1)
            older = NodeStatus(node_id=key.node_id, online=False)
            network.say(network.topics.status(key.node_id), older)
            await first.clock.advance(0)
            assert (client.facts.lost, client.facts.metered) == ({key.node_id}, {key.node_id})
        await first.clock.advance(0)
        assert client.facts.metered == {key.node_id}
    async with second.running() as client:
        assert (client.facts.lost, client.facts.metered) == ({key.node_id}, {key.node_id})


async def test_the_head_hears_two_voices_of_one_node(network: Network) -> None:
    """Also while the registry is away: by the statuses alone. Restarts are none, nor is the end of an earlier life."""
    key, _ = network.member("edge-1")
    first, second = Life(), Life()

    def say(life: Life, *, online: bool) -> None:
        status = NodeStatus(node_id=key.node_id, online=online, instance=life.instance)
        network.say(network.topics.status(key.node_id), status)

    follower = Follower(network, *network.member("cloud", Role.HEAD))
    async with follower.running() as client:
        for life, online in ((first, True), (second, True), (first, False), (second, True)):
            say(life, online=online)
            await follower.clock.advance(0)
        assert client.statuses[key.node_id].online
        assert cloned(client.facts.alternations, 0.0) == []
        say(first, online=True)
        await follower.clock.advance(0)
        assert cloned(client.facts.alternations, 0.0) == [key.node_id]


GOOD_CONDITION = {
    "type": "OverlayUp",
    "status": "False",
    "reason": "DeviceDown",
    "message": "et0 is down",
    "since": "2026-01-01T00:00:00.000+00:00",
    "final": False,
}


NODE_ID = "a" * 26


def heard(*reports: dict[str, object]) -> tuple[list[bool], NodeStatus]:
    """Which of them count as statuses of one node, and what is known of it then."""
    board = StatusBoard()
    told = [{"node_id": NODE_ID, "online": True, **report} for report in reports]
    return [board.receive(NODE_ID, json.dumps(each).encode()) is not None for each in told], board.statuses[NODE_ID]


@pytest.mark.parametrize(
    "conditions",
    [
        [{}],
        ["OverlayUp"],
        [{name: value for name, value in GOOD_CONDITION.items() if name != "reason"}],
        [GOOD_CONDITION | {"status": "Maybe"}],
        [GOOD_CONDITION | {"message": {"not": "a text"}}],
        [GOOD_CONDITION | {"type": "T" * 65}],
        [GOOD_CONDITION] * 65,
    ],
)
def test_malformed_conditions_are_refused(conditions: list[object]) -> None:
    """Whoever reads a status later relies on its shape: another one does not count, and the last good one stays."""
    count, known = heard({"conditions": [GOOD_CONDITION]}, {"conditions": conditions})
    assert count == [True, False]
    (condition,) = known.conditions
    assert condition.model_dump(include={"type", "reason", "message"}) == {
        "type": "OverlayUp",
        "reason": "DeviceDown",
        "message": "et0 is down",
    }


def test_a_long_message_of_a_condition_is_cut() -> None:
    """It may quote what some program printed: no reason not to know the rest."""
    count, known = heard({"conditions": [GOOD_CONDITION | {"message": "m" * 100_000}]})
    (condition,) = known.conditions
    assert condition.message == "m" * MAX_TEXT
    assert count == [True]


@pytest.mark.parametrize("phase", ["", "P" * 65, 7])
def test_a_malformed_phase_is_refused(phase: object) -> None:
    """It is shown in every list of nodes."""
    count, known = heard(*({"phase": said, "ray_version": "2" * 100_000} for said in ("Ready", phase)))
    assert count == [True, False]
    assert (known.phase, known.ray_version) == ("Ready", "2" * MAX_TEXT)


async def test_ends_of_easytier_are_handed_on(network: Network) -> None:
    """Of every node, to an edge too, with the id of the node whose topic it was; what is not believed is counted."""
    key, membership = network.member("edge-1")
    other, _ = network.member("edge-2")
    deaths = Inbox()
    follower = Follower(network, key, membership, easytier_deaths=deaths)
    async with follower.running():
        network.broker.publish(Message(network.topics.easytier(other.node_id), b"true"))
        await follower.clock.advance(0)
        assert deaths.take_all() == [(other.node_id, b"true")]


async def test_a_message_that_breaks_what_takes_it_is_passed_over(network: Network) -> None:
    """Whatever it is that nobody has thought of: another node says it, and every daemon of the network would end."""
    key, membership = network.member("edge-1")
    other, _ = network.member("edge-2")

    class Broken(Inbox):
        def put(self, node_id: str, payload: bytes) -> None:
            super().put(node_id, payload)
            if payload == b"poison":
                raise ZeroDivisionError

    broken = Broken()
    follower = Follower(network, key, membership, easytier_deaths=broken)
    topic = network.topics.easytier(other.node_id)
    async with follower.running() as client:
        for payload in (b"poison", b"harmless"):
            network.broker.publish(Message(topic, payload))
            await follower.clock.advance(0)
        assert [payload for _, payload in broken.take_all()] == [b"poison", b"harmless"]
        assert client.is_connected
