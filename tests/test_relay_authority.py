"""The authority: who gets in, what is granted, and that it stays so."""

from __future__ import annotations

import re
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from authority_world import new_authority, refused, users, world  # noqa: F401
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey
from registry_world import PEERS, World
from telling import refuses

from edgelink.errors import ConfigError, EdgelinkError, NotCommittedError, RegistryError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope, seal
from edgelink.protocol.payloads import Directory, EnrolRequest, Envelope, Role
from edgelink.protocol.token import Token
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.founding import NetworkRequest

# the network


def test_the_first_start_makes_a_network(world: World) -> None:
    """Relay IP is the first host, the secret has 256 bits of letters that no configuration file minds."""
    assert world.network.relay_ip == IPv4Address("10.10.0.1")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", world.network.secret)
    assert world.network.network_id == world.keys.network_id
    assert world.network.secret not in repr(world.network)


def test_later_starts_reuse_it(world: World) -> None:
    """Whatever a later start asks for, the network stays what it is."""
    world.reopen()
    again = world.authority.create_network(
        NetworkRequest("other", IPv4Network("10.20.0.0/16"), IPv4Address("10.20.0.9"))
    )
    assert again == world.network
    assert (again.name, again.cidr) == ("lab", world.cidr)


def test_an_imported_secret_takes_a_network_over(world: World, tmp_path: Path) -> None:
    """`--import-secret` keeps the secret that the nodes set up by hand already have; a later other one is refused."""
    authority = new_authority(tmp_path / "other", world)
    for unusable in ("", "a$HOME", "two\nlines", "x" * 257):
        with refuses(ConfigError, 256):
            authority.create_network(NetworkRequest("lab", world.cidr, secret=unusable))
    made = authority.create_network(NetworkRequest("lab", world.cidr, IPv4Address("10.10.0.7"), secret="by hand"))
    assert (made.secret, made.relay_ip) == ("by hand", IPv4Address("10.10.0.7"))
    assert authority.create_network(NetworkRequest("lab", world.cidr, secret="by hand")) == made
    with refuses(ConfigError, "--import-secret"):
        authority.create_network(NetworkRequest("lab", world.cidr, secret="another"))


@pytest.mark.parametrize(
    ("cidr", "relay_ip"),
    [
        ("10.0.0.0/15", None),
        ("10.0.0.0/29", None),
        ("10.0.0.0/24", "10.0.0.0"),
        ("10.0.0.0/24", "10.0.0.255"),
        ("10.0.0.0/24", "10.0.1.1"),
    ],
)
def test_an_unusable_network_is_refused_before_it_exists(
    world: World, tmp_path: Path, cidr: str, relay_ip: str | None
) -> None:
    """A refused first start leaves no network behind: the next may choose anew."""
    authority = new_authority(tmp_path / "other", world)
    with pytest.raises(ConfigError) as caught:
        authority.create_network(NetworkRequest("lab", IPv4Network(cidr), IPv4Address(relay_ip) if relay_ip else None))
    assert "relay." in caught.value.hint
    assert authority.create_network(NetworkRequest("lab", world.cidr)).relay_ip == IPv4Address("10.10.0.1")


def test_a_lost_database_is_not_made_anew(world: World) -> None:
    """Without the leases that were acknowledged, the relay does not start over: it would give addresses twice."""
    world.store.close()
    for path in world.directory.glob("registry.sqlite3*"):
        path.unlink()
    with refuses(RegistryError, world.store.path):
        world.open()
    world.store.close()


def test_keys_of_another_network_are_noticed(world: World, tmp_path: Path) -> None:
    """A database beside foreign keys (half a backup) is refused."""
    foreign = AuthorityKeys.load_or_create(tmp_path / "foreign", world.clock)
    with pytest.raises(RegistryError, match="same backup"):
        Authority(world.store, foreign, world.clock).create_network(NetworkRequest("lab", world.cidr))


# enrolment


