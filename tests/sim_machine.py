"""Machines that exist in memory only, and the network between them: what the daemons of a simulation run on.

EasyTier is its configuration file and a device that comes up; two of them hear each other when they run on one secret.
Ray is a list of who has joined. All that a daemon consists of is the real thing.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import ssl
import tomllib
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any
from uuid import UUID

from overlay_world import FakeCongestion, FakePrivateHosts, FakeRoutes

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ProcessStartError, RayClusterError, RegistryUnavailableError
from edgelink.files import Files, private_directory
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.echo import Echo
from edgelink.overlay.echo_proof import Identity as EchoIdentity
from edgelink.overlay.echo_proof import Proof
from edgelink.overlay.link import LinkMonitor, LinkState
from edgelink.overlay.nft_watch import NftWatch
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.stun import PrivateHosts
from edgelink.overlay.traffic import Traffic
from edgelink.overlay.ways import Ways
from edgelink.process import Identity, Launcher, ProcessSpec, SupervisedProcess
from edgelink.process.port_ranges import merged
from edgelink.process.ports import Accepted, Connection
from edgelink.process.service_manager import ServiceManager
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.transport import KEEPALIVE_S, Login, Message, MqttTransport, Session
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.node import RayNode
from edgelink.ray_cluster.record import RayLaunch, RayRecord
from edgelink.ray_cluster.run_listeners import RunListeners
from edgelink.relay.broker import Broker
from edgelink.relay.dynamic_security import ADMIN, fingerprint
from edgelink.shield.inside import SeenPorts
from edgelink.testing.memory_transport import MemoryBroker, MemorySession, MemoryTransport
from edgelink.testing.overlay import FakeLinks
from edgelink.testing.virtual_time import Program

EASYTIER, ECHO, BROKER, RAYLET, GCS = "easytier", "echo", "mosquitto", "raylet", "gcs"
RTT_S = 0.03
DEVICE_S = 0.02  # from EasyTier's start to its device
RAY_START_S = 3.0
IMPORT_S = 0.5  # of Ray into an interpreter
FAREWELL_S = 2.0  # that a raylet needs to end its workers
ADMIN_PASSWORD = "the admin's"
VERSIONS = ["3.11.7", "2.60.0", False, [], {}]  # of the interpreter that has Ray
_SYSCTLS = {"tcp_rto_max_ms": 120000, "tcp_retries2": 15, "tcp_syn_retries": 6, "tcp_mtu_probing": 0}

# On which machine the code that runs now is: all daemons share one event loop.
here: ContextVar[Machine] = ContextVar("here")
_pids = itertools.count((1 << 23) + (1 << 20))


@dataclass
class Running:
    """A program that outlives its daemon. ``file``: the configuration that it read at its start."""

    identity: Identity
    file: dict[str, Any] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class RayMember:
    """A raylet, as the GCS lists it."""

    ip: str
    rank: int
    process: Running
    is_buried: bool = False

    @property
    def is_alive(self) -> bool:
        return not self.is_buried and not self.process.ended.is_set()

    def to_dict(self, ray_id: str) -> dict[str, Any]:
        values = {"node_id": ray_id, "ip": self.ip, "rank": self.rank, "alive": self.is_alive, "hostname": "host"}
        return {**values, "accelerator": "NO_ACCEL", "accelerator_count": 0, "cpus": 4.0}


@dataclass
class RayCluster:
    """What the GCS at one address knows. ``members``: by Ray's id, the newest last."""

    cluster_id: str
    gcs: Running
    members: dict[str, RayMember] = field(default_factory=dict)

    def listed(self) -> list[dict[str, Any]]:
        return [member.to_dict(ray_id) for ray_id, member in reversed(self.members.items())]


