"""A node asks a relay to knock: which of its ports answer on its public side? The messages, and the node's part.

Over UDP, to the ports on which the relay answers STUN::

    node   hello, as long as what it will get          ──▶
                                        ◀── cookie, made of the address that the hello came from   relay
    node   signed request: cookie, ports               ──▶  the relay dials that address, and no other
                                        ◀── answer, signed by the relay                            relay

So nobody makes the relay dial an address at which they do not receive, nobody without a lease makes it dial at all,
and an answer is never larger than what it takes to get it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address

from pydantic import Field, ValidationError

from edgelink.clock import Clock
from edgelink.config.models import Port
from edgelink.errors import EdgelinkError, UntrustedError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import CutText, Envelope, NodeId, Payload
from edgelink.timeouts import timeout

MAGIC = b"EdgeLinkKnock1"
HELLO, COOKIE, REQUEST, ANSWER = b"?", b"!", b"=", b"."
NONCE_BYTES = COOKIE_BYTES = 16
HELLO_BYTES = 96
MAX_PORTS = 64
_STEP_S = 2.0  # until a datagram that may have been lost is sent again
_COOKIE_WITHIN_S = 6.0
_ANSWER_WITHIN_S = 20.0  # 64 ports, 16 at a time, a second each, and some patience


class Knock(Payload):
    """Signed by the node that wants to know."""

    network_id: str
    node_id: NodeId
    cookie: str = Field(pattern=r"^[0-9a-f]{32}$")
    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")
    ports: tuple[Port, ...] = Field(min_length=1, max_length=MAX_PORTS)


class KnockAnswer(Payload):
    """Signed by the relay. What is neither open nor silent refused the connection."""

    network_id: str
    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")
    address: IPv4Address
    open: tuple[Port, ...] = Field((), max_length=MAX_PORTS)
    silent: tuple[Port, ...] = Field((), max_length=MAX_PORTS)
    refused: CutText = ""  # why nobody knocked


class KnockError(EdgelinkError):
    """No relay knocked."""

    reason = "NotKnocked"
    retryable = True


def message(kind: bytes, body: bytes) -> bytes:
    """One datagram; a hello is filled up to :data:`HELLO_BYTES`."""
    data = MAGIC + kind + body
    return data.ljust(HELLO_BYTES, b"\0") if kind == HELLO else data


def parsed(data: bytes) -> tuple[bytes, bytes] | None:
    """Kind and body; None for what is none of ours."""
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC):
        return None
    return data[len(MAGIC) : len(MAGIC) + 1], data[len(MAGIC) + 1 :]


async def ask_relay(
    server: str,
    ports: Sequence[int],
    *,
    key: NodeKey,
    network_id: str,
    relay_keys: Callable[[str], str | None],
    clock: Clock,
) -> KnockAnswer:
    """Have the relay at ``server`` (host:port of its STUN) knock at us.

    Args:
        relay_keys: the public key of a relay by its node id; None for anybody else.

    Raises:
        KnockError: it does not answer, or refuses.
        UntrustedError: what answers is no relay of this network.
    """
    host, _, port = server.rpartition(":")
    received: asyncio.Queue[bytes] = asyncio.Queue()
    try:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Receiver(received), remote_addr=(host, int(port))
        )
    except (OSError, UnicodeError) as error:  # the latter: an empty or too long label
        raise KnockError(f"{server} cannot be reached: {getattr(error, 'strerror', None) or error}") from error
    try:
        nonce = os.urandom(NONCE_BYTES)
        hello = message(HELLO, nonce)
        answer = await _exchange(transport, received, hello, COOKIE, _COOKIE_WITHIN_S, clock, lambda b: b[:16] == nonce)
        if answer is None:
            raise KnockError(
                f"the relay does not answer on udp {server}",
                hint="is UDP to it let out here, and is its EdgeLink as new as this one?",
            )
        request = Knock(
            network_id=network_id,
            node_id=key.node_id,
            cookie=answer[NONCE_BYTES : NONCE_BYTES + COOKIE_BYTES].hex(),
            nonce=nonce.hex(),
            ports=tuple(ports),
        )
        signed = message(REQUEST, key.sign(Kind.KNOCK, request).model_dump_json().encode())
        answer = await _exchange(transport, received, signed, ANSWER, _ANSWER_WITHIN_S, clock, lambda _: True)
    finally:
        transport.close()
    if answer is None:
        raise KnockError(f"the relay at {server} did not say what it found", hint="try again in a minute")
    found = _opened(answer, network_id, nonce, relay_keys)
    if found.refused:
        raise KnockError(f"the relay at {server} does not knock: {found.refused}", hint="try again in a minute")
    return found


def _opened(answer: bytes, network_id: str, nonce: bytes, relay_keys: Callable[[str], str | None]) -> KnockAnswer:
    try:
        envelope = Envelope.model_validate_json(answer)
    except ValidationError as error:
        raise UntrustedError("what a relay found is not understood; compare `edgelink version`") from error
    verify_key = relay_keys(envelope.signer)
    if verify_key is None:
        raise UntrustedError(f"what a relay found is signed by {envelope.signer}, who is no relay of this network")
    found = open_envelope(envelope, Kind.KNOCK_ANSWER, KnockAnswer, verify_key)
    if (found.network_id, found.nonce) != (network_id, nonce.hex()):
        raise UntrustedError("what a relay found answers another question")
    return found


async def _exchange(
    transport: asyncio.DatagramTransport,
    received: asyncio.Queue[bytes],
    data: bytes,
    wanted: bytes,
    within_s: float,
    clock: Clock,
    fits: Callable[[bytes], bool],
) -> bytes | None:
    """Send ``data``, again and again, until a message of the kind ``wanted`` comes; None when none does in time."""
    deadline_s = clock.monotonic_s() + within_s
    while (left_s := deadline_s - clock.monotonic_s()) > 0:
        transport.sendto(data)
        with suppress(TimeoutError):
            async with timeout(min(_STEP_S, left_s)):
                while True:
                    found = parsed(await received.get())
                    if found is not None and found[0] == wanted and fits(found[1]):
                        return found[1]
    return None


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, received: asyncio.Queue[bytes]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._received.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        """Nobody there; it is asked again until the deadline."""