def test_a_node_gets_lease_and_secrets(world: World) -> None:
    """A signed lease, and secrets that only this node can open, with the relay to dial."""
    key, token = NodeKey.generate(), world.token()
    result = world.enrol(key, token, "edge-1", labels={"gpu": "no"})
    membership = world.membership(key, token, result)
    lease = membership.lease
    assert (lease.node_id, lease.hostname, str(lease.overlay_ip)) == (key.node_id, "edge-1", "10.10.0.2")
    assert (lease.preferred_rank, lease.cidr, lease.labels) == (1, world.cidr, {"gpu": "no"})
    assert membership.secrets.network_secret == world.network.secret
    assert membership.secrets.overlay_peers == PEERS
    assert membership.secrets.broker_password == result.broker_password
    assert membership.secrets.broker_username == key.node_id
    reply = result.reply.model_dump_json()
    assert world.network.secret not in reply
    assert str(result.broker_password) not in reply


def test_the_head_has_rank_0_and_is_one(world: World) -> None:
    """Rank 0 is the head's, also when edges came first; a second head is refused, naming the first."""
    assert world.join("edge-1").preferred_rank == 1
    head = world.join("cloud", Role.HEAD)
    assert (head.preferred_rank, head.role) == (0, Role.HEAD)
    result = world.enrol(NodeKey.generate(), world.token(Role.HEAD), "cloud-2", role=Role.HEAD)
    assert result.reply.error_reason == "LeaseConflict"
    assert head.node_id in str(result.reply.error)


def test_the_token_says_the_role_when_the_node_does_not(world: World) -> None:
    """A plain `join` becomes whatever the token is for."""
    lease = world.lease(world.enrol(NodeKey.generate(), world.token(Role.HEAD), "cloud", role=None))
    assert (lease.role, lease.preferred_rank) == (Role.HEAD, 0)


async def test_the_same_node_gets_the_same_lease(world: World) -> None:
    """With the used token or a new one, now or after a restart of the registry: nothing of the lease changes."""
    key, token = NodeKey.generate(), world.token()
    first = world.enrol(key, token)
    await world.clock.advance(60)
    world.reopen()
    again = world.enrol(key, token)
    other = world.enrol(key, world.token(), "another-name")
    assert first.reply.lease == again.reply.lease == other.reply.lease
    assert world.store.epoch() == 1


def test_a_new_request_has_a_new_password_and_a_repeated_one_the_same(world: World) -> None:
    """A request that arrives twice is answered alike; enrolling anew replaces the broker password."""
    key, token = NodeKey.generate(), world.token()
    request = world.request(key, token)
    first, repeated = (world.authority.enrol(request, token.token_id) for _ in range(2))
    assert first.broker_password == repeated.broker_password
    assert first.reply.request_id == repeated.reply.request_id
    anew = world.enrol(key, token)
    assert anew.broker_password != first.broker_password
    recorded = world.store.node_password(key.node_id)
    assert recorded is not None
    assert anew.broker_password is not None
    assert first.broker_password is not None
    assert recorded.matches(anew.broker_password)
    assert not recorded.matches(first.broker_password)


def test_a_hostname_that_is_taken(world: World) -> None:
    """The refusal names the holder, its address and what to do."""
    holder = world.join("edge-1")
    token = world.token()
    reason, text = refused(world, world.request(NodeKey.generate(), token, "edge-1"), token.token_id)
    assert reason == "LeaseConflict"
    for part in (holder.node_id, str(holder.overlay_ip), "edgelink registry release edge-1"):
        assert part in text


def test_a_full_pool(tmp_path: Path) -> None:
    """When the network is full the next node is told so, and its token stays good."""
    world = World(tmp_path / "state", cidr=IPv4Network("10.10.0.0/28"))
    for number in range(13):
        world.join(f"edge-{number}")
    token = world.token()
    envelope = world.request(NodeKey.generate(), token, "one-more")
    assert refused(world, envelope, token.token_id)[0] == "AddressPoolExhausted"
    world.authority.release("edge-3")
    assert refused(world, envelope, token.token_id)[0] == "AddressPoolExhausted"
    world.authority.release("edge-3", at_once=True)
    assert world.authority.enrol(envelope, token.token_id).reply.error is None


