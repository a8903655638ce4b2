"""The keeper of the overlay: when it starts, adopts, replaces, restarts and leaves EasyTier alone."""

from __future__ import annotations

import asyncio
import stat
import tomllib
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from full_disk import Disk
from overlay_world import ADDRESS, SECRET, SPEC, UP, World, paths, running, world  # noqa: F401

from edgelink.conditions import ConditionSet, Status
from edgelink.config import OverlayConfig, Paths
from edgelink.errors import (
    EasyTierNotFoundError,
    InterfaceNotReadyError,
    NotRecordedError,
    OverlayError,
    ProcessExitedError,
)
from edgelink.facts.board import Wish
from edgelink.facts.part import Action, run_part
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.link import LinkState
from edgelink.overlay.overlay_steps import (
    EasyTier,
    GiveUp,
    Inputs,
    Look,
    Looked,
    NoteEnd,
    Occasion,
    Redial,
    Repair,
    Replace,
    Start,
)
from edgelink.overlay.ownership import Ownership
from edgelink.overlay.ways import Ways
from edgelink.process.ports import Connection
from edgelink.testing import eventually
from edgelink.testing.facts import settle
from edgelink.testing.overlay import FakeProcess

NOW_S = 1000.0
NO_WISHES = (Wish(), Wish())
WISH = Wish().again("it lost a node")
OCCASION = Occasion(SPEC, NO_WISHES, standstills=0, changes=0)
SERVES = EasyTier(running(), NO_WISHES, confirm_until_s=500.0, is_adopted=False, confirmed=UP)
STARTING = EasyTier(running(), NO_WISHES, confirm_until_s=1005.0, is_adopted=False)
DOWN = replace(UP, is_up=False)
ELSEWHERE = Ways("by eth0", "take it away")
WHY = ("the device et0 is down", "DeviceDown")


def given(*, wishes: tuple[Wish, Wish] = NO_WISHES, may_start: bool = True, **own: Any) -> Inputs:
    """An EasyTier that works, looked at a second ago; or what is another than that."""
    usual = {
        "occasion": OCCASION._replace(wishes=wishes),
        "at_s": 999.0,
        "look_at_s": 1029.0,
        "is_ours": True,
        "device": UP,
    }
    return Inputs(
        SPEC, may_start, *wishes, standstills=0, ways=Ways(), own=Looked(**{**usual, "easytier": SERVES, **own})
    )


