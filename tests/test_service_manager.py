"""What a daemon tells systemd, what it takes a SIGTERM for, and the unit files."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stopping import stop_request
from structlog.testing import capture_logs

from edgelink.condition_table import Place
from edgelink.conditions import ConditionSet, Phase
from edgelink.config import Config, Paths
from edgelink.daemon import lifecycle
from edgelink.daemon.base import Base, keep_nothing
from edgelink.daemon.lifecycle import ReloadRequested, StopRequest, run_until_stopped
from edgelink.daemon.telling import status_line
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import SignalledError
from edgelink.log import hide
from edgelink.process.service_manager import ServiceManager, job_type, unit_of
from edgelink.testing import FakeClock

UNIT = "edgelink-edge.service"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """The manager's end of the notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


def heard(listener: socket.socket) -> list[str]:
    """Every line that has been sent so far."""
    lines = []
    while True:
        try:
            lines += listener.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


def environ(listener: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.getsockname(), **more}


def booted(tmp_path: Path, cgroups: str) -> dict[str, Path]:
    file = tmp_path / "cgroup"
    file.write_text(cgroups)
    return {"booted": tmp_path, "cgroups": file}


@pytest.mark.parametrize(
    ("cgroups", "unit"),
    [
        ("0::/system.slice/edgelink-edge.service\n", UNIT),
        ("12:pids:/system.slice/other.service\n1:name=systemd:/system.slice/edgelink-edge.service\n0::/\n", UNIT),
        ("0::/user.slice/user-0.slice/session-1.scope\n", ""),
        ("0::/\n", ""),
    ],
)
def test_a_daemon_knows_its_unit_by_its_cgroup(tmp_path: Path, cgroups: str, unit: str) -> None:
    """On both cgroup versions; a login session is no unit that systemd restarts."""
    assert unit_of(cgroups) == unit
    manager = ServiceManager.of_this_process({"NOTIFY_SOCKET": "@x"}, **booted(tmp_path, cgroups))
    assert manager == ServiceManager("@x", unit, None)


def test_on_a_terminal_there_is_no_manager_and_elsewhere_it_need_not_be_systemd(tmp_path: Path) -> None:
    """Podman gives a socket as well; its SIGTERM is no restart."""
    files = booted(tmp_path, f"0::/system.slice/{UNIT}\n")
    assert ServiceManager.of_this_process({}, **files) is None
    passed_on = {"NOTIFY_SOCKET": "/run/x", "SYSTEMD_EXEC_PID": "1"}  # as `head -- CMD` in somebody's service does
    assert ServiceManager.of_this_process(passed_on, **files) is None
    files["booted"] = tmp_path / "none"
    assert ServiceManager.of_this_process({"NOTIFY_SOCKET": "/run/x"}, **files) == ServiceManager("/run/x", "")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_names_us(more: dict[str, str], expected: float | None) -> None:
    """A daemon started by another unit's main process must not feed that one's watchdog."""
    manager = ServiceManager.of_this_process({"NOTIFY_SOCKET": "/run/x", **more})
    assert manager is not None
    assert manager.watchdog_s == expected


def test_a_notification_is_one_line_a_variable_without_secrets(listener: socket.socket) -> None:
    """A message of several lines must not become variables of its own."""
    hide("a-very-secret-word")
    manager = ServiceManager(listener.getsockname(), UNIT)
    manager.notify(STATUS="Degraded: it said\nREADY=1 a-very-secret-word", WATCHDOG="1")
    assert heard(listener) == ["STATUS=Degraded: it said READY=1 ***", "WATCHDOG=1"]


def test_a_manager_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """Its socket may be missing after a re-execution of systemd."""
    ServiceManager(str(tmp_path / "missing"), UNIT).notify(READY="1")


def test_the_type_of_a_job_is_read_from_the_list() -> None:
    """The unit's own job, whatever else is queued."""
    listing = "  7 other.service         stop    waiting\n 12 edgelink-edge.service restart running\n"
    assert job_type(listing, UNIT) == "restart"
    assert job_type("", UNIT) is None
    assert job_type("No jobs running.\n", UNIT) is None


