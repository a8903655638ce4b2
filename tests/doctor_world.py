"""A machine that is not there, for doctor's checks: files, daemons, what kernel and network answer; all is well."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from registry_world import World

from edgelink import __version__
from edgelink.config import Config, Paths
from edgelink.doctor import CHECKS, Finding, Surroundings, Verdict, examine
from edgelink.doctor.check import Check
from edgelink.doctor.probes import Greeting, Lookup, Probes, Ran, Space
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.echo import Echo
from edgelink.overlay.link import LocalNetwork
from edgelink.overlay.stale import Controlled
from edgelink.overlay.ways import Ways
from edgelink.process.ports import Protocol
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.interpreter import Interpreter, RayUser

GIB = 1 << 30
T = TypeVar("T")
DAEMON, EASYTIER, RAYLET, MOSQUITTO = 41, 42, 43, 44
RELAY_IP, HEAD_IP, OWN_IP = "10.10.0.1", "10.10.0.2", "10.10.0.3"
ROBOT = "192.168.1.50"
ALL_CAPABILITIES = "000001ffffffffff"

_FILES = {
    "dev/net/tun": "",
    "etc/hosts": f"127.0.0.1 localhost\n{RELAY_IP} relay.edgelink.internal\n{HEAD_IP} cloud.edgelink.internal\n",
    "etc/resolv.conf": "# made by hand\nnameserver 192.0.2.53\n",
    "etc/edgelink/edgelink.yaml": "version: 1\n",
    "proc/meminfo": "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    9000000 kB\n",
    "proc/loadavg": "0.10 0.20 0.30 1/400 12345\n",
    "proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
    "proc/net/arp": "IP address       HW type     Flags       HW address            Mask     Device\n",
    "proc/sys/kernel/pid_max": "32768\n",
    "proc/sys/kernel/threads-max": "120000\n",
    "proc/sys/fs/inotify/max_user_instances": "128\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
    "proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic bbr\n",
    "proc/sys/net/ipv4/tcp_rto_max_ms": "2000\n",
    "proc/sys/net/ipv4/tcp_mtu_probing": "1\n",
    "proc/sys/net/ipv4/tcp_retries2": "255\n",
    "proc/sys/net/ipv4/tcp_syn_retries": "64\n",
    "proc/sys/net/netfilter/nf_conntrack_count": "120\n",
    "proc/sys/net/netfilter/nf_conntrack_max": "262144\n",
    "sys/class/net/wlan0/wireless/x": "",
    "sys/fs/cgroup/system.slice/edgelink.service/pids.max": "4915\n",
    "sys/fs/cgroup/system.slice/edgelink.service/pids.current": "210\n",
    "sys/fs/cgroup/system.slice/pids.max": "max\n",
    "sys/fs/cgroup/system.slice/pids.current": "400\n",
    "home/alice/x": "",
}
_LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax open files {} {} files\n"


class FakeProbes(Probes):
    """Each answer is an attribute, and can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: dict[str, str | Ran | Exception] = {"iw dev wlan0 get power_save": "Power save: off"}
        self.root = True
        self.spaces: dict[str, Space | Exception] = {}  # by the end of the path
        self.names = {"relay.example.org": Lookup(("198.51.100.1",), 0.01)}
        self.reverse_s = 3.0
        self.refusing: dict[int, str] = {}  # by port
        direct = Controlled(40001, "192.0.2.77:40000", "cubic")  # a path that EdgeLink sets nothing for
        self.controls = [Controlled(40000, "198.51.100.1:11010", "bbr"), direct]  # of EasyTier
        self.seen: dict[str, tuple[IPv4Address, int] | None] = {"relay.example.org:3478": (IPv4Address(1), 40000)}
        self.serves_echoes = True
        self.alive = {RELAY_IP, HEAD_IP, ROBOT}
        self.answering_arp: set[str] | None = set()  # None: this user may not ask
        self.carried_bytes = 1280
        self.ahead_s: dict[str, float] = {RELAY_IP: 0.02, HEAD_IP: -0.4}
        self.is_synchronised: bool | None = True
        self.no_inotify = ""
        self.networks = [LocalNetwork("eth0", IPv4Network("192.168.1.0/24"))]
        self.found_ways = Ways()
        self.busy: dict[tuple[Protocol, int], int | None] = {("tcp", 11010): EASYTIER, ("tcp", 20001): RAYLET}
        self.own = {EASYTIER: "easytier-core", RAYLET: "raylet"}
        self.others: dict[int, str] = {}
        self.of_ray: set[int] = set()
        self.easytier: EasyTierBinary | Exception = EasyTierBinary(Path("/bin/easytier-core"), Path("/bin/c"), "2.6.4")
        self.broker: tuple[Path, Path] | Exception = (Path("/usr/sbin/mosquitto"), Path("/usr/lib/plugin.so"))
        self.home = Path("/home/alice")
        self.python: Interpreter | Exception = Interpreter(Path("/opt/train/bin/python"), "3.11.2", "2.60.0", 1000)
        self.rows: list[dict[str, Any]] = []
        self.robots: list[Path] = []

    def run(self, argv: Sequence[str]) -> Ran:
        answer = _answer(self.programs.get(" ".join(argv), Ran(None, "No such file or directory")))
        return answer if isinstance(answer, Ran) else Ran(answer)

    @property
    def is_root(self) -> bool:
        return self.root

    @property
    def may_ping(self) -> bool:
        return self.root

    def space(self, path: Path) -> Space:
        plenty = Space(8 * GIB, 4 * GIB, 9999, False)
        return _answer(next((space for end, space in self.spaces.items() if str(path).endswith(end)), plenty))

    def resolve(self, names: Iterable[str]) -> dict[str, Lookup]:
        return {name: self.names[name] for name in names}

    def reverse(self, addresses: Iterable[str]) -> dict[str, Lookup]:
        return {address: Lookup((), self.reverse_s) for address in addresses}

    def connect(self, targets: Mapping[tuple[str, int], Greeting]) -> dict[tuple[str, int], float | str]:
        return {target: self.refusing.get(target[1], 12.0) for target in targets}

    def congestion_controls(self, pid: int) -> list[Controlled]:
        return self.controls if pid == EASYTIER else []

    def stun(self, servers: Sequence[str]) -> dict[str, tuple[IPv4Address, int] | None]:
        return self.seen

    def pings(self, addresses: Iterable[str]) -> set[str]:
        return set(addresses) & self.alive

    def echoes(self, addresses: Iterable[str], device: str | None, packet_bytes: int | None = None) -> dict[str, Echo]:
        if (packet_bytes or 0) > self.carried_bytes:
            return {}
        served = (0.2, 0.2) if self.serves_echoes else (None, None)
        return {address: Echo(0.4, *served) for address in addresses if address in self.alive or address == OWN_IP}

    def arp(self, devices: Mapping[str, str]) -> set[str] | None:
        return None if self.answering_arp is None else self.answering_arp & devices.keys()

    def clock_offsets_s(self, addresses: Sequence[str], device: str) -> dict[str, float]:
        return {address: self.ahead_s[address] for address in addresses if address in self.ahead_s}

    def is_clock_synchronised(self) -> bool | None:
        return self.is_synchronised

    def inotify_error(self) -> str:
        return self.no_inotify

    def local_networks(self, device: str) -> tuple[IPv4Network | None, int, list[LocalNetwork]]:
        return IPv4Network("10.10.0.0/24"), 1280, self.networks

    def ways(self, *_: object) -> Ways:
        return self.found_ways

    def holders(self, wanted: Iterable[tuple[Protocol, int]]) -> dict[tuple[Protocol, int], int | None]:
        return {key: self.busy[key] for key in wanted if key in self.busy}

    def processes(self, *commands: str) -> dict[int, str]:
        everything = self.own | self.others
        return {pid: name for pid, name in everything.items() if name in commands}

    def command_of(self, pid: int) -> str:
        return self.others[pid]

    def own_ray(self, paths: Paths) -> set[int]:
        return self.of_ray

    def find_easytier(self, config: Config) -> EasyTierBinary:
        return _answer(self.easytier)

    def find_mosquitto(self) -> tuple[Path, Path]:
        return _answer(self.broker)

    def interpreter(self, config: Config) -> tuple[Interpreter, RayUser]:
        return _answer(self.python), RayUser(1000, 1000, "alice", self.home)

    def nodes(self, paths: Paths) -> list[dict[str, Any]]:
        return self.rows

    def robot_directories(self) -> list[Path]:
        return self.robots