@pytest.mark.parametrize(
    ("now", "does", "again_s", "says"),
    [
        (replace(given(), overlay_spec=None), None, 30.0, "NoLease"),
        (given(), None, 29.0, "DeviceConfirmed"),
        (replace(given(), ways=ELSEWHERE), None, 29.0, "RouteElsewhere"),
        (
            replace(given(device=DOWN, fault_since_s=990.0), ways=ELSEWHERE),
            GiveUp(SPEC, SERVES, *WHY),
            None,
            "DeviceDown",
        ),
        (replace(given(), own=Looked()), Look(OCCASION), None, ""),
        (replace(given(), standstills=1), Look(OCCASION._replace(standstills=1)), None, ""),
        (given(changes=1), Look(OCCASION._replace(changes=1)), None, ""),
        (given(look_at_s=NOW_S), Look(OCCASION), None, ""),
        (given(is_ours=False, easytier=None, look_at_s=1001.0), None, 1.0, "DeviceConfirmed"),
        (given(is_ours=False, easytier=None, look_at_s=1001.0, device=DOWN), None, 1.0, "DeviceDown"),
        (given(easytier=None), Start(OCCASION), None, ""),
        (given(easytier=None, start_at_s=1000.5), None, 0.5, ""),
        (given(easytier=None, may_start=False), None, 30.0, "AsksRegistry"),
        (given(may_start=False), None, 29.0, "DeviceConfirmed"),
        (given(easytier=replace(SERVES, is_running=False)), NoteEnd(SPEC, replace(SERVES, is_running=False)), None, ""),
        (
            given(easytier=replace(SERVES, identity=running("older"))),
            Replace(SPEC, replace(SERVES, identity=running("older")), "the configuration changed"),
            None,
            "",
        ),
        (
            given(wishes=(Wish(), WISH)),
            Replace(SPEC, replace(SERVES, wishes=(Wish(), WISH)), "it lost a node"),
            None,
            "",
        ),
        (given(wishes=(WISH, Wish()), easytier=replace(SERVES, wishes=(WISH, Wish()))), None, 29.0, "DeviceConfirmed"),
        (given(easytier=STARTING, device=LinkState()), None, 5.0, ""),
        (given(easytier=replace(STARTING, confirm_until_s=999.5), device=DOWN), Look(OCCASION), None, ""),
        (
            given(easytier=replace(STARTING, confirm_until_s=999.0), device=DOWN),
            GiveUp(SPEC, replace(STARTING, confirm_until_s=999.0), *WHY),
            None,
            "",
        ),
        (given(device=DOWN, fault_since_s=999.0), Look(OCCASION), None, "DeviceDown"),
        (given(device=DOWN, fault_since_s=990.0), GiveUp(SPEC, SERVES, *WHY), None, "DeviceDown"),
        (given(device=DOWN, fault_since_s=990.0, held="et0"), Repair(SPEC, SERVES, *WHY), None, "DeviceDown"),
        (given(device=DOWN, fault_since_s=990.0, held="et0", mend_at_s=1002.0), None, 2.0, "DeviceDown"),
        (given(device=DOWN, fault_since_s=990.0, mend_at_s=1002.0), GiveUp(SPEC, SERVES, *WHY), None, "DeviceDown"),
        (given(redial="LTE"), Redial(SPEC, SERVES, "LTE"), None, ""),
        (given(redial="LTE", mend_at_s=1002.0), None, 2.0, "DeviceConfirmed"),
    ],
    ids=[
        "no lease",
        "it works",
        "the kernel sends by another device",
        "likewise, with the device down",
        "a new daemon",
        "the machine slept",
        "the kernel tells of something",
        "half a minute later",
        "another daemon runs it",
        "another daemon runs it, and its device is down",
        "none runs",
        "one ended a moment ago",
        "none runs, and none may",
        "one that runs needs no permission",
        "it ended",
        "for another configuration",
        "a wish",
        "a wish that it serves",
        "it is starting",
        "its time is over",
        "its time is over, and it has no device",
        "a fault that may have passed",
        "a fault that stays",
        "a fault that stays, and its device is there",
        "its device was mended a moment ago",
        "another device was mended a moment ago",
        "another uplink",
        "another uplink once more",
    ],
)
def test_what_is_done_when(world: World, now: Inputs, does: Action | None, again_s: float | None, says: str) -> None:
    decision = world.overlay.plan(now, NOW_S)
    assert decision.does == does
    assert [said.reason for said in decision.says] == ([says] if says else [])
    if again_s is not None:
        assert decision.again_s == again_s


async def test_easytier_is_started_from_a_private_file_without_the_secret_in_argv(world: World) -> None:
    """The secret is in the 0600 configuration file, and neither in argv nor in the environment."""
    await world.look()

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
    await world.look()
    world.links.state = state
    await world.look()
    assert world.condition.status is Status.FALSE

    world.links.state = UP
    await world.look()
    assert world.condition.status is Status.TRUE
    assert len(world.process.started) == 1


async def test_a_working_overlay_is_left_alone(world: World) -> None:
    """Reconciling again and again neither starts nor stops anything."""
    await world.up()
    for _ in range(5):
        await world.look()
    assert (len(world.process.started), world.process.stops) == (1, 0)


async def test_a_running_easytier_is_adopted_without_needing_its_program(paths: Paths) -> None:
    """A restarted daemon adopts what runs for the same lease, even when easytier-core is no longer installed."""
    world = World(paths, adoptable=running())
    world.binary = None  # type: ignore[assignment]
    world.links.state = UP
    await world.look()
    assert world.condition.status is Status.TRUE
    assert (world.process.started, world.process.stops) == ([], 0)


