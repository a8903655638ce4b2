"""An edge on a machine of its own, booted by systemd: a wheel, `edgelink up`, and what boot, restart, reload, stop
and the watchdog do to EasyTier and Ray; at last nothing is left.

One lab and one machine serve all tests of this file, in order; each but the last leaves the edge Ready.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import booted
import pytest
import yaml
from booted import BootedNode, installed_edgelink
from conftest import MakeLab
from machines import assert_healthy, make_token, wait_until

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.overlay.stun import NAMES

EDGE = "edge-1"
ROBOT = 1000  # the machine's user
WITNESS = "home/robot/ran-as"
UNIT = "edgelink-edge.service"
EASYTIER, RAY = "edgelink-easytier.service", "edgelink-ray.service"
TARGET, GRIPPER = "edgelink-online.target", "gripper.service"
GUIDE = Path(__file__).parent.parent / "docs/how-to/systemd.md"
WATCHDOG_S = 3
IS_SOAK = os.environ.get("EDGELINK_SOAK") == "1"
# From the moment that it is typed: 30 are promised, on a machine that does nothing else.
READY_S = 30.0 if IS_SOAK else 90.0
REBOOTS = 20 if IS_SOAK else 2
STOPPED_S = 45.0  # the unit's TimeoutStopSec: so nothing had to be killed
CONFIG = Path("/etc/edgelink/edgelink.yaml")

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]
if reason := booted.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    """Relay and head as processes; the edge is nothing yet."""
    road = Road(make_shared_lab(), SystemClock(), print)
    road.lab.up(edges=1)
    road.lab.start(RELAY)
    road.wait_ready(RELAY)
    road.enrol(CLOUD)
    road.lab.start(CLOUD)
    road.wait_ready(CLOUD)
    return road


@pytest.fixture
def machine(installed: BootedNode) -> BootedNode:
    """Where it is booted, its unit runs and the edge is Ready, whatever the test before has left."""
    if installed.is_booted and installed.show(UNIT, "ActiveState") != "active":
        installed.run("systemctl", "reset-failed", UNIT)
        installed.run("systemctl", "start", UNIT, check=True)
    if installed.is_booted:
        installed.wait_ready()
    return installed


@pytest.fixture(scope="module")
def installed(road: Road, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedNode]:
    """The edge's machine with EdgeLink's wheel, not booted yet. Which Ray it has, and whose, is to be found out."""
    config_file = road.lab.host_path(EDGE, CONFIG)
    config = yaml.safe_load(config_file.read_text())
    del config["ray"]["python"], config["ray"]["allow_root"]
    config_file.write_text(yaml.safe_dump(config))
    machine = BootedNode(road.lab, EDGE, find_easytier(None, default_cache_dir()))
    try:
        machine.install(edgelink=installed_edgelink(tmp_path_factory))
        put_pythons(machine)
        yield machine
    finally:
        machine.remove()


def put_pythons(machine: BootedNode) -> None:
    """The interpreter with Ray, where it is found; and one of the robot's that has none, and tells who has run it."""
    (machine.root / "opt/train").symlink_to(sys.prefix)
    python = machine.root / "home/robot/env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nid -u >>/{WITNESS}\n")
    python.chmod(0o755)
    for path in (python.parent.parent, python.parent, python):
        os.chown(path, ROBOT, ROBOT)


@pytest.fixture(scope="module")
def files_before(installed: BootedNode) -> set[str]:
    """Those of the machine, booted once, before EdgeLink was anything there but a program; with a robot's service."""
    unit = GUIDE.read_text().partition("# /etc/systemd/system/gripper.service\n")[2].partition("```")[0]
    assert "ExecStart=/opt/gripper/bin/bridge" in unit
    gripper = installed.root / "etc/systemd/system" / GRIPPER
    gripper.write_text(unit.replace("/opt/gripper/bin/bridge", "/bin/sleep infinity"))
    installed.boot()
    installed.run("systemctl", "is-system-running", "--wait")
    installed.run("systemctl", "enable", "--quiet", GRIPPER, check=True)
    return installed.files()


