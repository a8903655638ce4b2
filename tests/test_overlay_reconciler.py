"""The overlay reconciler: when it starts, adopts, replaces, restarts and leaves EasyTier alone."""

from __future__ import annotations

import asyncio
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from edgelink.conditions import Condition, ConditionSet, Phase, Status
from edgelink.config import OverlayConfig, Paths
from edgelink.errors import (
    EasyTierNotFoundError,
    InterfaceNotReadyError,
    OverlayError,
    PrivateFilesError,
    ProcessExitedError,
)
from edgelink.overlay import stun
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkState, LocalNetwork
from edgelink.overlay.nft import FirewallError, Table
from edgelink.overlay.reconciler import LoadReconciler, OverlayReconciler
from edgelink.overlay.stun import UNANSWERED, PrivateHosts
from edgelink.process import Identity, ProcessUsage
from edgelink.process.ports import Connection
from edgelink.process.private_files import PrivateFile
from edgelink.reconcile import run_reconciler
from edgelink.testing import FakeClock, eventually
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
    return Identity(77, 1, "boot", "/opt/easytier-core", config_hash)


class FakePrivateHosts(PrivateHosts):
    """Hands out one file, or refuses; writes and mounts nothing."""

    FILE = PrivateFile(Path("/state/easytier.hosts"), Path("/etc/hosts"))

    def __init__(self) -> None:
        self.watched = Path("/etc")
        self.refusal: PrivateFilesError | None = None
        self.renewed: list[Identity] = []
        self.servers: tuple[str, ...] = ()
        self.is_enough_alone = False  # the machine's own hosts file leads all names nowhere

    def prepare(self, servers: Sequence[str] = ()) -> tuple[PrivateFile, ...]:
        if self.refusal:
            raise self.refusal
        self.servers = tuple(servers)
        return (self.FILE,)

    def renew(self, identity: Identity, servers: Sequence[str] = ()) -> None:
        if self.refusal:
            raise self.refusal
        self.servers = tuple(servers)
        self.renewed.append(identity)

    def leading_to(self) -> tuple[str, ...]:
        return self.servers

    def give_up(self) -> bool:
        self.servers = ()
        return not self.is_enough_alone


class FakeTable(Table):
    """Counts how often it was put in place, or refuses."""

    def __init__(self) -> None:
        super().__init__("fake", "")
        self.refusal: FirewallError | None = None
        self.applied = 0

    async def apply(self) -> None:
        self.applied += 1
        if self.refusal:
            raise self.refusal

    async def remove(self) -> None:
        if self.refusal:
            raise self.refusal


@dataclass
class World:
    """A reconciler with everything around it faked."""

    paths: Paths
    adoptable: Identity | None = None
    config: OverlayConfig = field(default_factory=OverlayConfig)
    spec: OverlaySpec | None = SPEC
    obstacle: OverlayError | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    links: FakeLinks = field(default_factory=FakeLinks)
    version: str = "2.0.3"

    def __post_init__(self) -> None:
        self.hosts = FakePrivateHosts()
        self.held = ""  # the TUN device that EasyTier holds open
        self.connections: list[Connection] = []
        self.last_answer_s: float | None = None
        self.mended: list[str] = []
        self.after_mending = UP
        self.guard = FakeTable()
        self.process = FakeProcess(self.adoptable)
        self.conditions = ConditionSet(self.clock, ["OverlayUp"], ["OverlayCpuNormal"])
        self.reconciler = self.daemon(self.process, self.conditions)

    def daemon(self, process: FakeProcess, conditions: ConditionSet) -> OverlayReconciler:
        return OverlayReconciler(
            spec=lambda: self.spec,
            binary=self.binary,
            config=self.config,
            paths=self.paths,
            process=process,
            links=self.links,
            conditions=conditions,
            clock=self.clock,
            owner_lock=self.paths.runtime / "overlay.lock",
            preflight=self.preflight,
            private_hosts=self.hosts,
            guard=self.guard,
            last_answer_s=lambda: self.last_answer_s,
            mend=self.mend,
            held_tun=lambda _pid: self.held,
            connections=lambda _pid: self.connections,
        )

    async def mend(self, name: str, spec: OverlaySpec, mtu: int) -> None:
        self.mended.append(name)
        self.links.state = self.after_mending

    def binary(self) -> EasyTierBinary:
        return EasyTierBinary(Path("/opt/easytier-core"), None, self.version)

    async def preflight(self, *_: Any) -> None:
        if self.obstacle:
            raise self.obstacle

    @property
    def condition(self) -> Condition:
        return self.conditions.get("OverlayUp")

    async def up(self) -> None:
        await self.reconciler.reconcile()
        self.links.state = UP
        await self.reconciler.reconcile()
        assert self.condition.status is Status.TRUE


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(state=tmp_path / "state", runtime=tmp_path / "run")


