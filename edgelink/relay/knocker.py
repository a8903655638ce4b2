"""The relay knocks at the public side of a node that asks for it; see :mod:`edgelink.overlay.knock`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.cookies import Cookies
from edgelink.errors import UntrustedError
from edgelink.log import get_logger
from edgelink.overlay import knock
from edgelink.overlay.knock import Knock, KnockAnswer
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Envelope
from edgelink.timeouts import timeout

Source = tuple[str, int]
Send = Callable[[bytes], None]
Dial = Callable[[str, int], Awaitable[bool | None]]  # whether a port answers; None: nothing comes back

PER_NODE_S = 60.0
MOST_AT_ONCE = 4  # nodes
_DIALS_AT_ONCE = 16
_DIAL_S = 1.0
_COOKIE_S = 30.0
_log = get_logger("knock")


@dataclass
class _Asked:
    nonce: str
    at_s: float
    answer: bytes | None = None  # once it is there: what is lost on the way is sent again


async def dial(address: str, port: int) -> bool | None:
    """Whether a TCP port accepts a connection; None when nothing comes back within a second."""
    try:
        async with timeout(_DIAL_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


class Knocker:
    """Answers hellos with cookies, and signed requests by knocking, once a minute a node."""

    def __init__(
        self,
        *,
        key: NodeKey,
        network_id: str,
        overlay: IPv4Network,
        verify_key_of: Callable[[str], str | None],
        clock: Clock,
        dial: Dial = dial,
    ) -> None:
        """``verify_key_of``: the public key of a node that holds a lease; None for anybody else."""
        self._key = key
        self._network_id = network_id
        self._overlay = overlay
        self._verify_key_of = verify_key_of
        self._clock = clock
        self._dial = dial
        self._cookies = Cookies(_COOKIE_S, clock)
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, data: bytes, source: Source, send: Send) -> None:
        """One datagram that is no STUN."""
        found = knock.parsed(data)
        if found is None:
            return
        kind, body = found
        if kind == knock.HELLO and len(data) >= knock.HELLO_BYTES:
            cookie = bytes.fromhex(self._cookies.of(_name(source)))
            send(knock.message(knock.COOKIE, body[: knock.NONCE_BYTES] + cookie))
        elif kind == knock.REQUEST:
            try:
                self._take(body, source, send)
            except (UntrustedError, ValidationError) as error:
                _log.info("knock.ignored", source=source[0], why=type(error).__name__)

    def close(self) -> None:
        """Knock no more."""
        for task in self._tasks:
            task.cancel()

    def _take(self, body: bytes, source: Source, send: Send) -> None:
        envelope = Envelope.model_validate_json(body)
        request = Knock.model_validate_json(envelope.body)  # not believed before its cookie and signature are checked
        if not self._cookies.counts(request.cookie, _name(source)):
            raise UntrustedError("the cookie is another address's, or old")
        verify_key = self._verify_key_of(envelope.signer)
        if verify_key is None:
            raise UntrustedError(f"{envelope.signer} holds no lease")
        request = open_envelope(envelope, Kind.KNOCK, Knock, verify_key)
        if (request.network_id, request.node_id) != (self._network_id, envelope.signer):
            raise UntrustedError("a request of another network or node")
        self._serve(request, source[0], send)

    def _serve(self, request: Knock, address: str, send: Send) -> None:
        now_s = self._clock.monotonic_s()
        self._asked = {node: asked for node, asked in self._asked.items() if now_s - asked.at_s < PER_NODE_S}
        asked = self._asked.get(request.node_id)
        if asked is not None and asked.nonce == request.nonce:  # our answer was lost, or is not there yet
            if asked.answer is not None:
                send(asked.answer)
            return
        if IPv4Address(address) in self._overlay:
            send(self._answer(request, address, refused="the request came over the overlay, not from outside"))
        elif asked is not None:
            send(self._answer(request, address, refused="it did so less than a minute ago"))
        elif len(self._tasks) >= MOST_AT_ONCE:
            send(self._answer(request, address, refused="it knocks at others now"))
        else:
            self._asked[request.node_id] = asked = _Asked(request.nonce, now_s)
            task = asyncio.get_running_loop().create_task(self._knock(request, address, asked, send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _knock(self, request: Knock, address: str, asked: _Asked, send: Send) -> None:
        at_once = asyncio.Semaphore(_DIALS_AT_ONCE)

        async def try_port(port: int) -> bool | None:
            async with at_once:
                return await self._dial(address, port)

        ports = list(dict.fromkeys(request.ports))
        found = dict(zip(ports, await asyncio.gather(*map(try_port, ports)), strict=True))
        asked.answer = self._answer(
            request,
            address,
            is_open=[port for port, answers in found.items() if answers],
            silent=[port for port, answers in found.items() if answers is None],
        )
        _log.info("knock.done", node_id=request.node_id, address=address, ports=len(ports))
        send(asked.answer)

    def _answer(
        self,
        request: Knock,
        address: str,
        *,
        is_open: Sequence[int] = (),
        silent: Sequence[int] = (),
        refused: str = "",
    ) -> bytes:
        answer = KnockAnswer(
            network_id=self._network_id,
            nonce=request.nonce,
            address=IPv4Address(address),
            open=tuple(is_open),
            silent=tuple(silent),
            refused=refused,
        )
        return knock.message(knock.ANSWER, self._key.sign(Kind.KNOCK_ANSWER, answer).model_dump_json().encode())


def _name(source: Source) -> str:
    return f"{source[0]} {source[1]}"
