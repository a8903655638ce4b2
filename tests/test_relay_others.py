"""Several relays in one network: their leases, where they are dialled, and what every node is told of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError
from registry_world import ADDRESSES, PEERS, World

from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, MAX_RELAYS, Directory, RelayAddresses, Role
from edgelink.protocol.token import Token
from edgelink.relay.authority import Authority
from edgelink.relay.tokens import TokenRequest

SECOND = RelayAddresses(
    overlay_peers=("tcp://198.51.100.7:11010",),
    broker_addresses=("198.51.100.7:8883",),
    stun_servers=("198.51.100.7:3478",),
)
THIRD = RelayAddresses(overlay_peers=("tcp://third.example.org:11010",), broker_addresses=("third.example.org:8883",))


# What EdgeLink wrote before there could be more than one relay.
@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "state")
    world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    return world


def add_relay(world: World, addresses: RelayAddresses, hostname: str = "relay-2") -> NodeKey:
    key = NodeKey.generate()
    world.lease(world.enrol(key, world.token(Role.RELAY), hostname, role=Role.RELAY, relay=addresses))
    return key


def directory(world: World) -> Directory:
    return open_envelope(world.authority.directory(), Kind.DIRECTORY, Directory, world.keys.verify_key_b64)


def test_another_relay_has_a_lease_like_anyone(world: World) -> None:
    """The next free address, no rank; everybody who enrols after it is told of both relays, itself excepted."""
    edge = world.join("edge-1")
    key = NodeKey.generate()
    token = world.token(Role.RELAY)
    result = world.enrol(key, token, "relay-2", role=Role.RELAY, relay=SECOND)
    lease = world.lease(result)
    assert (lease.role, lease.is_relay, lease.preferred_rank) == (Role.RELAY, True, None)
    assert lease.overlay_ip not in (edge.overlay_ip, world.network.relay_ip)
    assert world.membership(key, token, result).secrets.overlay_peers == PEERS
    later, token = NodeKey.generate(), world.token()
    secrets = world.membership(later, token, world.enrol(later, token, "edge-2")).secrets
    assert secrets.overlay_peers == (*PEERS, *SECOND.overlay_peers)
    assert secrets.stun_servers == SECOND.stun_servers


def test_who_enrolled_before_learns_of_new_stun_servers(world: World) -> None:
    """From the signed directory, like the relays themselves."""
    key, token = NodeKey.generate(), world.token()
    membership = world.membership(key, token, world.enrol(key, token, "edge-1"))
    assert membership.secrets.stun_servers == ()
    add_relay(world, SECOND)
    followed = membership.following(directory(world), in_use=ADDRESSES[0])
    assert followed.secrets.stun_servers == SECOND.stun_servers


def test_a_token_leads_to_every_relay(world: World) -> None:
    """This one first; then to those to which the registry may move, by name or address, also from there on."""
    assert world.token().addresses == ADDRESSES
    add_relay(world, SECOND)
    add_relay(world, THIRD, "relay-3")
    everywhere = (*ADDRESSES, *SECOND.broker_addresses, *THIRD.broker_addresses)
    token = Token.parse(world.token().encode())
    assert set(token.addresses) == set(everywhere)
    assert token.addresses[: len(ADDRESSES)] == ADDRESSES
    moved = Authority(world.store, world.keys, world.clock, addresses=SECOND.broker_addresses)
    token = moved.create_token(TokenRequest(Role.EDGE))
    assert token.addresses[0] == SECOND.broker_addresses[0]
    assert set(token.addresses) == set(everywhere)
    world.authority.release("relay-3")
    assert set(world.token().addresses) == {*ADDRESSES, *SECOND.broker_addresses}


def test_every_node_is_told_where_the_relays_are(world: World) -> None:
    """The signed directory names each relay's addresses; adding one is a change that nodes notice."""
    before = directory(world)
    assert [relay.broker_addresses for relay in before.relays.values()] == [ADDRESSES]
    key = add_relay(world, SECOND)
    after = directory(world)
    assert after.epoch > before.epoch
    assert after.relays[key.node_id] == SECOND
    assert {entry.hostname for entry in after.relay_entries} == {"relay", "relay-2"}
    text = world.authority.directory()
    world.reopen()
    assert world.authority.directory() == text