async def test_a_running_easytier_with_another_configuration_is_replaced(paths: Paths) -> None:
    """What runs for an older lease or configuration is stopped and started anew."""
    world = World(paths, adoptable=running("older"))
    world.links.state = UP
    await world.look()
    assert world.process.stops == 1
    assert world.process.config_hash == SPEC.config_hash


async def test_what_could_not_be_started_anew_is_not_stopped(world: World) -> None:
    """Another secret, and easytier-core was removed: what runs goes on, and the condition says what is missing."""
    await world.up()
    assert world.runs_as_wanted is True
    world.given(overlay_spec=replace(SPEC, network_secret="another-secret-0123456789"))

    def removed() -> EasyTierBinary:
        raise EasyTierNotFoundError("removed")

    world.overlay._core._binary = removed
    assert world.runs_as_wanted is False
    with pytest.raises(EasyTierNotFoundError):
        await world.look()
    assert (world.process.stops, world.process.is_running) == (0, True)


async def test_a_full_disk_keeps_no_easytier_from_its_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads is there already: neither a killed one nor another uplink waits for somebody to free space."""
    relay, wifi, lte = IPv4Address("203.0.113.1"), IPv4Address("192.168.1.2"), IPv4Address("10.60.0.2")
    world.links.uplinks = {"wlan0": wifi}
    world.connected = [Connection(wifi, 40381, relay)]
    world.given(last_answer_s=0.0)
    await world.up()
    Disk(monkeypatch).is_full = True
    world.process.end(-9)
    await world.look()
    assert (world.process.is_running, len(world.process.started)) == (True, 2)

    await world.look()
    world.links.uplinks = {"wwan0": lte}
    await world.clock.advance(await world.look())
    await world.look()
    assert world.process.stops == 1
    assert (world.process.is_running, len(world.process.started)) == (True, 3)


@pytest.mark.parametrize("cause", ["another secret", "no device", "another uplink"])
async def test_what_cannot_be_written_down_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Another EasyTier was installed, whose file says other things, and the disk is full: what runs goes on."""
    relay, wifi, lte = IPv4Address("203.0.113.1"), IPv4Address("192.168.1.2"), IPv4Address("10.60.0.2")
    world.links.uplinks = {"wlan0": wifi}
    world.connected = [Connection(wifi, 40381, relay)]
    world.given(last_answer_s=0.0)
    world.version = "2.6.0"
    await world.up()
    disk = Disk(monkeypatch)
    world.version, disk.is_full = "2.6.4", True
    if cause == "another secret":
        world.given(overlay_spec=replace(SPEC, network_secret="another-secret-0123456789"))
    elif cause == "no device":
        world.links.state = LinkState()
        await world.clock.advance(await world.look())
    else:
        world.links.uplinks = {"wwan0": lte}
        await world.clock.advance(await world.look())
    for _ in range(3):
        with pytest.raises(NotRecordedError):
            await world.look()
    assert (world.process.is_running, world.process.stops) == (True, 0)

    disk.is_full = False
    await world.look()
    assert (world.process.is_running, world.process.stops, len(world.process.started)) == (True, 1, 2)
    assert "disable_upnp" in world.paths.easytier_config.read_text()


@pytest.mark.parametrize("damage", ["changed", "readable for all", "a link"])
async def test_a_file_that_is_not_as_it_was_written_is_written_anew(world: World, tmp_path: Path, damage: str) -> None:
    """It is ours, private and whole at each start."""
    await world.up()
    config = world.paths.easytier_config
    whole = config.read_bytes()
    if damage == "changed":
        config.write_bytes(whole + b"[flags]\n")
    elif damage == "readable for all":
        config.chmod(0o644)
    else:
        config.rename(tmp_path / "elsewhere")
        config.symlink_to(tmp_path / "elsewhere")
    world.process.end(-9)
    await world.look()
    assert len(world.process.started) == 2
    assert not config.is_symlink()
    assert (config.read_bytes(), stat.S_IMODE(config.stat().st_mode)) == (whole, 0o600)