def test_an_address_that_the_device_already_carries(world: World) -> None:
    """With `overlay.kind: existing` the asked address is recorded, or refused where it cannot be."""
    asked = IPv4Address("10.10.0.77")
    lease = world.lease(world.enrol(NodeKey.generate(), world.token(), "vpc", overlay_ip=asked))
    assert lease.overlay_ip == asked
    for overlay_ip, token, reason in (
        (asked, world.token(), "LeaseConflict"),
        (IPv4Address("192.0.2.1"), world.token(), "ConfigInvalid"),
        (IPv4Address("10.10.0.78"), world.token(ip=IPv4Address("10.10.0.79")), "ConfigInvalid"),
    ):
        result = world.enrol(NodeKey.generate(), token, "other", overlay_ip=overlay_ip)
        assert result.reply.error_reason == reason


@pytest.mark.parametrize(
    "options",
    [
        {"role": Role.HEAD},
        {"hostname": "other"},
        {"ip": IPv4Address("10.10.0.50")},
        {"rank": 50},
    ],
)
def test_a_lease_is_not_changed_by_a_new_token(world: World, options: dict[str, Any]) -> None:
    """A token that fixes something else for a node that has a lease is refused: only a release changes leases."""
    key = NodeKey.generate()
    world.enrol(key, world.token())
    token = world.token(**options)
    envelope = world.request(key, token, role=options.get("role", Role.EDGE))
    reason, text = refused(world, envelope, token.token_id)
    assert reason == "LeaseConflict"
    assert "edgelink registry release edge-1" in text


def forged(world: World, token: Token) -> list[Envelope]:
    victim, thief = NodeKey.generate(), NodeKey.generate()
    good = world.request(victim, token)
    return [
        good.model_copy(update={"body": good.body.replace("edge-1", "edge-2")}),
        good.model_copy(update={"signer": thief.node_id}),
        good.model_copy(update={"signer": "registry"}),
        world.request(thief, token).model_copy(update={"body": good.body, "signer": victim.node_id}),
    ]


def test_forged_requests(world: World) -> None:
    """A node can only ask for itself: the request is signed by the key whose fingerprint asks."""
    token = world.token()
    for envelope in forged(world, token):
        assert refused(world, envelope, token.token_id)[0] == "Untrusted"


@pytest.mark.parametrize("body", ["", "{}", "not JSON", '{"verify_key": 1}'])
def test_a_request_that_is_none(world: World, body: str) -> None:
    """Rubbish is answered, not fatal."""
    token = world.token()
    envelope = world.request(NodeKey.generate(), token).model_copy(update={"body": body})
    assert refused(world, envelope, token.token_id)[0] == "ConfigInvalid"


def test_a_full_disk_is_a_refusal(world: World) -> None:
    """A relay whose disk is full says so to the node, leaves no half lease, and works again when there is space."""
    key, token = NodeKey.generate(), world.token()
    envelope = world.request(key, token, labels={str(n): "x" * 256 for n in range(32)})
    (pages,) = world.store._database.execute("PRAGMA page_count").fetchone()
    world.store._database.execute(f"PRAGMA max_page_count = {pages}")
    reason, text = refused(world, envelope, token.token_id)
    assert reason == "NotRecorded"
    assert "full" in text
    result = world.authority.enrol(envelope, token.token_id)
    with pytest.raises(NotCommittedError) as caught:
        world.membership(key, token, result)
    assert caught.value.retryable, "the node asks again"
    world.store._database.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert world.authority.enrol(envelope, token.token_id).reply.error is None


