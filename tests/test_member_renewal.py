"""A node renews its password at the broker: the step that is due, and whole daemons that take it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from registry_world import World
from sim import Box, Sim, story
from sim_machine import BROKER
from telling import refuses

from edgelink import log
from edgelink.api.server import Caller
from edgelink.errors import ExitCode, NotRecordedError, RegistryError, UsageError
from edgelink.facts.part import Action
from edgelink.member.join import join
from edgelink.member.registry_client import Session
from edgelink.member.renewal import AskRegistry, Forget, Inputs, Renewal
from edgelink.protocol.keys import NodeKey, seal
from edgelink.protocol.payloads import Role
from edgelink.protocol.requests import NodeRequest, Renew
from edgelink.protocol.transport import Message
from edgelink.relay.renewals import EVERY_S, Renewals
from edgelink.testing.facts import board_with
from edgelink.testing.memory_transport import MemorySession


@pytest.mark.parametrize(
    "upcoming, session, does",
    [
        (None, Session(1, is_connected=True, password="present"), None),
        ("next", Session(1, is_connected=False, password="present"), None),
        ("next", Session(1, is_connected=True, password="present"), "ask"),
        ("next", Session(2, is_connected=True, password="next"), "forget"),
    ],
)
def test_the_step_that_is_due(tmp_path: Path, upcoming: str | None, session: Session, does: str | None) -> None:
    """The registry is asked until a session shows that the next password counts; only then the former one goes."""
    world, key = World(tmp_path), NodeKey.generate()
    token = world.token()
    joined = world.membership(key, token, world.enrol(key, token))
    membership = joined.model_copy(update={"next_broker_password": upcoming})
    actions: dict[str | None, Action | None] = {
        None: None,
        "ask": AskRegistry("next", membership.registry_verify_key),
        "forget": Forget("next"),
    }
    for asked in (0, 1):
        assert planner().plan(Inputs(membership, session, asked), 0.0).does == actions[does]


def test_who_has_not_joined_renews_nothing() -> None:
    assert planner().plan(Inputs(None, Session(1, is_connected=True), 1), 0.0).does is None


def planner() -> Renewal:
    """A part that only plans."""
    nothing = cast(Any, None)
    return Renewal(board=board_with(), store=nothing, channel=nothing, clock=nothing)


def test_whose_lease_is_gone_renews_nothing(tmp_path: Path) -> None:
    """It was released while its request waited: refused, and the registry goes on."""
    registry, key = World(tmp_path), NodeKey.generate()
    registry.enrol(key, registry.token())
    registry.authority.release("edge-1")
    ask = Renew(sealed_password=seal(registry.keys.verify_key_b64, b"p" * 32))
    request = NodeRequest(
        network_id=registry.keys.network_id,
        node_id=key.node_id,
        nonce="0" * 32,
        made_at=registry.clock.now(),
        ask=ask,
    )
    with refuses(RegistryError, key.node_id, reason="NodeUnknown"):
        Renewals(registry.store, registry.keys, registry.clock).renew(request, ask)


def test_a_relay_that_is_the_head_too_keeps_the_password_that_counts(tmp_path: Path) -> None:
    """Its registry starts between the steps: what is on disk and counts is not replaced by another."""
    world, key = World(tmp_path), NodeKey.generate()
    first = world.authority.relay_membership(key, "relay")
    begun = first.model_copy(update={"next_broker_password": "n" * 32})
    assert world.authority.relay_membership(key, "relay", previous=begun).secrets == first.secrets
    recorded = world.store.node_password(key.node_id)
    assert recorded is not None
    assert recorded.matches(first.secrets.broker_password)


async def of_one_node(sim: Sim) -> tuple[Box, Box]:
    """A relay, and an edge in a session with it."""
    relay = await sim.relay()
    edge = await sim.join("edge-1", Role.EDGE, relay)
    edge.start()
    await sim.until(edge.has("RegistryConnected"), within_s=5)
    return relay, edge


def at_broker(relay: Box, edge: Box) -> str:
    return (relay.machine.memory.passwords or {})[edge.membership.secrets.broker_username]


def counts(relay: Box, edge: Box, password: str) -> bool:
    recorded = relay.relay.store.node_password(edge.node_id)
    return recorded is not None and recorded.matches(password)


async def renewed(relay: Box, edge: Box) -> str:
    """The password that the edge has, and that counts, once `edgelink renew` has ended."""
    await edge.asks("POST", "/renew", timeout_s=10)
    (password,) = edge.membership.broker_passwords
    assert password == at_broker(relay, edge)
    assert counts(relay, edge, password)
    return password


async def refused(edge: Box, timeout_s: float = 1) -> tuple[str, int]:
    """Why `edgelink renew` fails, and with which exit code."""
    *_, last = await edge.told("POST", "/renew", timeout_s=timeout_s)
    return last["error"], last["exit_code"]


@story
async def test_a_new_password_each_time(sim: Sim) -> None:
    """Known to node, registry and broker; the former one is forgotten everywhere; the broker is not started anew."""
    relay, edge = await of_one_node(sim)
    seen = {*edge.membership.broker_passwords}
    for number in range(1, 4):
        seen.add(await renewed(relay, edge))
        assert len(seen) == 1 + number
        assert edge.facts.session.is_connected
        await sim.passes(EVERY_S)
    assert relay.machine.history.count(f"+{BROKER}") == 1


@story
async def test_a_node_that_renews_again_and_again_costs_little(sim: Sim) -> None:
    """One new password a minute: the next one waits on the node's disk, the command says why; nothing is hidden."""
    relay, edge = await of_one_node(sim)
    password = await renewed(relay, edge)
    hidden = len(log._hidden)
    why, _ = await refused(edge)
    assert "renewed" in why
    upcoming, present = edge.membership.broker_passwords
    assert present == password == at_broker(relay, edge)
    assert relay.relay.registry.refusals.counts["RenewedJustNow"]
    assert len(log._hidden) <= hidden + 4, "the one that the node has begun, in its own process"
    await sim.until(lambda: edge.membership.broker_passwords == (upcoming,), within_s=2 * EVERY_S)
    assert at_broker(relay, edge) == upcoming