class World:
    """The machines, and what is between them."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self.brokers: dict[str, MemoryBroker] = {}  # by the address that nodes dial
        self.clusters: dict[str, RayCluster] = {}  # by the address of the GCS
        self.stolen: dict[str, Machine] = {}  # by overlay address: who gets what is for its holder
        self.programs = {"nft": nft, "easytier-cli": easytier_cli, "python3": python}

    def at(self, ip: str) -> Machine | None:
        holder = next((machine for machine in self.machines if str(machine.overlay_ip) == ip), None)
        return self.stolen.get(ip, holder)

    def can_talk(self, one: Machine, other: Machine) -> bool:
        """Whether packets get from one to the other in the overlay, which takes a relay."""
        if one is other:
            return one.network is not None
        if one.network is None or one.network != other.network or one.is_cut or other.is_cut:
            return False
        return any(machine.is_relay and machine.network == one.network for machine in self.machines)

    def cluster_at(self, address: str, asker: Machine | None) -> RayCluster | None:
        """The GCS that answers ``asker`` at that address."""
        cluster, other = self.clusters.get(address), self.at(address.rpartition(":")[0])
        is_there = cluster is not None and not cluster.gcs.ended.is_set()
        return cluster if is_there and asker and other and self.can_talk(asker, other) else None

    def listens(self, host: str, port: int, source: str) -> bool:
        return self.cluster_at(f"{host}:{port}", self.at(source)) is not None

    def stands_still(self, context: Context) -> bool:
        machine = context.get(here)
        return machine is not None and machine.is_stopped


class Machine(ThisMachine):
    """One machine.

    Attributes:
        hardware: the parts of it that can be read.
        history: which programs began and ended on it, in order: ``+easytier``, ``-easytier``.
        workers: of Ray, that somebody's run has here.
        run_ports: on which its processes listen, beside Ray's own and the training's.
    """

    def __init__(self, world: World, directory: Path, *, is_relay: bool = False) -> None:
        directory.mkdir()
        self.world, self.directory, self.is_relay = world, directory, is_relay
        self._is_cut = False
        self._cuts = asyncio.Event()  # set, and replaced, whenever the uplink goes or comes
        self.sessions: list[PlayedSession] = []  # with brokers elsewhere
        self.is_stopped = False  # its daemon stands still
        self.proves_nothing = False
        self.broken: set[str] = set()  # programs that cannot be started
        self.python, self.core = directory / "python3", directory / "easytier-core"
        for program in (self.python, self.core):
            program.touch(mode=0o755)
        self.proc_sys = directory / "sys"
        settings = self.proc_sys / "net/ipv4"
        settings.mkdir(parents=True)
        for name, value in _SYSCTLS.items():
            (settings / name).write_text(f"{value}\n")
        self.hardware: tuple[str, ...] = (f"mac:{hashlib.md5(directory.name.encode()).hexdigest()}",)
        self.programs: dict[str, Running] = {}
        self.history: list[str] = []
        self.firewall: dict[str, str] = {}  # nftables' tables by name
        self.workers: list[str] = []
        self.run_ports: set[int] = set()
        self.in_use: list[Accepted] = []  # what others are connected to over the overlay
        self.waiting: list[Program] = []  # for a question of the daemon's
        self.memory = MemoryBroker({ADMIN: ADMIN_PASSWORD})  # its broker, where it has one
        self.memory.is_up = False
        self.ca_pem = ""  # the network's certificate, where that broker is
        self.device = FakeLinks()
        world.machines.append(self)

    @property
    def is_cut(self) -> bool:
        """Whether its uplink is away."""
        return self._is_cut

    @is_cut.setter
    def is_cut(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        if is_cut:
            for session in self.sessions:
                asyncio.get_running_loop().call_later(1.5 * KEEPALIVE_S, session.give_up)
        self.tell_of_uplink()

    def tell_of_uplink(self) -> None:
        told, self._cuts = self._cuts, asyncio.Event()
        told.set()

    async def uplink_changes(self) -> None:
        await self._cuts.wait()

    def running(self, name: str) -> Running | None:
        """The program of that name, if it runs."""
        found = self.programs.get(name)
        return None if found is None or found.ended.is_set() else found

    @property
    def network(self) -> tuple[str, str] | None:
        """Name and secret of the network that its EasyTier is in."""
        found = self.running(EASYTIER)
        if found is None or not self.device.state.exists:
            return None
        identity = found.file["network_identity"]
        return identity["network_name"], identity["network_secret"]

    @property
    def overlay_ip(self) -> IPv4Address | None:
        addresses = self.device.state.addresses
        return addresses[0].ip if addresses else None

    def begin(self, name: str, config_hash: str, file: dict[str, Any] | None = None) -> Running:
        found = Running(Identity(next(_pids), 1, "boot", config_hash), file or {})
        self.programs[name] = found
        self.history.append(f"+{name}")
        if name == EASYTIER:
            asyncio.get_running_loop().call_later(DEVICE_S, self._make_device, found)
        return found

    def end(self, name: str) -> None:
        """A program ends, by itself or by force."""
        if (found := self.running(name)) is None:
            return
        found.ended.set()
        self.history.append(f"-{name}")
        if name == EASYTIER:
            self.device.state = LinkState()
        if name == BROKER:
            self.memory.stop()

    def _make_device(self, easytier: Running) -> None:
        if easytier.ended.is_set():
            return
        address, mtu = IPv4Interface(easytier.file["ipv4"]), easytier.file["flags"]["mtu"] - 20
        self.device.state = LinkState(
            True, True, (address,), mtu, index=easytier.identity.pid, routes=(address.network,)
        )

    def peers(self) -> list[Machine]:
        """The others that its EasyTier lists."""
        return [
            machine for machine in self.world.machines if machine is not self and self.world.can_talk(self, machine)
        ]

    # As its daemon sees it

    def launcher(self, wanted: str, manager: ServiceManager | None, paths: Paths, clock: Clock) -> Launcher:
        return NoLauncher()

    def process(
        self, name: str, record: Path, launcher: Launcher, clock: Clock, files: Files, uids: Collection[int] | None
    ) -> SupervisedProcess:
        return PlayedProcess(self, name, record, launcher, clock, uids, files)

    def ray(self, config: Config, paths: Paths, clock: Clock, launcher: Launcher, files: Files) -> LocalRay:
        return PlayedRay(self, config, paths, clock, launcher, files)

    def broker(self, **given: Any) -> Broker:
        return PlayedBroker(self, **given)

    def links(self) -> LinkMonitor:
        return self.device

    def routes(self, clock: Clock, *, sets_bbr: bool) -> OwnRoutes:
        return FakeRoutes()

    async def ways(self, *_: object) -> Ways:
        return Ways()

    def congestion(self, links: LinkMonitor, clock: Clock, device: str, *, is_wanted: bool) -> TunnelCongestion:
        return IdleCongestion()

    def tables(self) -> NftWatch:
        return SilentWatch()

    async def parts(self, network_id: str) -> tuple[str, ...]:
        return self.hardware

    def easytier(self, configured: object) -> EasyTierBinary:
        return EasyTierBinary(self.core, self.directory / "easytier-cli", "2.6.4")

    async def preflight(self, spec: OverlaySpec, links: LinkMonitor) -> None:
        pass

    def private_hosts(self, directory: Path) -> PrivateHosts:
        found = FakePrivateHosts()
        found.watched = self.directory
        return found

    async def mend(self, name: str, spec: OverlaySpec, mtu: int) -> None:
        raise OSError("nobody takes anything from this device")

    def held_tun(self, pid: int) -> str:
        return "et0" if self.device.state.exists else ""

    def ports(self) -> SeenPorts:
        return SeenPorts(frozenset({22}), ((32768, 60999),))

    async def is_known_name(self, name: str, but: IPv4Address) -> bool:
        return False

    def accepted(self, local: IPv4Address) -> list[Accepted]:
        return self.in_use

    def connections(self, pid: int) -> list[Connection]:
        return []

    def uplinks(self, pid: int, spec: OverlaySpec) -> Hashable:
        return None

    def close_dead_connections(self, pid: int) -> list[str]:
        return []

    def close_connections_to(self, pid: int, others: Collection[tuple[str, int]]) -> list[str]:
        return []

    def close_connections_with(self, addresses: Collection[IPv4Address]) -> list[str]:
        return []

    def black_holes(self, pid: int) -> list[str]:
        return []

    async def echo(
        self,
        source: IPv4Address,
        target: IPv4Address,
        timeout_s: float,
        *,
        device: str | None,
        payload_bytes: int,
        identity: EchoIdentity | None,
    ) -> Echo | None:
        other = self.world.at(str(target))
        if source != self.overlay_ip or other is None or not self.world.can_talk(self, other):
            await asyncio.sleep(timeout_s)
            return None
        await asyncio.sleep(RTT_S)
        half_ms = RTT_S * 1000 / 2
        if (responder := other.running(ECHO)) is None:
            return Echo(2 * half_ms)
        return Echo(2 * half_ms, half_ms, half_ms, other.proof_by(responder, identity))

    def proof_by(self, responder: Running, identity: EchoIdentity | None) -> Proof:
        """What its responder proves to who wants to know whether this machine is ``identity``."""
        if identity is None or self.proves_nothing:
            return Proof.UNPROVEN
        key, instance = responder.file["words"]
        is_so = identity == EchoIdentity(NodeKey.load(Path(key)).verify_key_b64, UUID(instance))
        return Proof.PROVEN if is_so else Proof.WRONG

    def traffic(self, network: IPv4Network, easytier_pid: int | None) -> Traffic:
        return Traffic()

    async def pinned_ca(self, host: str, port: int, ca_sha256: bytes, timeout_s: float) -> str:
        broker = self.world.brokers.get(f"{host}:{port}")
        if broker is None or not broker.is_up or self.is_cut:
            raise RegistryUnavailableError(f"nobody answers at {host}:{port}")
        return next(machine.ca_pem for machine in self.world.machines if machine.memory is broker)

    def transport(self, context: ssl.SSLContext) -> MqttTransport:
        return PlayedTransport(self, context)


class NoLauncher:
    """Nothing of a simulation is a program."""

    async def launch(self, spec: ProcessSpec) -> Identity:
        raise AssertionError(f"{spec.name}: a program was to be started")


class PlayedProcess(SupervisedProcess):
    """Its record is a file as ever; what runs is in :attr:`Machine.programs`."""

    def __init__(self, machine: Machine, *given: Any) -> None:
        super().__init__(*given)
        self._machine = machine

    @property
    def _running(self) -> Running | None:
        found = self._machine.running(self.name)
        return found if found is not None and found.identity == self.identity else None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def adopt(self) -> Identity | None:
        recorded, _ = self._read_record()
        found = self._machine.running(self.name)
        if found is None or found.identity != recorded:
            self._forget()
            return None
        self.identity = recorded
        return recorded

    async def start(self, spec: ProcessSpec) -> Identity:
        assert not self.is_running
        if self.name in self._machine.broken:
            raise ProcessStartError(f"{self.name}: cannot be started")
        private_directory(self._record_path.parent)
        private_directory(spec.log_path.parent)
        words = dict(itertools.pairwise(spec.argv))
        file = tomllib.loads(Path(words["-c"]).read_text()) if "-c" in words else {"words": spec.argv[-2:]}
        self._remember(self._machine.begin(self.name, spec.config_hash, file).identity)
        self.starts += 1
        assert self.identity is not None
        return self.identity

    async def wait(self) -> int | None:
        if found := self._running:
            await found.ended.wait()
        return self._exit_status

    async def stop(self, *, term_timeout_s: float = 5, kill_timeout_s: float = 5) -> None:
        if self._running:
            self._machine.end(self.name)
        if self.identity is not None:
            self._forget()


class PlayedBroker(Broker):
    """Mosquitto is a :class:`MemoryBroker`, which goes on without its daemon."""

    def __init__(self, machine: Machine, **given: Any) -> None:
        super().__init__(**given)
        self._machine = machine
        self._password = ADMIN_PASSWORD
        paths: Paths = given["paths"]
        record = paths.processes / f"{BROKER}.json"
        self._process = machine.process(BROKER, record, NoLauncher(), given["clock"], given["files"], None)

    async def ensure_running(self) -> None:
        if self._process.adopt() is None:
            await self._start()

    async def restart(self) -> None:
        await self._process.stop()
        await self._start()

    async def stop(self) -> None:
        self._process.adopt()
        await self._process.stop()

    async def _start(self) -> None:
        memory = self._machine.memory
        known = memory.passwords or {}
        users = {user.username: user for user in self._users()}
        # The registry has hashes only. Who was never here cannot log in; the relay itself never does.
        memory.passwords = {ADMIN: ADMIN_PASSWORD} | {name: known.get(name, "\0") for name in users}
        memory.descriptions = {name: fingerprint(user, self._topics) for name, user in users.items()}
        private_directory(self._paths.logs)
        spec = ProcessSpec(BROKER, (), {}, self._paths.state, self._paths.logs / "mosquitto.log", "")
        await self._process.start(spec)
        memory.start()
        self._machine.ca_pem = self._keys.ca_pem


class PlayedTransport(MqttTransport):
    """Reaches the brokers of the world, but for a machine whose uplink is away; its own one in any case."""

    def __init__(self, machine: Machine, context: ssl.SSLContext) -> None:
        super().__init__(context)
        self._machine = machine

    @asynccontextmanager
    async def connect(self, address: str, login: Login, **given: Any) -> AsyncIterator[Session]:
        machine = self._machine
        own = {f"127.0.0.1:{port.rpartition(':')[2]}": broker for port, broker in machine.world.brokers.items()}
        if machine.is_relay and address in own:
            async with MemoryTransport(own).connect(address, login, **given) as session:
                yield session
            return
        reached = {} if machine.is_cut else machine.world.brokers
        async with MemoryTransport(reached).connect(address, login, **given) as session:
            assert isinstance(session, MemorySession)
            played = PlayedSession(machine, session)
            machine.sessions.append(played)
            try:
                yield played
            finally:
                machine.sessions.remove(played)


class PlayedSession:
    """Nothing gets through while the machine's uplink is away. After a while both ends take it for lost."""

    def __init__(self, machine: Machine, inner: MemorySession) -> None:
        self._machine, self._inner = machine, inner
        self._is_lost = False

    def give_up(self) -> None:
        """The keepalive had no answer for too long, if the uplink is away still."""
        if self._machine.is_cut and not self._is_lost:
            self._is_lost = True
            self._inner.lose()
            self._machine.tell_of_uplink()

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        await self._way()
        await self._inner.publish(topic, payload, retain=retain)

    async def subscribe(self, *topics: str) -> None:
        await self._way()
        await self._inner.subscribe(*topics)

    async def messages(self) -> AsyncIterator[Message]:
        async for message in self._inner.messages():
            await self._way()
            yield message

    async def _way(self) -> None:
        while self._machine.is_cut and not self._is_lost:
            await self._machine.uplink_changes()


