"""Ask another node for an echo over the overlay: whether it answers, how long that takes, and how its clock stands.

Three answers are possible: the echo, silence, and a refusal, with which the other machine's kernel says that nothing
listens on the port. A refusal proves the way as an echo does; only the clocks stay unknown.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address

from edgelink.overlay import echo_wire
from edgelink.overlay.echo_proof import Asker, Identity, Proof
from edgelink.overlay.echo_wire import PORT, Question, parse_answer
from edgelink.timeouts import timeout

HEADERS_BYTES = 28  # IPv4 and UDP
_KEPT = 32  # exchanges with one node that its clock is judged by


@dataclass(frozen=True)
class Echo:
    """What one question brought. Times in milliseconds.

    ``there_ms`` and ``back_ms`` are differences of two machines' clocks: the way's delay plus or minus how far the
    clocks are apart. Both are None after a refusal. ``proof``: whether the node that was meant gave this answer.
    """

    rtt_ms: float
    there_ms: float | None = None
    back_ms: float | None = None
    proof: Proof = Proof.UNPROVEN

    @property
    def is_refusal(self) -> bool:
        """Whether the machine answered that no echo is served there."""
        return self.there_ms is None

    @property
    def offset_ms(self) -> float | None:
        """How far the other clock is ahead of ours, if both directions take the same time (RFC 5905, section 8)."""
        return None if self.there_ms is None or self.back_ms is None else (self.there_ms - self.back_ms) / 2


class PeerClock:
    """How far one node's clock is ahead of ours, by the quickest of the last exchanges, which queued the least."""

    def __init__(self) -> None:
        self._kept: deque[Echo] = deque(maxlen=_KEPT)

    def note(self, echo: Echo) -> None:
        """Take one exchange into account; refusals say nothing of clocks."""
        if not echo.is_refusal:
            self._kept.append(echo)

    @property
    def offset_ms(self) -> float | None:
        """None while nothing is known. The error is at most half of the quickest round trip."""
        return min(self._kept, key=lambda echo: echo.rtt_ms).offset_ms if self._kept else None

    def one_way_ms(self, echo: Echo) -> tuple[float, float] | None:
        """How long the way there and the way back took in this exchange; None while the clocks are not known."""
        offset_ms = self.offset_ms
        if offset_ms is None or echo.there_ms is None or echo.back_ms is None:
            return None
        return echo.there_ms - offset_ms, echo.back_ms + offset_ms


Ask = Callable[[IPv4Address, IPv4Address, float, Identity | None], Awaitable[Echo | None]]


@dataclass(frozen=True)
class Challenge:
    """Whom a question is put to: the node that has to prove its answer, and the sessions that we have with others."""

    asker: Asker
    identity: Identity


async def ask(
    source: IPv4Address | None,
    target: IPv4Address,
    timeout_s: float,
    *,
    device: str | None = None,
    payload_bytes: int = 0,
    challenge: Challenge | None = None,
) -> Echo | None:
    """Ask ``target`` once, and once more where its responder has another key than in our session.

    Args:
        source: our own address to ask from. None lets the kernel choose.
        device: the device that the question has to leave by. None leaves it to the routes.
        payload_bytes: the length of the packet without IPv4's and UDP's headers, the least being the echo's own.
        challenge: who has to prove the answer. None: no proof is asked for.

    Returns:
        None without an answer in time, or where ``source`` or ``device`` is not there (yet).
    """
    with suppress(TimeoutError):
        async with timeout(timeout_s):
            echo = await _ask_once(source, target, device, payload_bytes, challenge)
            if echo is not None and echo.proof is Proof.STALE:
                echo = await _ask_once(source, target, device, payload_bytes, challenge)
            return echo
    return None


async def _ask_once(
    source: IPv4Address | None,
    target: IPv4Address,
    device: str | None,
    payload_bytes: int,
    challenge: Challenge | None,
) -> Echo | None:
    loop = asyncio.get_running_loop()
    extension = b"" if challenge is None else challenge.asker.extension(challenge.identity, target)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
        try:
            if device is not None:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            if source is not None:
                end.bind((str(source), 0))
            end.connect((str(target), PORT))  # takes packets from nobody else, and refusals to itself
            own = IPv4Address(end.getsockname()[0])
            question = Question(secrets.randbits(64), time.time_ns(), extension)
            asked_ns = time.monotonic_ns()
            end.send(question.pack(payload_bytes))
            while True:
                packet = await loop.sock_recv(end, echo_wire.MOST_BYTES)
                now_ns, rtt_ns = time.time_ns(), time.monotonic_ns() - asked_ns
                answer = parse_answer(packet)
                if answer is not None and answer.question.nonce == question.nonce:
                    proof = Proof.UNPROVEN
                    if challenge is not None:
                        proof = challenge.asker.judge(answer, challenge.identity, own, target)
                    there_ns = answer.received_ns - question.asked_ns
                    return Echo(rtt_ns / 1e6, there_ns / 1e6, (now_ns - answer.answered_ns) / 1e6, proof)
        except ConnectionRefusedError:
            return Echo((time.monotonic_ns() - asked_ns) / 1e6)
        except OSError:
            return None


def may_bind_to_devices() -> bool:
    """Whether this process may bind a socket to a device: with CAP_NET_RAW, or from Linux 5.7 on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        except PermissionError:
            return False
    return True
