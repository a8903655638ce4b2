"""The keeper of the overlay with everything around it faked, and its fixtures.

A bench of this one part: a story in a :class:`sim.Sim` has a whole machine, whose device, firewall and hosts file
cannot fail one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from edgelink.conditions import Condition, ConditionSet, Status
from edgelink.config import Config, OverlayConfig, Paths
from edgelink.errors import (
    OverlayError,
    PrivateFilesError,
)
from edgelink.facts.derive import board_of
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.easytier_core import Core
from edgelink.overlay.link import LinkState
from edgelink.overlay.nft import Applied, FirewallError, Table
from edgelink.overlay.overlay_keeper import Around, OverlayKeeper
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.stun import PrivateHosts
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process import Identity
from edgelink.process.ports import Connection
from edgelink.process.private_files import PrivateFile
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, settle
from edgelink.testing.overlay import FakeLinks, FakeProcess

ADDRESS = IPv4Interface("10.10.0.7/24")
SECRET = "top-secret-0123456789"
SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="net",
    network_secret=SECRET,
    overlay_ip=ADDRESS,
    peers=("tcp://203.0.113.1:11010",),
    listeners=("tcp://0.0.0.0:11010",),
    device="et0",
    mtu=1380,
    rpc_port=15888,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)
UP = LinkState(exists=True, is_up=True, addresses=(ADDRESS,), mtu=1360, index=4, routes=(ADDRESS.network,))


def running(config_hash: str = SPEC.config_hash) -> Identity:
    return Identity(77, 1, "boot", config_hash)


class FakePrivateHosts(PrivateHosts):
    """Hands out one file, or refuses; writes and mounts nothing."""

    FILE = PrivateFile(Path("/state/easytier.hosts"), Path("/etc/hosts"))

    def __init__(self) -> None:
        self.watched = Path("/etc")
        self.refusal: PrivateFilesError | None = None
        self.renewed: list[Identity] = []
        self.is_enough_alone = False  # the machine's own hosts file leads all names nowhere

    def prepare(self) -> tuple[PrivateFile, ...]:
        if self.refusal:
            raise self.refusal
        return (self.FILE,)

    def renew(self, identity: Identity) -> None:
        if self.refusal:
            raise self.refusal
        self.renewed.append(identity)

    def give_up(self) -> bool:
        return not self.is_enough_alone


class FakeRoutes(OwnRoutes):
    """Remembers for which network they stand; touches no routes."""

    def __init__(self) -> None:
        self.caveat = ""
        self.undone = 0
        self.around: IPv4Network | None = None

    async def keep(self, spec: OverlaySpec) -> None:
        self.around = spec.overlay_ip.network

    async def follow(self) -> None:
        pass

    async def remove(self) -> None:
        self.around = None


class FakeCongestion(TunnelCongestion):
    """Remembers for which EasyTier it stands; touches no routes."""

    def __init__(self, process: FakeProcess | None = None) -> None:
        self.caveat = ""
        self.around: OverlaySpec | None = None
        self.starts_before: list[int] = []  # of EasyTier, each time it was set
        self._process = process

    async def keep(self, spec: OverlaySpec) -> None:
        self.around = spec
        self.starts_before.append(len(self._process.started) if self._process else 0)

    async def remove(self) -> None:
        self.around = None


class FakeTable(Table):
    """Counts how often it was put in place, or refuses."""

    def __init__(self) -> None:
        super().__init__("fake", "")
        self.refusal: FirewallError | None = None
        self.applied = self.removed = 0

    async def apply(self) -> Applied:
        self.applied += 1
        if self.refusal:
            raise self.refusal
        return Applied("", is_made=False)

    async def remove(self) -> None:
        if self.refusal:
            raise self.refusal
        self.removed += 1


@dataclass
class World:
    """A keeper with everything around it faked."""

    paths: Paths
    adoptable: Identity | None = None
    config: OverlayConfig = field(default_factory=OverlayConfig)
    is_guarded: bool = True
    obstacle: OverlayError | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    links: FakeLinks = field(default_factory=FakeLinks)
    version: str = "2.6.4"

    def __post_init__(self) -> None:
        self.hosts = FakePrivateHosts()
        self.held = ""  # the TUN device that EasyTier holds open
        self.connected: list[Connection] = []
        self.mended: list[str] = []
        self.after_mending = UP
        self.guard = FakeTable()
        self.routes = FakeRoutes()
        self.process = FakeProcess(self.adoptable)
        self.congestion = FakeCongestion(self.process)
        self.told: list[tuple[Status, IPv4Network | None]] = []  # with the network whose routes stood then
        self.conditions = ConditionSet(self.clock, ["OverlayUp"], ["OverlayCpuNormal"], on_change=self.note)
        self.overlay = self.daemon(self.process, self.conditions)

    def daemon(self, process: FakeProcess, conditions: ConditionSet) -> OverlayKeeper:
        """A daemon, which may start EasyTier and has a specification for it. ``board`` is its board."""
        self.board = board_of(Config(overlay=self.config))
        give(self.board, overlay_spec=SPEC, easytier_may_start=True)
        guard = TableKeeper(self.guard, self.clock, open_without="EasyTier's RPC is open", enabled=self.is_guarded)
        return OverlayKeeper(
            board=self.board,
            conditions=conditions,
            clock=self.clock,
            config=self.config,
            core=Core(process, self.binary, self.paths, self.hosts),
            links=self.links,
            around=Around(guard, self.routes, self.congestion),
            machine=self,
        )

    def note(self, condition: Condition) -> None:
        self.told.append((condition.status, self.routes.around))
        give(self.board, conditions=self.conditions.now)

    def given(self, **facts: Any) -> None:
        """What other parts of the daemon say."""
        give(self.board, **facts)

    @property
    def runs_as_wanted(self) -> bool | None:
        return self.board.facts.easytier_as_wanted

    async def mend(self, name: str, spec: OverlaySpec, mtu: int) -> None:
        self.mended.append(name)
        self.links.state = self.after_mending

    def held_tun(self, _pid: int) -> str:
        return self.held

    def connections(self, _pid: int) -> list[Connection]:
        return self.connected

    def binary(self) -> EasyTierBinary:
        return EasyTierBinary(Path("/opt/easytier-core"), None, self.version)

    async def preflight(self, *_: Any) -> None:
        if self.obstacle:
            raise self.obstacle

    @property
    def condition(self) -> Condition:
        return self.conditions.get("OverlayUp")

    async def look(self) -> float:
        """The kernel tells of something: it looks, and acts until there is nothing to do; when it looks again."""
        self.overlay.look_again()
        again_s = await settle(self.overlay, self.board, self.conditions, self.clock)
        self.overlay.wakeup.clear()
        return again_s

    async def up(self) -> None:
        await self.look()
        self.links.state = UP
        await self.look()
        assert self.condition.status is Status.TRUE


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(state=tmp_path / "state", runtime=tmp_path / "run")


@pytest.fixture
def world(paths: Paths) -> World:
    return World(paths)