class PlayedRay(LocalRay):
    """Ray is a list of members at its GCS."""

    def __init__(
        self, machine: Machine, config: Config, paths: Paths, clock: Clock, launcher: Launcher, files: Files
    ) -> None:
        super().__init__(config, paths, clock, launcher, files)
        self._machine = machine
        self.node = PlayedRayNode(machine, paths, launcher, clock, config.ray.temp_dir, files)
        self._closed_ports = ((29500, 29500),)
        self._run_listeners = PlayedListeners(machine)

    async def is_refused(self, head: str, cluster_id: str, *, token_auth: bool) -> bool:
        cluster = self._machine.world.cluster_at(head, self._machine)
        return cluster is not None and cluster.cluster_id != cluster_id


class PlayedListeners(RunListeners):
    """The machine says which they are."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def look(self, *_: object) -> tuple[tuple[int, int], ...]:
        return merged((port, port) for port in self._machine.run_ports)


class PlayedRayNode(RayNode):
    """Its record is a file as ever."""

    def __init__(self, machine: Machine, *given: Any) -> None:
        super().__init__(*given)
        self._machine = machine

    def _part(self, name: str, identity: Identity | None) -> Running | None:
        found = self._machine.running(name)
        return found if found is not None and found.identity == identity else None

    @property
    def is_running(self) -> bool:
        record = self.record
        if record is None or self._part(RAYLET, record.raylet) is None:
            return False
        return record.gcs is None or self._part(GCS, record.gcs) is not None

    async def start(self, launch: RayLaunch, on_begin: Callable[[], None] = lambda: None) -> RayRecord:
        await self.stop()
        on_begin()
        await self._clock.sleep(RAY_START_S)
        world, machine = self._machine.world, self._machine
        gcs = machine.begin(GCS, launch.config_hash) if launch.is_head else None
        if gcs is not None:
            world.clusters[launch.head] = RayCluster(f"cluster-{gcs.identity.pid}", gcs)
        cluster = world.cluster_at(launch.head, machine)
        if cluster is None:
            raise RayClusterError(f"no Ray answers at {launch.head}", reason="RayStartFailed")
        raylet = machine.begin(RAYLET, launch.config_hash)
        cluster.members[f"ray-{raylet.identity.pid}"] = RayMember(str(machine.overlay_ip), launch.node_rank, raylet)
        record = RayRecord(
            session=raylet.identity.pid,
            raylet=raylet.identity,
            gcs=None if gcs is None else gcs.identity,
            head=launch.head,
            node_rank=launch.node_rank,
            incarnation=launch.incarnation,
            config_hash=launch.config_hash,
            restarts=launch.restarts,
        )
        self._files.keep(self._record_path, record.to_json())
        self._set(record)
        return record

    async def wait_for_end(self) -> None:
        if self.record is None:
            return
        parts = [self._part(RAYLET, self.record.raylet)]
        parts += [] if self.record.gcs is None else [self._part(GCS, self.record.gcs)]
        if None in parts:
            return
        waits = [asyncio.ensure_future(part.ended.wait()) for part in parts if part is not None]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def stop(self, *, farewell: bool = True) -> None:
        if farewell and self.is_running:
            await self._clock.sleep(FAREWELL_S)
        for name in (RAYLET, GCS):
            self._machine.end(name)
        self._files.keep(self._record_path, None)
        self._set(None)

    def owned_pids(self) -> list[int]:
        return [found.identity.pid for name in (RAYLET, GCS) if (found := self._machine.running(name))]

    def workers_in_use(self) -> list[str]:
        return self._machine.workers if self.is_running else []


class IdleCongestion(FakeCongestion):
    """Has no routes to follow."""

    async def run(self) -> Any:
        await asyncio.Event().wait()


class SilentWatch(NftWatch):
    """Nobody else changes a table."""

    async def run(self) -> None:
        await asyncio.Event().wait()


# Programs that daemons ask for something


async def nft(program: Program) -> int:
    """One table a script, as EdgeLink writes them, with one rule a line."""
    tables, arguments = here.get().firewall, program.arguments
    if arguments[:2] == ("-f", "-"):
        script = await program.read()
        if removed := re.search(r"^delete table inet (\S+)$", script, re.MULTILINE):
            tables.pop(removed[1], None)
        if made := re.search(r"^table inet (\S+) \{\n", script, re.MULTILINE):
            tables[made[1]] = script[made.start() :]
        return 0
    lines = tables.get(arguments[-1], "").splitlines()
    program.print("\n".join(f"{line} # handle 1" if "edgelink " in line else line for line in lines))
    return 0 if lines else 1


async def easytier_cli(program: Program) -> int:
    machine, words = here.get(), program.arguments[4:]
    if machine.network is None:
        program.complain("nobody listens")
        return 1
    if words[0] == "peer":
        rows = [_row(machine, "Local"), *(_row(other, "p2p") for other in machine.peers())]
        program.print(json.dumps(rows))
    elif words == ("connector",):
        program.print(json.dumps([peer["uri"] for peer in machine.programs[EASYTIER].file.get("peer", ())]))
    else:
        program.print("[]")
    return 0


def _row(machine: Machine, cost: str) -> dict[str, str]:
    easytier = machine.programs[EASYTIER]
    return {
        "ipv4": easytier.file["ipv4"],
        "hostname": easytier.file["hostname"],
        "cost": cost,
        "lat_ms": f"{RTT_S * 1000:g}",
        "tunnel_proto": "tcp",
        "version": "2.6.4",
        "id": str(easytier.identity.pid),
    }


async def python(program: Program) -> int:
    """The interpreter that has Ray: tells its versions, tries a directory, runs EdgeLink's helper."""
    if program.arguments[0] == "-c":
        if len(program.arguments) == 2:
            program.print(json.dumps(VERSIONS))
        return 0
    words = list(program.arguments[1:])
    await asyncio.sleep(IMPORT_S)
    if words == ["later"]:
        waiting = here.get().waiting
        waiting.append(program)
        line = await program.read_line()
        waiting.remove(program)
        if not line:
            return 0
        words = json.loads(line)
    return await _ask_ray(program, words[0], words[1:])


