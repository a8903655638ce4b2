"""The registry on a real Mosquitto: enrolment, access rules, crashes, adoption. Loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import aiomqtt
import pytest
from registry_relay import Node, Relay, serving_relay, soon

from edgelink.errors import (
    ProcessStartError,
    RegistryAuthError,
    RegistryUnavailableError,
    TokenError,
    UntrustedError,
)
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, NodeStatus, Role
from edgelink.protocol.requests import EchoUp, EchoWord
from edgelink.protocol.token import Token
from edgelink.protocol.topics import ANY
from edgelink.protocol.transport import Login, Message, Session
from edgelink.relay.dynamic_security import CONTROL_TOPIC, RESPONSE_TOPIC
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import reserved_port


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with serving_relay() as relay:
        yield relay


async def first_message(session: Session, timeout_s: float = 30.0) -> Message:
    async with asyncio.timeout(timeout_s):
        async for message in session.messages():
            return message
    raise AssertionError("the session ended")


async def test_enrol_and_follow(relay: Relay) -> None:
    """A token makes a node a member, and its client knows directory and lease, each for itself."""
    enrol_s, connect_s = [], []
    for number in range(3):
        token = await relay.service.create_token(TokenRequest(Role.EDGE))
        started_s = time.perf_counter()
        node = await Node.enrol(token, f"edge-{number}")
        enrolled_s = time.perf_counter()
        async with node.running():
            await soon(partial(knows_its_lease, node))
            connect_s.append(time.perf_counter() - enrolled_s)
            enrol_s.append(enrolled_s - started_s)
            assert node.client.directory is not None
            entry = node.client.directory.entry(node.key.node_id)
            assert entry is not None
            assert entry.overlay_ip == node.membership.lease.overlay_ip
            assert entry.preferred_rank == number + 1
    print(f"enrolled after {enrol_s} s, connected after {connect_s} s")


def knows_its_lease(node: Node) -> bool:
    return node.client.facts.next_lease is not None


async def test_many_enrol_at_once_with_one_token(relay: Relay) -> None:
    """A fleet that comes up with one token for all gets one lease each."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE, uses=10))
    async with asyncio.timeout(60):
        nodes = await asyncio.gather(*(Node.enrol(token, f"edge-{number}") for number in range(10)))
    assert len({node.membership.lease.overlay_ip for node in nodes}) == 10


async def test_wrong_secret(relay: Relay) -> None:
    """A token with a wrong secret, or one that was revoked, is refused as such, and grants nothing."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    forged = Token(
        token.token_id, "x" * 32, token.ca_sha256, token.registry_verify_key, token.network_id, token.addresses
    )
    with pytest.raises(TokenError, match=token.token_id):
        await Node.enrol(forged, "edge-1")
    await relay.service.revoke_token(token.token_id)
    with pytest.raises(TokenError, match="revoked"):
        await Node.enrol(token, "edge-1")
    assert relay.store.leases() == []


async def test_token_used_twice(relay: Relay) -> None:
    """A used-up token does not enrol a second node; the first one gets its own lease again."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    first = await Node.enrol(token, "edge-1")
    with pytest.raises(TokenError) as refused:
        await Node.enrol(token, "edge-2")
    assert refused.value.condition_reason == "TokenUsedUp", refused.value
    again = await Node.enrol(token, "edge-1", first.key)
    assert again.membership.lease == first.membership.lease
    async with again.running():
        assert again.client.is_connected


async def test_another_relay(relay: Relay) -> None:
    """A relay that does not hold the certificate that the token pins hears nothing of us."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    foreign = Token(
        token.token_id, token.secret, b"\0" * 32, token.registry_verify_key, token.network_id, token.addresses
    )
    with pytest.raises(UntrustedError):
        await Node.enrol(foreign, "edge-1")


async def test_nobody_answers(relay: Relay) -> None:
    """No broker at the address is an error that says so, and worth another try."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        elsewhere = Token(
            token.token_id, token.secret, token.ca_sha256, token.registry_verify_key, token.network_id, (address,)
        )
        with pytest.raises(RegistryUnavailableError, match=address):
            await Node.enrol(elsewhere, "edge-1")


