"""The two sides of the fleet's benchmark, each in processes of its own; driven by one JSON object a line on stdin.

``registry``: what the bootstrap daemon has of the registry: store, authority, Mosquitto, the service, and the relay's
own client. ``nodes``: many nodes, each with a real MQTT connection of its own that sends and follows what a node does,
but parses nothing of what it is sent: a thousand nodes' parsing is a thousand machines' work, and here is only one.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import edgelink.daemon.relay  # noqa: F401  (what the daemon has in memory counts)
from edgelink.backoff import Backoff
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import EdgelinkError
from edgelink.log import configure
from edgelink.member.enrol_request import exchange
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ConditionReport, EnrolRequest, NodeStatus, Role
from edgelink.protocol.tls import client_context
from edgelink.protocol.token import Token
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login, Message, MqttTransport, Session
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.broker import Broker
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.testing.registry_client import LoneClient
from edgelink.testing.registry_service import LoneService

CLOCK = SystemClock()
Command = Callable[..., Awaitable[Any]]
REPORTED = tuple(  # as many conditions, of such a length, as an edge reports
    ConditionReport(type=f"Condition{number}", status="True", reason="AllIsWell", message="as it should be " * 4)
    for number in range(12)
)


class Registry:
    """The relay's part. Its node is a client, too, which hears every status."""

    def __init__(self, directory: Path, port: int) -> None:
        self.paths = Paths(state=directory / "state", runtime=directory / "run")
        address = f"127.0.0.1:{port}"
        self.keys = AuthorityKeys.load_or_create(self.paths.authority_keys, CLOCK)
        self.store = RegistryStore(self.paths.registry_database, CLOCK)
        authority = Authority(self.store, self.keys, CLOCK, addresses=(address,), overlay_peers=("tcp://127.0.0.1:1",))
        authority.create_network(NetworkRequest("fleet", IPv4Network("10.16.0.0/16")))
        key = NodeKey.generate()
        self.node_id = key.node_id
        membership = authority.relay_membership(key, "relay")
        self.broker = Broker(
            keys=self.keys,
            port=port,
            paths=self.paths,
            users=self.store.broker_users,
            clock=CLOCK,
            on_change=lambda: None,
        )
        self.service = LoneService(
            authority=authority,
            store=self.store,
            network_id=self.keys.network_id,
            broker=self.broker,
            transport=MqttTransport(client_context(self.keys.ca_pem, self.keys.network_id)),
            clock=CLOCK,
        )
        self.client = LoneClient(membership, key, CLOCK)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.service.run())
            await self.service.ready.wait()
            tasks.create_task(self.client.run())

    async def token(self, uses: int) -> dict[str, str]:
        await self.service.ready.wait()
        token = await self.service.create_token(TokenRequest(Role.EDGE, uses=uses))
        return {"token": token.encode(), "ca_pem": self.keys.ca_pem}

    async def state(self) -> dict[str, Any]:
        """What it has, and what it and the broker take of memory, now and at most."""
        own = self.node_id
        phases = [s.phase for s in self.service.statuses.values() if s.online and s.node_id != own]
        return {
            "leases": len(self.store.leases()),
            "online": len(phases),
            "relay_sees": sum(s.online and s.node_id != own for s in self.client.statuses.values()),
            "phases": {phase: phases.count(phase) for phase in set(phases)},
            "daemon_mb": rss_mb("VmRSS"),
            "daemon_peak_mb": rss_mb("VmHWM"),
            "broker_mb": rss_mb("VmRSS", self.broker.pid),
            "broker_pid": self.broker.pid,
            "broker_cpu_s": cpu_s(self.broker.pid),
            "daemon_cpu_s": cpu_s(os.getpid()),
        }

    async def stop(self) -> None:
        await self.broker.stop()

    @property
    def commands(self) -> dict[str, Command]:
        return {"token": self.token, "state": self.state, "stop": self.stop}