def alive(machine: BootedNode, pids: dict[str, int]) -> set[str]:
    return {name for name, pid in pids.items() if machine.path(Path(f"/proc/{pid}")).exists()}


def wait_for_another_daemon(machine: BootedNode, old: int) -> int:
    def another() -> int:
        pid = machine.daemon_pid(UNIT)
        return pid if pid not in (0, old) and machine.show(UNIT, "SubState") == "running" else 0

    return int(wait_until("systemd starts another daemon", another))


def status_text(machine: BootedNode) -> str:
    return machine.show(UNIT, "StatusText")


def lease(status: dict[str, Any]) -> tuple[str, int, int]:
    return status["overlay_ip"], status["preferred_rank"], status["node_rank"]


def test_one_command_makes_a_machine_a_node(road: Road, installed: BootedNode, files_before: set[str]) -> None:
    """From the wheel: `edgelink up` finds the Python that has Ray, and runs none as root; the target is reached."""
    # But the program itself, and what wants to start with the node already.
    not_ours = ("opt/edgelink/", "etc/systemd/system/edgelink-online.target.wants/gripper.service")
    assert not [name for name in files_before if "edgelink" in name and not name.startswith(not_ours)]
    code = "import edgelink; print(edgelink.__file__)"
    assert installed.run("/opt/edgelink/bin/python", "-c", code).stdout.startswith("/opt/edgelink/lib/")
    (installed.root / "root/token").write_text(make_token(road.lab, "--role", "edge", "--uses", "2"))
    began_s = time.monotonic()
    up = ("env", "SUDO_USER=robot", "edgelink", "up", "--token-file", "/root/token", "--timeout", f"{READY_S:g}")
    came_up = installed.run(*up, check=True)
    assert lease(installed.wait_ready()) == ("10.10.0.3", 1, 1)
    took_s = time.monotonic() - began_s
    print(f"up: Ready after {took_s:.1f} s: {came_up.stdout}")
    assert took_s < READY_S
    assert (installed.root / WITNESS).read_text().split() == [str(ROBOT)]
    (installed.root / WITNESS).unlink()
    written = yaml.safe_load(road.lab.host_path(EDGE, CONFIG).read_text())["ray"]
    assert (written["python"], written["user"], written["num_cpus"]) == ("/opt/train/bin/python", "robot", 2)

    daemon = installed.daemon_pid(UNIT)
    assert installed.run(*up, check=True).returncode == 0
    assert installed.daemon_pid(UNIT) == daemon
    shown = json.loads(installed.run("edgelink", "service", "status", "--json", check=True).stdout)
    unit = shown["units"][0]
    assert (unit["unit"], unit["file"], unit["enabled"], unit["restarts"]) == (UNIT, "current", True, 0)
    wait_until("the target is reached", lambda: installed.show(TARGET, "ActiveState"), wanted=lambda s: s == "active")
    security = installed.run("systemd-analyze", "security", "--no-pager", check=True).stdout
    print("\n".join(line for line in security.splitlines() if "edgelink" in line))


def test_joining_with_a_service_is_the_same(installed: BootedNode) -> None:
    """`join --service` with the token of before: the same lease, and the service is there already."""
    joining = ("edgelink", "join", "--token-file", "/root/token", "--service", "--timeout", f"{READY_S:g}")
    joined = installed.run(*joining, check=True)
    assert lease(installed.wait_ready()) == ("10.10.0.3", 1, 1)
    assert "installed already" in joined.stdout
    (installed.root / "root/token").unlink()


def test_doctor_finds_nothing_there(machine: BootedNode) -> None:
    """Typed by root, once the node is Ready."""
    answer = machine.run("edgelink", "doctor", "--json")
    assert_healthy(answer, "clock", "easytier", "interpreter", "ports-free", "shared-memory")