async def test_second_address_answers(relay: Relay) -> None:
    """The addresses of a token are tried in turn."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    with reserved_port() as port:
        addresses = (f"127.0.0.1:{port}", relay.address)
        both = Token(
            token.token_id, token.secret, token.ca_sha256, token.registry_verify_key, token.network_id, addresses
        )
        async with (await Node.enrol(both, "edge-1")).running() as node:
            assert node.client.address == relay.address


async def test_token_user_is_confined(relay: Relay) -> None:
    """A token's broker user sees and writes its own enrolment topics only."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    other = await relay.service.create_token(TokenRequest(Role.EDGE))
    member = await relay.join("edge-1")
    topics, node_id = relay.topics, member.key.node_id
    forbidden = [
        "#",
        f"edgelink/1/{relay.keys.network_id}/#",
        topics.directory,
        topics.cluster,
        topics.lease(node_id),
        topics.status(ANY),
        topics.enrol_reply(other.token_id, ANY),
        topics.enrol_reply(ANY, ANY),
        topics.enrol_request(token.token_id, ANY),
        RESPONSE_TOPIC,
        "$SYS/#",
    ]
    await assert_confined(relay, Login(token.broker_username, token.secret), forbidden)


async def test_edge_user_is_confined(relay: Relay) -> None:
    """An edge's broker user follows what everyone may know, and leases and secrets, of which it gets its own."""
    edge, other = await relay.join("edge-1"), await relay.join("edge-2")
    topics = relay.topics
    forbidden = [
        "#",
        topics.status(ANY),
        topics.status(other.key.node_id),
        topics.report(ANY),
        topics.node_request(ANY),
        topics.node_request(edge.key.node_id),
        topics.roster(ANY),
        topics.enrol_request(ANY, ANY),
        topics.enrol_reply(ANY, ANY),
        RESPONSE_TOPIC,
    ]
    await assert_confined(relay, edge.login, forbidden)


async def test_a_nodes_own_documents_reach_nobody_else(relay: Relay) -> None:
    """Whatever an edge subscribes to: of what is for others neither retained nor new documents come."""
    edge, other = await relay.join("edge-1"), await relay.join("edge-2")
    topics, own = relay.topics, edge.key.node_id
    of_one_node = (topics.secrets, topics.node_reply, topics.access)
    documents = [topic(node.key.node_id) for node in (other, edge) for topic in of_one_node]
    documents.append(topics.lease(other.key.node_id))
    async with relay.session(relay.broker.login) as registry, relay.session(edge.login) as session:
        for topic in documents:
            await registry.publish(topic, b"retained", retain=True)
        for filter_ in (ANY, other.key.node_id, own):
            await session.subscribe(*(topic(filter_) for topic in (topics.lease, *of_one_node)))
        for topic in (*documents, topics.lease(own)):
            await registry.publish(topic, b"new")
        await registry.publish(topics.directory, b"the mark behind which all the others would have come")
        await session.subscribe(topics.directory)
        heard = set()
        async with asyncio.timeout(30):
            async for message in session.messages():
                if message.topic == topics.directory:
                    break
                heard.add(message.topic)
    assert heard == {topic(own) for topic in (topics.lease, *of_one_node)}


async def assert_confined(relay: Relay, login: Login, forbidden: list[str]) -> None:
    async with relay.session(login) as session:
        for topic in forbidden:
            with pytest.raises(RegistryAuthError):
                await session.subscribe(topic)