async def test_another_secret_is_confirmed_by_its_own_device(world: World) -> None:
    """It runs as wanted once the EasyTier that was started with it has its device, not before."""
    await world.up()
    world.given(overlay_spec=replace(SPEC, network_secret="another-secret-0123456789"))
    world.links.state = LinkState()
    await world.look()
    assert (world.process.stops, len(world.process.started)) == (1, 2)
    assert world.runs_as_wanted is False
    world.links.state = UP
    await world.look()
    assert world.runs_as_wanted is True


async def test_what_cannot_be_started_again_does_not_run_as_wanted(world: World) -> None:
    """It was ended for a reason, with the same configuration, and something is in the way of the next one."""
    await world.up()
    world.obstacle = OverlayError("port taken", reason="PortBusy")
    world.given(restart_for_pair=Wish().again("it lost a node"))
    with pytest.raises(OverlayError, match="port taken"):
        await world.look()
    assert not world.process.is_running
    assert world.runs_as_wanted is False


@pytest.mark.parametrize("wish", ["restart_for_relays", "restart_for_pair"])
async def test_a_wish_replaces_easytier_once(world: World, wish: str) -> None:
    """Two wishes before it is served are one restart."""
    await world.up()
    world.given(**{wish: Wish().again("it lost a node").again("it lost another one")})
    await world.look()
    assert (world.process.stops, len(world.process.started)) == (1, 2)
    for _ in range(3):
        await world.look()
    assert (world.process.stops, len(world.process.started)) == (1, 2)


async def test_an_easytier_that_ends_for_a_wish_is_not_said_to_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.up()
    stop, may_end = world.process.stop, asyncio.Event()

    async def stop_slowly() -> None:
        await may_end.wait()
        await stop()

    monkeypatch.setattr(world.process, "stop", stop_slowly)
    running = asyncio.create_task(run_part(world.overlay, world.board, world.conditions, world.clock))
    world.given(restart_for_pair=WISH)
    await eventually(lambda: world.condition.reason == "Replacing")
    world.given(easytier_may_start=False)
    await eventually(lambda: not world.overlay.wakeup.is_set)
    assert world.condition.reason == "Replacing"
    may_end.set()
    await eventually(lambda: world.condition.reason == "AsksRegistry")
    running.cancel()


async def test_a_wish_is_for_the_easytier_that_ran_then(world: World) -> None:
    """One that was killed meanwhile is started anew anyway."""
    await world.up()
    world.process.end(-9)
    world.given(restart_for_pair=Wish().again("it lost a node"))
    await world.look()
    await world.look()
    assert (world.process.stops, len(world.process.started)) == (0, 2)


@pytest.mark.parametrize("answers", [True, False])
async def test_after_a_standstill_somebody_has_to_answer(world: World, *, answers: bool) -> None:
    """Its connections may have been cut without a trace; they are asked for at once."""
    await world.up()
    world.given(last_answer_s=world.clock.monotonic_s(), standstills=1)
    assert world.overlay.wakeup.is_set
    again_s = await world.look()
    await world.clock.advance(again_s / 2)
    if answers:
        world.given(last_answer_s=world.clock.monotonic_s())
    await world.clock.advance(again_s / 2)
    await world.look()
    assert world.process.stops == (0 if answers else 1)


async def test_an_answer_before_the_standstill_was_seen_to_is_asked_for_once_more(world: World) -> None:
    """What asks the others is woken by the same fact, and may be quicker: it asks again in ten seconds only."""
    await world.up()
    world.given(standstills=1)
    world.given(last_answer_s=world.clock.monotonic_s())
    await world.clock.advance(0.05)  # the look that was under way
    again_s = await world.look()
    assert world.board.facts.echo_wishes == 1
    await world.clock.advance(0.05)
    world.given(last_answer_s=world.clock.monotonic_s())
    await world.clock.advance(again_s)
    await world.look()
    assert world.process.stops == 0


async def test_a_killed_easytier_is_restarted_at_once(world: World) -> None:
    """The first unasked end after a confirmed start costs no pause."""
    await world.up()
    world.links.state = LinkState()
    world.process.end(-9)
    await world.look()
    assert len(world.process.started) == 2
    assert world.condition.status is Status.FALSE


