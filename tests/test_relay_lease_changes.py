"""What the operator's word changes: a lease's hostname, address, rank or labels, or the key that holds it."""

from __future__ import annotations

import shutil
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from registry_world import World
from telling import Words, refuses

from edgelink.errors import ConfigError, EdgelinkError, LeaseConflictError, RegistryError
from edgelink.member.lease_watch import HeardLease, LeaseWatch
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Directory, Lease, RelayAddresses, Role
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.relay.lease_changes import LeaseChange


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def published(world: World, node_id: str) -> Lease:
    return open_envelope(world.store.lease_envelopes()[node_id], Kind.LEASE, Lease, world.keys.verify_key_b64)


# another lease


def test_a_lease_is_changed_on_the_operators_word(world: World) -> None:
    """All of it at once, signed anew under a higher epoch, recorded, and told to everybody; key and time stay."""
    old = world.join("edge-1", labels={"arm": "left", "room": "1"})
    change = LeaseChange("franka", IPv4Address("10.10.0.77"), 7, {"room": "2"}, ("arm",))
    new = world.authority.change_lease("edge-1", change, caller="alice")
    assert new == old.model_copy(
        update={
            "hostname": "franka",
            "overlay_ip": IPv4Address("10.10.0.77"),
            "preferred_rank": 7,
            "labels": {"room": "2"},
            "given_labels": ("room",),
            "lease_epoch": 1,
        }
    )
    assert published(world, old.node_id) == new
    world.reopen()
    assert world.store.find_lease("franka") == new
    assert world.store.find_lease("edge-1") is None
    entry = world.store.history()[-1]
    assert (entry["action"], entry["node_id"], entry["caller"]) == ("changed", old.node_id, "alice")
    directory = Directory.model_validate_json(world.authority.directory().body)
    assert (directory.entries[0].hostname, directory.epoch) == ("franka", world.store.epoch())


def test_what_a_node_gives_up_rests(world: World) -> None:
    """It goes on with the old address until it hears of the new one; others do not get it meanwhile, itself may."""
    old = world.join("edge-1")
    world.authority.change_lease("edge-1", LeaseChange("new", IPv4Address("10.10.0.77"), 7))
    resting = {rest.value: rest.node_id for rest in world.store.quarantine.resting()}
    assert resting == {"edge-1": old.node_id, "10.10.0.2": old.node_id, "1": old.node_id}
    assert world.join("edge-2").overlay_ip == IPv4Address("10.10.0.3")
    back = world.authority.change_lease("new", LeaseChange("edge-1", old.overlay_ip, 1))
    assert back == old.model_copy(update={"lease_epoch": 2})


def test_labels_change_also_while_a_token_promises_the_place(world: World) -> None:
    """They take nothing from anybody; all else has to wait for whoever brings the token."""
    lease = world.join("franka", labels={"arm": "left"})
    token = world.token(replaces="franka")
    new = world.authority.change_lease("franka", LeaseChange(labels={"room": "2"}, unlabel=("arm",)))
    assert new == lease.model_copy(update={"labels": {"room": "2"}, "given_labels": ("room",), "lease_epoch": 1})
    assert published(world, lease.node_id) == new
    with refuses(LeaseConflictError, token.token_id):
        world.authority.change_lease("franka", LeaseChange(rank=7, labels={"room": "3"}))


def test_no_change_is_none(world: World) -> None:
    """No new signature, nothing recorded."""
    lease = world.join("edge-1", labels={"a": "b"})
    epoch = world.store.epoch()
    same = LeaseChange("edge-1", lease.overlay_ip, lease.preferred_rank, {"a": "b"}, ("c",))
    assert world.authority.change_lease(lease.node_id, same) == lease
    assert world.store.epoch() == epoch