@pytest.fixture
def world(paths: Paths) -> World:
    return World(paths)


async def test_without_a_lease_nothing_is_started(world: World) -> None:
    """No address, no EasyTier: the condition says that the lease is missing."""
    world.spec = None
    await world.reconciler.reconcile()
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "NoLease")
    assert world.process.started == []


async def test_easytier_is_started_from_a_private_file_without_the_secret_in_argv(world: World) -> None:
    """The secret is in the 0600 configuration file, and neither in argv nor in the environment."""
    await world.reconciler.reconcile()

    (started,) = world.process.started
    config = world.paths.easytier_config
    assert tomllib.loads(config.read_text())["network_identity"]["network_secret"] == SECRET
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert SECRET not in " ".join((*started.argv, *started.env, *started.env.values()))
    assert started.config_hash == SPEC.config_hash
    assert world.condition.reason == "Starting"


@pytest.mark.parametrize(
    "state",
    [
        LinkState(),
        replace(UP, is_up=False),
        replace(UP, addresses=()),
        replace(UP, addresses=(IPv4Interface("10.10.0.8/24"),)),
        replace(UP, addresses=(IPv4Interface("10.10.0.7/16"),)),
        replace(UP, addresses=(ADDRESS, IPv4Interface("10.9.0.1/24"))),
        replace(UP, mtu=1500),
    ],
    ids=["missing", "down", "no address", "other address", "other prefix", "one too many", "mtu not set yet"],
)
async def test_the_overlay_is_up_only_when_the_kernel_says_so(world: World, state: LinkState) -> None:
    """OverlayUp needs device, up, exactly our address and an MTU; a running process is no proof."""
    await world.reconciler.reconcile()
    world.links.state = state
    await world.reconciler.reconcile()
    assert world.condition.status is Status.FALSE

    world.links.state = UP
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert len(world.process.started) == 1


async def test_a_working_overlay_is_left_alone(world: World) -> None:
    """Reconciling again and again neither starts nor stops anything."""
    await world.up()
    for _ in range(5):
        await world.reconciler.reconcile()
    assert (len(world.process.started), world.process.stops) == (1, 0)


async def test_a_running_easytier_is_adopted_without_needing_its_program(paths: Paths) -> None:
    """A restarted daemon adopts what runs for the same lease, even when easytier-core is no longer installed."""
    world = World(paths, adoptable=running())
    world.binary = None  # type: ignore[assignment]
    world.links.state = UP
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert (world.process.started, world.process.stops) == ([], 0)


async def test_a_running_easytier_with_another_configuration_is_replaced(paths: Paths) -> None:
    """What runs for an older lease or configuration is stopped and started anew."""
    world = World(paths, adoptable=running("older"))
    world.links.state = UP
    await world.reconciler.reconcile()
    assert world.process.stops == 1
    assert world.process.config_hash == SPEC.config_hash