async def test_another_easytier_that_is_there_when_one_has_ended_is_adopted(world: World) -> None:
    """Only one may run, and nobody would wait for the end of one that works."""
    await world.up()
    await world.clock.advance(100.0)
    world.process._adoptable = running()
    world.process.end(-9)
    await asyncio.wait_for(world.look(), 5)
    world.links.state = UP
    await world.look()
    assert world.condition.status is Status.TRUE
    assert len(world.process.started) == 1


async def test_repeated_faults_are_restarted_with_pauses(world: World) -> None:
    """Somebody who keeps breaking the device does not make us spin."""
    await world.up()
    world.process.end(-9)
    await world.look()
    await world.look()  # device still up: confirmed
    world.process.end(-9)
    pause_s = await world.look()
    assert len(world.process.started) == 2
    assert 0 < pause_s <= 0.5


async def test_an_early_end_names_status_and_last_words(world: World) -> None:
    """An EasyTier that ends before its device is up is an error with its own words, retried with pauses."""
    await world.look()
    world.process.words = "panicked at: Address already in use"
    world.process.end(1)
    with pytest.raises(ProcessExitedError, match=r"status 1.*Address already in use"):
        await world.look()
    assert 0 < await world.look() <= 0.5
    assert len(world.process.started) == 1
    assert world.condition.reason == "ProcessExited"


async def test_a_device_that_never_comes_is_a_named_error(world: World) -> None:
    """A start has a deadline; afterwards the core is stopped and the error says what was missing."""
    await world.look()
    await world.clock.advance(11)
    with pytest.raises(InterfaceNotReadyError, match="et0 does not exist"):
        await world.look()
    assert world.process.stops == 1


async def test_a_secret_in_the_log_is_overwritten(world: World) -> None:
    """As EasyTier's banner shows it; once the device is seen, the log does not hold it any more."""
    await world.look()
    log = world.paths.logs / "easytier.log"
    log.write_text(f'network_secret = "{SECRET}"\n')
    world.links.state = replace(UP, is_up=False)
    await world.look()
    assert SECRET not in log.read_text()


@pytest.mark.parametrize("is_up", [True, False])
async def test_a_chatty_easytier_fills_no_disk(world: World, *, is_up: bool) -> None:
    """Its output is looked at every two seconds, also while its device never comes; the older part has a bound, too."""
    await world.look()
    if is_up:
        await world.up()
    log, most = world.paths.logs / "easytier.log", 4 << 20
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.overlay.bound_log())
        for _ in range(3):
            with log.open("ab") as file:
                file.truncate(9 * most)
            await world.clock.advance(2)
            await eventually(lambda: log.stat().st_size == 0)
            assert log.with_name("easytier.log.1").stat().st_size == most
        task.cancel()


async def test_an_obstacle_is_raised_before_anything_is_started(world: World) -> None:
    """What preflight refuses is not started."""
    world.obstacle = OverlayError("port taken", reason="PortBusy")
    with pytest.raises(OverlayError, match="port taken"):
        await world.look()
    assert world.process.started == []


async def test_a_missing_easytier_makes_the_condition_final(world: World) -> None:
    """No easytier-core is for a person to mend: the phase is Failed, the hint says how."""

    def missing() -> EasyTierBinary:
        raise EasyTierNotFoundError("no easytier-core", hint="run make setup")

    world.binary = missing  # type: ignore[method-assign]
    world.overlay = world.daemon(world.process, world.conditions)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_part(world.overlay, world.board, world.conditions, world.clock))
        await eventually(lambda: world.condition.status is Status.FALSE)
        task.cancel()
    assert world.condition.reason == "EasyTierNotFound"
    assert "make setup" in world.condition.message
    assert world.condition.final


