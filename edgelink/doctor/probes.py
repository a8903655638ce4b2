"""What the checks ask of the kernel, of the network and of programs; tests answer in their place.

Each question has a time limit of its own, and changes nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pyroute2.netlink.exceptions import NetlinkError

from edgelink.api.client import DaemonError, DaemonNotRunningError, call
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths
from edgelink.doctor.busy import Processors
from edgelink.errors import RegistryError
from edgelink.overlay import hello, stale, stun_client
from edgelink.overlay.acquisition import EasyTierBinary, default_cache_dir, find_easytier
from edgelink.overlay.echo import HEADERS_BYTES, Echo, PeerClock, ask, may_bind_to_devices
from edgelink.overlay.link import LinkMonitor, LocalNetwork
from edgelink.overlay.reach import answers_ping, may_open_raw
from edgelink.overlay.ways import Ways, look
from edgelink.process import arp, ports, procfs
from edgelink.process.launcher import SessionLauncher
from edgelink.protocol.tls import explain_tls_error, pinned_ca, reason_of
from edgelink.ray_cluster.interpreter import Interpreter, RayUser, inspect_interpreter, named_asker, resolve_user
from edgelink.ray_cluster.node import RayNode
from edgelink.relay.broker import find_mosquitto
from edgelink.timeouts import timeout
from edgelink.training.trainer.robot.directory import known_directories
from edgelink.wording import printable

K = TypeVar("K")
V = TypeVar("V")

_PING_S = 1.0
_TRIES = 2
_ARP_S = 0.5  # a radio that sleeps takes a third of it
_ARP_TRIES = 3
_CONNECT_S = 2.0
_GREETING_S = 2.0  # a handshake of TLS is two round trips
_LASTING_S = 0.4  # `easytier-core --version` takes a tenth of it
LOOKUP_S = 2.0
_LINES, _LINE_CHARACTERS = 3, 200  # of what a program that fails has said
_PROGRAM_S = 3.0  # less than a check has
_BUSY_PROGRAM_S = 15.0  # likewise, on a machine that is busy
_PING_GROUP = Path("/proc/sys/net/ipv4/ping_group_range")
_NTP_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES = 512  # the kernel's struct timex is smaller

_ENDS_IT = "it takes the connection and ends it"
NAME_UNKNOWN = "nobody knows this name"


class NotARelay(str):
    """Why what takes a connection at a relay's address is no relay."""

    __slots__ = ()


class Greeting(Protocol):
    """How the other end of a new connection shows that it is a relay's."""

    def __call__(self, connection: socket.socket, /) -> None:
        """Raises NotARelayError, ssl.SSLError, OSError."""


class NotARelayError(Exception):
    """What answers is something else."""


def connected(connection: socket.socket) -> None:
    """Be content with the connection itself."""


def easytier(connection: socket.socket) -> None:
    """Have an EasyTier show that it is one."""
    asked, answer = hello.question(), b""
    connection.sendall(asked)
    while len(answer) < hello.ANSWER_BYTES and (more := connection.recv(hello.ANSWER_BYTES)):
        answer += more
    if not answer:
        raise ConnectionResetError(None, "closed")
    if not hello.is_easytier(asked, answer):
        raise NotARelayError(f"it answers {answer[:16].decode(errors='replace')!r}, which no EasyTier does")


def broker_of(context: ssl.SSLContext) -> Greeting:
    """Have a broker show that it is the one ``context`` trusts. Nothing is sent but a handshake."""

    def greeting(connection: socket.socket) -> None:
        # By default a connection that was reset meanwhile is wrapped without a handshake, and without an error.
        with context.wrap_socket(connection, do_handshake_on_connect=False) as tls:
            tls.do_handshake()
            with suppress(OSError):
                tls.unwrap()  # says goodbye, lest the broker's log fills with errors

    return greeting