@pytest.mark.parametrize(
    "state, reason",
    [
        (LinkState(), "DeviceMissing"),
        (replace(UP, is_up=False), "DeviceDown"),
        (replace(UP, addresses=()), "AddressWrong"),
    ],
)
async def test_a_device_that_easytier_lost_restarts_it_once_that_has_settled(
    world: World, state: LinkState, reason: str
) -> None:
    """EasyTier notices no device fault: the condition falls at once, the core is restarted a moment later."""
    await world.up()
    world.links.state = state
    assert await world.reconciler.reconcile() <= 0.2
    assert (world.condition.reason, world.process.stops) == (reason, 0)

    await world.clock.advance(0.25)
    await world.reconciler.reconcile()
    assert (world.process.stops, len(world.process.started)) == (1, 2)


@pytest.mark.parametrize(
    "state, held, reason",
    [
        (replace(UP, is_up=False), "et0", "DeviceDown"),
        (replace(UP, addresses=()), "et0", "AddressWrong"),
        (replace(UP, addresses=(ADDRESS, IPv4Interface("10.9.0.1/24"))), "et0", "AddressWrong"),
        (replace(UP, mtu=1280), "et0", "MtuWrong"),
        (replace(UP, routes=()), "et0", "RouteMissing"),
        (LinkState(), "foo0", "DeviceMissing"),
        (replace(UP, index=9), "foo0", "DeviceReplaced"),
    ],
    ids=["down", "address lost", "address added", "mtu", "route", "renamed", "renamed, and the name taken"],
)
async def test_a_device_that_easytier_still_holds_is_mended_in_place(
    world: World, state: LinkState, held: str, reason: str
) -> None:
    """Its connections last: no restart for what netlink can put right."""
    await world.up()
    world.links.state, world.held = state, held
    await world.reconciler.reconcile()
    assert (world.condition.reason, world.mended) == (reason, [])
    await world.clock.advance(0.25)
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert (world.mended, world.process.stops) == ([held], 0)


async def test_what_mending_does_not_help_is_restarted(world: World) -> None:
    """A stranger that took the name of our device: EasyTier is ended, and the preflight names the stranger."""
    await world.up()
    world.links.state = world.after_mending = replace(UP, index=9)
    world.held = "foo0"
    await world.reconciler.reconcile()
    await world.clock.advance(0.25)
    world.obstacle = OverlayError("et0 already exists, held by vpn (pid 5)", reason="DeviceBusy")
    with pytest.raises(OverlayError, match="held by vpn"):
        await world.reconciler.reconcile()
    assert world.process.stops == 1


async def test_a_route_that_does_not_stay_is_named_and_cuts_nothing(world: World) -> None:
    """Somebody who takes the route away again and again gets no restart out of us, and no busy loop."""
    await world.up()
    world.links.state = world.after_mending = replace(UP, routes=())
    world.held = "et0"
    await world.reconciler.reconcile()
    for _ in range(20):
        await world.clock.advance(0.25)
        await world.reconciler.reconcile()
    assert (world.process.stops, world.condition.reason) == (0, "RouteMissing")
    assert 3 < len(world.mended) < 15


async def test_a_network_of_the_overlays_addresses_is_told_while_it_runs(world: World) -> None:
    """The hotel's Wi-Fi has 10.10.0.0/24, too: said, and nothing that works is cut."""
    await world.up()
    world.links.networks = [LocalNetwork("wlan0", IPv4Network("10.10.0.0/24"))]
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert "collides with 10.10.0.0/24, which this machine reaches through wlan0" in world.condition.message
    world.links.networks = []
    await world.reconciler.reconcile()
    assert "wlan0" not in world.condition.message
    assert world.process.stops == 0


async def test_a_fault_that_passes_at_once_restarts_nothing(world: World) -> None:
    """An address that is taken away and put back within a moment is no reason to cut every connection."""
    await world.up()
    world.links.state = replace(UP, addresses=())
    await world.reconciler.reconcile()
    world.links.state = UP
    await world.reconciler.reconcile()
    await world.clock.advance(1)
    await world.reconciler.reconcile()
    assert world.process.stops == 0
    assert world.condition.status is Status.TRUE


