"""TLS against real servers on loopback: whom a node talks to, and what it sends before it knows."""

from __future__ import annotations

import asyncio
import queue
import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from telling import refuses

from edgelink.errors import RegistryUnavailableError, UntrustedError
from edgelink.protocol.tls import client_context, explain_tls_error, fetch_pinned_ca
from edgelink.relay.authority_keys import AuthorityKeys, issue_certificates
from edgelink.testing import FakeClock

HOST = "127.0.0.1"


class Server:
    """Greets, as no broker would, to show that a connection is good; then tells what each client sent inside of TLS."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((HOST, 0))
        self._outcomes: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._is_stopping = False
        self.port = self._listener.getsockname()[1]

    async def received(self) -> bytes:
        """What the next client sent, after it has gone; nothing when the handshake failed."""
        return await asyncio.to_thread(self._outcomes.get, timeout=20)

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._is_stopping:
                connection.close()
                return
            connection.settimeout(20)
            received = b""
            try:
                with self._context.wrap_socket(connection, server_side=True) as tls:
                    tls.sendall(b"hello")
                    while data := tls.recv(1000):
                        received += data
            except OSError:
                pass
            self._outcomes.put(received)

    async def __aenter__(self) -> Server:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping = True
        socket.create_connection((HOST, self.port)).close()  # wakes accept()
        await asyncio.to_thread(self._thread.join)
        self._listener.close()


async def greeting(context: ssl.SSLContext, server: Server, name: str | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, server.port, ssl=context, server_hostname=name)
    try:
        return await reader.readexactly(5)
    finally:
        writer.transport.abort()


def keys_of(path: Path, year: int = 2026) -> AuthorityKeys:
    return AuthorityKeys.load_or_create(path, FakeClock(datetime(year, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize("year", [1972, 2026, 2090], ids=["expired", "valid", "not yet valid"])
async def test_the_right_chain_is_accepted_at_any_time(tmp_path: Path, year: int) -> None:
    """The pinned CA is found and the chain holds, whatever the clocks of relay and board say."""
    keys = keys_of(tmp_path / "a", year)
    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        ca_pem = await fetch_pinned_ca(HOST, server.port, keys.ca_sha256, 20)
        assert ca_pem == keys.ca_pem
        assert await greeting(client_context(ca_pem, keys.network_id), server) == b"hello"


async def test_any_dialled_name_will_do(tmp_path: Path) -> None:
    """The network's name is checked, not the address or DNS name that happened to be dialled."""
    keys = keys_of(tmp_path / "a")
    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        context = client_context(keys.ca_pem, keys.network_id)
        assert await greeting(context, server, "relay.example.org") == b"hello"


async def test_a_blocking_socket_checks_the_same(tmp_path: Path) -> None:
    """paho wraps a plain socket and names the host it dialled: the rule is the same."""
    keys = keys_of(tmp_path / "a")

    def dial(context: ssl.SSLContext, port: int) -> bytes:
        with socket.create_connection((HOST, port)) as plain, context.wrap_socket(plain, server_hostname=HOST) as tls:
            return tls.recv(5)

    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        context = client_context(keys.ca_pem, keys.network_id)
        assert await asyncio.to_thread(dial, context, server.port) == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(dial, client_context(keys.ca_pem, "other"), server.port)


async def test_fetching_sends_nothing(tmp_path: Path) -> None:
    """Asking for the chain sends no application byte, also to the right server."""
    keys = keys_of(tmp_path / "a")
    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        await fetch_pinned_ca(HOST, server.port, keys.ca_sha256, 20)
        assert await server.received() == b""


async def test_a_wrong_ca_is_refused_before_a_byte_is_sent(tmp_path: Path) -> None:
    """A stranger's server, whatever its name says, learns nothing."""
    keys, stranger = keys_of(tmp_path / "a"), tmp_path / "stranger"
    stranger.mkdir()
    for name, data in issue_certificates(keys.network_id, datetime(2026, 1, 1, tzinfo=UTC)).items():
        (stranger / name).write_bytes(data)
    async with Server(stranger / "tls.pem", stranger / "tls.key") as server:
        with refuses(UntrustedError, f"{HOST}:{server.port}", "captive portal"):
            await fetch_pinned_ca(HOST, server.port, keys.ca_sha256, 20)
        assert await server.received() == b""
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            await greeting(client_context(keys.ca_pem, keys.network_id), server)
        assert isinstance(explain_tls_error(refused.value, "there"), UntrustedError)
        assert await server.received() == b""


async def test_our_ca_shown_by_a_stranger_does_not_help_him(tmp_path: Path) -> None:
    """The CA is public: who merely shows it beside a certificate of his own passes the pin, not the chain."""
    keys, stranger = keys_of(tmp_path / "a"), tmp_path / "stranger"
    stranger.mkdir()
    issued = issue_certificates(keys.network_id, datetime(2026, 1, 1, tzinfo=UTC))
    leaf = issued["tls.pem"].split(b"-----END CERTIFICATE-----\n")[0] + b"-----END CERTIFICATE-----\n"
    (stranger / "tls.pem").write_bytes(leaf + keys.ca_pem.encode())
    (stranger / "tls.key").write_bytes(issued["tls.key"])
    async with Server(stranger / "tls.pem", stranger / "tls.key") as server:
        ca_pem = await fetch_pinned_ca(HOST, server.port, keys.ca_sha256, 20)
        assert await server.received() == b""
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(client_context(ca_pem, keys.network_id), server)
        assert await server.received() == b""


async def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    """A certificate of our CA for another name is not the broker of this network."""
    keys = keys_of(tmp_path / "a")
    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="ostname mismatch"):
            await greeting(client_context(keys.ca_pem, "someothernetwork"), server, f"{keys.network_id}.edgelink")
        assert await server.received() == b""


async def test_nobody_there_is_not_a_matter_of_trust(tmp_path: Path) -> None:
    """A closed port is RegistryUnavailable, which is worth another try."""
    keys = keys_of(tmp_path / "a")
    async with Server(keys.tls_certificate_path, keys.tls_key_path) as server:
        port = server.port
    with refuses(RegistryUnavailableError, f"{HOST}:{port}"):
        await fetch_pinned_ca(HOST, port, keys.ca_sha256, 20)
    with refuses(RegistryUnavailableError, "no-such-host.invalid:1"):
        await fetch_pinned_ca("no-such-host.invalid", 1, keys.ca_sha256, 20)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b""], ids=["HTTP", "closes"])
async def test_what_does_not_speak_tls_is_named(answer: bytes) -> None:
    """A web server or a port that hangs up is told from a broker."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    listener = await asyncio.start_server(serve, HOST, 0)
    with pytest.raises(RegistryUnavailableError):
        await fetch_pinned_ca(HOST, listener.sockets[0].getsockname()[1], bytes(32), 20)
    listener.close()


async def test_a_silent_port_has_a_deadline() -> None:
    """A port that accepts and says nothing does not hold a node up for ever."""
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.transport.abort()

    listener = await asyncio.start_server(serve, HOST, 0)
    with pytest.raises(RegistryUnavailableError, match=r"within 0\.2 s"):
        await fetch_pinned_ca(HOST, listener.sockets[0].getsockname()[1], bytes(32), 0.2)
    released.set()
    listener.close()
