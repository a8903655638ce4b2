"""How a machine becomes a member: one request under a token, one reply from the registry.

No byte goes out before the relay has shown the certificate that the token pins, and nothing is believed that the key
in the token has not signed. Asking again is harmless: the same node gets the same lease.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Final, Protocol

from pydantic import ValidationError

from edgelink import __version__
from edgelink.clock import Clock
from edgelink.errors import (
    ConfigError,
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
    TokenError,
    UntrustedError,
)
from edgelink.log import get_logger
from edgelink.protocol.keys import Kind, NodeKey, request_id_of
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import EnrolReply, EnrolRequest, Envelope, RelayAddresses, Role, unusable_fields
from edgelink.protocol.tls import client_context, fetch_pinned_ca
from edgelink.protocol.token import Token, split_address
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login, MqttTransport, Session, Transport
from edgelink.timeouts import timeout

CONNECT_TIMEOUT_S = 10.0
_CLOCK_OFF_S = 60.0
ASK_AGAIN_S = 2.0  # a request is lost when the relay's daemon restarts at that moment

log = get_logger("registry")


class Machine(Protocol):
    """How this machine reaches a relay."""

    async def pinned_ca(self, host: str, port: int, ca_sha256: bytes, timeout_s: float) -> str:
        """See :func:`edgelink.protocol.tls.fetch_pinned_ca`."""

    def transport(self, context: ssl.SSLContext) -> Transport:
        """Return what connects to a broker whose certificate ``context`` trusts."""


class AnyMachine:
    """One with a network."""

    async def pinned_ca(self, host: str, port: int, ca_sha256: bytes, timeout_s: float) -> str:
        return await fetch_pinned_ca(host, port, ca_sha256, timeout_s)

    def transport(self, context: ssl.SSLContext) -> Transport:
        return MqttTransport(context)


ANY_MACHINE: Final[Machine] = AnyMachine()


async def request_membership(
    token: Token,
    key: NodeKey,
    *,
    machine: Machine = ANY_MACHINE,
    hostname: str,
    role: Role | None,
    labels: Mapping[str, str] | None = None,
    overlay_ip: IPv4Address | None = None,
    relay: RelayAddresses | None = None,
    clock: Clock,
    timeout_s: float = 30.0,
) -> Membership:
    """Ask each of the token's addresses in turn for this node's membership; nothing is written.

    ``role`` None takes whatever role the token is for; ``relay`` is where a relay is dialled.

    Raises:
        RegistryUnavailableError: no address answers.
        TokenError, LeaseConflictError, AddressPoolExhaustedError, …: the registry refuses.
        UntrustedError: what answers is not the relay that the token was made for.
    """
    try:
        wanted = EnrolRequest(
            token_id=token.token_id,
            verify_key=key.verify_key_b64,
            hostname=hostname,
            role=role,
            labels=dict(labels or {}),
            edgelink_version=__version__,
            asked_at=clock.now(),
            overlay_ip=overlay_ip,
            relay=relay,
        )
    except ValidationError as error:
        raise ConfigError(
            f"this machine cannot enrol as {hostname!r}: unusable {unusable_fields(error)}",
            hint="set `hostname` in the configuration: lower-case letters, digits and `-` inside, 32 at most; "
            "labels: at most 32, names of up to 64 characters, values of up to 256",
        ) from error
    request = key.sign(Kind.ENROL_REQUEST, wanted)
    problems: list[RegistryError] = []
    for address in token.addresses:
        try:
            ca_pem = await machine.pinned_ca(*split_address(address), token.ca_sha256, CONNECT_TIMEOUT_S)
            transport = machine.transport(client_context(ca_pem, token.network_id))
            login = Login(token.broker_username, token.secret)
            async with transport.connect(address, login, timeout_s=CONNECT_TIMEOUT_S) as session:
                reply = await exchange(session, token, request, clock, timeout_s)
                _warn_of_clock(reply, clock)
        except RegistryAuthError as error:
            raise TokenError(
                f"the relay at {address} does not accept the token {token.token_id}: it was revoked, or has expired",
                hint="ask the operator for a new one: `edgelink token create` on the relay",
            ) from error
        except (RegistryUnavailableError, UntrustedError) as error:
            problems.append(error)
        else:
            return Membership.from_reply(reply, token=token, key=key, ca_pem=ca_pem)
    raise _no_relay(problems)


def _warn_of_clock(reply: EnrolReply, clock: Clock) -> None:
    """A board without a battery boots in 1970: it joins all the same, but nothing else will trust it."""
    off_s = (clock.now() - reply.sent_at).total_seconds()
    if abs(off_s) >= _CLOCK_OFF_S:
        way = "ahead of" if off_s > 0 else "behind"
        log.warning(
            "node.clock_off",
            message=f"this machine's clock is {round(abs(off_s))} s {way} the relay's",
            hint="keep it right: `timedatectl set-ntp true`; certificates of other services are refused, logs mislead",
        )


async def exchange(session: Session, token: Token, request: Envelope, clock: Clock, timeout_s: float) -> EnrolReply:
    """Send ``request`` until its reply comes."""
    topics = Topics(token.network_id)
    request_id = request_id_of(request)
    payload = request.model_dump_json().encode()
    await session.subscribe(topics.enrol_reply(token.token_id, request.signer))
    deadline_s = clock.monotonic_s() + timeout_s
    while clock.monotonic_s() < deadline_s:
        await session.publish(topics.enrol_request(token.token_id, request.signer), payload)
        with contextlib.suppress(TimeoutError):
            async with timeout(ASK_AGAIN_S):
                return await _reply(session, request_id)
    raise RegistryUnavailableError(
        f"the relay's broker answers, but the registry behind it did not within {timeout_s:g} s",
        hint="check `edgelink status` on the relay: its daemon may be stopped",
    )


async def _reply(session: Session, request_id: str) -> EnrolReply:
    async for message in session.messages():
        try:
            reply = EnrolReply.model_validate_json(message.payload)
        except ValidationError as error:
            raise UntrustedError("the registry's reply is not understood; compare `edgelink version`") from error
        if reply.request_id == request_id:
            return reply
    raise RegistryUnavailableError("the broker ended the session before the registry replied")


def _no_relay(problems: list[RegistryError]) -> RegistryError:
    """One error for all addresses; a wrong certificate weighs more than silence."""
    if len(problems) == 1:
        return problems[0]
    untrusted = next((problem for problem in problems if isinstance(problem, UntrustedError)), None)
    if untrusted is not None:
        return untrusted
    return RegistryUnavailableError(
        "none of the relay's addresses answers: " + "; ".join(problem.message for problem in problems),
        hint="check that the relay is up and that its broker's port is open to this node",
    )