async def test_forbidden_writes_are_dropped(relay: Relay) -> None:
    """What a node writes to others' topics reaches nobody: not status, directory, cluster spec, lease, nor control."""
    head = await relay.join("cloud", Role.HEAD)
    edge, other = await relay.join("edge-1"), await relay.join("edge-2")
    topics = relay.topics
    async with head.running(), other.running():
        await soon(lambda: other.key.node_id in head.client.statuses)
        directory = relay.authority.full_directory()
        await soon(lambda: head.client.directory == directory)  # the one with both edges may come after their statuses
        lie = NodeStatus(node_id=other.key.node_id, online=True, phase="Lie").model_dump_json().encode()
        command = b'{"commands":[{"command":"deleteClient","username":"registry"}]}'
        async with relay.session(edge.login) as session:
            await session.publish(topics.status(other.key.node_id), lie, retain=True)
            for topic in (topics.directory, topics.cluster, topics.lease(other.key.node_id)):
                await session.publish(topic, b"lie", retain=True)
            for ours_to_read in (topics.node_reply, topics.node_request):
                await session.publish(ours_to_read(other.key.node_id), b"lie")
            await session.publish(CONTROL_TOPIC, command)
            # One more that is allowed, as the mark behind which all the others would have arrived.
            mark = NodeStatus(node_id=edge.key.node_id, online=True, phase="Mark").model_dump_json().encode()
            await session.publish(topics.status(edge.key.node_id), mark)
            await soon(lambda: edge.key.node_id in head.client.statuses)
            await soon(lambda: {edge.key.node_id, other.key.node_id} <= relay.service.statuses.keys())
        assert head.client.statuses[other.key.node_id].phase != "Lie"
        assert relay.service.statuses[other.key.node_id].phase != "Lie"
        assert head.client.directory == directory
        assert head.client.ignored_messages == other.client.ignored_messages == 0
        assert relay.service.refusals.total == 0, "not even a request in another's name"
        assert relay.service.is_connected
        assert head.client.is_connected


async def test_last_will_of_another_is_refused(relay: Relay) -> None:
    """A Last Will is no way round the access rules."""
    edge, other = await relay.join("edge-1"), await relay.join("edge-2")
    lie = NodeStatus(node_id=other.key.node_id, online=True, phase="Lie").model_dump_json().encode()
    will = Message(relay.topics.status(other.key.node_id), lie, retain=True)
    with contextlib.suppress(RegistryAuthError, RegistryUnavailableError):
        async with relay.session(edge.login, will=will):
            pass
    async with other.running():
        await soon(lambda: other.key.node_id in relay.service.statuses)
        assert relay.service.statuses[other.key.node_id].phase != "Lie"


async def test_strangers_are_refused(relay: Relay) -> None:
    """Nobody connects without credentials, or without TLS; an oversized packet ends the connection."""
    with pytest.raises(RegistryAuthError):
        async with relay.session(Login("nobody", "nothing")):
            pass
    with pytest.raises(aiomqtt.MqttError):
        async with aiomqtt.Client("127.0.0.1", relay.port, timeout=0.3):
            pass
    edge = await relay.join("edge-1")
    async with relay.session(edge.login) as session:
        client = session._client._client  # type: ignore[attr-defined]  # past our own check of the size
        client.publish(relay.topics.status(edge.key.node_id), b"x" * (MAX_PAYLOAD_BYTES + 2048), qos=1)
        with pytest.raises(RegistryUnavailableError):
            await first_message(session)


async def test_statuses(relay: Relay) -> None:
    """Head and relay see every node's newest status; an edge sees nobody's; who goes away is shown offline at once."""
    head = await relay.join("cloud", Role.HEAD)
    edge = await relay.join("edge-1")
    node_id = edge.key.node_id
    async with head.running():
        async with edge.running():
            for phase in ("Degraded", "Starting", "Ready"):
                edge.client.publish_status(NodeStatus(node_id=node_id, online=True, phase=phase))
            await soon(lambda: phase_in(head.client.statuses, node_id) == "Ready")
            await soon(lambda: phase_in(relay.service.statuses, node_id) == "Ready")
            assert edge.client.statuses == {}
        await soon(lambda: not head.client.statuses[node_id].online)
        await soon(lambda: not relay.service.statuses[node_id].online)


def phase_in(statuses: Mapping[str, NodeStatus], node_id: str) -> str | None:
    """What the node last said there; None: nothing yet."""
    status = statuses.get(node_id)
    return None if status is None else status.phase


async def test_a_node_asks_and_is_answered(relay: Relay) -> None:
    """Request and reply through the real access rules, for a node of each role."""
    for hostname, role in (("cloud", Role.HEAD), ("edge-1", Role.EDGE)):
        node = await relay.join(hostname, role)
        async with node.running():
            answer = await node.client.channel.ask(EchoUp(of=node.key.node_id), within_s=30)
            assert answer == EchoWord(is_up=False)
            assert node.client.ignored_messages == 0
    assert relay.service.refusals.counts == {}