def test_a_relay_that_moved_says_so_by_joining_again(world: World) -> None:
    """A new token, the same lease, and its new addresses for everyone."""
    key = add_relay(world, SECOND)
    before = directory(world)
    world.enrol(key, world.token(Role.RELAY), "relay-2", role=Role.RELAY, relay=THIRD)
    assert directory(world).relays[key.node_id] == THIRD
    assert directory(world).entries == before.entries
    world.authority.release("relay-2")
    assert key.node_id not in directory(world).relays


def test_a_relay_that_cannot_be_dialled_is_refused(world: World) -> None:
    """A relay token used by `edgelink join` would make a relay that nobody finds."""
    token = world.token(Role.RELAY)
    result = world.enrol(NodeKey.generate(), token, "relay-2", role=None)
    assert "edgelink relay --join" in result.reply.error_hint
    assert [lease.hostname for lease in world.store.leases()] == ["relay"]
    assert world.authority.tokens()[0].uses_left == 1


def test_an_edge_does_not_become_a_relay(world: World) -> None:
    """Its lease says edge; the operator has to free that first."""
    key = NodeKey.generate()
    world.enrol(key, world.token())
    result = world.enrol(key, world.token(Role.RELAY), role=Role.RELAY, relay=SECOND)
    assert result.reply.error_reason == "LeaseConflict"
    assert key.node_id not in directory(world).relays


def test_another_relay_may_be_the_head_too(world: World) -> None:
    """It stays a relay, and may say again where it is."""
    key = add_relay(world, SECOND)
    head = world.lease(world.enrol(key, world.token(Role.HEAD), "relay-2", role=Role.HEAD))
    assert (head.role, head.is_relay, head.preferred_rank) == (Role.HEAD, True, 0)
    again = world.lease(world.enrol(key, world.token(Role.RELAY), "relay-2", role=Role.RELAY, relay=THIRD))
    assert again == head
    assert directory(world).relays[key.node_id] == THIRD


@pytest.mark.parametrize(
    ("peers", "brokers"),
    [
        (("--help",), ()),
        (('tcp://198.51.100.7:11010"\n[flags]',), ()),
        (("ring://198.51.100.7:11010",), ()),
        (("tcp://198.51.100.7",), ()),
        ((), ("http://198.51.100.7:80",)),
        (("tcp://198.51.100.7:11010",) * 17, ()),
        (("tcp://198.51.100.7:0",), ()),
        (("tcp://198.51.100.7:65536",), ()),
        (("tcp://[1.2.3]:11010",), ()),
        ((), ("198.51.100.7:99999",)),
        ((), ("[2001:db8:::1]:8883",)),
    ],
)
def test_only_urls_and_addresses_reach_the_nodes(peers: tuple[str, ...], brokers: tuple[str, ...]) -> None:
    """What a relay says of itself ends up in every node's EasyTier."""
    with pytest.raises(ValidationError):
        RelayAddresses(overlay_peers=peers, broker_addresses=brokers)


def test_a_full_network_fits_into_one_message(world: World) -> None:
    """The default network with every address taken, and as many relays as may be, each with names of full length."""
    host = "relay-with-a-rather-long-name." + "sub-domain." * 15 + "example.org"
    addresses = RelayAddresses(
        overlay_peers=tuple(f"tcp://{host}:{port}" for port in range(11010, 11014)),
        broker_addresses=(f"{host}:8883",),
    )
    for number in range(2, MAX_RELAYS + 1):
        add_relay(world, addresses, f"relay-{number}")
    refused = world.enrol(NodeKey.generate(), world.token(Role.RELAY), "one-more", role=Role.RELAY, relay=SECOND)
    assert "8 relays already" in str(refused.reply.error)
    alone = len(world.authority.directory().model_dump_json())
    world.join("edge-" + "0" * 27)
    each = len(world.authority.directory().model_dump_json()) - alone
    assert alone + each * (world.cidr.num_addresses - 2 - MAX_RELAYS) < MAX_PAYLOAD_BYTES / 2


