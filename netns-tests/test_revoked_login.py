"""What a revoked node had for the broker and the registry opens nothing any more; on a real Mosquitto, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from registry_relay import CLOCK, Node, Relay, serving_relay, soon

from edgelink.errors import RegistryAuthError, RegistryError, TokenError
from edgelink.member.enrol_request import exchange
from edgelink.protocol.payloads import Envelope, Role
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.protocol.token import Token
from edgelink.protocol.topics import ANY
from edgelink.protocol.transport import Login
from edgelink.relay.tokens import TokenRequest

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with serving_relay() as relay:
        yield relay


async def recorded_enrolment(relay: Relay, token: Token) -> tuple[Node, Envelope]:
    """A node that enrols, and its request as it went over the wire."""
    async with relay.session(relay.broker.login) as recorder:
        await recorder.subscribe(relay.topics.enrol_request(token.token_id, ANY))
        node = await Node.enrol(token, "edge-1")
        async for message in recorder.messages():
            return node, Envelope.model_validate_json(message.payload)
    raise AssertionError("the session ended")


async def test_a_revoked_node_gets_nowhere_with_what_it_had(relay: Relay) -> None:
    """Not with its password, its token, another token's help, its old request played again by whomever, or its key."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE, uses=5))
    stolen, request = await recorded_enrolment(relay, token)
    other = await relay.join("edge-2")
    async with other.running(), stolen.running():
        await soon(lambda: {stolen.key.node_id, other.key.node_id} <= relay.service.statuses.keys())
        sessions = other.sessions
        await relay.service.revoke("edge-1", hold_s=0.0, own_node_id="", all_tokens=False)
        await soon(lambda: not stolen.client.is_connected)
        assert stolen.client.facts.network.is_revoked, "it was told so before it was put off"
        assert other.client.is_connected
        assert other.sessions == sessions

    for login in (stolen.login, Login(token.broker_username, token.secret)):
        with pytest.raises(RegistryAuthError):
            async with relay.session(login):
                pass
    for key in (stolen.key, None):  # the token has uses left, for a key of which nobody has heard, too
        with pytest.raises(TokenError, match=token.token_id):
            await Node.enrol(token, "edge-1", key)

    spare = await relay.service.create_token(TokenRequest(Role.EDGE))
    async with relay.session(Login(spare.broker_username, spare.secret)) as session:
        reply = await exchange(session, spare, request, CLOCK, 30)
        assert reply.error_reason == "TokenMismatch"
    played = relay.authority.enrol(request, token.token_id)  # by a broker in wrong hands, which asks nobody's rights
    assert played.broker_password is None
    assert played.reply.error_reason == "NodeRevoked"
    assert (played.reply.lease, played.reply.sealed_secrets) == (None, None)
    with pytest.raises(RegistryError) as refused:
        await Node.enrol(spare, "edge-1", stolen.key)
    assert refused.value.condition_reason == NodeRevokedError.reason
    assert relay.store.lease(stolen.key.node_id) is None
    assert stolen.key.node_id not in relay.authority.rotations.sealed_secrets()