async def test_half_open_connection(relay: Relay) -> None:
    """A node that comes back while the broker still holds its former connection is not shown offline by its will."""
    edge = await relay.join("edge-1")
    node_id = edge.key.node_id
    offline = NodeStatus(node_id=node_id, online=False, phase="Will").model_dump_json().encode()
    will = Message(relay.topics.status(node_id), offline, retain=True)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(relay.session(edge.client._login(), will=will))
        async with edge.running():
            edge.client.publish_status(NodeStatus(node_id=node_id, online=True, phase="Ready"))
            await soon(lambda: phase_in(relay.service.statuses, node_id) == "Ready")
            await stack.aclose()
            await asyncio.sleep(0.2)
            assert relay.service.statuses[node_id].online


async def test_broker_killed(relay: Relay) -> None:
    """After a SIGKILL the broker is started anew, with the same users; nodes are back by themselves."""
    head, edge = await relay.join("cloud", Role.HEAD), await relay.join("edge-1")
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    async with head.running(), edge.running():
        edge.client.publish_status(NodeStatus(node_id=edge.key.node_id, online=True, phase="Ready"))
        await soon(lambda: edge.key.node_id in head.client.statuses)
        directory, pid = relay.authority.full_directory(), relay.broker.pid
        await soon(lambda: head.client.directory == directory)  # the one with the edge may come after its status
        for _ in range(2):
            sessions = relay.sessions
            relay.kill_broker()
            await soon(lambda: not (head.client.is_connected or edge.client.is_connected))
            assert head.client.directory == directory  # what was known stays known
            await soon(lambda: head.client.is_connected and edge.client.is_connected)
            await soon(lambda before=sessions: relay.sessions > before)  # with this broker, not still the former one
        assert relay.broker.pid != pid
        await soon(lambda: phase_in(head.client.statuses, edge.key.node_id) == "Ready")
        assert head.client.directory == directory
        async with relay.session(edge.login) as session:  # the broker's retained messages are there again
            await session.subscribe(relay.topics.directory)
            assert (await first_message(session)).retain
        late = await Node.enrol(token, "edge-2")
        await soon(lambda: head.client.directory and head.client.directory.entry(late.key.node_id))


async def test_adoption(relay: Relay) -> None:
    """A new daemon adopts the running broker; nodes do not notice, and enrolment works."""
    edge = await relay.join("edge-1")
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    async with edge.running():
        pid, changes = relay.broker.pid, len(edge.client.board.history)
        for _ in range(2):
            await relay.crash()
            assert edge.client.is_connected
            await relay.start()
            assert relay.broker.pid == pid
        assert edge.client.is_connected
        second = await Node.enrol(token, "edge-2")
        await soon(lambda: edge.client.directory and edge.client.directory.entry(second.key.node_id))
        assert len(edge.client.board.history) > changes
        assert edge.client.facts.session.error is None


async def test_adopted_broker_out_of_step(relay: Relay) -> None:
    """What the store learnt while no daemon told the broker is mended: added users by fresh files, others at once."""
    edge = await relay.join("edge-1")
    pid = relay.broker.pid
    await relay.crash()
    revoked = relay.authority.create_token(TokenRequest(Role.EDGE))
    relay.authority.revoke_token(revoked.token_id)
    relay.authority.release("edge-1")
    await relay.start()
    assert relay.broker.pid == pid
    with pytest.raises(RegistryAuthError):
        async with relay.session(edge.login):
            pass
    await relay.crash()
    token = relay.authority.create_token(TokenRequest(Role.EDGE))  # as if killed between the commit and the broker
    relay._task = asyncio.create_task(relay.service.run())
    await soon(lambda: relay.broker.pid not in (None, pid) and relay.service.ready.is_set())
    assert (await Node.enrol(token, "edge-2")).membership.lease.hostname == "edge-2"