# what a node makes of it


def member(world: World) -> Membership:
    key, token = NodeKey.generate(), world.token()
    return world.membership(key, token, world.enrol(key, token))


def test_a_member_follows_the_relays(world: World) -> None:
    """What it dials becomes what the directory says; a relay that was released is forgotten."""
    edge = member(world)
    add_relay(world, SECOND)
    followed = edge.following(directory(world), in_use=ADDRESSES[1])
    assert followed.addresses == (ADDRESSES[1], ADDRESSES[0], *SECOND.broker_addresses)
    assert followed.secrets.overlay_peers == (*PEERS, *SECOND.overlay_peers)
    assert followed.lease == edge.lease
    assert followed.secrets.broker_password == edge.secrets.broker_password
    world.authority.release("relay-2")
    assert followed.following(directory(world), in_use=ADDRESSES[0]).secrets.overlay_peers == PEERS


def test_a_relay_does_not_dial_itself(world: World) -> None:
    key, token = NodeKey.generate(), world.token(Role.RELAY)
    result = world.enrol(key, token, "relay-2", role=Role.RELAY, relay=SECOND)
    followed = world.membership(key, token, result).following(directory(world), in_use=ADDRESSES[0])
    assert followed.secrets.overlay_peers == PEERS


def test_a_wrong_address_cuts_nobody_off(world: World) -> None:
    """The relay is started with a wrong --advertise: those who reach it keep the address by which they do."""
    edge = member(world)
    wrong = RelayAddresses(overlay_peers=("tcp://10.0.0.5:11010",), broker_addresses=("10.0.0.5:8883",))
    told = directory(world)
    told = told.model_copy(update={"relays": dict.fromkeys(told.relays, wrong)})
    followed = edge.following(told, in_use=ADDRESSES[0])
    assert followed.addresses == (ADDRESSES[0], "10.0.0.5:8883")
    assert followed.secrets.overlay_peers == (*PEERS, "tcp://10.0.0.5:11010")


def test_a_registry_found_over_the_overlay_is_looked_for_at_its_public_address_next(world: World) -> None:
    """The overlay may be down then."""
    key = add_relay(world, SECOND)
    lease = world.store.lease(key.node_id)
    assert lease is not None
    followed = member(world).following(directory(world), in_use=f"{lease.overlay_ip}:8883")
    assert followed.addresses == (*SECOND.broker_addresses, *ADDRESSES)


def test_an_old_request_does_not_bring_old_addresses_back(world: World) -> None:
    """A relay that has moved is not sent back by its former request, nor its password; the newest may come twice."""
    key, token = NodeKey.generate(), world.token(Role.RELAY)
    asked_at = world.clock.now()
    ask = partial(world.request, key, token, "relay-2", role=Role.RELAY)
    former = ask(relay=SECOND, asked_at=asked_at)
    assert world.authority.enrol(former, token.token_id).reply.error is None
    newest = ask(relay=THIRD, asked_at=asked_at + timedelta(seconds=1))
    granted = world.authority.enrol(newest, token.token_id)
    assert world.authority.enrol(newest, token.token_id).broker_password == granted.broker_password
    world.reopen()
    for old in (former, ask(relay=SECOND)):
        result = world.authority.enrol(old, token.token_id)
        assert result.reply.error_reason == "RequestOutdated"
        assert result.broker_password is None
    password = world.store.node_password(key.node_id)
    assert password is not None
    assert granted.broker_password is not None
    assert password.matches(granted.broker_password)
    assert directory(world).relays[key.node_id] == THIRD


def test_a_released_node_may_ask_with_any_clock(world: World) -> None:
    """The way out for a machine whose clock was ahead when it joined."""
    key, now = NodeKey.generate(), world.clock.now()
    world.lease(world.enrol(key, world.token(), asked_at=now + timedelta(days=365)))
    assert world.enrol(key, world.token(), asked_at=now).reply.error_reason == "RequestOutdated"
    world.authority.release("edge-1")
    world.lease(world.enrol(key, world.token(), asked_at=now))