def test_secrets_signed_by_someone_else_are_not_accepted(world: World) -> None:
    """Anyone can seal to a node; only what the registry signed is believed."""
    key, token, stranger = NodeKey.generate(), world.token(), NodeKey.generate()
    result = world.enrol(key, token)
    secrets = world.membership(key, token, result).secrets
    forged_ = stranger.sign(Kind.SECRETS, secrets).model_copy(update={"signer": "registry"})
    sealed = seal(key.verify_key_b64, forged_.model_dump_json().encode())
    for text in (sealed, seal(key.verify_key_b64, secrets.model_dump_json().encode())):
        reply = result.reply.model_copy(update={"sealed_secrets": text})
        with pytest.raises(EdgelinkError, match=r"signature|signed"):
            world.membership(key, token, type(result)(reply, ""))


# broker users


async def test_who_may_connect(world: World) -> None:
    """Nodes, tokens that can still enrol, and used tokens for the sake of who used them, until they expire."""
    key = NodeKey.generate()
    used, revoked, live = world.token(ttl_s=60), world.token(), world.token(Role.HEAD)
    world.authority.revoke_token(revoked.token_id)
    result = world.enrol(key, used)
    assert users(world) == {key.node_id: Role.EDGE, used.broker_username: Role.EDGE, live.broker_username: Role.HEAD}
    passwords = {user.username: user.password for user in world.store.broker_users()}
    assert passwords[key.node_id].matches(str(result.broker_password))
    assert passwords[live.broker_username].matches(live.secret)
    await world.clock.advance(60)
    assert used.broker_username not in users(world)
    assert key.node_id in users(world)


# the directory


def test_the_directory_grows_with_each_change(world: World) -> None:
    """Same leases, same signed text, also after a restart; each change has a higher epoch."""

    def directory() -> Directory:
        envelope = world.authority.directory()
        return open_envelope(envelope, Kind.DIRECTORY, Directory, world.keys.verify_key_b64)

    world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    head = world.join("cloud", Role.HEAD)
    first, text = directory(), world.authority.directory()
    assert first.head is not None
    assert (first.head.node_id, first.relay_entries[0].hostname, first.network_id) == (
        head.node_id,
        "relay",
        world.network.network_id,
    )
    world.reopen()
    assert world.authority.directory() == text
    world.join("edge-1")
    second = directory()
    world.authority.release("edge-1")
    third = directory()
    assert first.epoch < second.epoch < third.epoch
    assert third.entries == first.entries
    assert set(world.authority.lease_envelopes()) == {entry.node_id for entry in third.entries}


def test_granted_at_is_the_relays_time(world: World) -> None:
    """Times are the relay's, UTC."""
    assert world.join("edge-1").granted_at == world.clock.now()
    assert world.clock.now().utcoffset() == timedelta(0)


# what a holder of a token could send


@pytest.mark.parametrize(
    "labels", [{str(n): "" for n in range(33)}, {"": "x"}, {"k" * 65: ""}, {"k": "v" * 257}], ids=range(4)
)
def test_labels_are_bounded(world: World, labels: dict[str, str]) -> None:
    """A lease that no message can carry would keep the registry from telling anyone anything."""
    key, token = NodeKey.generate(), world.token()
    body = EnrolRequest(
        token_id=token.token_id, verify_key=key.verify_key_b64, hostname="edge-1", edgelink_version="0.1.0"
    )
    too_much = key.sign(Kind.ENROL_REQUEST, body.model_copy(update={"labels": labels}))
    reason, text = refused(world, too_much, token.token_id)
    assert reason == "ConfigInvalid"
    assert "labels" in text
    with pytest.raises(ConfigError, match="labels"):
        world.token(labels=labels)


def test_a_key_that_nothing_can_be_sealed_to_gets_no_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal like any other: nothing is granted, and the registry goes on."""

    def no_such_point(_key: object) -> None:
        raise CryptoError

    monkeypatch.setattr(VerifyKey, "to_curve25519_public_key", no_such_point)
    token = world.token()
    assert refused(world, world.request(NodeKey.generate(), token), token.token_id)[0] == "Untrusted"
    assert world.store.leases() == []