def test_the_status_line_says_the_phase_and_what_is_waited_for() -> None:
    """What is known to be wrong goes before what was not looked at yet."""
    conditions = ConditionSet(FakeClock(), ["Leased", "OverlayUp", "RayJoined"])
    assert status_line(Phase.STARTING, conditions.unmet) == "Starting: Leased NotObserved: not observed yet"
    conditions.set_true("Leased", "Leased", "edge-1 holds 10.10.0.3")
    conditions.set_false("RayJoined", "HeadNotSeen", "no head yet")
    assert status_line(Phase.STARTING, conditions.unmet) == "Starting: RayJoined HeadNotSeen: no head yet"
    conditions.set_true("OverlayUp", "DeviceConfirmed", "et0 is up")
    conditions.set_true("RayJoined", "AliveInRay", "alive")
    assert status_line(Phase.READY, conditions.unmet) == "Ready"


async def test_a_daemon_reports_ready_status_and_life(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY once its API serves, STATUS at each change of a condition, WATCHDOG thrice in the time allowed."""
    for name, value in environ(listener, WATCHDOG_USEC="30000000").items():
        monkeypatch.setenv(name, value)
    clock = FakeClock()
    base = Base(Place.EDGE, Config(), Paths(tmp_path / "s", tmp_path / "r"), clock, ThisMachine())
    async with asyncio.TaskGroup() as tasks:
        reporting = tasks.create_task(base.telling.run())
        await clock.advance(0)
        assert heard(listener) == ["READY=1", "STATUS=Starting: Leased NotObserved: not observed yet", "WATCHDOG=1"]
        base.conditions.set_false("Leased", "TokenRefused", "the token was used up")
        assert heard(listener) == ["STATUS=Starting: Leased TokenRefused: the token was used up"]
        await clock.advance(30)
        assert heard(listener) == ["WATCHDOG=1"] * 3
        reporting.cancel()


@dataclass(frozen=True)
class Manager(ServiceManager):
    """A systemd that has one job for us, and notes what it is asked."""

    job: str | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def queued_job(self) -> str | None:
        return self.job

    async def _ask(self, verb: str, unit: str) -> None:
        self.asked.append((verb, unit))


async def _signalled(manager: ServiceManager, *signals: signal.Signals, stop: StopRequest | None = None) -> list[str]:
    """A daemon's life under ``manager`` that gets these signals; what it ended with itself."""
    ended = []

    async def life(_tasks: asyncio.TaskGroup) -> None:
        for number in signals:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)

    async def stop_children() -> None:
        ended.append("children")

    stop = stop or stop_request(manager)
    stop.listen_to_signals()
    try:
        await run_until_stopped(stop, life, stop_children)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
    return ended


@pytest.mark.parametrize(
    ("unit", "job", "ended"),
    [(UNIT, "stop", ["children"]), (UNIT, "restart", []), ("", None, ["children"])],
    ids=["systemctl stop", "systemctl restart", "no systemd"],
)
async def test_the_job_decides_what_a_sigterm_means(
    listener: socket.socket, unit: str, job: str | None, ended: list[str]
) -> None:
    """A stop ends EasyTier and Ray, a restart does not; and systemd is told that we end."""
    manager = Manager(listener.getsockname(), unit, job=job)
    assert await _signalled(manager, signal.SIGTERM) == ended
    assert manager.asked == ([("stop", "edgelink-wait-online.service")] if ended else []), "who needs the node goes too"
    assert heard(listener) == ["STOPPING=1", "STATUS=Stopping"]


