"""Tokens: what one promises, whom it lets in, and when it ends."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest
from authority_world import refused, users, world  # noqa: F401
from registry_world import ADDRESSES, World
from telling import Words, refuses

from edgelink.errors import ConfigError, LeaseConflictError, RegistryError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.protocol.token import Token
from edgelink.relay.authority import Authority
from edgelink.relay.tokens import TokenRequest


def test_a_token_pins_the_network(world: World) -> None:
    """A token carries what a machine needs to trust the relay, and nothing more is needed."""
    token = Token.parse(world.token().encode())
    assert token.ca_sha256 == world.keys.ca_sha256
    assert token.registry_verify_key == world.keys.verify_key_b64
    assert token.network_id == world.network.network_id
    assert token.addresses == ADDRESSES
    assert len(token.secret) >= 22  # 128 bits in base64
    assert world.authority.tokens()[0].password.matches(token.secret)


@pytest.mark.parametrize(
    "options",
    [
        {"role": Role.RELAY, "rank": 3},
        {"ttl_s": 0},
        {"ttl_s": float("inf")},
        {"uses": 0},
        {"uses": 2, "hostname": "robot"},
        {"uses": 2, "rank": 3},
        {"uses": 2, "role": Role.HEAD},
        {"hostname": "Not_A_Name"},
        {"ip": IPv4Address("10.10.0.255")},
        {"ip": IPv4Address("10.10.0.1")},
        {"ip": IPv4Address("192.0.2.1")},
        {"rank": 0},
        {"rank": 1, "role": Role.HEAD},
    ],
    ids=str,
)
def test_a_token_that_could_never_work_is_refused(world: World, options: dict[str, Any], words: Words) -> None:
    """Mistakes show when the token is made, not on the robot."""
    with refuses(ConfigError) as caught:
        world.token(**options)
    assert caught.value.hint
    words(caught.value)
    assert world.authority.tokens() == []


def test_a_token_without_an_address_is_refused(world: World) -> None:
    """A relay that does not know its public address makes no tokens that lead nowhere."""
    for addresses, named in (((), "relay.advertise"), (("no port",), "relay.advertise: 'no port'")):
        authority = Authority(world.store, world.keys, world.clock, addresses=addresses)
        with refuses(ConfigError, named):
            authority.create_token(TokenRequest(Role.EDGE))


@pytest.mark.parametrize("options", [{"hostname": "robot"}, {"ip": IPv4Address("10.10.0.9")}, {"rank": 9}])
def test_two_tokens_do_not_promise_the_same(world: World, options: dict[str, Any]) -> None:
    """What one live token fixes cannot be fixed by another; once it is revoked it can."""
    first = world.token(**options)
    with refuses(LeaseConflictError, first.token_id):
        world.token(**options)
    world.authority.revoke_token(first.token_id)
    world.token(**options)


@pytest.mark.parametrize("named", [{"hostname": "cloud"}, {"ip": IPv4Address("10.10.0.9")}])
def test_a_lost_token_is_made_again_in_one_step(world: World, named: dict[str, Any]) -> None:
    """Whatever else the operator does not repeat: the new one is for what the lost one was for, which opens nothing."""
    lost = world.token(role=Role.HEAD, hostname="cloud", ip=IPv4Address("10.10.0.9"), labels={"site": "lab"})
    new = world.token(**named, reissue=True)
    states = {each.token_id: each.state(world.clock.now()) for each in world.authority.tokens()}
    assert states == {lost.token_id: "revoked", new.token_id: "live"}
    lease = world.lease(world.enrol(NodeKey.generate(), new, "anything", role=Role.HEAD))
    assert (lease.role, lease.hostname, lease.labels) == (Role.HEAD, "cloud", {"site": "lab"})


@pytest.mark.parametrize("options", [{}, {"hostname": "nobody"}, {"hostname": "a", "rank": 9}])
def test_only_a_token_that_is_one_is_made_again(world: World, options: dict[str, Any]) -> None:
    """Nothing named, none, or two: nothing is changed."""
    world.token(hostname="a")
    world.token(rank=9)
    with pytest.raises(RegistryError) as caught:
        world.token(**options, reissue=True)
    assert caught.value.condition_reason == "TokenUnknown"
    assert [each.state(world.clock.now()) for each in world.authority.tokens()] == ["live", "live"]


def test_a_token_for_a_leased_hostname_is_refused(world: World) -> None:
    """Nobody but its holder could join with it, and that one may use any token: the operator meant another machine.

    One that replaces the holder is another thing, and so is the head's on the relay's machine.
    """
    holder = world.join("franka")
    with refuses(LeaseConflictError, "'franka'", holder.overlay_ip, "--replaces franka"):
        world.token(hostname="franka")
    assert len(world.authority.tokens()) == 1
    world.token(replaces="franka")
    relay = world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    world.token(role=Role.HEAD, hostname=relay.hostname)


def test_what_a_token_promises_is_kept_for_its_bearer(world: World) -> None:
    """Others are dealt around the promise; whoever brings the token gets exactly it, labels included."""
    token = world.token(hostname="robot", ip=IPv4Address("10.10.0.2"), rank=1, labels={"arm": "left"})
    other = world.join("other")
    assert (str(other.overlay_ip), other.preferred_rank) == ("10.10.0.3", 2)
    lease = world.lease(world.enrol(NodeKey.generate(), token, "asked-for", labels={"arm": "?", "room": "1"}))
    assert (lease.hostname, str(lease.overlay_ip), lease.preferred_rank) == ("robot", "10.10.0.2", 1)
    assert lease.labels == {"arm": "left", "room": "1"}


@pytest.mark.parametrize(
    ("options", "words"),
    [({"labels": {f"token-{n}": "x" for n in range(20)}}, "labels"), ({"rank": 2**60}, "preferred_rank is beyond")],
)
def test_what_fits_no_lease_together_is_refused(world: World, options: dict[str, Any], words: str) -> None:
    """Request and token are good each: the node is told, nothing is granted, and the token stays as it was."""
    token = world.token(**options)
    envelope = world.request(NodeKey.generate(), token, labels={f"node-{n}": "x" for n in range(20)})
    reason, text = refused(world, envelope, token.token_id)
    assert reason == "ConfigInvalid"
    assert words in text


def test_tokens_are_listed_without_secrets(world: World) -> None:
    """State and uses left are told; the secret is not known any more."""
    key = NodeKey.generate()
    used, revoked, live = world.token(), world.token(), world.token(uses=3)
    world.enrol(key, used)
    world.authority.revoke_token(revoked.token_id)
    listed = {record.token_id: record.to_dict(world.clock.now()) for record in world.authority.tokens()}
    assert [listed[token.token_id]["state"] for token in (used, revoked, live)] == ["used", "revoked", "live"]
    assert [listed[token.token_id]["uses_left"] for token in (used, revoked, live)] == [0, 1, 3]
    assert listed[used.token_id]["used_by"] == [key.node_id]
    assert used.secret not in repr(world.authority.tokens())
    with refuses(RegistryError, "'nonesuch'", reason="TokenUnknown"):
        world.authority.revoke_token("nonesuch")


async def test_tokens_that_do_not_open(world: World) -> None:
    """Used up, expired, revoked, unknown, or for another role: each is told by name, with what to do."""
    key = NodeKey.generate()
    used, revoked, brief = world.token(), world.token(), world.token(ttl_s=60)
    world.join("holder")
    world.enrol(NodeKey.generate(), used, "first")
    world.authority.revoke_token(revoked.token_id)
    await world.clock.advance(61)
    unknown = Token("nonesuch", "", b"", "", "", ())
    cases = [
        (world.request(key, used), used, "TokenUsedUp"),
        (world.request(key, brief), brief, "TokenExpired"),
        (world.request(key, revoked), revoked, "TokenRevoked"),
        (world.request(key, unknown), unknown, "TokenUnknown"),
        (world.request(key, fresh := world.token(), role=Role.HEAD), fresh, "TokenRoleMismatch"),
        (world.request(key, used), fresh, "TokenMismatch"),
    ]
    for envelope, token, reason in cases:
        assert refused(world, envelope, token.token_id)[0] == reason


def test_who_used_a_token_is_told_by_name(world: World) -> None:
    """A person knows machines by their names. One that has left has none any more."""
    stayed, left = world.token(), world.token()
    world.enrol(NodeKey.generate(), stayed, "robot")
    gone = world.enrol(NodeKey.generate(), left, "gone").reply
    assert gone.error is None
    world.authority.release("gone")
    for token, told in ((stayed, "by robot"), (left, "has left")):
        reply = world.enrol(NodeKey.generate(), token, "other").reply
        assert reply.error_reason == "TokenUsedUp"
        assert told in (reply.error or "")


def test_a_second_head_is_told_how_it_joins_all_the_same(world: World) -> None:
    """Another hostname would not help: the network has one head."""
    for name in ("cloud", "cloud-2"):
        reply = world.enrol(NodeKey.generate(), world.token(role=Role.HEAD), name, role=Role.HEAD).reply
    assert reply.error_reason == "LeaseConflict"
    assert "--hostname" not in reply.error_hint
    assert "--replaces cloud" in reply.error_hint


async def test_expired_means_for_everyone(world: World) -> None:
    """A lost reply can be asked for again until the token expires, not after."""
    key, token = NodeKey.generate(), world.token(ttl_s=60)
    world.enrol(key, token)
    await world.clock.advance(59)
    assert world.enrol(key, token).reply.error is None
    await world.clock.advance(1)
    assert world.enrol(key, token).reply.error_reason == "TokenExpired"


def test_a_token_with_several_uses_counts_machines(world: World) -> None:
    """The same machine counts once, a refused one not at all."""
    token = world.token(uses=2)
    first, second = NodeKey.generate(), NodeKey.generate()
    for _ in range(3):
        assert world.enrol(first, token, "edge-1").reply.error is None
    assert world.enrol(second, token, "edge-1").reply.error_reason == "LeaseConflict"
    assert world.enrol(second, token, "edge-2").reply.error is None
    assert world.enrol(NodeKey.generate(), token, "edge-3").reply.error_reason == "TokenUsedUp"


def test_a_released_node_does_not_come_back_by_its_old_token(world: World) -> None:
    """A lease that the operator took away is not given again without a new token."""
    key, token = NodeKey.generate(), world.token()
    world.enrol(key, token)
    world.authority.release("edge-1")
    assert world.enrol(key, token).reply.error_reason == "TokenUsedUp"
    assert world.enrol(key, world.token()).reply.error is None


def test_an_expired_token_stays_so(world: World) -> None:
    """Should the relay's clock go back, as a board's without a battery does: seen once, it has expired for ever."""
    token = world.token(ttl_s=60)
    world.clock.step_wall_clock(61)
    assert users(world) == {}
    world.clock.step_wall_clock(-600)
    assert users(world) == {}
    assert world.enrol(NodeKey.generate(), token).reply.error_reason == "TokenExpired"
    assert world.join("edge-1").overlay_ip == IPv4Address("10.10.0.2")


def test_a_used_token_ends_with_the_lease(world: World) -> None:
    """When the node that used a token is released, nobody is left whom the token could answer."""
    token = world.token()
    world.enrol(NodeKey.generate(), token)
    world.authority.release("edge-1")
    assert users(world) == {}


async def test_a_used_token_stays_ended_when_its_node_comes_back_by_another(world: World) -> None:
    """Nobody knows its password in clear any more: were it a user again, the broker would have to be started anew."""
    key, first = NodeKey.generate(), world.token()
    world.enrol(key, first)
    world.authority.release("edge-1")
    await world.clock.advance(1)
    second = world.token()
    world.enrol(key, second)
    assert set(users(world)) == {key.node_id, second.broker_username}
    await world.clock.advance(1)
    assert world.enrol(key, second).reply.error is None, "its own token still answers"
    assert second.broker_username in users(world)