@pytest.mark.parametrize(
    ("node", "change", "reason"),
    [
        ("nobody", LeaseChange("x"), "NodeUnknown"),
        ("edge-1", LeaseChange("edge-2"), "LeaseConflict"),
        ("edge-1", LeaseChange(overlay_ip=IPv4Address("10.10.0.4")), "LeaseConflict"),
        ("edge-1", LeaseChange(rank=2), "LeaseConflict"),
        ("edge-1", LeaseChange("kept"), "LeaseConflict"),
        ("edge-1", LeaseChange(overlay_ip=IPv4Address("10.10.0.5")), "LeaseConflict"),
        ("edge-1", LeaseChange(overlay_ip=IPv4Address("10.10.0.1")), "ConfigInvalid"),
        ("edge-1", LeaseChange(overlay_ip=IPv4Address("10.11.0.1")), "ConfigInvalid"),
        ("edge-1", LeaseChange(rank=0), "ConfigInvalid"),
        ("cloud", LeaseChange(rank=3), "ConfigInvalid"),
        ("edge-1", LeaseChange("Not A Name"), "ConfigInvalid"),
        ("edge-1", LeaseChange(labels={"x": "y" * 300}), "ConfigInvalid"),
        ("edge-1", LeaseChange(rank=2**60), "ConfigInvalid"),
        ("relay", LeaseChange(overlay_ip=IPv4Address("10.10.0.99")), "ConfigInvalid"),
        ("relay", LeaseChange(rank=9), "ConfigInvalid"),
    ],
)
def test_what_no_lease_is_changed_to(world: World, node: str, change: LeaseChange, reason: str, words: Words) -> None:
    """The refusal names the holder or the reason, and nothing is changed."""
    world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    world.join("cloud", Role.HEAD)
    world.join("edge-1")
    world.join("edge-2")
    world.join("gone")
    world.authority.release("gone")
    token = world.token(hostname="kept")
    before = (world.store.leases(), world.store.epoch(), world.store.quarantine.resting())
    with refuses(EdgelinkError, reason=reason) as caught:
        world.authority.change_lease(node, change)
    assert caught.value.hint
    words(caught.value, TOKEN=token.token_id)
    assert (world.store.leases(), world.store.epoch(), world.store.quarantine.resting()) == before


def test_a_restored_registrys_word_counts_on_a_node_that_had_later_changes(world: World, tmp_path: Path) -> None:
    """The backup does not know how often the lease was changed since; the node does not believe an older one."""
    key, token = NodeKey.generate(), world.token()
    membership = world.membership(key, token, world.enrol(key, token))
    world.store.close()
    shutil.copytree(world.directory, tmp_path / "backup")
    world.open()
    watch, topic = LeaseWatch(membership), Topics(world.keys.network_id).lease(key.node_id)

    def changed(registry: World, rank: int) -> None:
        new = registry.authority.change_lease(key.node_id, LeaseChange(rank=rank))
        said = registry.store.lease_envelopes()[key.node_id]
        assert watch.take(Message(topic, said.model_dump_json().encode()), membership)
        assert watch.heard == HeardLease(said, new)
        assert watch.heard.is_newer_than(membership.lease)

    for rank in (5, 6, 7):
        changed(world, rank)
    restored = World(tmp_path / "backup", world.clock)
    relay = restored.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    restored.store.note_restoration(relay.node_id, keep_addresses=True)
    for rank in (8, 9):
        changed(restored, rank)


def test_an_enrolment_keeps_what_was_changed(world: World) -> None:
    """A node that enrols again gets the changed lease."""
    key, token = NodeKey.generate(), world.token(uses=2)
    world.enrol(key, token)
    new = world.authority.change_lease("edge-1", LeaseChange("franka"))
    assert world.lease(world.enrol(key, token)) == new


# another key in a node's place


def replace(world: World, node: str, **options: Any) -> tuple[NodeKey, Lease]:
    """A machine with a new key and a hostname of its own, under a token for the place of ``node``."""
    key, token = NodeKey.generate(), world.token(replaces=node, **options)
    return key, world.lease(world.enrol(key, token, "fresh-image", role=None))