def test_a_network_that_comes_after_the_unit_is_waited_for(road: Road, machine: BootedNode) -> None:
    """Boot without a link: the unit is active and says what it waits for; when the link comes, the edge gets Ready, the
    target is reached, and what needs it is started."""
    machine.shut_down()
    link = ["ip", "link", "set", "eth0"]
    road.lab.exec(EDGE, [*link, "down"], check=True)
    try:
        machine.boot()
        wait_until(
            "the unit is active", lambda: machine.show(UNIT, "ActiveState"), wanted=lambda state: state == "active"
        )
        daemon = machine.daemon_pid(UNIT)
        wait_until(
            "it tells what it waits for",
            lambda: status_text(machine),
            wanted=lambda text: "RegistryConnected RegistryUnavailable" in text,
        )
        assert status_text(machine).startswith("Starting: ")
        assert (machine.show(TARGET, "ActiveState"), machine.show(GRIPPER, "ActiveState")) == ("inactive", "inactive")
    finally:
        road.lab.exec(EDGE, [*link, "up"], check=True)
        gateway = str(road.lab.topology.node(EDGE).gateway)
        road.lab.exec(EDGE, ["ip", "route", "replace", "default", "via", gateway], check=True)
    status = machine.wait_ready()

    assert lease(status) == ("10.10.0.3", 1, 1)
    assert machine.daemon_pid(UNIT) == daemon
    wait_until("who needs it is there", lambda: machine.show(GRIPPER, "ActiveState"), wanted=lambda s: s == "active")
    assert machine.show(TARGET, "ActiveState") == "active"
    wait_until(
        "systemctl shows it",
        lambda: machine.run("systemctl", "status", UNIT).stdout,
        wanted=lambda text: 'Status: "Ready"' in text,
    )


