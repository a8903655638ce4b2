"""What a released node held rests: nobody else gets it for a while, and the node itself gets it back."""

from __future__ import annotations

from datetime import datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from registry_world import World
from telling import refuses
from test_relay_service_enrol import Relay

from edgelink.conditions import Status
from edgelink.errors import LeaseConflictError, RegistryError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import ConditionReport, Lease, NodeStatus, Role
from edgelink.protocol.transport import Message
from edgelink.relay.authority import Authority
from edgelink.relay.lease_changes import LeaseChange

DAY_S = 24 * 3600.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def join_with(world: World, key: NodeKey, hostname: str, **options: Any) -> Lease:
    return world.lease(world.enrol(key, world.token(**options), hostname))


def test_hostname_address_and_rank_rest_for_a_day(world: World) -> None:
    """Others get the next ones; who asks for these is told whose they were, until when, and what ends it."""
    gone = world.join("gone")
    released = world.authority.release("gone")
    assert released.held == {"hostname": "gone", "overlay_ip": "10.10.0.2", "rank": "1"}
    assert released.rests_until == world.clock.now() + timedelta(seconds=DAY_S)
    other = world.join("other")
    assert (other.overlay_ip, other.preferred_rank) == (IPv4Address("10.10.0.3"), 2)
    refused = world.enrol(NodeKey.generate(), world.token(), "gone").reply
    assert refused.error_reason == "LeaseConflict"
    for part in (gone.node_id, f"until {released.rests_until:%Y-%m-%d %H:%M} UTC"):
        assert part in str(refused.error)
    assert "edgelink registry release gone --now" in refused.error_hint
    world.clock.step_wall_clock(DAY_S)
    again = world.join("gone")
    assert (again.overlay_ip, again.preferred_rank) == (gone.overlay_ip, gone.preferred_rank)


@pytest.mark.parametrize("fixed", [{"hostname": "gone"}, {"ip": IPv4Address("10.10.0.2")}, {"rank": 1}])
def test_no_token_promises_what_rests(world: World, fixed: dict[str, Any]) -> None:
    world.join("gone")
    world.authority.release("gone")
    with pytest.raises(LeaseConflictError, match="rests until") as caught:
        world.token(**fixed)
    assert "--now" in caught.value.hint


@pytest.mark.parametrize("fixed", [{"ip": IPv4Address("10.10.0.2")}, {"rank": 1}])
def test_a_token_from_before_a_release_brings_nothing_that_rests(world: World, fixed: dict[str, Any]) -> None:
    """It was made while the node was there."""
    world.join("gone")
    before = world.token(**fixed)
    world.authority.release("gone")
    reply = world.enrol(NodeKey.generate(), before, "new").reply
    assert reply.error_reason == "LeaseConflict"
    assert "rests until" in str(reply.error)


def test_a_released_node_gets_its_own_back(world: World) -> None:
    """The same key within the day: same hostname, address and rank, although lower ones are free by then."""
    lower, key = world.join("lower"), NodeKey.generate()
    lease = join_with(world, key, "edge")
    world.authority.release("edge")
    world.authority.release("lower", at_once=True)
    again = join_with(world, key, "edge")
    assert (
        (again.overlay_ip, again.preferred_rank)
        == (lease.overlay_ip, lease.preferred_rank)
        != (
            lower.overlay_ip,
            lower.preferred_rank,
        )
    )
    assert world.store.quarantine.resting() == []
    assert world.join("next").overlay_ip == lower.overlay_ip


@pytest.mark.parametrize(("last", "rank"), [(50, 5), (10, 10)])
def test_a_released_node_gets_what_it_held_last(world: World, last: int, rank: int) -> None:
    """Not what it gave up before, when the operator changed its lease, although that rests, too, and all of it for
    longer; so does who takes its place."""
    key, changed = NodeKey.generate(), LeaseChange("arm", IPv4Address(f"10.10.0.{last}"), rank)
    join_with(world, key, "edge")
    world.authority.change_lease("edge", changed)
    for by_key in (False, True):
        world.authority.release("arm")
        world.store.quarantine.prolong(key.node_id, world.clock.now() + timedelta(days=2), slack=timedelta(0))
        if not by_key:
            again = join_with(world, key, "arm")
            assert (again.overlay_ip, again.preferred_rank) == (changed.overlay_ip, rank)
    token = world.token(replaces=key.node_id)
    (record,) = (item for item in world.authority.tokens() if item.token_id == token.token_id)
    assert (record.hostname, record.overlay_ip, record.rank) == ("arm", changed.overlay_ip, rank)
    freed = world.authority.release(key.node_id, at_once=True)
    assert (freed.hostname, freed.held["overlay_ip"]) == ("arm", str(changed.overlay_ip))