class Machine:
    """An edge, or what ``role`` says. Change what is to be wrong, then ask for :meth:`wrong`."""

    def __init__(self, root: Path, role: str = "edge") -> None:
        self.root = root
        self.paths = Paths(root / "var/lib/edgelink", root / "run/edgelink", root / "etc/hosts")
        self.config: dict[str, Any] = {"ray": {"robot_ip": [ROBOT], "object_store_memory": GIB}}
        self.environ = {"HOME": "/home/alice", "PATH": "/usr/bin"}
        self.probes = FakeProbes()
        self.programs = self.probes.programs
        self.daemon: dict[str, Any] = {
            "role": role,
            "version": __version__,
            "pid": DAEMON,
            "easytier_pid": EASYTIER,
            "ready": True,
            "phase": "Ready",
            "conditions": [{"type": "Shielded", "status": "True", "reason": "RulesInPlace", "message": "closed"}],
            "ride_through_s": 300,
            "overlay_ip": OWN_IP,
            "node_rank": 1,
            "head": {"hostname": "cloud", "overlay_ip": HEAD_IP},
            "cluster": {"ray_address": f"{HEAD_IP}:6379", "ray_version": "2.60.0", "python_version": "3.11.9"},
            "rtt_ms": {"relay": 10.0, "cloud": 20.0},
            "paths": [{"hostname": n, "overlay_ip": ip} for n, ip in (("relay", RELAY_IP), ("cloud", HEAD_IP))],
        }
        if role == "bootstrap":
            self.daemon |= {"broker_pid": MOSQUITTO, "node_rank": None, "head": None, "cluster": None, "rtt_ms": None}
        self.daemons = [self.daemon]
        for name, text in _FILES.items():
            self.write(name, text)
        self.write("proc/self/status", f"CapEff:\t{ALL_CAPABILITIES}\n")
        for pid in (DAEMON, EASYTIER, RAYLET):
            self.write(f"proc/{pid}/status", f"Name:\tx\nCapEff:\t{ALL_CAPABILITIES}\n")
            self.write(f"proc/{pid}/limits", _LIMITS.format(1024, 524288))
            self.write(f"proc/{pid}/cgroup", "0::/system.slice/edgelink.service\n")
            self.write(f"proc/{pid}/fd/0", "")
        for name in ("node.sock", "bootstrap.sock"):  # made after the configuration
            os.utime(self.write(f"run/edgelink/{name}", ""), (4e9, 4e9))
        self.paths.state.mkdir(parents=True, mode=0o700)
        (root / "var/lib/edgelink-ray").mkdir(mode=0o700)
        for path, content in (
            (self.paths.membership, _membership(Role.EDGE if role == "bootstrap" else Role(role))),
            (self.paths.node_key, "secret"),
            (self.paths.ray_user, f"{os.geteuid()}\n"),
            (self.paths.processes / "ray.json", json.dumps({"raylet": {"pid": RAYLET}, "gcs": None})),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            path.chmod(0o600)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def condition(self, kind: str, status: str, reason: str) -> None:
        self.daemon["conditions"] = [{"type": kind, "status": status, "reason": reason, "message": "as it is"}]

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(
            config=Config.model_validate(self.config),
            paths=self.paths,
            environ=self.environ,
            daemons=self.daemons,
            proc_sys=self.root / "proc/sys",
            root=self.root,
            probes=self.probes,
            config_file=self.root / "etc/edgelink/edgelink.yaml",
        )

    def ask(self, check: Check) -> Finding:
        return check(self.surroundings)

    def findings(self) -> dict[str, Finding]:
        return examine(self.surroundings, CHECKS)

    def wrong(self) -> dict[str, Finding]:
        """What all checks together have found, but for what is well or not to be judged."""
        found = self.findings()
        return {n: f for n, f in found.items() if f.verdict in (Verdict.FAILED, Verdict.LIMITED)}

    def tree(self) -> dict[str, tuple[int, int]]:
        """Everything that is there: mode, and time of the last change."""
        return {
            str(path): (stat.S_IMODE(path.lstat().st_mode), path.lstat().st_mtime_ns) for path in self.root.rglob("*")
        }


def _answer(answer: T | Exception) -> T:
    if isinstance(answer, Exception):
        raise answer
    return answer


@cache
def _membership(role: Role) -> str:
    """Of a node that a registry has enrolled."""
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        key, token = NodeKey.generate(), world.token(role)
        found = world.membership(key, token, world.enrol(key, token, "node-1", role=role))
        world.store.close()
    secrets = found.secrets.model_copy(
        update={"overlay_peers": ("tcp://relay.example.org:11010",), "stun_servers": ("relay.example.org:3478",)}
    )
    return found.model_copy(update={"addresses": ("relay.example.org:8883",), "secrets": secrets}).model_dump_json()
