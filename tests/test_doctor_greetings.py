"""Doctor tells a relay from what merely takes connections in its place, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from telling import Words

from edgelink.doctor import probes
from edgelink.doctor.probes import Greeting, Lookup, NotARelay, Probes, broker_of, broker_pinned, connected, easytier
from edgelink.overlay import hello
from edgelink.protocol.tls import client_context
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.testing import FakeClock

HOST = "127.0.0.1"
Serve = Callable[[socket.socket], None]
PORTAL = b"HTTP/1.1 302 Found\r\nLocation: http://portal.hotel/login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_PACKET = struct.Struct("<IIIBBBBI")


def portal(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(PORTAL)


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def closing(connection: socket.socket) -> None:
    connection.recv(4096)


def resetting(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def echoing(connection: socket.socket) -> None:
    connection.sendall(connection.recv(4096))


def an_easytier(connection: socket.socket) -> None:
    """Answer in pieces with a handshake of our own, as the listener of 2.6.4 does."""
    connection.recv(4096)
    answer = hello.question()
    connection.sendall(answer[:7])
    connection.sendall(answer[7:])


def another_packet(connection: socket.socket) -> None:
    """Answer with a frame of EasyTier's that is no handshake."""
    connection.recv(4096)
    connection.sendall(NO_PACKET.pack(16 + 90, 7, 0, 4, 0, 1, 0, 90) + bytes(90))


class OverTls:
    """Finishes a handshake with the keys of some network."""

    def __init__(self, keys: AuthorityKeys) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys.tls_certificate_path, keys.tls_key_path)

    def __call__(self, connection: socket.socket) -> None:
        with self._context.wrap_socket(connection, server_side=True) as tls:
            assert tls.recv(1) == b"", "doctor sends nothing but a handshake"


@contextlib.contextmanager
def serving(serve: Serve) -> Iterator[int]:
    """A port whose first connection is handled by ``serve``."""

    def accept() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            serve(connection)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def answer_of(greeting: Greeting, serve: Serve) -> float | str:
    with serving(serve) as port:
        return Probes().connect({(HOST, port): greeting})[HOST, port]


def keys_of(path: Path) -> AuthorityKeys:
    return AuthorityKeys.load_or_create(path, FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))


NOT_EASYTIER: list[tuple[Serve, str]] = [
    (portal, "HTTP/1.1 302"),
    (silent, "says nothing"),
    (closing, "ends it"),
    (resetting, "ends it"),
    (echoing, "no EasyTier"),
    (another_packet, "no EasyTier"),
]


@pytest.mark.parametrize(("serve", "words"), NOT_EASYTIER)
def test_what_is_no_easytier_is_named(serve: Serve, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_GREETING_S", 0.2)
    answer = answer_of(easytier, serve)
    assert isinstance(answer, NotARelay)
    assert words in answer


def test_an_address_that_does_not_answer_leaves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay with IPv4 and IPv6, and an uplink with one of them."""
    real = Probes()
    monkeypatch.setattr(real, "resolve", lambda names: {name: Lookup(("127.0.0.99", HOST), 0.0) for name in names})
    with serving(closing) as port:
        assert isinstance(real.connect({("relay.example.org", port): connected})["relay.example.org", port], float)


def test_an_easytier_is_known_by_its_first_words() -> None:
    assert isinstance(answer_of(easytier, an_easytier), float)


@pytest.mark.parametrize(
    ("serve", "words"),
    [(portal, "no TLS"), (silent, "says nothing"), (closing, "TLS|ends it"), (resetting, "TLS|ends it")],
)
def test_what_is_no_broker_is_named(serve: Serve, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_GREETING_S", 0.2)
    keys = keys_of(tmp_path / "a")
    answer = answer_of(broker_of(client_context(keys.ca_pem, keys.network_id)), serve)
    assert isinstance(answer, NotARelay)
    assert re.search(words, answer)


@pytest.mark.parametrize(("serve", "words"), [(portal, "TLS"), (silent, "says nothing"), (resetting, "TLS|ends it")])
def test_before_enrolment_the_token_says_what_is_no_broker(
    serve: Serve, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_GREETING_S", 0.2)
    answer = answer_of(broker_pinned(bytes(32)), serve)
    assert isinstance(answer, NotARelay)
    assert re.search(words, answer)


def test_before_enrolment_a_broker_is_known_by_what_the_token_pins(tmp_path: Path) -> None:
    ours, others = keys_of(tmp_path / "a"), keys_of(tmp_path / "b")
    assert isinstance(answer_of(broker_pinned(ours.ca_sha256), OverTls(ours)), float)
    assert isinstance(answer_of(broker_pinned(ours.ca_sha256), OverTls(others)), NotARelay)


def test_a_broker_is_known_by_its_networks_certificate(tmp_path: Path, words: Words) -> None:
    """A company's proxy that opens TLS, and the relay of another network, show another one."""
    ours, others = keys_of(tmp_path / "a"), keys_of(tmp_path / "b")
    greeting = broker_of(client_context(ours.ca_pem, ours.network_id))
    assert isinstance(answer_of(greeting, OverTls(ours)), float)
    refused = answer_of(greeting, OverTls(others))
    assert isinstance(refused, NotARelay)
    words.on("doctor", refused.partition(":")[0])