async def test_what_others_devices_do_costs_no_look_at_the_firewall(world: World) -> None:
    """The table around EasyTier's RPC is looked at every 30 s, and at each change of our own device."""
    await world.up()
    before = world.guard.applied
    for _ in range(10):
        await world.clock.advance(1)
        await world.reconciler.reconcile()
    assert world.guard.applied == before
    world.links.state = UP  # tells of our device
    await world.reconciler.reconcile()
    assert world.guard.applied == before + 1

    waited_s = 0.0
    while world.guard.applied == before + 1:
        look_s = await world.reconciler.reconcile()
        assert look_s > 0
        await world.clock.advance(look_s)
        waited_s += look_s
    assert waited_s >= 30
    assert waited_s <= 60


async def test_a_firewall_that_fails_later_neither_ends_nor_neglects_the_overlay(world: World) -> None:
    """nft was uninstalled: said in the condition, faults are mended as before, and it is tried again."""
    await world.up()
    world.guard.refusal = FirewallError("nft: refused")
    await world.clock.advance(31)
    await world.reconciler.reconcile()
    assert await world.reconciler.reconcile() > 0
    assert world.condition.status is Status.TRUE
    assert "EasyTier's RPC may be open" in world.condition.message
    assert "nft: refused" in world.condition.message

    world.links.state, world.held = replace(UP, is_up=False), "et0"
    await world.reconciler.reconcile()
    await world.clock.advance(0.25)
    await world.reconciler.reconcile()
    assert world.mended == ["et0"]
    assert world.condition.status is Status.TRUE

    world.guard.refusal = None
    await world.clock.advance(31)
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()
    assert "RPC" not in world.condition.message
    world.guard.refusal = FirewallError("nft: refused")
    await world.reconciler.stop()
    assert world.condition.reason == "Stopped"


async def test_no_easytier_is_started_with_an_open_rpc(world: World) -> None:
    """Before the start, what the firewall refuses is refused."""
    world.guard.refusal = FirewallError("nft: refused")
    with pytest.raises(FirewallError):
        await world.reconciler.reconcile()
    assert world.process.started == []


async def test_a_start_that_is_under_way_waits_for_its_device(world: World) -> None:
    """The device tells of itself many times until it is ready; none of that makes us spin."""
    await world.reconciler.reconcile()
    world.links.state = replace(UP, is_up=False)
    assert await world.reconciler.reconcile() > 1


async def test_a_killed_easytier_is_restarted_at_once(world: World) -> None:
    """The first unasked end after a confirmed start costs no pause."""
    await world.up()
    world.links.state = LinkState()
    world.process.end(-9)
    await world.reconciler.reconcile()
    assert len(world.process.started) == 2
    assert world.condition.status is Status.FALSE


async def test_repeated_faults_are_restarted_with_pauses(world: World) -> None:
    """Somebody who keeps breaking the device does not make us spin."""
    await world.up()
    world.process.end(-9)
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()  # device still up: confirmed
    world.process.end(-9)
    pause_s = await world.reconciler.reconcile()
    assert len(world.process.started) == 2
    assert 0 < pause_s <= 0.5


async def test_an_early_end_names_status_and_last_words(world: World) -> None:
    """An EasyTier that ends before its device is up is an error with its own words, retried with pauses."""
    await world.reconciler.reconcile()
    world.process.words = "panicked at: Address already in use"
    world.process.end(1)
    with pytest.raises(ProcessExitedError, match=r"status 1.*Address already in use"):
        await world.reconciler.reconcile()
    assert 0 < await world.reconciler.reconcile() <= 0.5
    assert len(world.process.started) == 1
    assert world.condition.reason == "ProcessExited"


async def test_a_device_that_never_comes_is_a_named_error(world: World) -> None:
    """A start has a deadline; afterwards the core is stopped and the error says what was missing."""
    await world.reconciler.reconcile()
    await world.clock.advance(11)
    with pytest.raises(InterfaceNotReadyError, match="et0 does not exist"):
        await world.reconciler.reconcile()
    assert world.process.stops == 1


