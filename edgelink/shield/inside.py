"""What members reach on this node over the overlay: EdgeLink's own ports, and those that the operator opens (ADR 0042).

A node that was upgraded may have served members on another port. What is in use when the node first closes ports stays
open for a week, or until the operator answers with ``firewall.overlay_allow``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgelink.clock import Clock
from edgelink.config import Config
from edgelink.config.overlay_allow import ROLES, Allowed, parse_allowed
from edgelink.errors import NotRecordedError
from edgelink.files import Files
from edgelink.launch.remote_channel import PORT as EXEC_PORT
from edgelink.launch.remote_request import askers
from edgelink.overlay import echo_wire
from edgelink.overlay.openings import Opening
from edgelink.process import ports
from edgelink.process.port_ranges import Ranges, merged, without
from edgelink.process.ports import Accepted
from edgelink.protocol.payloads import ClusterSpec, Directory, Lease, Role
from edgelink.ray_cluster import command
from edgelink.ray_cluster.rendezvous import TORCH_PORTS

LEFT_OPEN_S = 7 * 86400.0
_NOTED_EVERY_S = 3600.0
_SSHD = ("sshd", "dropbear")
_SSH_CONFIG = Path("/etc/ssh")

_Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class SeenPorts:
    """What a look at this machine tells of its ports.

    Attributes:
        ssh: where sshd listens.
        ephemeral: where the kernel puts whoever asks for no port.
    """

    ssh: frozenset[int] = frozenset()
    ephemeral: tuple[tuple[int, int], ...] = ()


class PortInUse(BaseModel):
    """A port that a member was connected to when this node first closed ports."""

    model_config = ConfigDict(frozen=True)

    port: int
    program: str
    peer: IPv4Address


class LeftOpen(BaseModel):
    """The ports that stay open for now. Once the file is there, the node has looked for them."""

    model_config = ConfigDict(frozen=True)

    ports: tuple[PortInUse, ...] = ()
    left_s: float = Field(LEFT_OPEN_S, description="how much longer, while the daemon runs")


def ssh_ports(config: Path = _SSH_CONFIG) -> frozenset[int]:
    """Return where sshd listens. Where systemd listens for it, the ports of its configuration count."""
    found = ports.ports_of_root({*_SSHD, "systemd"})
    of_systemd = found.pop("systemd", frozenset()) & _configured_ports(config)
    return of_systemd.union(*found.values())


def _configured_ports(directory: Path) -> set[int]:
    found = set()
    for file in (directory / "sshd_config", *sorted((directory / "sshd_config.d").glob("*.conf"))):
        with suppress(OSError):
            text = file.read_text(errors="replace")
            found |= {int(port) for port in re.findall(r"(?im)^\s*Port[\s=]+(\d+)", text)}
    return found or {22}


def documented(config: Config, role: Role, *, is_relay: bool, ephemeral: Ranges) -> tuple[_Ranges, _Ranges]:
    """Return the TCP and the UDP ports that EdgeLink, Ray and a training need on a node of this role; pure.

    A machine that is relay and head needs the ports of both.
    """
    rays, own = _of_ray(config, role, ephemeral), _of_edgelink(config, role, is_relay=is_relay)
    return rays[0] + own[0], rays[1] + own[1]


def _of_ray(config: Config, role: Role, ephemeral: Ranges) -> tuple[_Ranges, _Ranges]:
    """Those of Ray and of a training."""
    if role is Role.RELAY:
        return [], []
    meeting = rendezvous(config, ephemeral)
    return [*command.ports_for_members(config.ray, is_head=role is Role.HEAD), *meeting], [*meeting]


def _of_edgelink(config: Config, role: Role, *, is_relay: bool) -> tuple[_Ranges, _Ranges]:
    tcp: _Ranges = []
    udp: _Ranges = [(echo_wire.PORT, echo_wire.PORT)]
    if role is not Role.RELAY:
        tcp += _single(config.metrics.port) if config.metrics.listen == "overlay" else []
        tcp += _single(config.web.port) if role is Role.HEAD and config.web.listen == "overlay" else []
    if is_relay:
        tcp += _single(config.relay.broker_port)  # nodes that know no other address of the registry come this way
        tcp += _single(config.metrics.relay_port) if config.metrics.listen == "overlay" else []
    return tcp, udp


def own_openings(
    config: Config, lease: Lease, directory: Directory | None, spec: ClusterSpec | None, seen: SeenPorts
) -> frozenset[Opening]:
    """Return what a node with this lease opens of itself, sshd included, which head and relays alone reach; pure.

    The relay's daemon goes on with its lease when the same machine becomes the head, so the directory counts first. On
    an edge, the head's cluster spec says who reaches Ray and a training.
    """
    own = (directory and directory.entry(lease.node_id)) or lease
    ssh = [(port, port) for port in sorted(seen.ssh)]
    callers = frozenset(
        entry.overlay_ip
        for entry in (directory.entries if directory else ())
        if (entry.role is Role.HEAD or entry.is_relay) and entry.node_id != lease.node_id
    )
    found = [Opening("tcp", first, last, callers) for first, last in ssh if callers]
    asking = askers(config.exec, directory, lease.node_id) if own.role is not Role.RELAY else frozenset()
    found += [Opening("tcp", EXEC_PORT, EXEC_PORT, asking)] if asking else []
    rays, edgelinks = (
        _of_ray(config, own.role, seen.ephemeral),
        _of_edgelink(config, own.role, is_relay=own.is_relay or lease.is_relay),
    )
    for (tcp, udp), sources in ((rays, _callers_of_ray(lease, own.role, callers, spec)), (edgelinks, None)):
        found += [Opening("tcp", first, last, sources) for first, last in without(tcp, ssh)]
        found += [Opening("udp", first, last, sources) for first, last in merged(udp)]
    return frozenset(found)


def is_closed_by(spec: ClusterSpec | None, role: Role) -> bool:
    """Return whether not every member reaches Ray and a training on a node of this role; pure."""
    return role is Role.EDGE and spec is not None and spec.edges_open_to != "all"


def _callers_of_ray(
    lease: Lease, role: Role, callers: frozenset[IPv4Address], spec: ClusterSpec | None
) -> frozenset[IPv4Address] | None:
    """Return who reaches Ray and a training. None: all members."""
    if spec is None or not is_closed_by(spec, role):
        return None
    is_in_run = spec.edges_open_to == "members" and spec.member(lease.node_id) is not None
    others = {member.overlay_ip for member in spec.members if member.node_id != lease.node_id} if is_in_run else set()
    return callers | others | {spec.head_ip}


def rendezvous(config: Config, ephemeral: Ranges) -> tuple[tuple[int, int], ...]:
    """Return where the processes of a training meet: the kernel's ports, torch's own, and the configured ones; pure.

    Narrower is not possible: gloo, NCCL and the echo of the robots take ports of the kernel's choice.
    """
    torch = ((port, port) for port in TORCH_PORTS)
    return merged([*ephemeral, *torch, *(config.firewall.rendezvous_ports or ())])


def allowed_openings(config: Config, directory: Directory | None) -> frozenset[Opening]:
    """Return the openings of ``firewall.overlay_allow``; pure. A node that nobody knows is opened nothing."""
    return frozenset(
        Opening(entry.protocol, entry.first, entry.last, _sources(entry, directory))
        for entry in map(parse_allowed, config.firewall.overlay_allow or ())
    )


def _sources(entry: Allowed, directory: Directory | None) -> frozenset[IPv4Address] | None:
    """The addresses that an entry means. A name that is a role means the role, as in the network's access rules."""
    if entry.who is None:
        return None
    if isinstance(entry.who, IPv4Address):
        return frozenset({entry.who})
    known = directory.entries if directory else ()
    if entry.who == "relay":
        return frozenset(node.overlay_ip for node in known if node.is_relay)
    if entry.who in ROLES:
        return frozenset(node.overlay_ip for node in known if node.role.value == entry.who)
    return frozenset(node.overlay_ip for node in known if node.hostname == entry.who)


