"""Random and mutated inputs into each parser of what strangers can send: refused, never an accident.

12,000 each, 108,000 in all, from a seed, so that a failure comes again; EDGELINK_SOAK takes another seed and
1,000,000 each.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pydantic import ValidationError
from registry_world import World

from edgelink.errors import EdgelinkError, UntrustedError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import open_secrets
from edgelink.protocol.payloads import Directory, Envelope, Lease, NodeStatus, Role
from edgelink.protocol.statuses import StatusBoard
from edgelink.protocol.token import Token
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.telemetry.report_exchange import pack, unpack
from edgelink.testing.registry_client import LoneClient

COUNT = 12_000
SEED = 5
if os.environ.get("EDGELINK_SOAK"):
    COUNT, SEED = 1_000_000, random.SystemRandom().getrandbits(32)

pytestmark = pytest.mark.timeout(600 if os.environ.get("EDGELINK_SOAK") else 120)

_PIECES = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"-1", b"1e999", b"NaN", b"\\u0000", b"\xff\xfe")
_PIECES += (b"9" * 400, b"[" * 300, b'{"a":' * 100, b"registry", b"edge", b"0.0.0.0", b"/../", b"+", b"#", b"\n", b"")


def mutants(good: Iterable[bytes]) -> Iterable[bytes]:
    """Mostly what is nearly good: bytes changed, pieces cut out, doubled, put in; and some noise."""
    rng = random.Random(SEED)
    seeds = list(good)
    for number in range(COUNT):
        if number % 20 == 0:
            yield rng.randbytes(rng.randrange(80))
            continue
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0 if data:
                    data[at % len(data)] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randrange(1, 24)]
                case 2:
                    data[at:at] = rng.choice(_PIECES)
                case _:
                    data[at:at] = data[at : at + rng.randrange(1, 24)]
        yield bytes(data)


def feed(
    parse: Callable[[bytes], object], good: Iterable[bytes], *refusals: type[Exception], count: int = COUNT
) -> int:
    """How many were accepted; anything raised but ``refusals`` is the failure of the test."""
    accepted = 0
    for data in mutants(good):
        try:
            accepted += parse(data) is not None
        except refusals:
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for {data!r} (seed {SEED})") from error
    return accepted


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    world.join("edge-0")
    return world


def test_tokens(world: World) -> None:
    """What is not the token that was made is refused, by its checksum and length: also what an e-mail makes of it."""
    token = world.token()

    def parse(data: bytes) -> None:
        assert Token.parse(data.decode("latin-1")) == token

    feed(parse, [token.encode().encode()], EdgelinkError)


def test_statuses(world: World) -> None:
    """A status is one, of that node, or it is none."""
    (lease,) = world.store.leases()
    board = StatusBoard()
    status = NodeStatus(node_id=lease.node_id, online=True, phase="Ready").model_dump_json().encode()

    def parse(data: bytes) -> object:
        return board.receive(lease.node_id, data) or None

    assert feed(parse, [status]) > 0  # a letter more in a text is a status as well
    assert board.statuses.keys() <= {lease.node_id}


def test_a_status_commands_no_terminal() -> None:
    """The operator reads what a node says of itself: nothing in it moves a cursor, or sets a clipboard."""
    bad = "a\x1b]52;c;eA==\x07\x9b2J\u202e"
    report = {"type": bad, "status": "False", "reason": bad, "message": bad + "\n\tb"}
    told = dict.fromkeys(("phase", "edgelink_version", "ray_version", "easytier_version", "device"), bad)
    more = {"packages": {bad: bad}, "labels": {bad: bad}, "features": [bad], "conditions": [report]}
    status = NodeStatus.model_validate_json(json.dumps({"node_id": "a" * 26, "online": True, **told, **more}))
    dumped = json.dumps(status.model_dump(mode="json"), ensure_ascii=False)
    assert dumped.isprintable()
    assert "\\u00" not in dumped, "what JSON escapes"
    assert status.conditions[0].message == "a�]52;c;eA==��2J�\n\tb"


def test_envelopes(world: World) -> None:
    """Nothing that was changed in what is signed opens; the text around it may differ in what does not count."""
    envelope = world.authority.directory()
    key = world.keys.verify_key_b64

    def parse(data: bytes) -> Directory | None:
        found = Envelope.model_validate_json(data)
        opened = open_envelope(found, Kind.DIRECTORY, Directory, key)
        assert found.body == envelope.body, "a changed body has a good signature"
        return opened

    feed(parse, [envelope.model_dump_json().encode()], ValidationError, UntrustedError)


def test_enrolment_requests(world: World) -> None:
    """The registry grants nothing for a request that its node did not sign like that."""
    key, token = NodeKey.generate(), world.token()
    request = world.request(key, token, "edge-1")
    first = world.authority.enrol(request, token.token_id).broker_password
    leases = world.store.leases()

    def parse(data: bytes) -> None:
        envelope = Envelope.model_validate_json(data)
        password = world.authority.enrol(envelope, token.token_id).broker_password
        assert password is None or (envelope.body == request.body and password == first)

    feed(parse, [request.model_dump_json().encode()], ValidationError)
    assert world.store.leases() == leases


def test_a_client(world: World, tmp_path: Path) -> None:
    """Whatever comes on whatever topic: a client believes no directory, lease, spec, page, state of the network, secret
    or reply that was not signed so."""
    key, token = NodeKey.generate(), world.token(Role.HEAD)
    membership = world.membership(key, token, world.enrol(key, token, "cloud", role=Role.HEAD))
    client = LoneClient(membership, key, world.clock)
    topics = Topics(world.keys.network_id)
    signed = world.authority.directory()
    client._take(Message(topics.directory, signed.model_dump_json().encode()))
    before = client.directory
    state, sealed = world.authority.rotations.state(), world.authority.rotations.sealed_secrets()[key.node_id]
    client._take(Message(topics.network, state.model_dump_json().encode()))
    client._take(Message(topics.secrets(key.node_id), sealed))
    rules = world.authority.access
    rules.allow([rules.rule("head", "tcp/22", "edge"), rules.rule("head", "udp/5000-5010", "all")])
    _, access = rules.documents()[key.node_id]
    client._take(Message(topics.access(key.node_id), access.model_dump_json().encode()))
    access_before = client.facts.access
    assert access_before.recorded is not None
    state_before, given_before = client.facts.network.state, client.facts.network.given
    assert given_before is not None
    own_lease = world.authority.lease_envelopes()[key.node_id]
    kinds = (topics.directory, topics.cluster, topics.lease(key.node_id), topics.roster(0), topics.report_request)
    kinds += (topics.network, topics.secrets(key.node_id), topics.access(key.node_id), topics.node_reply(key.node_id))
    envelopes = (own_lease, signed, state, access)
    good = [*(envelope.model_dump_json().encode() for envelope in envelopes), sealed]
    number = 0

    def parse(data: bytes) -> None:
        nonlocal number
        number += 1
        client._take(Message(kinds[number % len(kinds)], data))

    feed(parse, good, ValidationError, UntrustedError)
    assert client.directory == before
    assert client.cluster_spec is None
    assert (client.facts.network.state, client.facts.network.given) == (state_before, given_before)
    assert client.facts.access == access_before
    if client.facts.next_lease is not None:
        opened = open_envelope(client.facts.next_lease.envelope, Kind.LEASE, Lease, world.keys.verify_key_b64)
        assert opened == membership.lease


def test_what_a_registry_has_forgotten(world: World) -> None:
    """The registry believes nothing of itself that it has not signed, and what it has said puts nobody out again."""
    key, token = NodeKey.generate(), world.token()
    world.enrol(key, token, "edge-a")
    rotations = world.authority.rotations
    good = rotations.state().model_dump_json().encode()

    def parse(data: bytes) -> object:
        return rotations.recall(Envelope.model_validate_json(data)) or None

    feed(parse, [good], ValidationError, UntrustedError)
    assert (rotations.secret_epoch, rotations.record) == (1, None)
    assert world.store.lease(key.node_id) is not None


def test_sealed_secrets(world: World) -> None:
    """What was sealed opens unchanged or not at all."""
    key, token = NodeKey.generate(), world.token()
    reply = world.enrol(key, token, "edge-s").reply
    assert reply.sealed_secrets is not None
    good = reply.sealed_secrets.encode()
    secrets = open_secrets(reply.sealed_secrets, key, world.keys.verify_key_b64)

    def parse(data: bytes) -> None:
        opened = open_secrets(data.decode("latin-1"), key, world.keys.verify_key_b64)
        assert opened == secrets

    feed(parse, [good], UntrustedError)


def test_reports() -> None:
    """A node's report is an object of texts with harmless names, or refused."""
    packed = pack({"logs/a.log": "text " * 200, "status.json": json.dumps({"a": 1})})

    def parse(data: bytes) -> None:
        files = unpack(data)
        assert not any(name.startswith("/") or ".." in name.split("/") for name in files)

    feed(parse, [packed], UntrustedError)


def test_topics() -> None:
    """Ids are taken out of the topics that have them, and out of no other."""
    topics = Topics("net")
    good = [topics.status("a" * 26), topics.enrol_request("tok", "a" * 26), topics.report("b")]

    def parse(data: bytes) -> object:
        topic = data.decode("latin-1")
        node_id = topics.parse_status(topic)
        assert node_id is None or topic.removeprefix("edgelink/1/net/") == f"node/{node_id}/status"
        ids = topics.parse_enrol_request(topic)
        assert ids is None or topic.removeprefix("edgelink/1/net/") == f"enrol/{ids[0]}/{ids[1]}/request"
        return topics.parse_report(topic)

    feed(parse, [topic.encode() for topic in good])