@story
async def test_a_relay_that_is_away_is_waited_for_also_by_the_next_daemon(sim: Sim) -> None:
    """The command ends with 75; the password that was begun is the one that counts in the end."""
    relay, edge = await of_one_node(sim)
    former = at_broker(relay, edge)
    await relay.stop()
    for _ in range(2):
        why, code = await refused(edge, timeout_s=0.05)
        assert "within 0.05 s" in why
        assert code == ExitCode.TRY_AGAIN
    upcoming, present = edge.membership.broker_passwords
    assert present == former
    await edge.kill()
    edge.start()
    relay.start()
    await sim.until(lambda: edge.membership.broker_passwords == (upcoming,), within_s=30)
    assert at_broker(relay, edge) == upcoming
    await sim.until(edge.has("RegistryConnected"), within_s=10)


@story
async def test_a_reply_that_is_lost_costs_nothing(sim: Sim) -> None:
    """The broker knows the new password, the node was put off it unheard: it comes back with the new one."""
    relay, edge = await of_one_node(sim)
    offers = MemorySession.offer

    def offer(session: MemorySession, message: Message) -> None:
        if not (counts(relay, edge, edge.membership.broker_passwords[0]) and is_reply(message.topic)):
            offers(session, message)

    former = at_broker(relay, edge)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "offer", offer)
        assert await renewed(relay, edge) != former


def is_reply(topic: str) -> bool:
    return "/node/" in topic and topic.endswith("/reply")


@story
async def test_who_asks_twice_renews_once(sim: Sim) -> None:
    """What was begun is gone on with: two passwords on their way would leave one that nobody knows."""
    relay, edge = await of_one_node(sim)
    one, two = await asyncio.gather(renewed(relay, edge), renewed(relay, edge))
    assert one == two


@story
async def test_joining_again_meanwhile_loses_no_password(sim: Sim) -> None:
    """The registry may hear of the renewal before or after: the node keeps what was asked for until it is settled."""
    relay, edge = await of_one_node(sim)
    former = at_broker(relay, edge)
    await relay.stop()
    await refused(edge, timeout_s=0.05)
    upcoming = edge.membership.broker_passwords[0]
    await edge.stop()
    relay.start()
    await sim.until(relay.has("RegistryConnected"), within_s=5)
    again = await sim.invited("edge-1", Role.EDGE, relay)
    await join(again, edge.config, edge.paths, sim.clock, edge.machine)
    assert edge.membership.broker_passwords[0] == upcoming
    assert edge.membership.broker_passwords[1] == at_broker(relay, edge) != former
    edge.start()
    await sim.until(lambda: edge.membership.broker_passwords == (upcoming,), within_s=30)
    assert at_broker(relay, edge) == upcoming


@story
async def test_a_full_disk_is_told_before_anything_is_asked(sim: Sim) -> None:
    """What the registry is to take has to be on our disk first."""
    relay, edge = await of_one_node(sim)
    before = edge.membership.broker_passwords

    def full(_path: Path, _content: bytes | str) -> None:
        raise NotRecordedError("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge.node.base.files, "require", full)
        why, _ = await refused(edge)
    assert "no room" in why
    assert edge.membership.broker_passwords == before == (at_broker(relay, edge),)


@story
async def test_only_root_may_ask(sim: Sim) -> None:
    """Any local user can reach the daemon's socket."""
    _, edge = await of_one_node(sim)
    assert edge.node.member.joined is not None
    with pytest.raises(UsageError, match="may not"):
        await edge.node.member.joined.renewal.serve(Caller(pid=1, uid=65534, gid=65534), {})
    assert len(edge.membership.broker_passwords) == 1
