"""The worst attack on the broker: it is in wrong hands altogether, with the network's own TLS key. On loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import seized_broker
from registry_relay import CLOCK, Node, Relay, serving_relay, soon

from edgelink.errors import RegistryUnavailableError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import (
    ClusterSpec,
    Directory,
    Envelope,
    Lease,
    NetworkState,
    ReportRequest,
    Role,
    RosterPage,
)
from edgelink.protocol.refusals import OUTDATED
from edgelink.protocol.requests import Claim, Done, NodeReply, NodeRequest, Refused, Verdict
from edgelink.protocol.topics import ANY
from edgelink.protocol.transport import Login, Session
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.broker import find_mosquitto
from edgelink.telemetry.report_exchange import ReportExchange
from edgelink.testing import payloads
from edgelink.testing.facts import board_with
from edgelink.testing.registry_client import ADMITTED, LoneClient

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with serving_relay() as relay:
        yield relay


async def test_a_seized_broker_commands_nobody(relay: Relay) -> None:
    """Somebody runs the broker, with the relay's TLS key, and lets everyone say anything.

    What was true once is played again, what never was is forged, with every key that is not the right one; no edge
    believes a word, the head's cluster spec stays what it was, and so does the network's secret.
    """
    head, edge, other = await relay.join("cloud", Role.HEAD), await relay.join("edge-1"), await relay.join("edge-2")
    old_directory = relay.authority.directory()
    spec = cluster_spec(relay, head, 1, edge)
    board = board_with(membership=edge.membership, admission=ADMITTED)
    reports = reports_of(board, edge, relay)
    edge.client = LoneClient(edge.membership, edge.key, CLOCK, board=board, reports=reports)
    async with head.running(), edge.running():
        head.client.publish_cluster(head.key.sign(Kind.CLUSTER_SPEC, spec))
        await soon(lambda: edge.client.cluster_spec == spec)
        newer = cluster_spec(relay, head, 2, edge)
        head.client.publish_cluster(head.key.sign(Kind.CLUSTER_SPEC, newer))
        await soon(lambda: edge.client.cluster_spec == newer)
        await relay.join("edge-3")
        await soon(lambda: edge.client.directory is not None and len(edge.client.directory.entries) == 4)
        recorded = change_the_secret(relay, edge, other)
        network_state = relay.authority.rotations.state()
        state = open_envelope(network_state, Kind.NETWORK, NetworkState, relay.keys.verify_key_b64)
        assert state.rotation is None
        await soon(lambda: edge.client.facts.network.state == state)
        await soon(lambda: edge.client.facts.network.given is not None and edge.client.facts.network.given.epoch == 2)
    given, outdated = edge.client.facts.network.given, edge.client.refusals.counts[OUTDATED]
    directory, lease = edge.client.directory, edge.client.facts.next_lease
    await relay.crash()
    await relay.broker.stop()
    with seized(relay):
        async with edge.running():
            await soon(lambda: edge.client.is_connected)
            async with relay.session(Login("anyone", "anything")) as attacker:
                stranger = AuthorityKeys.load_or_create(relay.paths.state / "stranger", CLOCK)
                target = seized_broker.Target(
                    relay.topics, edge.key.node_id, edge.key.verify_key_b64, (head.key, other.key), stranger
                )
                lies = [
                    *(
                        (topic, envelope.model_dump_json().encode())
                        for topic, envelope in forgeries(relay, head, edge, other, stranger, old_directory, spec)
                    ),
                    *seized_broker.lies(target, network_state, recorded),
                ]
                for topic, payload in lies:
                    await attacker.publish(topic, payload, retain=True)
                for topic in {topic for topic, _ in lies}:
                    await attacker.publish(topic, os.urandom(64), retain=True)
                await soon(lambda: edge.client.refusals.total >= len(lies))
        assert edge.client.directory == directory
        assert edge.client.facts.next_lease == lease
        assert edge.client.cluster_spec == newer
        assert edge.client.facts.network.state == state
        assert edge.client.facts.network.given == given
        assert not edge.client.facts.network.is_revoked
        # The directory, the cluster spec, and of the secret all that was played again, but what another node can open.
        assert edge.client.refusals.counts[OUTDATED] - outdated == 2 + len(recorded) - 1
        assert reports._requests.empty()  # it would answer nothing of what was asked
    await relay.start()
    async with edge.running():
        await soon(lambda: edge.client.is_connected and edge.client.facts.session.directory is not None)
    assert (await relay.join("edge-4")).membership.lease.hostname == "edge-4"


def change_the_secret(relay: Relay, edge: Node, other: Node) -> list[seized_broker.Lie]:
    """What the registry said of it to one node until then, and the last word to another."""
    rotations, topics = relay.authority.rotations, relay.topics

    def said() -> list[seized_broker.Lie]:
        sealed = rotations.sealed_secrets()[edge.key.node_id]
        return [(topics.network, rotations.state().model_dump_json().encode()), (topics.secrets("x"), sealed)]

    words = said()
    rotations.rotate(60.0)
    words += said()
    relay.store.rotations.commit()
    relay.service.rotation.look()
    return [*words, (topics.secrets("x"), rotations.sealed_secrets()[other.key.node_id])]


def forgeries(
    relay: Relay,
    head: Node,
    edge: Node,
    other: Node,
    stranger: AuthorityKeys,
    old_directory: Envelope,
    old_spec: ClusterSpec,
) -> Iterator[tuple[str, Envelope]]:
    """Replays, and documents signed by the wrong keys: another node's, a stranger's, another registry's."""
    topics, node_id = relay.topics, edge.key.node_id
    true = open_envelope(old_directory, Kind.DIRECTORY, Directory, relay.keys.verify_key_b64)
    without_head = tuple(entry for entry in true.entries if entry.role is not Role.HEAD)
    lie = true.model_copy(update={"epoch": true.epoch + 100, "generation": 9, "entries": without_head})
    other_lease = relay.authority.lease_envelopes()[other.key.node_id]
    own = edge.membership.lease.model_copy(update={"overlay_ip": other.membership.lease.overlay_ip})
    later = old_spec.model_copy(update={"epoch": 99, "head_ip": other.membership.lease.overlay_ip})
    page = RosterPage(network_id=relay.keys.network_id, page=0, entries=true.entries)
    ask = ReportRequest(
        network_id=relay.keys.network_id, request_id="0" * 32, since_s=60, made_at=CLOCK.now() - timedelta(seconds=1)
    )
    stale = ask.model_copy(update={"made_at": CLOCK.now() - timedelta(hours=2)})
    yield topics.directory, old_directory
    yield topics.cluster, head.key.sign(Kind.CLUSTER_SPEC, old_spec)
    yield topics.lease(node_id), other_lease
    yield topics.report_request, head.key.sign(Kind.REPORT_REQUEST, stale)
    for signer in (stranger, other.key, NodeKey.generate()):
        yield topics.directory, signer.sign(Kind.DIRECTORY, lie)
        yield topics.lease(node_id), signer.sign(Kind.LEASE, own)
        yield topics.report_request, signer.sign(Kind.REPORT_REQUEST, ask)
        claimed = signer.sign(Kind.CLUSTER_SPEC, later).model_copy(update={"signer": head.key.node_id})
        yield topics.cluster, claimed
    # True signatures on another kind of document, and a lease that was altered after it was signed.
    yield topics.directory, relay.authority.lease_envelopes()[node_id]
    yield topics.lease(node_id), old_directory
    yield topics.directory, relay.keys.sign(Kind.ROSTER, page)
    altered = relay.authority.lease_envelopes()[node_id]
    body = Lease.model_validate_json(altered.body).model_copy(update={"role": Role.HEAD}).model_dump_json()
    yield topics.lease(node_id), altered.model_copy(update={"body": body})


