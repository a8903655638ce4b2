"""A relay's registry on a real Mosquitto, and nodes with real clients: on loopback, without daemons or an overlay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.member.enrol_request import request_membership
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.protocol.tls import client_context
from edgelink.protocol.token import Token
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login, MqttTransport, Session
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.broker import Broker
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import beside, eventually, reserved_port
from edgelink.testing.registry_client import LoneClient
from edgelink.testing.registry_service import LoneService

CLOCK = SystemClock()
soon = partial(eventually, timeout_s=60)  # a broker that starts, a client that dials again: a second as a rule


class Relay:
    """A bootstrap daemon's registry: `start` and `crash` it as often as wanted; the broker outlives it."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(state=directory / "state", runtime=directory / "run")
        self._held = contextlib.ExitStack()
        self.port = self._held.enter_context(reserved_port())
        self.address = f"127.0.0.1:{self.port}"
        self.keys = AuthorityKeys.load_or_create(self.paths.authority_keys, CLOCK)
        self.topics = Topics(self.keys.network_id)
        self.sessions = 0  # of the registry with the broker, begun so far
        self._was_connected = False
        self._open()
        self._task: asyncio.Task[None] | None = None

    def _open(self) -> None:
        self.store = RegistryStore(self.paths.registry_database, CLOCK)
        self.authority = Authority(self.store, self.keys, CLOCK, addresses=(self.address,))
        self.authority.create_network(NetworkRequest("lab", IPv4Network("10.10.0.0/24")))
        self.broker = Broker(
            keys=self.keys,
            port=self.port,
            paths=self.paths,
            users=self.store.broker_users,
            clock=CLOCK,
            on_change=self._changed,
        )
        self.service = LoneService(
            authority=self.authority,
            store=self.store,
            network_id=self.keys.network_id,
            broker=self.broker,
            transport=self.transport,
            clock=CLOCK,
            on_change=self._changed,
        )

    def _changed(self) -> None:
        self.sessions += self.service.is_connected and not self._was_connected
        self._was_connected = self.service.is_connected

    @property
    def transport(self) -> MqttTransport:
        return MqttTransport(client_context(self.keys.ca_pem, self.keys.network_id))

    async def start(self) -> None:
        self._task = asyncio.create_task(self.service.run())
        async with asyncio.timeout(60):
            await self.service.ready.wait()

    async def crash(self) -> None:
        """End the daemon, not the broker; what `start` makes next is a new daemon."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.store.close()
        self._open()

    async def stop(self) -> None:
        await self.crash()
        await self.broker.stop()
        self.store.close()
        self._held.close()

    def kill_broker(self) -> None:
        assert self.broker.pid is not None
        os.kill(self.broker.pid, signal.SIGKILL)

    async def join(self, hostname: str, role: Role = Role.EDGE) -> Node:
        return await Node.enrol(await self.service.create_token(TokenRequest(role)), hostname)

    def session(self, login: Login, **options: Any) -> contextlib.AbstractAsyncContextManager[Session]:
        return self.transport.connect(self.address, login, **options)


@contextlib.asynccontextmanager
async def serving_relay() -> AsyncIterator[Relay]:
    """One that serves, with a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="edgelink-relay-"))
    directory.chmod(0o755)  # the broker's own user has to get through, as it does through /run
    relay = Relay(directory)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()
        shutil.rmtree(directory)


class Node:
    """A member with its client running."""

    def __init__(self, key: NodeKey, membership: Membership) -> None:
        self.key = key
        self.membership = membership
        self.client = LoneClient(membership, key, CLOCK)

    @classmethod
    async def enrol(cls, token: Token, hostname: str, key: NodeKey | None = None) -> Node:
        key = key or NodeKey.generate()
        return cls(key, await request_membership(token, key, hostname=hostname, role=None, clock=CLOCK))

    @property
    def login(self) -> Login:
        return Login(self.membership.secrets.broker_username, self.membership.secrets.broker_password)

    @property
    def sessions(self) -> int:
        """How many have begun so far."""
        return self.client.facts.session.number

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        async with beside(self.client.run()):
            await soon(lambda: self.client.directory is not None)
            yield self