def broker_pinned(ca_sha256: bytes) -> Greeting:
    """Have a broker show the certificate that a token pins. Nothing is sent but a handshake."""

    async def handshake(connection: socket.socket) -> None:
        async with timeout(_GREETING_S):
            await pinned_ca(connection, "it", ca_sha256)

    def greeting(connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            asyncio.run(handshake(connection))
        except RegistryError as error:
            raise NotARelayError(error.message) from error

    return greeting


@dataclass(frozen=True)
class Space:
    """Of the file system that a path is, or would be, on."""

    total_bytes: int
    free_bytes: int  # for those who are not root
    free_inodes: int | None  # None: it does not count them
    is_read_only: bool


class Lookup(NamedTuple):
    """What a resolver knows; nothing where nobody does, or it did not say so in time. ``took_s``: seconds."""

    found: tuple[str, ...]
    took_s: float


class Ran(NamedTuple):
    """What a program printed, without the spaces around it; None where it is not there, or fails: then its words."""

    printed: str | None
    complaint: str = ""


class Probes:
    """One machine's answers. What is expensive is asked once."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._once = threading.Lock()
        self._starting = threading.Lock()
        self._threads: dict[tuple[str, str], threading.Thread] = {}  # by what is looked up
        self._lookups: dict[tuple[str, str], Lookup] = {}
        self._interpreter: tuple[Interpreter, RayUser] | Exception | None = None

    @property
    def is_root(self) -> bool:
        return os.geteuid() == 0

    def run(self, argv: Sequence[str]) -> Ran:
        """Run a program and return what it prints. Raises TimeoutExpired as :func:`run_program`."""
        return run_program(argv)

    def space(self, path: Path) -> Space:
        """Raises OSError; PermissionError where this user may not look so far."""
        try:
            found = os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            return self.space(path.parent)
        return Space(
            found.f_blocks * found.f_frsize,
            found.f_bavail * found.f_frsize,
            found.f_favail if found.f_files else None,
            bool(found.f_flag & os.ST_RDONLY),
        )

    def resolve(self, names: Iterable[str]) -> dict[str, Lookup]:
        """The addresses of names, IPv4 first; each name is asked for once, all at the same time, for 2 s at most."""
        return self._looked_up("name", names, _addresses_of)

    def reverse(self, addresses: Iterable[str]) -> dict[str, Lookup]:
        """The names of addresses, in the same way."""
        return self._looked_up("address", addresses, lambda address: (socket.gethostbyaddr(address)[0],))

    def connect(self, targets: Mapping[tuple[str, int], Greeting]) -> dict[tuple[str, int], float | str]:
        """Of each host and port the milliseconds until a TCP connection was there, or why there is none.

        NotARelay: there is one, but not with a relay.
        """
        wanted = list(targets)
        known = self.resolve(host for host, _ in wanted)

        def connect(target: tuple[str, int]) -> float | str:
            addresses = known[target[0]].found
            answer: float | str = NAME_UNKNOWN
            for address in addresses:  # an uplink may have one of IPv4 and IPv6 only
                answer = self._connect((address, target[1]), targets[target], _CONNECT_S / len(addresses))
                if not isinstance(answer, str) or isinstance(answer, NotARelay):
                    break
            return answer

        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            return dict(zip(wanted, pool.map(connect, wanted), strict=True))

    def congestion_controls(self, pid: int) -> list[stale.Controlled]:
        """The congestion control of each TCP connection of this process; root only."""
        with suppress(OSError, NetlinkError):
            return stale.congestion_controls(pid)
        return []

    def stun(self, servers: Sequence[str]) -> dict[str, tuple[IPv4Address, int] | None]:
        """How each server (host:port) sees us; None for one that does not answer, nothing of one that nobody knows."""
        parts = {server: server.rpartition(":") for server in servers}
        known = self.resolve(host for host, _, _ in parts.values())
        asked = {s: f"{known[host].found[0]}:{port}" for s, (host, _, port) in parts.items() if known[host].found}
        answers = stun_client.ask(list(asked.values()), self._clock)
        return {server: answers[address] for server, address in asked.items()}

    @property
    def may_ping(self) -> bool:
        """Whether the kernel lets this user."""
        if may_open_raw():
            return True
        try:
            first, last = map(int, _PING_GROUP.read_text().split())
        except (OSError, ValueError):
            return False
        return first <= os.getegid() <= last

    def pings(self, addresses: Iterable[str]) -> set[str]:
        """Return which of these machines, which are no nodes, answer one of some pings."""

        async def answers(address: str) -> bool:
            return any([await answers_ping(IPv4Address(address), _PING_S) for _ in range(_TRIES)])

        return {address for address, answered in asyncio.run(of_each(answers, addresses)).items() if answered}

    def echoes(self, addresses: Iterable[str], device: str | None, packet_bytes: int | None = None) -> dict[str, Echo]:
        """Return the first echo of each node that answers, by overlay address, with packets of ``packet_bytes``.

        ``device``: by which they have to leave. None: to this machine itself.
        """
        payload_bytes = 0 if packet_bytes is None else packet_bytes - HEADERS_BYTES
        bound_to = device if may_bind_to_devices() else None

        async def first(address: str) -> Echo | None:
            for _ in range(_TRIES):
                echo = await ask(None, IPv4Address(address), _PING_S, device=bound_to, payload_bytes=payload_bytes)
                if echo is not None:
                    return echo
            return None

        found = asyncio.run(of_each(first, addresses))
        return {address: echo for address, echo in found.items() if echo is not None}

    def arp(self, devices: Mapping[str, str]) -> set[str] | None:
        """Those that answer one of some ARP requests, of addresses with the network device that leads to each; None
        where this user may not ask."""

        def answers(each: tuple[str, str]) -> bool:
            address, device = IPv4Address(each[0]), each[1]
            with suppress(OSError):  # the device is gone, or down
                return any(arp.answers(address, device, _ARP_S, self._clock) for _ in range(_ARP_TRIES))
            return False

        if not devices:
            return set()
        if not may_open_raw():
            return None
        with ThreadPoolExecutor(len(devices)) as pool:
            found = zip(devices, pool.map(answers, devices.items()), strict=True)
            return {address for address, is_there in found if is_there}

    def clock_offsets_s(self, addresses: Sequence[str], device: str) -> dict[str, float]:
        """Return how far the clock of each node is ahead of this one's. Nodes that do not say are left out."""
        clocks = {address: PeerClock() for address in addresses}
        for _ in range(_TRIES):
            for address, echo in self.echoes(addresses, device).items():
                clocks[address].note(echo)
        return {a: clock.offset_ms / 1000 for a, clock in clocks.items() if clock.offset_ms is not None}

    def is_clock_synchronised(self) -> bool | None:
        """Whether something keeps this machine's clock right, as the kernel knows; None where it does not say."""
        timex = ctypes.create_string_buffer(_TIMEX_BYTES)
        state = int(ctypes.CDLL(None).adjtimex(timex))  # all zero: only asked
        return None if state < 0 else state != _NTP_UNSYNCHRONISED

    def inotify_error(self) -> str:
        """Why there is no inotify left for this user; empty where there is."""
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = int(libc.inotify_init1(os.O_CLOEXEC))
        if descriptor < 0:
            return os.strerror(ctypes.get_errno())
        os.close(descriptor)
        return ""

    def local_networks(self, device: str) -> tuple[IPv4Network | None, int, list[LocalNetwork]]:
        """The overlay device's network and MTU (None and 0 where it has none), and the networks of all others."""

        async def ask() -> tuple[IPv4Network | None, int, list[LocalNetwork]]:
            links = LinkMonitor()
            state = await links.observe(device)
            own = state.addresses[0].network if state.addresses else None
            return own, state.mtu, await links.local_networks(device)

        return asyncio.run(ask())

    def ways(
        self, device: str, own_ip: IPv4Address, network: IPv4Network, members: Mapping[IPv4Address, str], uid: int
    ) -> Ways:
        """By which device the kernel sends to the other nodes, for root and for the user ``uid``."""
        return asyncio.run(look(device, own_ip, network, members, sorted({0, uid})))

    def holders(self, wanted: Iterable[tuple[ports.Protocol, int]]) -> dict[tuple[ports.Protocol, int], int | None]:
        return ports.holders(wanted)

    def processes(self, *commands: str) -> dict[int, str]:
        """Those of our network namespace with one of these command names that are no question about a version."""
        found = self._processes(commands)
        if found:
            self._clock.block(_LASTING_S)
        return {pid: name for pid, name in self._processes(commands).items() if pid in found}

    def command_of(self, pid: int) -> str:
        return procfs.command_of(pid)

    def own_ray(self, paths: Paths) -> set[int]:
        """The processes of this node's Ray, as its daemon tells them from others."""
        node = RayNode(paths, SessionLauncher(), self._clock)
        node.adopt()  # reads the record, no more
        return set(node.owned_pids())

    def find_easytier(self, config: Config) -> EasyTierBinary:
        """Raises EasyTierNotFoundError."""
        return find_easytier(config.overlay.easytier_core, default_cache_dir())

    def find_mosquitto(self) -> tuple[Path, Path]:
        """Raises MissingDependencyError."""
        return find_mosquitto()

    def interpreter(self, config: Config) -> tuple[Interpreter, RayUser]:
        """The user's interpreter, asked as whom its Ray runs as where we may.

        Raises:
            ConfigError, MissingDependencyError: there is none, or nobody to run it as.
        """
        with self._once:
            if self._interpreter is None:
                try:
                    self._interpreter = asyncio.run(self._inspect(config))
                except Exception as error:  # for whoever asks next
                    self._interpreter = error
        if isinstance(self._interpreter, Exception):
            raise self._interpreter
        return self._interpreter

    def robot_directories(self) -> list[Path]:
        """Where robots of this machine may be looked for."""
        return known_directories()

    def nodes(self, paths: Paths) -> list[dict[str, Any]]:
        """The rows of `edgelink nodes`, which the head's daemon has; none elsewhere."""
        try:
            rows: list[dict[str, Any]] = call(paths.node_socket, "GET", "/nodes", timeout_s=_CONNECT_S)["nodes"]
        except (DaemonError, DaemonNotRunningError):
            return []
        return rows

    async def _inspect(self, config: Config) -> tuple[Interpreter, RayUser]:
        interpreter = await inspect_interpreter(config.ray.python, asker=named_asker(config.ray))
        user = resolve_user(config.ray, interpreter, euid=0)  # the daemon's, which is root
        if self.is_root and user.uid != interpreter.owner_uid:
            interpreter = await inspect_interpreter(interpreter.python, asker=user)
        return interpreter, user

    def _processes(self, commands: Sequence[str]) -> dict[int, str]:
        here = procfs.network_namespace_of(os.getpid())
        found = {pid: procfs.command_of(pid) for pid in procfs.all_pids()}
        return {
            pid: name for pid, name in found.items() if name in commands and procfs.network_namespace_of(pid) == here
        }

    def _connect(self, target: tuple[str, int], greeting: Greeting, timeout_s: float) -> float | str:
        started_s = self._clock.monotonic_s()
        try:
            connection = socket.create_connection(target, timeout=timeout_s)
        except ConnectionResetError as error:  # at once: it was there
            return NotARelay(f"{_ENDS_IT}: {reason_of(error)}")
        except OSError as error:
            return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        took_ms = (self._clock.monotonic_s() - started_s) * 1000
        with connection:
            connection.settimeout(_GREETING_S)
            try:
                greeting(connection)
            except NotARelayError as error:
                return NotARelay(error)
            except ssl.SSLError as error:
                return NotARelay(explain_tls_error(error, "it").message)
            except TimeoutError:
                return NotARelay("it takes the connection and says nothing")
            except OSError as error:
                return NotARelay(f"{_ENDS_IT}: {reason_of(error)}")
        return took_ms

    def _looked_up(
        self, kind: str, keys: Iterable[str], look_up: Callable[[str], tuple[str, ...]]
    ) -> dict[str, Lookup]:
        """A resolver has time-outs of its own, which may be long: it is left alone in its thread then."""

        def ask(key: str, started_s: float) -> None:
            found: tuple[str, ...] = ()
            with suppress(OSError, UnicodeError):  # nobody knows
                found = look_up(key)
            self._lookups[kind, key] = Lookup(found, self._clock.monotonic_s() - started_s)

        wanted = list(dict.fromkeys(keys))
        with self._starting:
            started_s = self._clock.monotonic_s()
            for key in wanted:
                if (kind, key) not in self._threads:
                    thread = threading.Thread(target=ask, args=(key, started_s), daemon=True)
                    self._threads[kind, key] = thread
                    thread.start()
        for key in wanted:
            self._threads[kind, key].join(max(0.0, started_s + LOOKUP_S - self._clock.monotonic_s()))
        return {key: self._lookups.get((kind, key), Lookup((), LOOKUP_S)) for key in wanted}


async def of_each(ask: Callable[[K], Awaitable[V]], keys: Iterable[K]) -> dict[K, V]:
    """Ask for all at once, and return the answers."""
    wanted = list(keys)
    return dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))