def test_what_was_taken_up_again_is_what_it_held_last(world: World) -> None:
    """Changed, and changed back: that it had rested meanwhile does not make it old."""
    key = NodeKey.generate()
    lease = join_with(world, key, "edge")
    world.authority.change_lease("edge", LeaseChange(overlay_ip=IPv4Address("10.10.0.50"), rank=5))
    world.authority.change_lease("edge", LeaseChange(overlay_ip=lease.overlay_ip, rank=lease.preferred_rank))
    world.authority.release("edge")
    again = join_with(world, key, "edge")
    assert (again.overlay_ip, again.preferred_rank) == (lease.overlay_ip, lease.preferred_rank)


def test_it_is_freed_at_once_on_the_operators_word(world: World) -> None:
    """With the release, or later; each is recorded with who asked for it."""
    first = world.join("edge")
    assert world.authority.release("edge", at_once=True, caller="alice").rests_until is None
    second = world.join("edge")
    assert (second.overlay_ip, second.preferred_rank) == (first.overlay_ip, first.preferred_rank)
    world.authority.release(second.node_id, caller="bob")
    freed = world.authority.release(second.node_id, at_once=True, caller="carol")
    assert (freed.hostname, freed.rests_until) == ("edge", None)
    assert freed.held == {"hostname": "edge", "overlay_ip": "10.10.0.2", "rank": "1"}
    assert world.join("edge").overlay_ip == first.overlay_ip
    told = [(entry["action"], entry["caller"]) for entry in world.store.history() if entry["caller"]]
    assert told == [("released", "alice"), ("released", "bob"), ("freed before its time", "carol")]
    for at_once in (False, True):
        with refuses(RegistryError, "'nobody'", reason="NodeUnknown"):
            world.authority.release("nobody", at_once=at_once)


def test_it_rests_through_restarts(world: World) -> None:
    """It is in the database, not in the daemon."""
    world.join("gone")
    world.authority.release("gone")
    world.reopen()
    assert world.enrol(NodeKey.generate(), world.token(), "gone").reply.error_reason == "LeaseConflict"


def test_a_new_head_can_come_at_once(world: World) -> None:
    """Rank 0 is the head's, whoever it is; its hostname and address rest."""
    old = world.join("cloud", Role.HEAD)
    world.authority.release("cloud")
    new = world.join("cloud-2", Role.HEAD)
    assert (new.preferred_rank, new.overlay_ip == old.overlay_ip) == (0, False)


def test_no_rest_where_none_is_wanted(world: World) -> None:
    """`relay.quarantine: 0`."""
    authority = Authority(world.store, world.keys, world.clock, quarantine_s=0)
    lease = world.join("edge")
    assert authority.release("edge").rests_until is None
    assert world.join("edge").overlay_ip == lease.overlay_ip


async def test_what_a_node_still_uses_rests_on(tmp_path: Path) -> None:
    """Its lease was changed, and somebody works on it under the old address for days: the rest begins with the end of
    that. It is written down once an hour at most; what rests of others is left alone."""
    relay = Relay(tmp_path / "state")
    world = relay.world
    node, gone = world.join("edge-1"), world.join("gone")
    world.authority.release("gone")
    world.authority.change_lease("edge-1", LeaseChange(overlay_ip=IPv4Address("10.10.0.77")))
    waits = ConditionReport(type="Leased", status=Status.TRUE, reason="LeaseChangeWaits", message="a run")
    status = NodeStatus(node_id=node.node_id, online=True, conditions=(waits,))

    def rests() -> dict[str, datetime | None]:
        return {rest.value: rest.until for rest in world.store.quarantine.resting() if rest.kind == "overlay_ip"}

    written = set()
    for _ in range(60):
        relay.service._take_status(node.node_id, said(relay, status))
        written.add(rests()[str(node.overlay_ip)])
        world.clock.step_wall_clock(DAY_S / 48)
    assert 10 <= len(written) <= 31
    assert str(gone.overlay_ip) not in rests(), "another's ended in its time"
    with pytest.raises(LeaseConflictError, match=r"10\.10\.0\.2 rests"):
        world.token(ip=node.overlay_ip)
    left = status.model_copy(update={"conditions": ()})
    for _ in range(49):
        relay.service._take_status(node.node_id, said(relay, left))
        world.clock.step_wall_clock(DAY_S / 48)
    assert rests() == {}


def said(relay: Relay, status: NodeStatus) -> Message:
    return Message(relay.topics.status(status.node_id), status.model_dump_json().encode())
