"""What a daemon touches beside its own files: processes, devices, the firewall's announcements, other machines.

A daemon is given one :class:`ThisMachine` and makes nothing of that kind by itself. So tests run whole daemons, put
together as ever, on machines that they only pretend (``tests/sim.py``).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.files import Files
from edgelink.member.machine import machine_parts
from edgelink.overlay import before_easytier, echo, impostors, mend, punching, stale, traffic, ways
from edgelink.overlay.acquisition import EasyTierBinary, default_cache_dir, find_easytier
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.echo import Challenge, Echo
from edgelink.overlay.echo_proof import Asker, Identity
from edgelink.overlay.link import LinkMonitor
from edgelink.overlay.nft_watch import NftWatch
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.stun import PrivateHosts
from edgelink.overlay.traffic import Traffic
from edgelink.overlay.ways import Ways
from edgelink.process import Launcher, SupervisedProcess, choose_launcher, host_tcp
from edgelink.process.known_names import is_known_name
from edgelink.process.ports import Accepted, Connection, accepted, connections_of
from edgelink.process.service_manager import ServiceManager
from edgelink.protocol.tls import fetch_pinned_ca
from edgelink.protocol.transport import MqttTransport
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.rendezvous import ephemeral_ranges
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.broker import Broker
from edgelink.relay.records import BrokerUser
from edgelink.shield.inside import SeenPorts, ssh_ports


class ThisMachine:
    """The machine that this process runs on.

    Attributes:
        proc_sys: the kernel's settings.
    """

    proc_sys: Path = host_tcp.PROC_SYS

    @cached_property
    def _asker(self) -> Asker:
        return Asker()

    # Processes

    def launcher(self, wanted: str, manager: ServiceManager | None, paths: Paths, clock: Clock) -> Launcher:
        """Return what starts programs that outlive the daemon."""
        return choose_launcher(wanted, manager, paths, clock)

    def process(
        self, name: str, record: Path, launcher: Launcher, clock: Clock, files: Files, uids: Collection[int] | None
    ) -> SupervisedProcess:
        """Return one such program, to be started or adopted."""
        return SupervisedProcess(name, record, launcher, clock, uids, files)

    def ray(self, config: Config, paths: Paths, clock: Clock, launcher: Launcher, files: Files) -> LocalRay:
        """Return the Ray of this machine."""
        return LocalRay(config, paths, clock, launcher, files)

    def broker(
        self,
        *,
        keys: AuthorityKeys,
        port: int,
        paths: Paths,
        users: Callable[[], Iterable[BrokerUser]],
        clock: Clock,
        on_change: Callable[[], None],
        launcher: Launcher,
        files: Files,
    ) -> Broker:
        """Return the relay's broker."""
        return Broker(
            keys=keys,
            port=port,
            paths=paths,
            users=users,
            clock=clock,
            on_change=on_change,
            launcher=launcher,
            files=files,
        )

    # Devices and the kernel

    def links(self) -> LinkMonitor:
        """Return what observes the devices and routes."""
        return LinkMonitor()

    def routes(self, clock: Clock, *, sets_bbr: bool) -> OwnRoutes:
        """Return what keeps the overlay's packets from leaving by another device."""
        return OwnRoutes(clock, sets_bbr=sets_bbr)

    async def ways(
        self,
        device: str,
        own_ip: IPv4Address,
        network: IPv4Network,
        members: Mapping[IPv4Address, str],
        uids: Collection[int],
    ) -> Ways:
        """Ask the kernel by which device it sends to the other nodes; see :func:`edgelink.overlay.ways.look`."""
        return await ways.look(device, own_ip, network, members, uids)

    def congestion(self, links: LinkMonitor, clock: Clock, device: str, *, is_wanted: bool) -> TunnelCongestion:
        """Return what gives the tunnel its congestion control."""
        return TunnelCongestion(links, clock, device, is_wanted=is_wanted)

    def tables(self) -> NftWatch:
        """Return what tells of changes to nftables tables."""
        return NftWatch()

    async def parts(self, network_id: str) -> tuple[str, ...]:
        """Return hashes of what a copy of the disk does not carry."""
        return await machine_parts(network_id)

    # EasyTier

    def easytier(self, configured: Path | Literal["wheel"] | None) -> EasyTierBinary:
        """Return the EasyTier of this machine. Raises EasyTierNotFoundError."""
        return find_easytier(configured, default_cache_dir())

    async def preflight(self, spec: OverlaySpec, links: LinkMonitor) -> None:
        """Refuse to start EasyTier where it cannot work; see :func:`edgelink.overlay.before_easytier.check`."""
        await before_easytier.check(spec, links)

    def private_hosts(self, directory: Path) -> PrivateHosts:
        """Return the hosts file that EasyTier alone sees."""
        return PrivateHosts(directory)

    async def mend(self, name: str, spec: OverlaySpec, mtu: int) -> None:
        """Give the device back what was taken from it. Raises OSError."""
        await mend.mend_device(name, spec, mtu)

    def held_tun(self, pid: int) -> str:
        """Return the name of the TUN device that a process holds. Empty: it holds none."""
        return mend.held_tun(pid)

    def connections(self, pid: int) -> list[Connection]:
        """Return the TCP connections of a process."""
        return connections_of(pid)

    def ports(self) -> SeenPorts:
        """Return where this machine listens."""
        return SeenPorts(ssh_ports(), ephemeral_ranges(self.proc_sys))

    def accepted(self, local: IPv4Address) -> list[Accepted]:
        """Return the TCP connections that others have made to one of its addresses."""
        return accepted(local)

    def uplinks(self, pid: int, spec: OverlaySpec) -> Hashable:
        """Return by which uplinks EasyTier reaches its peers."""
        return punching.uplinks_of(pid, spec)

    def close_dead_connections(self, pid: int) -> list[str]:
        """Close those TCP connections of EasyTier that are dead."""
        return stale.close_dead_connections(pid)

    def close_connections_to(self, pid: int, others: Collection[tuple[str, int]]) -> list[str]:
        """Close EasyTier's TCP connections to these addresses and ports."""
        return stale.close_connections_to(pid, others)

    def close_connections_with(self, addresses: Collection[IPv4Address]) -> list[str]:
        """Close this machine's TCP connections with these overlay addresses."""
        return impostors.close_connections_with(addresses)

    def black_holes(self, pid: int) -> list[str]:
        """Return the other ends of EasyTier's TCP connections that lose full packets."""
        return stale.black_holes(pid)

    # Other machines

    async def is_known_name(self, name: str, but: IPv4Address) -> bool:
        """Return whether this machine means something else than ``but`` by a name."""
        return await is_known_name(name, but)

    async def echo(
        self,
        source: IPv4Address,
        target: IPv4Address,
        timeout_s: float,
        *,
        device: str | None,
        payload_bytes: int,
        identity: Identity | None,
    ) -> Echo | None:
        """Ask another node for an echo, which ``identity`` has to prove. None: no answer came in time."""
        challenge = None if identity is None else Challenge(self._asker, identity)
        return await echo.ask(
            source, target, timeout_s, device=device, payload_bytes=payload_bytes, challenge=challenge
        )

    def traffic(self, network: IPv4Network, easytier_pid: int | None) -> Traffic:
        """Return what the kernel knows of the other nodes by their TCP connections."""
        return traffic.look(network, easytier_pid)

    async def pinned_ca(self, host: str, port: int, ca_sha256: bytes, timeout_s: float) -> str:
        """Return the network's certificate as the broker there presents it; see :func:`fetch_pinned_ca`."""
        return await fetch_pinned_ca(host, port, ca_sha256, timeout_s)

    def transport(self, context: ssl.SSLContext) -> MqttTransport:
        """Return what connects to a broker whose certificate ``context`` trusts."""
        return MqttTransport(context)
