"""How a robot's node knows that its driver is there: small packets over the overlay, answered by who has the secret.

Each packet is a challenge: the answer is a code over it (HMAC) that only a holder of the run's secret can make. The
secret itself never travels; who hears an answer can use it for no other challenge.

Neither end depends on Ray: the driver answers from a thread of its own, the env worker asks from one and stamps the
answers into the memory that it shares with the control process.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading

from edgelink.training.trainer.robot.realtime import NS, now_ns
from edgelink.training.trainer.robot.shared import Words

_CHALLENGE = struct.Struct("!16sq")  # of this asker alone, when it was sent
_CODE_BYTES = 32
_PACKET_BYTES = _CHALLENGE.size + _CODE_BYTES
_ASK, _ANSWER = b"edgelink robot link: ask", b"edgelink robot link: answer"  # no packet is good for the other way
_LOOK_S = 0.2
_PACKETS_PER_TIMEOUT = 5  # one that is lost is no outage
_WITHOUT_TIMEOUT_S = 0.1
_SILENT_TIMEOUTS = 3  # so long without an answer, the socket may have a source address that is none of the overlay's


class EchoServer:
    """Answers the challenges of who has the run's secret, ``token``; env workers are told it, and ``address``."""

    def __init__(self, ip: str) -> None:
        self.token = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ip, 0))
        self._socket.settimeout(_LOOK_S)
        self.address = "{}:{}".format(*self._socket.getsockname())
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        _come_first()
        secret = bytes.fromhex(self.token)
        while not self._is_closed:
            with contextlib.suppress(OSError):  # nothing came; or an answer could not be sent: the next one may
                packet, sender = self._socket.recvfrom(_PACKET_BYTES + 1)
                challenge = _proven(secret, _ASK, packet)
                if challenge:
                    self._socket.sendto(challenge + _code(secret, _ANSWER, challenge), sender)


class LinkWatch:
    """Keeps ``words.link_ns`` and ``words.worker_ns`` young for as long as this process lives and the driver answers.

    Args:
        address: of the :class:`EchoServer`, ``ip:port``; empty: the env worker itself counts as the link's other end.
        timeout_s: the deadman's, more than a round trip; packets go out several times as often.
    """

    def __init__(self, words: Words, address: str, token: str, timeout_s: float) -> None:
        self._words = words
        self._secret = bytes.fromhex(token)
        self._nonce = secrets.token_bytes(16)  # clocks may show a time again, once the machine has been started anew
        self._timeout_s = timeout_s or _WITHOUT_TIMEOUT_S * _PACKETS_PER_TIMEOUT
        self._interval_s = self._timeout_s / _PACKETS_PER_TIMEOUT
        self._socket: socket.socket | None = None
        if address:
            ip, _, port = address.rpartition(":")
            self._peer = (ip, int(port))
            self._renew()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if self._socket is not None:
            self._socket.close()

    def _watch(self) -> None:
        _come_first()
        due_ns = now_ns()
        while not self._closing.is_set():
            self._words.worker_ns = now_ns()
            if self._socket is None:
                self._words.link_ns = now_ns()
                self._closing.wait(self._interval_s)
                continue
            if now_ns() >= due_ns:
                due_ns = now_ns() + round(self._interval_s * NS)
                silent_ns = now_ns() - max(self._made_ns, self._words.link_ns)
                if silent_ns > _SILENT_TIMEOUTS * self._timeout_s * NS:
                    with contextlib.suppress(OSError):  # too many files, for now
                        self._renew()
                with contextlib.suppress(OSError):  # no route, for now
                    self._send(self._socket)
            if not self._is_connected:
                self._closing.wait((due_ns - now_ns()) / NS)
                continue
            self._socket.settimeout(max(0.001, (due_ns - now_ns()) / NS))
            with contextlib.suppress(OSError):
                self._hear(self._socket.recv(_PACKET_BYTES + 1))

    def _renew(self) -> None:
        """Another socket. One keeps the source address that it got when it was connected: in a moment without the
        overlay's device, that of another network, from which the driver is not reached when the overlay is back."""
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if self._socket is not None:
            self._socket.close()
        self._socket, self._is_connected, self._made_ns = made, False, now_ns()

    def _send(self, link: socket.socket) -> None:
        if not self._is_connected:
            # To the overlay's own address on this side, and to nobody but the driver on the other: nothing that comes
            # from elsewhere gets in.
            link.connect(self._peer)
            self._is_connected = True
        challenge = _CHALLENGE.pack(self._nonce, now_ns())
        link.send(challenge + _code(self._secret, _ASK, challenge))

    def _hear(self, packet: bytes) -> None:
        challenge = _proven(self._secret, _ANSWER, packet)
        if not challenge:
            return
        nonce, sent_ns = _CHALLENGE.unpack(challenge)
        age_ns = now_ns() - sent_ns
        if nonce == self._nonce and age_ns >= 0 and sent_ns > self._words.link_ns:
            self._words.link_rtt_us = age_ns // 1000
            self._words.link_ns = sent_ns  # what is known for certain: the driver was there after that


def _code(secret: bytes, way: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, way + challenge, "sha256")


def _proven(secret: bytes, way: bytes, packet: bytes) -> bytes:
    """The challenge in the packet; empty if its sender does not have the secret."""
    challenge, code = packet[: _CHALLENGE.size], packet[_CHALLENGE.size :]
    is_good = len(packet) == _PACKET_BYTES and hmac.compare_digest(code, _code(secret, way, challenge))
    return challenge if is_good else b""


def _come_first() -> None:
    """Where it is allowed, this thread goes before the ordinary ones: a busy machine is no outage."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