def cluster_spec(relay: Relay, head: Node, epoch: int, edge: Node) -> ClusterSpec:
    known = {"network_id": relay.keys.network_id, "epoch": epoch, "token_auth": False}
    return payloads.cluster_spec(head.membership.lease, head.membership.lease, edge.membership.lease, **known)


def reports_of(board: Board[Facts], node: Node, relay: Relay) -> ReportExchange:
    return ReportExchange(
        key=node.key,
        network_id=relay.keys.network_id,
        board=board,
        send=lambda _topic, _payload: None,
        clock=CLOCK,
    )


@contextlib.contextmanager
def seized(relay: Relay) -> Iterator[None]:
    """A Mosquitto in the relay's place that knows the relay's TLS key, and no rules."""
    with tempfile.TemporaryDirectory(prefix="edgelink-seized-") as name:
        conf = seized_broker.write_conf(Path(name), Path(name), relay.keys, "127.0.0.1", relay.port)
        program, _ = find_mosquitto()
        child = subprocess.Popen([program, "-c", conf], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
            assert child.poll() is None
        finally:
            child.kill()
            child.wait()


async def test_a_seized_broker_answers_for_nobody(relay: Relay) -> None:
    """A node asks whether it is the node, and is answered at once, and wrongly, by all who cannot be the registry: it
    believes none, and goes on without an answer."""
    edge, other = await relay.join("edge-1"), await relay.join("edge-2")
    claim = Claim(instance=os.urandom(16).hex())
    async with edge.running():
        assert isinstance(await edge.client.channel.ask(claim, within_s=30), Verdict)
    await relay.crash()
    await relay.broker.stop()
    ignored = edge.client.refusals.total
    with seized(relay):
        async with edge.running():
            await soon(lambda: edge.client.is_connected)
            async with relay.session(Login("anyone", "anything")) as attacker:
                await attacker.subscribe(relay.topics.node_request(ANY))
                lying = asyncio.create_task(answer_wrongly(attacker, relay, edge, other))
                with pytest.raises(RegistryUnavailableError):
                    await edge.client.channel.ask(claim, within_s=3)
                to_one_question = len(false_replies(relay, edge, other, "0" * 32))
                await soon(lambda: edge.client.refusals.total - ignored >= to_one_question)
                lying.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await lying


async def answer_wrongly(session: Session, relay: Relay, edge: Node, other: Node) -> None:
    async for message in session.messages():
        body = Envelope.model_validate_json(message.payload).body
        nonce = NodeRequest.model_validate_json(body).nonce
        for envelope in false_replies(relay, edge, other, nonce):
            await session.publish(relay.topics.node_reply(edge.key.node_id), envelope.model_dump_json().encode())


def false_replies(relay: Relay, edge: Node, other: Node, nonce: str) -> list[Envelope]:
    """By another node, a stranger, another registry; and the registry's own words, to another node or question."""
    stranger = AuthorityKeys.load_or_create(relay.paths.state / "stranger", CLOCK)
    answers = (
        Verdict(outcome="refused", reason="ClonedNode", message="a forged word"),
        Verdict(outcome="accepted"),
        Refused(error="no", error_reason="NodeRevoked"),
        Done(),
    )
    found = []
    for answer in answers:
        reply = NodeReply(
            network_id=relay.keys.network_id, node_id=edge.key.node_id, nonce=nonce, cookie="1" * 32, answer=answer
        )
        for signer in (other.key, NodeKey.generate(), edge.key, stranger):
            signed = signer.sign(Kind.NODE_REPLY, reply)
            found += [signed, signed.model_copy(update={"signer": "registry"})]
        found.append(relay.keys.sign(Kind.NODE_REPLY, reply.model_copy(update={"node_id": other.key.node_id})))
        found.append(relay.keys.sign(Kind.NODE_REPLY, reply.model_copy(update={"nonce": "2" * 32})))
        found.append(relay.keys.sign(Kind.NETWORK_SECRETS, reply))
    return found