def test_a_reimaged_machine_gets_its_lease_back(world: World) -> None:
    """Hostname, address, rank, role and labels; the old key is out, whatever token it brings."""
    key, token = NodeKey.generate(), world.token(uses=5, labels={"arm": "left"})
    old = world.lease(world.enrol(key, token, "franka"))
    world.join("other")
    new_key, new = replace(world, "franka")
    assert new == old.model_copy(
        update={"node_id": new_key.node_id, "verify_key": new_key.verify_key_b64, "granted_at": new.granted_at}
    )
    assert world.store.lease(old.node_id) is None
    assert {user.subject for user in world.store.broker_users() if user.kind == "node"} >= {new.node_id}
    assert old.node_id not in {user.subject for user in world.store.broker_users()}
    for token_ in (token, world.token()):
        refused = world.enrol(key, token_, "franka").reply
        assert refused.error_reason == "NodeRevoked"
        assert "franka" in str(refused.error)
    assert [entry["action"] for entry in world.store.history()][-2:] == ["replaced", "granted"]
    world.reopen()
    assert world.enrol(key, token, "franka").reply.error_reason == "NodeRevoked"


def test_it_gets_what_the_node_holds_by_then(world: World) -> None:
    """Although the operator changed the lease after making the token."""
    world.join("franka")
    key, token = NodeKey.generate(), world.token(replaces="franka")
    changed = world.authority.change_lease("franka", LeaseChange("arm", IPv4Address("10.10.0.50"), 5))
    new = world.lease(world.enrol(key, token, "fresh-image"))
    assert (new.hostname, new.overlay_ip, new.preferred_rank) == ("arm", changed.overlay_ip, 5)


def test_it_gets_back_what_rests(world: World) -> None:
    """The node was released already: nobody else gets it before, and it does not wait."""
    old = world.join("franka")
    world.authority.release("franka")
    _, new = replace(world, old.node_id)
    assert (new.hostname, new.overlay_ip, new.preferred_rank) == ("franka", old.overlay_ip, old.preferred_rank)
    assert world.store.quarantine.resting() == []


@pytest.mark.parametrize("change", [None, LeaseChange("arm", IPv4Address("10.10.0.50"), 5)])
def test_the_old_key_may_use_the_token_itself(world: World, change: LeaseChange | None) -> None:
    """It was not re-imaged after all: then it is an enrolment like any, also where its lease was changed since."""
    key = NodeKey.generate()
    old = world.lease(world.enrol(key, world.token(), "franka"))
    token = world.token(replaces="franka")
    if change is not None:
        old = world.authority.change_lease("franka", change)
    assert world.lease(world.enrol(key, token, "franka")) == old
    assert world.store.revocations.all() == []


def test_a_repeated_request_is_the_same_machine(world: World) -> None:
    """The reply was lost: the same key gets the same lease again, under the used-up token."""
    world.join("franka")
    key, token = NodeKey.generate(), world.token(replaces="franka")
    first = world.lease(world.enrol(key, token, "fresh-image"))
    assert world.lease(world.enrol(key, token, "fresh-image")) == first
    assert world.enrol(NodeKey.generate(), token, "fresh-image").reply.error_reason == "TokenUsedUp"


def test_a_repeated_request_gets_what_the_node_held_by_then(world: World) -> None:
    """The reply was lost, and the operator had changed the lease after making the token: the same lease again for this
    key under this token, and for nobody else."""
    member = NodeKey.generate()
    own = world.lease(world.enrol(member, world.token(), "member"))
    world.join("franka")
    key, token = NodeKey.generate(), world.token(replaces="franka")
    world.authority.change_lease("franka", LeaseChange("arm", IPv4Address("10.10.0.50"), 5))
    assert world.enrol(member, token, "member").reply.error_reason == "LeaseConflict"
    request = world.request(key, token, "fresh-image")
    first, again = (world.lease(world.authority.enrol(request, token.token_id)) for _ in range(2))
    assert first == again == world.store.find_lease("arm")
    for stranger in (member, NodeKey.generate()):
        assert world.enrol(stranger, token, "fresh-image").reply.error_reason == "TokenUsedUp"
    assert world.enrol(key, world.token(hostname="other"), "fresh-image").reply.error_reason == "LeaseConflict"
    assert world.store.lease(member.node_id) == own