@pytest.mark.parametrize("how", ["killed", "restart_for_relays", "restart_for_pair"])
async def test_every_end_of_easytier_is_told(world: World, how: str) -> None:
    """Those that hold a connection to it have to hear of it, whether or not somebody asked for the end."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.overlay.run())
        await world.up()
        await asyncio.sleep(0)
        assert world.board.facts.easytier_ends == 0
        if how == "killed":
            world.process.end(-9)
        else:
            world.given(**{how: Wish().again("a test")})
            await world.look()
        await eventually(lambda: world.board.facts.easytier_ends == 1)
        task.cancel()


async def test_what_the_kernel_tells_of_the_device_is_looked_at_at_once(world: World) -> None:
    """No poll is needed, and nobody else has to say so."""
    await world.up()
    world.links.state = DOWN
    assert world.overlay.wakeup.is_set
    await settle(world.overlay, world.board, world.conditions, world.clock)
    assert world.condition.reason == "DeviceDown"


async def test_the_end_of_the_child_wakes_the_keeper(world: World) -> None:
    """run() turns the child's end into a wake-up, so that no poll is needed."""
    await world.up()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.overlay.run())
        world.process.end(-9)
        async with asyncio.timeout(20):
            await world.overlay.wakeup.wait(None)
        task.cancel()


async def test_two_daemons_share_one_easytier(world: World) -> None:
    """The second daemon only watches; it takes over when the first is gone."""
    await world.up()
    other_process = FakeProcess(adoptable=world.process.identity)
    other_conditions = ConditionSet(world.clock, ["OverlayUp"])
    other = world.daemon(other_process, other_conditions)

    await settle(other, world.board, other_conditions, world.clock)
    assert other_conditions.is_true("OverlayUp")
    assert other_process.identity is None

    await world.overlay.stop()
    assert world.process.stops == 0, "the other daemon still needs it"
    await world.clock.advance(2)
    await settle(other, world.board, other_conditions, world.clock)
    assert other_process.identity is not None
    await other.stop()
    assert other_process.stops == 1


async def test_stopping_ends_easytier_even_before_the_first_look(paths: Paths) -> None:
    """A daemon that is told to stop at once still ends what its predecessor left running."""
    world = World(paths, adoptable=running())
    await world.overlay.stop()
    assert world.process.stops == 1
    await world.overlay.stop()


async def test_an_existing_device_is_checked_and_never_touched(paths: Paths) -> None:
    """With overlay.kind: existing only the address counts, and nothing is started or stopped."""
    world = World(paths, config=OverlayConfig(kind="existing"))
    world.links.state = LinkState(exists=True, is_up=True, addresses=(IPv4Interface("192.0.2.1/24"),), mtu=9000)
    await world.look()
    assert world.condition.reason == "AddressMissing"
    assert world.runs_as_wanted is False

    world.links.state = replace(
        world.links.state, addresses=(IPv4Interface("192.0.2.1/24"), IPv4Interface("10.10.0.7/16"))
    )
    await world.look()
    assert world.condition.status is Status.TRUE
    assert world.runs_as_wanted is True
    await world.overlay.stop()
    assert (world.process.started, world.process.stops) == ([], 0)


async def test_who_only_watches_easytier_does_not_know_what_it_runs_with(world: World) -> None:
    """The daemon of this machine that has started it knows."""
    other = Ownership(world.paths.runtime / "overlay.lock")
    assert other.acquire()
    world.links.state = UP
    await world.look()
    assert world.condition.status is Status.TRUE
    assert world.runs_as_wanted is None
    other.release()
    await world.look()
    assert world.runs_as_wanted is False, "it has nothing to adopt here, and starts EasyTier"


async def test_who_takes_easytier_over_does_not_serve_what_was_wished_long_ago(paths: Paths) -> None:
    """A wish is for the EasyTier of its moment, which somebody else of this machine had."""
    world = World(paths, adoptable=running())
    world.links.state = UP
    other = Ownership(world.paths.runtime / "overlay.lock")
    assert other.acquire()
    world.given(restart_for_pair=Wish(1, "edge-2 was lost"))
    await world.look()
    other.release()
    await world.look()
    assert (world.condition.status, world.process.stops) == (Status.TRUE, 0)
