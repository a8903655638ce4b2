"""What a daemon tells systemd, what it takes a SIGTERM for, and the unit files."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import SignalledError
from edgelink.log import hide
from edgelink.process.service_manager import ServiceManager, job_type, unit_of
from edgelink.registry.payloads import Role
from edgelink.roles.daemon import status_line
from edgelink.roles.lifecycle import StopRequest, run_until_stopped
from edgelink.roles.node import Node
from edgelink.testing import FakeClock

UNITS = Path(__file__).parent.parent / "systemd"
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
    assert status_line(conditions) == "Starting: Leased NotObserved: not observed yet"
    conditions.set_true("Leased", "Leased", "edge-1 holds 10.10.0.3")
    conditions.set_false("RayJoined", "HeadNotSeen", "no head yet")
    assert status_line(conditions) == "Starting: RayJoined HeadNotSeen: no head yet"
    conditions.set_true("OverlayUp", "DeviceConfirmed", "et0 is up")
    conditions.set_true("RayJoined", "AliveInRay", "alive")
    assert status_line(conditions) == "Ready"


async def test_a_daemon_reports_ready_status_and_life(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY once its API serves, STATUS at each change of a condition, WATCHDOG thrice in the time allowed."""
    for name, value in environ(listener, WATCHDOG_USEC="30000000").items():
        monkeypatch.setenv(name, value)
    clock = FakeClock()
    node = Node(
        role=Role.EDGE, config=Config(), paths=Paths(tmp_path / "s", tmp_path / "r"), clock=clock, enrolment=None
    )
    async with asyncio.TaskGroup() as tasks:
        reporting = tasks.create_task(node.report_to_service_manager())
        await clock.advance(0)
        assert heard(listener) == ["READY=1", "STATUS=Starting: Leased NotObserved: not observed yet", "WATCHDOG=1"]
        node.conditions.set_false("Leased", "TokenRefused", "the token was used up")
        assert heard(listener) == ["STATUS=Starting: Leased TokenRefused: the token was used up"]
        await clock.advance(30)
        assert heard(listener) == ["WATCHDOG=1"] * 3
        reporting.cancel()


@dataclass(frozen=True)
class Manager(ServiceManager):
    """A systemd that has one job for us."""

    job: str | None = None

    async def queued_job(self) -> str | None:
        return self.job


async def _terminated_under(manager: ServiceManager) -> list[str]:
    ended = []

    async def life(_tasks: asyncio.TaskGroup) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop_children() -> None:
        ended.append("children")

    stop = StopRequest(manager)
    stop.listen_to_signals()
    try:
        await run_until_stopped(stop, life, stop_children)
    finally:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
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
    assert await _terminated_under(Manager(listener.getsockname(), unit, job=job)) == ended
    assert heard(listener) == ["STOPPING=1", "STATUS=Stopping"]


async def test_a_sigterm_that_systemd_did_not_send_has_the_daemon_started_again(listener: socket.socket) -> None:
    """Its children are left alone, and its exit status is one that Restart=on-failure acts on."""
    with pytest.raises(SignalledError) as caught:
        assert await _terminated_under(Manager(listener.getsockname(), UNIT)) == []
    assert caught.value.exit_code == 75


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_finds_nothing_wrong_with_the_units(unit: str, tmp_path: Path) -> None:
    """With a program that exists in place of the documented one."""
    text = (UNITS / unit).read_text()
    assert "ExecStart=/opt/edgelink/bin/edgelink " in text
    (tmp_path / unit).write_text(text.replace("/opt/edgelink/bin/edgelink", sys.executable))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_there_is_a_unit_for_each_daemon() -> None:
    """Three, alike but for their verb."""
    verbs = {}
    for path in UNITS.iterdir():
        settings = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and line[0] != "#")
        verbs[path.name] = settings["ExecStart"].split()[1]
    assert verbs == {f"edgelink-{verb}.service": verb for verb in ("bootstrap", "head", "edge")}