async def test_stopped_broker_is_replaced(relay: Relay) -> None:
    """A broker that hangs is not adopted but replaced."""
    pid = relay.broker.pid
    assert pid is not None
    await relay.crash()
    os.kill(pid, signal.SIGSTOP)
    await relay.start()
    assert relay.broker.pid != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_stopped_broker_does_not_hold_up(relay: Relay) -> None:
    """While the broker hangs, a connection attempt ends in time, and at once when cancelled."""
    pid = relay.broker.pid
    assert pid is not None
    edge = await relay.join("edge-1")
    os.kill(pid, signal.SIGSTOP)
    try:
        started_s = time.perf_counter()
        with pytest.raises(RegistryUnavailableError, match="no answer within"):
            async with relay.session(edge.login, timeout_s=0.3):
                pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), relay.session(edge.login, timeout_s=30):
                pass
        assert time.perf_counter() - started_s < 20, "it waited for the 30 s"
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_release_and_revocation(relay: Relay) -> None:
    """A released node is put off the broker at once, is told so, and its words are forgotten."""
    head, edge = await relay.join("cloud", Role.HEAD), await relay.join("edge-1")
    node_id = edge.key.node_id
    async with head.running(), edge.running():
        await soon(lambda: node_id in relay.service.statuses)
        await relay.service.release("edge-1")
        await soon(lambda: isinstance(edge.client.facts.session.error, RegistryAuthError))
        await soon(lambda: head.client.directory and head.client.directory.entry(node_id) is None)
    async with relay.session(head.login) as session:
        await relay.service.refresh()
        await session.subscribe(relay.topics.status(node_id))
        with pytest.raises(TimeoutError):
            await first_message(session, timeout_s=0.3)


async def test_relay_becomes_head(relay: Relay) -> None:
    """A role that changes changes the rights of the broker user without a restart of the broker."""
    key = NodeKey.generate()
    old_pid = relay.broker.pid
    relay.authority.relay_membership(key, "relay")
    await relay.service.refresh()  # its password is known to nobody but itself: the broker starts anew
    await soon(lambda: relay.broker.pid not in (None, old_pid) and relay.service.ready.is_set())
    pid = relay.broker.pid
    token = await relay.service.create_token(TokenRequest(Role.HEAD))
    node = await Node.enrol(token, "relay", key)
    assert node.membership.lease.is_relay
    async with node.running(), relay.session(node.login) as session:
        await session.subscribe(relay.topics.status(ANY), relay.topics.cluster)
        await session.publish(relay.topics.cluster, b"{}", retain=True)
        await soon(lambda: node.client.ignored_messages == 1)  # it arrived, and is not a signed spec
    assert relay.broker.pid == pid


async def test_secrets_stay_inside(relay: Relay) -> None:
    """No password or key is readable in the broker's argv, environment, log, or by other users in its directory."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    edge = await Node.enrol(token, "edge-1")
    admin = relay.broker.login.password
    async with edge.running():
        pass
    process = Path(f"/proc/{relay.broker.pid}")
    seen = b"".join((process / name).read_bytes() for name in ("cmdline", "environ"))
    logs = list(relay.paths.logs.glob("*"))
    files = [path for path in relay.paths.broker.iterdir() if path.name != "tls.key"]
    seen += b"".join(path.read_bytes() for path in (*logs, *files))
    network_secret = edge.membership.secrets.network_secret
    for secret in (token.secret, admin, edge.membership.secrets.broker_password, network_secret):
        assert secret.encode() not in seen
    assert relay.paths.broker.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*logs, *relay.paths.broker.iterdir()))
    password_file = relay.paths.runtime / "broker-admin.key"
    assert password_file.read_text() == admin
    assert password_file.stat().st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        assert process.stat().st_uid == relay.paths.broker.stat().st_uid != 0
        assert password_file.stat().st_uid == 0


async def test_stop_removes_files(relay: Relay) -> None:
    """A stopped broker leaves no process, no directory and no password; it can be started again."""
    pid = relay.broker.pid
    assert pid is not None
    await relay.crash()
    await relay.broker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not relay.paths.broker.exists()
    assert not (relay.paths.runtime / "broker-admin.key").exists()
    await relay.start()
    assert (await relay.join("edge-1")).membership.lease.hostname == "edge-1"


async def test_port_busy(relay: Relay) -> None:
    """A port that another process holds is named with its holder, before anything is started."""
    await relay.crash()
    await relay.broker.stop()
    with socket.create_server(("0.0.0.0", relay.port)):
        with pytest.raises(ProcessStartError, match=f"port {relay.port} .* is taken by .*pid {os.getpid()}") as busy:
            await relay.broker.ensure_running()
        assert busy.value.condition_reason == "PortBusy"
    assert not relay.paths.broker.exists()
    await relay.start()
