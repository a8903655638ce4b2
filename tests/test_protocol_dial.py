"""The relay is dialled at every address that its name has: one that leads nowhere costs a moment."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from edgelink.errors import RegistryUnavailableError
from edgelink.protocol.tls import client_context, fetch_pinned_ca
from edgelink.protocol.transport import Login, MqttTransport
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.testing import FakeClock

NAME = "relay.example.org"
HERE, NOWHERE = "127.0.0.1", "127.0.0.2"
CONNACK = bytes([0x20, 2, 0, 0])


@contextmanager
def dropping(port: int) -> Iterator[None]:
    """Nothing comes back from :data:`NOWHERE`: its queue of connections is full, so the kernel drops what comes."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((NOWHERE, port))
        listener.listen(0)
        for _ in range(4):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((NOWHERE, port))
        yield


def resolving(monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str]) -> None:
    async def look_up(_host: str, port: int, **_more: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)


@pytest.fixture
def keys(tmp_path: Path) -> AuthorityKeys:
    return AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())


async def test_an_address_that_leads_nowhere_keeps_nobody_out(
    keys: AuthorityKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPv6 address that a router drops, before the IPv4 one that works: enrolment and session get through."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1024):
            writer.write(CONNACK)
            await reader.read(1024)
        writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.tls_certificate_path, keys.tls_key_path)
    async with await asyncio.start_server(accept, HERE, 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        with dropping(port):
            resolving(monkeypatch, [NOWHERE, HERE])
            assert await fetch_pinned_ca(NAME, port, keys.ca_sha256, 20) == keys.ca_pem
            transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
            async with transport.connect(f"{NAME}:{port}", Login("node-x", "a password"), timeout_s=20):
                pass


async def test_where_no_address_answers_the_time_out_holds(
    keys: AuthorityKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all of them together; refused ones are told at once."""
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = free.getsockname()[1]
    transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
    with dropping(port):
        resolving(monkeypatch, [NOWHERE, HERE])
        with pytest.raises(RegistryUnavailableError, match="no answer within"):
            async with transport.connect(f"{NAME}:{port}", Login("node-x", "a password"), timeout_s=0.5):
                pass
    resolving(monkeypatch, [NOWHERE, HERE])
    with pytest.raises(RegistryUnavailableError, match="refused"):
        async with transport.connect(f"{NAME}:{port}", Login("node-x", "a password"), timeout_s=60):
            pass