def _addresses_of(name: str) -> tuple[str, ...]:
    found = [(family, str(address[0])) for family, _, _, _, address in socket.getaddrinfo(name, None)]
    return tuple(dict.fromkeys(address for _, address in sorted(found, key=lambda each: each[0] != socket.AF_INET)))


def run_program(argv: Sequence[str], *, patience_s: float = _PROGRAM_S) -> Ran:
    """What a program prints, or why it does not.

    Raises:
        TimeoutExpired: it has not ended within its time; on a machine whose processors are all busy, within 15 s. It is
            killed, and not waited for: a program that hangs in the kernel, as `nvidia-smi` while the driver starts a
            card, does not die before that is through.
    """
    try:
        program = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        return Ran(None, error.strerror or str(error))
    try:
        printed, complaint = _said(program, patience_s)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    if program.returncode == 0:
        return Ran(printed.strip())
    lines = [line.strip()[:_LINE_CHARACTERS] for line in f"{printed}\n{complaint}".splitlines() if line.strip()]
    said = " | ".join(map(printable, lines[-_LINES:]))
    return Ran(None, said or f"exit status {program.returncode}, without a word")


def _said(program: subprocess.Popen[str], patience_s: float) -> tuple[str, str]:
    """Return what ``program`` has printed by its end. Raises TimeoutExpired, see :func:`run_program`."""
    processors = Processors()
    try:
        return program.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        if not processors.were_busy:
            raise
    return program.communicate(timeout=_BUSY_PROGRAM_S - patience_s)