async def _ask_ray(program: Program, question: str, words: list[str]) -> int:
    machine = here.get()
    options: dict[str, list[str]] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        options.setdefault(name, []).append(value)
    (address,) = options["--address"]
    cluster = machine.world.cluster_at(address, machine)
    if cluster is None:
        program.complain(f"no GCS at {address}\n")
        return 1
    match question:
        case "watch":
            said = ""
            while machine.world.cluster_at(address, machine) is cluster:
                if (now := json.dumps(cluster.listed())) != said:
                    said = now
                    program.print(f"{now}\n")
                await asyncio.sleep(float(options["--interval"][0]))
            return 1
        case "bury":
            for ray_id, member in cluster.members.items():
                if ray_id in options.get("--id", ()) or [member.ip] == options.get("--ip"):
                    member.is_buried = True
            program.print(json.dumps({"buried": [], "cluster_id": cluster.cluster_id, "temp_dir": "/tmp/ray"}))
            return 0
        case "detached":
            program.print(json.dumps({"actors": []}))
            return 0
        case _:
            wanted = (options["--ip"], options["--rank"])
            for ray_id, member in cluster.members.items():
                if member.is_alive and wanted == ([member.ip], [str(member.rank)]):
                    program.print(json.dumps({"node_id": ray_id, "cluster_id": cluster.cluster_id}))
                    return 0
            program.print(json.dumps({"nodes": cluster.listed()}))
            return 1
