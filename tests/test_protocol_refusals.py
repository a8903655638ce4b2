"""What the registry's side refuses: how much of it, counted by reason, and told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_relay_service_enrol import Relay

from edgelink.errors import UntrustedError
from edgelink.log import recent
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import NodeStatus, Role
from edgelink.protocol.refusals import Refusals, refusal_reason
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.transport import Message
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import FakeClock, eventually
from edgelink.testing.registry_service import LoneService


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_a_node_that_asks_without_end_is_held_back(clock: FakeClock) -> None:
    """Five at once, then one a second; another node is not held back for it."""
    limit = RequestLimit(clock)
    assert [limit.exceeded("token", "node") for _ in range(7)] == [None] * 5 + ["node"] * 2
    assert limit.exceeded("token", "other") is None
    await clock.advance(1.0)
    assert [limit.exceeded("token", "node") for _ in range(2)] == [None, "node"]


async def test_a_token_in_wrong_hands_is_held_back(clock: FakeClock) -> None:
    """256 of ever new nodes at once, then 100 a second; those with another token go on."""
    limit = RequestLimit(clock)
    passed = [limit.exceeded("stolen", f"node-{number}") for number in range(5000)]
    assert passed.count(None) == 256
    assert set(passed[256:]) == {"token"}
    assert limit.exceeded("good", "node") is None
    await clock.advance(1.0)
    assert [limit.exceeded("stolen", f"later-{number}") for number in range(101)].count(None) == 100


async def test_many_tokens_in_wrong_hands(clock: FakeClock) -> None:
    """Altogether 512 at once."""
    limit = RequestLimit(clock)
    passed = [limit.exceeded(f"token-{number}", f"node-{number}") for number in range(600)]
    assert passed.count(None) == 512
    assert set(passed[512:]) == {"all"}


async def test_a_node_that_floods_its_status_costs_what_another_one_does(tmp_path: Path) -> None:
    """Twenty at once, then two a second are read. Its last word counts all the same, and others are not held back."""
    relay, clock = Relay(tmp_path), FakeClock()
    flooding, other = NodeKey.generate().node_id, NodeKey.generate().node_id
    relay.service = LoneService(
        authority=relay.world.authority,
        store=relay.world.store,
        network_id=relay.world.keys.network_id,
        broker=relay.broker,
        transport=relay.transport,
        clock=clock,
    )

    def say(node_id: str, phase: str) -> None:
        said = NodeStatus(node_id=node_id, online=True, phase=phase).model_dump_json().encode()
        relay.memory.publish(Message(relay.topics.status(node_id), said))

    async with relay.running() as service:
        for number in range(100):
            say(flooding, str(number))
        say(other, "Ready")
        await eventually(lambda: other in service.statuses)
        assert service.statuses[flooding].phase == "19"
        assert service.refusals.counts["RateLimited"] == 80
        await clock.advance(0.5)
        assert service.statuses[flooding].phase == "99"
        await clock.advance(0.5)
        say(flooding, "honest again")
        await eventually(lambda: service.statuses[flooding].phase == "honest again")


async def test_what_is_remembered_for_the_limits_is_bounded(clock: FakeClock) -> None:
    """A million made-up names leave no million buckets."""
    limit = RequestLimit(clock)
    for _ in range(30):
        for number in range(1000):
            limit.exceeded(f"token-{number}-{clock.monotonic_s()}", f"node-{number}-{clock.monotonic_s()}")
        await clock.advance(10.0)
    assert len(limit._nodes) + len(limit._tokens) <= 2 * 8192


def test_counted_always_logged_once() -> None:
    """Each reason and sender once; a flood under ever new names fills neither memory nor log."""
    refusals = Refusals("registry.refused_test")
    before = len(recent())
    for _ in range(100):
        refusals.note("Malformed", "token-1")
        refusals.note("RateLimited", "token-1")
        refusals.note("Malformed", "token-2")
    assert refusals.counts == {"Malformed": 200, "RateLimited": 100}
    assert len([line for line in recent()[before:] if "registry.refused_test" in line]) <= 3
    for number in range(5000):
        refusals.note("Malformed", f"token-{number}")
    assert refusals.total == 5300
    assert len(refusals._told) <= 1024


def test_reasons() -> None:
    """An error's own word, or Malformed for what is no document at all."""
    assert refusal_reason(UntrustedError("forged", reason="Forged")) == "Forged"


async def test_the_service_counts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Malformed, on another's topic, too many, and refused by the authority: each under its name; all are served."""
    relay = Relay(tmp_path_factory.mktemp("relay"))
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE, uses=1))
        key, other = NodeKey.generate(), NodeKey.generate()
        topic = relay.topics.enrol_request(token.token_id, key.node_id)
        relay.memory.publish(Message(topic, b"\xff"))
        await eventually(lambda: service.refusals.counts["Malformed"] == 1)
        relay.memory.publish(Message(topic, relay.world.request(other, token).model_dump_json().encode()))
        await eventually(lambda: service.refusals.counts["OnAnothersTopic"] == 1)
        for _ in range(9):
            relay.memory.publish(Message(topic, relay.world.request(key, token).model_dump_json().encode()))
        await eventually(lambda: service.refusals.counts["RateLimited"] == 6)
        relay.memory.publish(Message(relay.topics.status(key.node_id), b"junk"))
        await eventually(lambda: service.refusals.counts["StatusUnusable"] == 1)
        reply = await relay.enrol(token, "edge-2", other)
        assert reply.error is not None
        assert service.refusals.counts["TokenUsedUp"] == 1


async def test_a_request_that_came_twice_changes_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The node's user stays as it is: else the node that uses it already would be put off the broker."""
    relay = Relay(tmp_path_factory.mktemp("relay"))
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        key = NodeKey.generate()
        request = relay.world.request(key, token)
        payload = request.model_dump_json().encode()
        replies = relay.topics.enrol_reply(token.token_id, key.node_id)
        for number in (1, 2):
            relay.memory.publish(Message(relay.topics.enrol_request(token.token_id, key.node_id), payload))
            await eventually(lambda n=number: sum(m.topic == replies for m in relay.memory.published) == n)
            password = relay.world.store.node_password(key.node_id)
            if number == 1:
                first = password
        assert password == first