async def test_the_first_ready_of_a_node_reaches_the_target(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in the daemon's life, whatever comes later."""
    manager = Manager(listener.getsockname(), UNIT)
    monkeypatch.setattr(ServiceManager, "of_this_process", lambda: manager)
    clock = FakeClock()
    base = Base(Place.EDGE, Config(), Paths(tmp_path / "s", tmp_path / "r"), clock, ThisMachine())
    async with asyncio.TaskGroup() as tasks:
        reporting = tasks.create_task(base.telling.run())
        await clock.advance(0)
        required = [condition.type for condition in base.conditions.unmet]
        for kind in required[:-1]:
            base.conditions.set_true(kind, "Fine", "fine")
            await clock.advance(0)
            assert manager.asked == []
        for _ in range(2):
            base.conditions.set_true(required[-1], "Fine", "fine")
            await clock.advance(0)
            base.conditions.set_false(required[-1], "Gone", "gone")
            await clock.advance(0)
        assert manager.asked == [("start", "edgelink-online.target")]
        reporting.cancel()


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The daemon's, which has no terminal."""
    path = tmp_path / "edgelink.yaml"
    path.write_text("hostname: edge-7\n")
    monkeypatch.setenv("EDGELINK_CONFIG", str(path))
    monkeypatch.setattr(lifecycle, "has_terminal", lambda: False)
    return path


@pytest.mark.usefixtures("configuration")
async def test_a_reload_has_the_program_executed_anew_and_keeps_the_children(listener: socket.socket) -> None:
    """systemd knows that the daemon is there and busy; nobody who needs the node is told anything."""
    manager = Manager(listener.getsockname(), UNIT)
    with pytest.raises(ReloadRequested):
        await _signalled(manager, signal.SIGHUP)
    assert heard(listener) == ["RELOADING=1", "STATUS=Reading its configuration again", "WATCHDOG=1"]
    assert manager.asked == []


@pytest.mark.parametrize(
    "text", ["nonsense: 1\n", "hostname: 2024-13-01\n", "hostname: a\nhostname: b\n", "ray: {python: /no/python}\n"]
)
async def test_a_configuration_that_cannot_be_used_is_not_taken(
    listener: socket.socket, configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The daemon goes on with what it has: here until it is stopped."""
    manager = Manager(listener.getsockname(), UNIT, job="stop")
    monkeypatch.setattr(ServiceManager, "of_this_process", lambda: manager)
    base = Base(Place.EDGE, Config(), Paths(tmp_path / "s", tmp_path / "r"), FakeClock(), ThisMachine())
    configuration.write_text(text)
    with capture_logs() as logs:
        signals = (signal.SIGHUP, signal.SIGTERM)
        assert await _signalled(manager, *signals, stop=base.stop_request(keep_nothing)) == ["children"]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["daemon.reload_refused"]
    assert heard(listener) == ["STOPPING=1", "STATUS=Stopping"]


@pytest.mark.usefixtures("configuration")
async def test_a_stop_goes_before_a_reload(listener: socket.socket) -> None:
    """Both at once: the daemon ends, and its children with it."""
    manager = Manager(listener.getsockname(), UNIT, job="stop")
    assert await _signalled(manager, signal.SIGHUP, signal.SIGTERM) == ["children"]


@pytest.mark.usefixtures("configuration")
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGHUP, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT), (signal.SIGINT, signal.SIGHUP)],
    ids=["a container is stopped", "then stopped", "stopped before"],
)
async def test_so_it_does_without_systemd(listener: socket.socket, signals: tuple[signal.Signals, ...]) -> None:
    """Whoever asked for the end would wait for it in vain: Docker kills what does not end, Ray and EasyTier with it."""
    assert await _signalled(Manager(listener.getsockname(), ""), *signals) == ["children"]


async def test_on_a_terminal_a_hangup_is_the_end_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reload is meant."""
    monkeypatch.setattr(lifecycle, "has_terminal", lambda: True)
    stop_request().listen_to_signals()
    loop = asyncio.get_running_loop()
    assert not loop.remove_signal_handler(signal.SIGHUP)
    for number in (signal.SIGTERM, signal.SIGINT):
        assert loop.remove_signal_handler(number)


async def test_a_sigterm_that_systemd_did_not_send_has_the_daemon_started_again(listener: socket.socket) -> None:
    """Its children are left alone, and its exit status is one that Restart=on-failure acts on."""
    with pytest.raises(SignalledError) as caught:
        assert await _signalled(Manager(listener.getsockname(), UNIT), signal.SIGTERM) == []
    assert caught.value.exit_code == 75
