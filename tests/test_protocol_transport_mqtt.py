"""The real transport's failures, each against a server that misbehaves; the good case is in netns-tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import aiomqtt
import pytest
from telling import refuses

from edgelink.errors import RegistryAuthError, RegistryUnavailableError, UntrustedError
from edgelink.protocol.tls import client_context
from edgelink.protocol.transport import Login, MqttTransport, Session, _MqttSession
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.tasks import apart
from edgelink.testing import FakeClock

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LOGIN = Login("node-x", "a password of a node")
CONNACK_REFUSED = bytes([0x20, 2, 0, 5])
CONNACK_UNAVAILABLE = bytes([0x20, 2, 0, 3])


@pytest.fixture
def keys(tmp_path: Path) -> AuthorityKeys:
    return AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())


def server_context(keys: AuthorityKeys) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.tls_certificate_path, keys.tls_key_path)
    return context


@asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """A server whose every connection is over when the block ends."""
    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except OSError:
            pass  # the client does not like us: what the test is about
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.sleep(0.05)  # a handshake that failed on our side is still to be noticed there
        await asyncio.gather(*filter(None, handlers))


async def connect(keys: AuthorityKeys, address: str, timeout_s: float = 20.0) -> None:
    transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
    async with transport.connect(address, LOGIN, timeout_s=timeout_s):
        pass


def answering(reply: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(reply)
        await reader.read(1024)

    return serve


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def stay_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_accepted(keys: AuthorityKeys) -> None:
    """A broker of this network that accepts gives a session."""
    async with serving(answering(bytes([0x20, 2, 0, 0])), server_context(keys)) as address:
        await connect(keys, address)


async def test_refused_credentials(keys: AuthorityKeys) -> None:
    """Refused credentials are their own error, which does not show the password."""
    async with serving(answering(CONNACK_REFUSED), server_context(keys)) as address:
        with pytest.raises(RegistryAuthError) as refused:
            await connect(keys, address)
    assert LOGIN.password not in f"{refused.value}{LOGIN!r}"


async def test_broker_not_ready(keys: AuthorityKeys) -> None:
    """A broker that says it is unavailable is worth another try."""
    async with serving(answering(CONNACK_UNAVAILABLE), server_context(keys)) as address:
        with pytest.raises(RegistryUnavailableError):
            await connect(keys, address)


async def test_nobody_listens(keys: AuthorityKeys) -> None:
    """A refused connection names the address and what to check."""
    async with serving(hang_up, None) as address:
        pass
    with refuses(RegistryUnavailableError, address) as unreachable:
        await connect(keys, address)
    assert unreachable.value.hint


async def test_unknown_name(keys: AuthorityKeys) -> None:
    """A DNS name that does not resolve is an unreachable broker, not a crash."""
    with pytest.raises(RegistryUnavailableError):
        await connect(keys, "no-such-host.invalid:8883")


@pytest.mark.parametrize("address", ["relay.example.org:99999", "relay.example.org", "[1.2.3]"])
async def test_an_address_that_is_none(keys: AuthorityKeys, address: str) -> None:
    """Written down by an older EdgeLink, say: the next one is tried, and no daemon ends of it."""
    with refuses(RegistryUnavailableError, address):
        await connect(keys, address)


@pytest.mark.parametrize("with_tls", [True, False])
async def test_hangs_up(keys: AuthorityKeys, with_tls: bool) -> None:
    """A connection that is closed before the broker's answer is an unreachable broker."""
    async with serving(hang_up, server_context(keys) if with_tls else None) as address:
        with pytest.raises(RegistryUnavailableError):
            await connect(keys, address, timeout_s=60)  # noticed at once, not at the time-out


@pytest.mark.parametrize("with_tls", [True, False])
async def test_silence(keys: AuthorityKeys, with_tls: bool) -> None:
    """Silence, in the TLS handshake or after it, ends at the time-out, and at once by cancellation."""
    async with serving(stay_silent, server_context(keys) if with_tls else None) as address:
        with pytest.raises(RegistryUnavailableError, match="no answer within"):
            await connect(keys, address, timeout_s=0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connect(keys, address, timeout_s=30)


async def test_another_network(keys: AuthorityKeys, tmp_path: Path) -> None:
    """The broker of another network is not talked to: no byte of the credentials leaves."""
    other = AuthorityKeys.load_or_create(tmp_path / "other", FakeClock())
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1024))

    async with serving(listen, server_context(other)) as address:
        with refuses(UntrustedError, address):
            await connect(keys, address)
    assert b"".join(heard) == b""


async def test_cancelled_as_the_answer_comes(keys: AuthorityKeys) -> None:
    """A task that is cancelled in the moment of the broker's answer ends, however the two coincide."""
    puback = bytes([0x40, 2, 0, 1])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(bytes([0x20, 2, 0, 0]))
        await reader.read(1024)
        writer.write(puback)
        await reader.read(1024)

    transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
    async with serving(serve, server_context(keys)) as address, transport.connect(address, LOGIN) as session:
        client = session._client  # type: ignore[attr-defined]
        task = asyncio.create_task(publish_then_wait(session))
        acknowledged, loop = client._on_publish, asyncio.get_running_loop()

        def cancel_too(*arguments: object) -> None:
            acknowledged(*arguments)
            loop.call_soon(lambda: loop.call_soon(task.cancel))  # between the answer and the task that waits for it

        client._client.on_publish = cancel_too
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)


@pytest.mark.parametrize("host", ["relay..example", "x" * 64 + ".example"])
async def test_what_can_be_no_name_cannot_be_reached(keys: AuthorityKeys, host: str) -> None:
    """One relay's mistyped name must not end every member that tries it."""
    transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
    with refuses(RegistryUnavailableError, host):
        async with transport.connect(f"{host}:8883", LOGIN):
            pass


@pytest.mark.parametrize("call", ["publish", "subscribe"])
async def test_cancelled_as_the_connection_is_lost(call: str) -> None:
    """It is no loss to whoever was cancelled: the loop around it would connect again, and never end."""
    called = asyncio.Event()

    async def lost(*_arguments: object, **_options: object) -> None:
        try:
            called.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise aiomqtt.MqttError("lost") from None

    session = _MqttSession(SimpleNamespace(publish=lost, subscribe=lost), "192.0.2.1:8883")  # type: ignore[arg-type]
    task = asyncio.ensure_future(session.publish("a", b"b") if call == "publish" else session.subscribe("a"))
    await called.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def publish_then_wait(session: Session) -> None:
    await session.publish("a", b"b")
    await asyncio.Event().wait()


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_that_comes_with_a_loss_is_kept(turns: int) -> None:
    """A daemon that ends in the moment in which its session is lost ends: nothing begins the session again."""
    lost = asyncio.Event()

    async def session() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lose())
            await asyncio.Event().wait()

    async def lose() -> None:
        await lost.wait()
        raise RegistryUnavailableError("lost")

    async def for_ever() -> None:
        while True:
            with suppress(ExceptionGroup):
                await apart(session())
            await asyncio.sleep(0)

    task = asyncio.create_task(for_ever())
    await asyncio.sleep(0.01)
    lost.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=20)
    assert task in done
    assert task.cancelled()