def test_easytier_and_ray_are_units_of_their_own(machine: BootedNode) -> None:
    """Neither is in the daemon's; Ray is its user's, with the daemon's environment for it and nothing else."""
    pids = machine.children()
    assert machine.show(EASYTIER, "MainPID") == str(pids["easytier"])
    for name, unit in (("easytier", EASYTIER), ("raylet", RAY)):
        cgroups = machine.path(Path(f"/proc/{pids[name]}/cgroup")).read_text()
        assert f"/{unit}\n" in cgroups
    status = machine.path(Path(f"/proc/{pids['raylet']}/status")).read_text()
    assert "\nUid:\t1000\t1000\t1000\t1000\n" in status
    environ = machine.path(Path(f"/proc/{pids['raylet']}/environ")).read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environ if entry}
    assert {"RLINF_NODE_RANK", "HOME", "PATH"} <= names
    assert not names & {"INVOCATION_ID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "SHELL", "JOURNAL_STREAM"}


def test_easytier_has_its_private_hosts_file(machine: BootedNode) -> None:
    """By systemd's mount namespace as by our own (ADR 0011)."""
    status = machine.status()
    assert status is not None
    hosts = machine.path(Path(f"/proc/{status['easytier_pid']}/root/etc/hosts")).read_text()
    assert all(name in hosts for name in NAMES)
    overlay = next(item for item in status["conditions"] if item["type"] == "OverlayUp")
    assert "STUN" not in overlay["message"]


def test_no_secret_is_in_a_property_of_a_unit(machine: BootedNode) -> None:
    """Every user may read those; nor is the file there any more by which the environment was handed over."""
    membership = json.loads(machine.path(Paths().membership).read_text())
    names = {membership["secrets"]["broker_username"]}  # the node's id, which the units' environment may name
    secrets = [value for value in _strings(membership) if len(value) >= 20 and value not in names]
    shown = machine.run("systemctl", "show", "--all", UNIT, EASYTIER, RAY, check=True).stdout
    assert "EnvironmentFiles=/run/edgelink/units/edgelink-ray.service.env" in shown
    assert [value for value in secrets if value in shown] == []
    assert list(machine.path(Paths().runtime / "units").iterdir()) == []


def test_the_journal_is_what_logs_shows(machine: BootedNode) -> None:
    """The daemon's own lines in words, and what systemd says of its unit."""
    told = machine.run("edgelink", "logs", "-n", "2000", check=True).stdout
    assert "node.condition  " in told
    assert "Started edgelink-edge" in told
    events = [json.loads(line) for line in machine.run("edgelink", "logs", "--json", check=True).stdout.splitlines()]
    assert {"timestamp", "event"} <= events[-1].keys()


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def test_a_restart_leaves_easytier_and_ray_running(machine: BootedNode) -> None:
    """`systemctl restart` is what an upgrade does; nor does it touch what needed the node."""
    before, daemon, gripper = machine.children(), machine.daemon_pid(UNIT), machine.daemon_pid(GRIPPER)
    machine.run("systemctl", "restart", UNIT, check=True)
    machine.wait_ready()
    assert machine.daemon_pid(GRIPPER) == gripper != 0
    assert machine.daemon_pid(UNIT) != daemon
    assert machine.children() == before
    assert alive(machine, before) == {"easytier", "raylet"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_killed_daemon_is_started_again_and_adopts(machine: BootedNode, number: signal.Signals) -> None:
    """Also by a SIGTERM that systemd did not send."""
    before, daemon = machine.children(), machine.daemon_pid(UNIT)
    machine.run("kill", f"-{int(number)}", str(daemon), check=True)
    wait_for_another_daemon(machine, daemon)
    machine.wait_ready()
    assert machine.children() == before


def is_back(machine: BootedNode, name: str, old: int) -> bool:
    if machine.children().get(name) in (None, old):
        return False
    status = machine.status()  # asked for after that: before, it may be the former one's
    return status is not None and status["ready"]


def test_what_ends_unasked_is_started_again_under_its_name(machine: BootedNode) -> None:
    """EasyTier without touching Ray; Ray under the same rank, whatever was left in its unit."""
    before = machine.children()
    for name, kept in (("easytier", "raylet"), ("raylet", "easytier")):
        started_s = time.monotonic()
        machine.run("kill", "-KILL", str(before[name]), check=True)

        wait_until(f"another {name} runs", lambda name=name, old=before[name]: is_back(machine, name, old), 120)
        print(f"{name}: back after {time.monotonic() - started_s:.1f} s")
        after = machine.children()
        assert after[kept] == before[kept]
        before = after
    wait_until("it is told", lambda: machine.journal(EASYTIER), wanted=lambda text: "status=9/KILL" in text)
    assert "leftover_ended" not in machine.journal(UNIT)


def test_a_reload_takes_the_configuration_of_now(road: Road, machine: BootedNode) -> None:
    """In the same process, with the same children; one that cannot be used is refused, and the daemon goes on."""
    before, daemon, restarts = machine.children(), machine.daemon_pid(UNIT), machine.show(UNIT, "NRestarts")
    config_file = road.lab.host_path(EDGE, CONFIG)
    good = config_file.read_text()
    hosts = machine.path(Path("/etc/hosts"))
    wait_until("the overlay has names", hosts.read_text, wanted=lambda text: "# BEGIN EdgeLink" in text)
    try:
        config_file.write_text(good + "nonsense: 1\n")
        assert machine.run("systemctl", "reload", UNIT).returncode != 0
        wait_until("it is told", lambda: machine.journal(UNIT), wanted=lambda text: "nonsense: unknown key" in text)
        machine.run("kill", "-HUP", str(daemon), check=True)
        wait_until("it is told", lambda: machine.journal(UNIT), wanted=lambda text: "daemon.reload_refused" in text)
        status = machine.status()
        assert status is not None
        assert status["ready"]

        config_file.write_text(good + "host: {hosts: leave}\n")
        machine.run("systemctl", "reload", UNIT, check=True)
        wait_until("it is taken", hosts.read_text, wanted=lambda text: "# BEGIN EdgeLink" not in text)
    finally:
        config_file.write_text(good)
    machine.wait_ready()
    assert (machine.daemon_pid(UNIT), machine.show(UNIT, "NRestarts")) == (daemon, restarts)
    assert machine.children() == before
    machine.run("systemctl", "reload", UNIT, check=True)
    wait_until("the overlay has names", hosts.read_text, wanted=lambda text: "# BEGIN EdgeLink" in text)


def test_a_daemon_that_hangs_is_replaced(machine: BootedNode) -> None:
    """The watchdog ends it, with a traceback of where it hung in the journal; EasyTier and Ray go on."""
    before = machine.children()
    with drop_in(machine, f"WatchdogSec={WATCHDOG_S}s"):
        machine.run("systemctl", "restart", UNIT, check=True)
        daemon = machine.daemon_pid(UNIT)
        machine.run("kill", "-STOP", str(daemon), check=True)
        wait_for_another_daemon(machine, daemon)
        for words in ("Watchdog timeout", "Fatal Python error: Aborted"):
            wait_until(f"the journal tells: {words}", lambda: machine.journal(UNIT), wanted=lambda t, w=words: w in t)
    machine.run("systemctl", "restart", UNIT, check=True)
    machine.wait_ready()
    assert machine.children() == before


@contextmanager
def drop_in(machine: BootedNode, setting: str) -> Iterator[None]:
    """With this setting of an administrator's for the daemon's unit, from its next start on."""
    directory = machine.path(Path(f"/run/systemd/system/{UNIT}.d"))
    directory.mkdir(parents=True)
    (directory / "test.conf").write_text(f"[Service]\n{setting}\n")
    machine.run("systemctl", "daemon-reload", check=True)
    try:
        yield
    finally:
        (directory / "test.conf").unlink()
        directory.rmdir()
        machine.run("systemctl", "daemon-reload", check=True)


def test_stop_ends_what_is_this_nodes_and_nothing_else(machine: BootedNode) -> None:
    """EasyTier, Ray and what the daemon made are gone; somebody else's Ray and a sleep are not."""
    strangers = {"sleep": "sleep 1000", "raylet": "cp /bin/sleep /tmp/raylet && exec /tmp/raylet 1000"}
    for name, script in strangers.items():
        machine.run("systemd-run", "--quiet", f"--unit=stranger-{name}", "sh", "-c", script, check=True)
    before = machine.children()

    machine.run("systemctl", "stop", UNIT, check=True)

    assert alive(machine, before) == set()
    assert machine.show(UNIT, "Result") == "success"
    wait_until("the target is left", lambda: machine.show(TARGET, "ActiveState"), wanted=lambda s: s == "inactive")
    for unit in (EASYTIER, RAY):
        wait_until(
            f"{unit} is gone",
            lambda unit=unit: machine.show(unit, "ActiveState"),
            wanted=lambda state: state == "inactive",
        )
    assert machine.run("ip", "link", "show", "et0").returncode != 0
    assert "edgelink" not in machine.run("nft", "list", "tables", check=True).stdout
    for name in strangers:
        assert machine.show(f"stranger-{name}", "ActiveState") == "active"
        machine.run("systemctl", "stop", f"stranger-{name}", check=True)
    assert "ended" not in machine.run("systemctl", "--failed", "--plain", "--no-legend").stdout

    machine.run("systemctl", "start", UNIT, check=True)
    machine.wait_ready()
    assert not set(machine.children().values()) & set(before.values())
    wait_until("the target is reached", lambda: machine.show(TARGET, "ActiveState"), wanted=lambda s: s == "active")


def test_edgelinks_own_stop_is_not_undone(machine: BootedNode) -> None:
    """The unit stays stopped, and nothing of the node is left."""
    before = machine.children()
    machine.run("edgelink", "stop", check=True)
    assert alive(machine, before) == set()
    # The command waits for the daemon's end; systemd hears of that by itself.
    state = wait_until(
        "systemd has heard of it",
        lambda: machine.show(UNIT, "ActiveState"),
        wanted=lambda state: state not in ("active", "deactivating"),
    )
    assert state == "inactive"  # else it would be activating (auto-restart)
    assert machine.show(UNIT, "Result") == "success"


def test_what_nobody_remembers_in_our_unit_is_ended_first(installed: BootedNode) -> None:
    """As after a state directory was lost under a running node: the unit's name says whose it is."""
    machine = installed  # the test before has left it stopped
    script = f"systemd-run --quiet --unit={EASYTIER} sleep 1000 && systemctl show --property=MainPID --value {EASYTIER}"
    left = int(machine.run("sh", "-c", script, check=True).stdout)
    machine.run("systemctl", "start", UNIT, check=True)
    machine.wait_ready()
    told = f'"pids": "[{left}]"'
    wait_until("it is told", lambda: machine.journal(UNIT), wanted=lambda text: told in text)
    assert machine.show(EASYTIER, "MainPID") == str(machine.children()["easytier"])


def test_children_in_the_daemons_own_unit_outlive_it_too(road: Road, installed: BootedNode) -> None:
    """`process.launcher: session`: a restart and a crash leave them, a stop ends them. They do not get into the sandbox
    that is the daemon's: a unit that has one is refused."""
    machine = installed
    machine.run("systemctl", "stop", UNIT, check=True)
    config_file = road.lab.host_path(EDGE, CONFIG)
    good = config_file.read_text()
    config_file.write_text(good + "process: {launcher: session}\n")
    try:
        assert machine.run("systemctl", "start", UNIT).returncode != 0
        assert machine.show(UNIT, "ExecMainStatus") == "78"
        machine.run("edgelink", "service", "install", "--now", check=True)
        before = machine.children()
        assert machine.show(EASYTIER, "ActiveState") == machine.show(RAY, "ActiveState") == "inactive"
        machine.run("systemctl", "restart", UNIT, check=True)
        daemon = machine.daemon_pid(UNIT)
        machine.run("kill", "-KILL", str(daemon), check=True)
        wait_for_another_daemon(machine, daemon)
        machine.wait_ready()
        assert machine.children() == before

        machine.run("systemctl", "stop", UNIT, check=True)
        assert alive(machine, before) == set()
    finally:
        config_file.write_text(good)
        machine.run("edgelink", "service", "install", check=True)


def test_a_configuration_error_is_not_tried_again(road: Road, machine: BootedNode) -> None:
    """Exit status 78 stays; EasyTier and Ray go on meanwhile, and the next daemon adopts them."""
    before = machine.children()
    config_file = road.lab.host_path(EDGE, CONFIG)
    good = config_file.read_text()
    config_file.write_text(good + "nonsense: 1\n")
    try:
        assert machine.run("systemctl", "restart", UNIT).returncode != 0
        assert machine.show(UNIT, "ActiveState") == "failed"  # else it would be activating (auto-restart)
        assert (machine.show(UNIT, "ExecMainStatus"), machine.show(UNIT, "NRestarts")) == ("78", "0")
        wait_until("it is told", lambda: machine.journal(UNIT), wanted=lambda text: "nonsense: unknown key" in text)
        assert alive(machine, before) == {"easytier", "raylet"}
    finally:
        config_file.write_text(good)
    machine.run("systemctl", "start", UNIT, check=True)
    machine.wait_ready()
    assert machine.children() == before


@pytest.mark.timeout(REBOOTS * 120)
def test_reboots_are_quick_and_bring_the_same_address_and_rank(road: Road, machine: BootedNode) -> None:
    """Of its own accord; going down, the daemon ends its children itself, before systemd gets to their units."""
    status = machine.status()
    assert status is not None
    records = road.lab.host_path(EDGE, Paths().processes)
    assert {path.name for path in records.iterdir()} == {"easytier.json", "echo.json", "ray.json", "ray_start.json"}
    for number in range(REBOOTS):
        took_s = machine.shut_down()
        assert took_s < STOPPED_S
        assert list(records.iterdir()) == []

        machine.boot()
        booted_s = time.monotonic()
        assert lease(machine.wait_ready()) == lease(status)
        print(f"reboot {number + 1}: down in {took_s:.1f} s, Ready {time.monotonic() - booted_s:.1f} s after the boot")
        assert machine.show(UNIT, "NRestarts") == "0"
        wait_until(
            "who needs it is there", lambda: machine.show(GRIPPER, "ActiveState"), wanted=lambda s: s == "active"
        )


_PROBE = """
import asyncio, json, sys
from pathlib import Path
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import EdgelinkError
from edgelink.process import ProcessSpec, SupervisedProcess
from edgelink.process.private_files import PrivateFile
from edgelink.process.systemd_launcher import SystemdLauncher

async def main():
    paths = Paths(Path("/tmp/probe/state"), Path("/tmp/probe/run"))
    clock = SystemClock()
    launcher = SystemdLauncher(paths, clock)
    process = SupervisedProcess("probe", paths.processes / "probe.json", launcher, clock)
    def spec(*argv, **more):
        values = {"env": {"A": "a 'b' \\"c\\" $d `e` \\\\f"}, "cwd": Path("/tmp"), "umask": 0o027} | more
        return ProcessSpec(name="probe", argv=argv, log_path=paths.logs / "probe.log", config_hash="h", **values)
    unit = launcher.unit("probe")
    own = Path("/tmp/own-hosts")
    own.write_text("private\\n")
    script = ("import json, os, sys, time; print(json.dumps([dict(os.environ), os.getsid(0) == os.getpid(),"
              " os.getcwd(), os.umask(0), open('/etc/hosts').read(), sys.argv[1:]]), flush=True); time.sleep(1000)")
    files = (PrivateFile(own, Path("/etc/hosts")),)
    identity = await process.start(spec(sys.executable, "-c", script, "$HOME ${A} %n", private_files=files))
    again = SupervisedProcess("probe", paths.processes / "probe.json", launcher, clock)
    adopted = again.adopt() == identity
    log = paths.logs / "probe.log"
    while not log.read_text().endswith("\\n"):
        await clock.sleep(0.02)
    found = json.loads(log.read_text())
    await again.stop()
    errors = []
    for argv in (["/nowhere/program"], ["/bin/false"]):
        try:
            await process.start(spec(*argv))
            await process.wait()
        except EdgelinkError as error:
            errors.append(error.condition_reason)
    restarted = await process.start(spec("/bin/sleep", "1000"))
    lost = SupervisedProcess("probe", Path("/tmp/probe/elsewhere/probe.json"), launcher, clock)
    replaced = await lost.start(spec("/bin/sleep", "1000"))
    leftover_gone = not process.is_running
    await lost.stop()
    print(json.dumps({"unit": unit, "adopted": adopted, "found": found, "errors": errors,
                      "leftover_gone": leftover_gone, "log_mode": log.stat().st_mode & 0o777}))

asyncio.run(main())
"""


def test_a_unit_gives_a_program_what_the_session_launcher_does(machine: BootedNode) -> None:
    """Environment, arguments, session, directory, umask, files, log; its name is free again however it ended."""
    script = machine.path(Path("/root/probe.py"))
    script.write_text(_PROBE)
    machine.run("systemctl", "set-environment", "EVERYWHERE=1", check=True)
    hosts = machine.path(Path("/etc/hosts")).read_text()
    answer = machine.run("/opt/edgelink/bin/python", "/root/probe.py", check=True).stdout.splitlines()[-1]
    machine.run("systemctl", "unset-environment", "EVERYWHERE", check=True)
    result = json.loads(answer)
    environ, leads_session, cwd, umask, seen_hosts, arguments = result["found"]
    assert environ.pop("A") == "a 'b' \"c\" $d `e` \\f"
    assert set(environ) <= {"EDGELINK_CHILD", "EDGELINK_CONFIG_HASH", "LC_CTYPE"}  # Python itself sets LC_CTYPE
    assert (leads_session, cwd, umask) == (True, "/tmp", 0o027)
    assert arguments == ["$HOME ${A} %n"]
    assert seen_hosts == "private\n"
    assert machine.path(Path("/etc/hosts")).read_text() == hosts
    assert result["log_mode"] == 0o600
    assert result["adopted"]
    assert result["leftover_gone"]
    assert result["errors"][0] == "ProcessStartFailed"
    assert result["unit"].startswith("edgelink-probe-"), "a state directory of its own has units of its own"
    assert sys.executable not in result["unit"]


_HOOK = """#!/bin/sh
echo "$EDGELINK_REASON" >>/tmp/hook
grep CapBnd /proc/self/status >>/tmp/hook
echo $(cat /proc/self/cgroup) >>/tmp/hook
id -u >>/tmp/hook
[ $(wc -l </tmp/hook) -ge 8 ] || exit 75
sleep 1000 & echo $! >/tmp/left
echo motor on fire; exit 3
"""
_ASK = """
import asyncio
from edgelink.clock import SystemClock
from edgelink.config import Config
from edgelink.config.models import RobotConfig
from edgelink.member.hold import HoldHook

robot = RobotConfig(hold=("/usr/local/bin/may-i",), user="robot")
print(asyncio.run(HoldHook(Config(robot=robot), SystemClock(), lambda: True).wait("because", 60)))
"""


def test_a_robots_hook_is_not_in_the_daemons_sandbox(machine: BootedNode) -> None:
    """It has what its user has anywhere; it is asked again, heard out, and nothing of it is left."""
    hook = machine.path(Path("/usr/local/bin/may-i"))
    hook.write_text(_HOOK)
    hook.chmod(0o755)
    machine.path(Path("/root/ask.py")).write_text(_ASK)
    said = machine.run("/opt/edgelink/bin/python", "/root/ask.py", check=True).stdout
    assert "status 3: motor on fire" in said
    lines = machine.path(Path("/tmp/hook")).read_text().splitlines()
    everything = machine.path(Path("/proc/1/status")).read_text().partition("CapBnd:")[2].split()[0]
    assert len(lines) == 8
    for at in (0, 4):
        reason, capabilities, cgroup, user = lines[at : at + 4]
        assert (reason, capabilities.split()[1], user) == ("because", everything, "1000")
        assert "edgelink-edge" not in cgroup
    left = machine.path(Path("/tmp/left")).read_text().strip()
    wait_until("what it started has ended", lambda: not machine.path(Path(f"/proc/{left}")).exists())
    for path in ("/usr/local/bin/may-i", "/root/ask.py", "/root/probe.py"):
        machine.path(Path(path)).unlink(missing_ok=True)


def test_down_keeps_the_place_and_up_brings_it_back(machine: BootedNode) -> None:
    """Also over a boot: what is down stays down. Then the same address and rank."""
    before, status = machine.children(), machine.status()
    assert status is not None
    machine.run("edgelink", "down", check=True)
    assert alive(machine, before) == set()
    machine.run("edgelink", "down", check=True)
    assert machine.run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    machine.shut_down()
    machine.boot()
    machine.run("systemctl", "is-system-running", "--wait")
    assert machine.show(UNIT, "ActiveState") == "inactive"

    machine.run("edgelink", "up", check=True)
    assert lease(machine.wait_ready()) == lease(status)
    assert machine.run("systemctl", "is-enabled", UNIT).stdout.strip() == "enabled"
    wait_until("the target is reached", lambda: machine.show(TARGET, "ActiveState"), wanted=lambda s: s == "active")


def units(machine: BootedNode, *listing: str) -> list[str]:
    """EdgeLink's in a list of systemd's."""
    shown = machine.run("systemctl", *listing, "--plain", "--no-legend", check=True).stdout
    # The gripper's service still asks for a target that is not there any more.
    return [line for line in shown.splitlines() if line.startswith("edgelink") and " not-found " not in line]


def test_nothing_is_left(road: Road, machine: BootedNode, files_before: set[str]) -> None:
    """Of files, units, processes and state; Ray's own logs in /tmp and the user's home are Ray's."""
    pids = machine.children()
    machine.run("edgelink", "service", "uninstall", "--purge", "--yes", check=True, timeout_s=120)
    assert alive(machine, pids) == set()
    for listing in (("list-units", "--all"), ("list-unit-files",)):
        # systemd forgets a unit that has ended some time after its end.
        wait_until("no unit is left", lambda listing=listing: units(machine, *listing), wanted=lambda left: left == [])
    assert not machine.path(Paths().runtime).exists()
    assert list(road.lab.host_path(EDGE, Paths().state).iterdir()) == []
    assert "# BEGIN EdgeLink" not in machine.path(Path("/etc/hosts")).read_text()

    def found() -> set[str]:
        return {name for name in machine.files() - files_before if not name.startswith(("tmp/", "var/tmp/"))}

    assert found() == set()
    assert machine.run("edgelink", "service", "status").returncode == 1
    for role in ("bootstrap", "head"):  # written and enabled here, too, though this machine is neither
        machine.run("edgelink", "service", "install", role, check=True)
        assert f"etc/systemd/system/edgelink-{role}.service" in found()
        machine.run("edgelink", "service", "uninstall", role, check=True)
        assert found() == set()