async def test_the_secret_in_the_banner_is_overwritten(world: World) -> None:
    """EasyTier 2.0.3 prints its secret; once the device is seen, the log does not hold it any more."""
    await world.reconciler.reconcile()
    log = world.paths.logs / "easytier.log"
    log.write_text(f'network_secret = "{SECRET}"\n')
    world.links.state = replace(UP, is_up=False)
    await world.reconciler.reconcile()
    assert SECRET not in log.read_text()


async def test_an_obstacle_is_raised_before_anything_is_started(world: World) -> None:
    """What preflight refuses is not started."""
    world.obstacle = OverlayError("port taken", reason="PortBusy")
    with pytest.raises(OverlayError, match="port taken"):
        await world.reconciler.reconcile()
    assert world.process.started == []


async def test_a_missing_easytier_makes_the_condition_final(world: World) -> None:
    """No easytier-core is for a person to mend: the phase is Failed, the hint says how."""

    def missing() -> EasyTierBinary:
        raise EasyTierNotFoundError("no easytier-core", hint="run make setup")

    world.binary = missing  # type: ignore[method-assign]
    world.reconciler = world.daemon(world.process, world.conditions)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_reconciler(world.reconciler, world.conditions, world.clock))
        await eventually(lambda: world.condition.status is Status.FALSE)
        task.cancel()
    assert world.condition.reason == "EasyTierNotFound"
    assert "make setup" in world.condition.message
    assert world.conditions.phase is Phase.FAILED


@pytest.mark.parametrize("version, is_private", [("2.0.3", True), ("2.4.5", False), ("2.6.4", True)])
async def test_easytier_is_kept_from_public_stun_servers(world: World, version: str, is_private: bool) -> None:
    """A version without a switch for them gets a hosts file of its own, which is kept up while it runs."""
    world.version = version
    await world.up()
    assert world.process.started[0].private_files == ((FakePrivateHosts.FILE,) if is_private else ())
    assert world.hosts.renewed == ([world.process.identity] if is_private else [])
    assert "STUN" not in world.condition.message


async def test_an_old_version_is_led_to_the_relay_by_its_hosts_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It punches holes then; a relay whose name does not resolve yet is looked up again, without a restart."""
    known: dict[str, str] = {}

    async def addresses_of(servers: Sequence[str]) -> tuple[str, ...]:
        return tuple(known.get(server, UNANSWERED) for server in servers)

    monkeypatch.setattr(stun, "addresses_of", addresses_of)
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("relay.example:3478", "relay.example:3479"))
    await world.up()
    assert world.hosts.servers == (UNANSWERED,)
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is False

    known["relay.example:3478"] = "203.0.113.10"
    await world.reconciler.reconcile()
    assert world.hosts.servers == ("203.0.113.10",)
    assert len(world.process.started) == 1


async def test_without_a_hosts_file_of_its_own_an_old_version_punches_nothing(world: World) -> None:
    """Its attempts would fail at once, and it would spin over them."""
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    await world.up()
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is True
    assert "EasyTier may ask public STUN servers" in world.condition.message


async def test_a_container_with_a_hosts_file_of_its_own_is_not_warned_of(world: World) -> None:
    """All names lead nowhere there; only, nothing can lead them to the relay."""
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    world.hosts.is_enough_alone = True
    world.hosts.renew = lambda *_: None  # type: ignore[method-assign]  # nothing to renew
    await world.up()
    assert "STUN" not in world.condition.message
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is True


async def test_where_easytier_cannot_be_kept_from_stun_it_runs_and_the_condition_says_so(world: World) -> None:
    """In a container without SYS_ADMIN the overlay works all the same, once started, and nothing is hidden."""
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted", hint="it takes CAP_SYS_ADMIN")
    await world.up()
    assert [spec.private_files for spec in world.process.started] == [()]
    assert "EasyTier may ask public STUN servers" in world.condition.message
    assert "CAP_SYS_ADMIN" in world.condition.message
    world.hosts.refusal = PrivateFilesError("was started without files of its own")
    await world.reconciler.reconcile()
    assert "CAP_SYS_ADMIN" in world.condition.message, "the reason that can be acted on stays"


async def test_a_version_with_a_dns_record_of_stun_servers_is_told_of(world: World) -> None:
    """2.2.3 to 2.4.4 take servers from a TXT record, which no hosts file holds back."""
    world.version = "2.3.2"
    await world.up()
    assert "DNS record" in world.condition.message
    assert world.process.started[0].private_files


async def test_an_adopted_easytier_that_was_started_without_is_left_alone_and_told_of(paths: Paths) -> None:
    """It is no reason to cut an overlay that works."""
    world = World(paths, adoptable=running())
    world.hosts.refusal = PrivateFilesError("pid 77: was started without files of its own")
    world.links.state = UP
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert "pid 77" in world.condition.message
    assert world.process.stops == 0


async def test_the_end_of_the_child_wakes_the_reconciler(world: World) -> None:
    """run() turns the child's end into a wake-up, so that no poll is needed."""
    await world.up()
    world.reconciler.wakeup = type(world.reconciler.wakeup)()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.reconciler.run())
        world.process.end(-9)
        async with asyncio.timeout(5):
            await world.reconciler.wakeup.wait(None)
        task.cancel()