def _single(port: int) -> list[tuple[int, int]]:
    return [(port, port)]


def is_open(openings: Iterable[Opening], port: int, peer: IPv4Address) -> bool:
    """Return whether ``peer`` reaches a TCP port; pure."""
    return any(
        opening.protocol == "tcp"
        and opening.first <= port <= opening.last
        and (opening.sources is None or peer in opening.sources)
        for opening in openings
    )


def in_words(in_use: PortInUse, directory: Directory | None) -> str:
    """Return the port with its program and the member that uses it; pure."""
    known = directory.entries if directory else ()
    peer = next((node.hostname for node in known if node.overlay_ip == in_use.peer), str(in_use.peer))
    return f"tcp {in_use.port} ({in_use.program or 'program unknown'}, used by {peer})"


class LeftOpenPorts:
    """Remembers which ports stay open for now, and for how long: the time counts from when it is on disk.

    The wall clock is not asked, because many boards start in 1970: what counts is how long the daemon has run.
    """

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock
        self._present: LeftOpen | None = None
        self._noted_s = 0.0  # when ``_present`` was written or read
        self._is_noted = True
        with suppress(OSError, ValidationError):
            self._present, self._noted_s = LeftOpen.model_validate_json(path.read_bytes()), clock.monotonic_s()

    @property
    def is_known(self) -> bool:
        """Whether this node has looked before for ports in use."""
        return self._present is not None

    def set(self, in_use: Iterable[Accepted]) -> None:
        """Leave the ports of these connections open from now on, and no others."""
        rows = sorted({(each.port, each.remote, each.name) for each in in_use})
        self._note(LeftOpen(ports=tuple(PortInUse(port=port, peer=peer, program=name) for port, peer, name in rows)))

    def look(self) -> LeftOpen:
        """Return what stays open at this moment."""
        present = self._present or LeftOpen()
        if not self._is_noted:
            self._note(present)
        ran_s = self._clock.monotonic_s() - self._noted_s
        if not present.ports or not self._is_noted:
            return present
        left_s = max(present.left_s - ran_s, 0.0)
        left = LeftOpen(ports=present.ports if left_s else (), left_s=left_s)
        if ran_s >= _NOTED_EVERY_S or not left_s:
            self._note(left)
        return left

    def _note(self, left: LeftOpen) -> None:
        self._present, self._is_noted = left, False
        with suppress(NotRecordedError):  # StateRecorded tells of it; the next look tries again
            self._files.require(self._path, left.model_dump_json())
            self._is_noted, self._noted_s = True, self._clock.monotonic_s()