def test_its_device_carries_what_the_node_holds_by_then(world: World) -> None:
    """With `overlay.kind: existing`, asked once or again: not what the node held when the token was made."""
    old = world.join("franka")
    key, token = NodeKey.generate(), world.token(replaces="franka")
    new = world.authority.change_lease("franka", LeaseChange("arm", IPv4Address("10.10.0.50")))

    def asks(overlay_ip: IPv4Address) -> str | None:
        return world.enrol(key, token, "fresh-image", overlay_ip=overlay_ip).reply.error_reason

    assert asks(old.overlay_ip) == "ConfigInvalid"
    assert asks(new.overlay_ip) is None
    assert asks(new.overlay_ip) is None
    assert asks(old.overlay_ip) == "LeaseConflict"


def test_the_head_and_a_relay_are_replaced_as_what_they_are(world: World) -> None:
    """Whatever role the token was asked for."""
    head = world.join("cloud", Role.HEAD)
    _, new = replace(world, "cloud")
    assert (new.role, new.preferred_rank, new.overlay_ip) == (Role.HEAD, 0, head.overlay_ip)
    addresses = RelayAddresses(overlay_peers=("tcp://198.51.100.7:11010",), broker_addresses=("198.51.100.7:8883",))
    world.enrol(NodeKey.generate(), world.token(Role.RELAY), "relay-2", role=Role.RELAY, relay=addresses)
    key, token = NodeKey.generate(), world.token(replaces="relay-2")
    relay = world.lease(world.enrol(key, token, "fresh", role=Role.RELAY, relay=addresses))
    assert (relay.hostname, relay.is_relay) == ("relay-2", True)
    assert set(world.store.relay_addresses()) == {key.node_id}


def test_the_place_stays_the_nodes_until_it_is_taken(world: World) -> None:
    """A token is a promise: nobody else gets the place, and the node keeps it while nobody came."""
    lease = world.join("franka")
    world.token(replaces="franka")
    assert world.store.leases() == [lease]
    assert world.store.revocations.all() == []
    assert world.enrol(NodeKey.generate(), world.token(), "franka").reply.error_reason == "LeaseConflict"


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"replaces": "nobody"}, RegistryError, "NodeUnknown"),
        ({"replaces": "franka", "uses": 2}, ConfigError, "ConfigInvalid"),
        ({"replaces": "franka", "hostname": "other"}, ConfigError, "ConfigInvalid"),
        ({"replaces": "franka", "rank": 2}, ConfigError, "ConfigInvalid"),
        ({"replaces": "franka", "labels": {f"l{n}": "x" for n in range(32)}}, ConfigError, "ConfigInvalid"),
    ],
)
def test_unusable_replacements(
    world: World, options: dict[str, Any], error: type[EdgelinkError], reason: str, words: Words
) -> None:
    """Also where its labels and those of the node are too many together."""
    world.join("franka", labels={"arm": "left"})
    with refuses(error, reason=reason) as caught:
        world.token(**options)
    assert caught.value.hint
    words(caught.value)
    assert world.store.tokens.all()[1:] == []


def test_a_refused_replacement_changes_nothing(world: World) -> None:
    """The machine cannot be enrolled: the node in whose place it was to come keeps its lease and its key."""
    lease = world.join("franka")
    key, token = NodeKey.generate(), world.token(replaces="franka")
    refused = world.enrol(key, token, "fresh", overlay_ip=IPv4Address("10.10.0.99")).reply
    assert refused.error_reason == "ConfigInvalid"
    assert world.store.leases() == [lease]
    assert world.store.revocations.all() == []