async def test_two_daemons_share_one_easytier(world: World) -> None:
    """The second daemon only watches; it takes over when the first is gone."""
    await world.up()
    other_process = FakeProcess(adoptable=world.process.identity)
    other_conditions = ConditionSet(world.clock, ["OverlayUp"])
    other = world.daemon(other_process, other_conditions)

    await other.reconcile()
    assert other_conditions.is_true("OverlayUp")
    assert other_process.identity is None

    await world.reconciler.stop()
    assert world.process.stops == 0, "the other daemon still needs it"
    await other.reconcile()
    assert other_process.identity is not None
    await other.stop()
    assert other_process.stops == 1


async def test_stopping_ends_easytier_even_before_the_first_look(paths: Paths) -> None:
    """A daemon that is told to stop at once still ends what its predecessor left running."""
    world = World(paths, adoptable=running())
    await world.reconciler.stop()
    assert world.process.stops == 1
    await world.reconciler.stop()


async def test_an_existing_device_is_checked_and_never_touched(paths: Paths) -> None:
    """With overlay.kind: existing only the address counts, and nothing is started or stopped."""
    world = World(paths, config=OverlayConfig(kind="existing"))
    world.links.state = LinkState(exists=True, is_up=True, addresses=(IPv4Interface("192.0.2.1/24"),), mtu=9000)
    await world.reconciler.reconcile()
    assert world.condition.reason == "AddressMissing"

    world.links.state = replace(
        world.links.state, addresses=(IPv4Interface("192.0.2.1/24"), IPv4Interface("10.10.0.7/16"))
    )
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    await world.reconciler.stop()
    assert (world.process.started, world.process.stops) == ([], 0)


async def test_a_spinning_easytier_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a fifth of a core for half a minute without traffic makes the condition False; traffic excuses it."""
    cpu_s = 0.0
    monkeypatch.setattr("edgelink.overlay.load.usage", lambda pid: ProcessUsage(cpu_s, 0))
    load = LoadReconciler(
        process=world.process, links=world.links, device="et0", conditions=world.conditions, clock=world.clock
    )
    await load.reconcile()
    assert world.conditions.get("OverlayCpuNormal").status is Status.UNKNOWN
    await world.up()

    async def pass_time(cores: float, bytes_per_s: int) -> Condition:
        nonlocal cpu_s
        for _ in range(4):
            await load.reconcile()
            await world.clock.advance(10)
            cpu_s += cores * 10
            world.links.state = replace(world.links.state, rx_bytes=world.links.state.rx_bytes + bytes_per_s * 10)
        await load.reconcile()
        return world.conditions.get("OverlayCpuNormal")

    assert (await pass_time(0.01, 0)).status is Status.TRUE
    spinning = await pass_time(0.94, 0)
    assert (spinning.status, spinning.reason) == (Status.FALSE, "EasyTierSpinning")
    assert (await pass_time(0.94, 50_000_000)).status is Status.TRUE