class FleetNode:
    """One machine: enrols, then keeps a session and its status there for ever."""

    def __init__(self, name: str, token: Token, ca_pem: str, context: ssl.SSLContext) -> None:
        self.name = name
        self.key = NodeKey.generate()
        self.membership: Membership | None = None
        self.is_connected = False
        self.sessions = 0
        self._token = token
        self._ca_pem = ca_pem
        self._transport = MqttTransport(context)
        self._session: Session | None = None
        self._topics = Topics(token.network_id)

    async def enrol(self) -> float:
        """Seconds from the first byte to the lease; tries as `edgelink join` does, and again when it is refused."""
        request = EnrolRequest(
            token_id=self._token.token_id,
            verify_key=self.key.verify_key_b64,
            hostname=self.name,
            edgelink_version="0.1.0",
            asked_at=CLOCK.now(),
        )
        envelope = self.key.sign(Kind.ENROL_REQUEST, request)
        started_s = time.monotonic()
        login = Login(self._token.broker_username, self._token.secret)
        async with self._transport.connect(self._token.addresses[0], login, timeout_s=60) as session:
            reply = await exchange(session, self._token, envelope, CLOCK, 120)
        self.membership = Membership.from_reply(reply, token=self._token, key=self.key, ca_pem=self._ca_pem)
        return time.monotonic() - started_s

    async def stay(self) -> None:
        """A session after the other, with the pauses of :class:`RegistryClient`."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            with suppress(EdgelinkError):
                async with self._connected() as session:
                    backoff.reset()
                    async for _ in session.messages():
                        pass
            self.is_connected = False
            await CLOCK.sleep(backoff.next_s())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Session]:
        assert self.membership is not None
        secrets, topics = self.membership.secrets, self._topics
        will = Message(topics.status(self.key.node_id), self.status("Gone", online=False), retain=True)
        login = Login(secrets.broker_username, secrets.broker_password, self.key.node_id[:23])
        async with self._transport.connect(self._token.addresses[0], login, will=will) as session:
            followed = (topics.lease(self.key.node_id), topics.directory, topics.cluster)
            await session.subscribe(*followed)
            await session.subscribe(topics.report_request)
            await session.publish(topics.status(self.key.node_id), self.status("Ready"), retain=True)
            self.is_connected, self._session = True, session
            self.sessions += 1
            yield session

    def status(self, phase: str, *, online: bool = True) -> bytes:
        status = NodeStatus(
            node_id=self.key.node_id,
            online=online,
            phase=phase,
            conditions=REPORTED if online else (),
            edgelink_version="0.1.0",
            reported_at=CLOCK.now(),
        )
        return status.model_dump_json().encode()

    async def report(self, phase: str) -> None:
        while not (self.is_connected and self._session):
            await CLOCK.sleep(0.1)
        await self._session.publish(self._topics.status(self.key.node_id), self.status(phase), retain=True)


class Nodes:
    """Many nodes in one process."""

    def __init__(self, token: str, ca_pem: str, prefix: str, count: int) -> None:
        parsed = Token.parse(token)
        context = client_context(ca_pem, parsed.network_id)
        self.nodes = [FleetNode(f"{prefix}-{number}", parsed, ca_pem, context) for number in range(count)]
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def enrol(self, at_once: int) -> list[float]:
        """All enrol, ``at_once`` at a time; and stay connected from then on, as a fleet that comes up does."""
        limit = asyncio.Semaphore(at_once)

        async def one(node: FleetNode) -> float:
            async with limit:
                taken_s = await node.enrol()
            self._tasks.append(asyncio.create_task(node.stay()))
            return taken_s

        return list(await asyncio.gather(*map(one, self.nodes)))

    async def connected(self) -> int:
        return sum(node.is_connected for node in self.nodes)

    async def sessions(self) -> int:
        """How many nodes are in a second session or a later one."""
        return sum(node.is_connected and node.sessions > 1 for node in self.nodes)

    async def cpu_s(self) -> float:
        return cpu_s(os.getpid())

    async def report(self, phase: str, rounds: int) -> int:
        """Each node says ``rounds`` times how it is, one after the other; the last is called ``phase``."""

        async def one(node: FleetNode) -> None:
            for number in reversed(range(rounds)):
                await node.report(f"{phase}-{number}" if number else phase)

        await asyncio.gather(*map(one, self.nodes))
        return len(self.nodes) * rounds

    @property
    def commands(self) -> dict[str, Command]:
        return {
            "enrol": self.enrol,
            "connected": self.connected,
            "sessions": self.sessions,
            "cpu_s": self.cpu_s,
            "report": self.report,
        }


def rss_mb(what: str, pid: int | None = None) -> float:
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    return round(int(status.split(f"{what}:")[1].split()[0]) / 1024, 1)


def cpu_s(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def serve(side: Registry | Nodes) -> None:
    """Commands from stdin, an answer a line on stdout, until stdin ends."""
    reader = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = asyncio.create_task(side.run())
    while line := await reader.readline():
        asked = json.loads(line)
        call = asyncio.ensure_future(side.commands[asked.pop("do")](**asked))
        await asyncio.wait([running, call], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        print(json.dumps(await call), flush=True)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def main() -> None:
    configure(quiet=True)
    what, arguments = sys.argv[1], json.loads(sys.argv[2])

    async def start() -> None:
        side = Registry(Path(arguments["directory"]), arguments["port"]) if what == "registry" else Nodes(**arguments)
        await serve(side)

    asyncio.run(start())


if __name__ == "__main__":
    main()
