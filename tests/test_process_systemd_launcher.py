"""What a transient unit is made of, and what is made of systemd's answers; the units themselves: netns-tests."""

from __future__ import annotations

import asyncio
import resource
import stat
from pathlib import Path

import pytest
from exposure import assert_as_documented

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import ConfigError, PrivateFilesError, ProcessStartError
from edgelink.process import ProcessSpec, SessionLauncher, choose_launcher, procfs
from edgelink.process import systemd_launcher as module
from edgelink.process.private_files import PrivateFile
from edgelink.process.service_manager import ServiceManager, is_confined
from edgelink.process.systemd_launcher import SystemdLauncher, environment_text, properties
from edgelink.testing import eventually

UNIT = "edgelink-easytier.service"
MANAGER = ServiceManager("/run/systemd/notify", "edgelink-edge.service")


def spec(tmp_path: Path, **changes: object) -> ProcessSpec:
    values: dict[str, object] = {
        "name": "easytier",
        "argv": ("/usr/bin/easytier-core", "--name", "a$b"),
        "env": {"PATH": "/bin", "RAY_TOKEN": "sesame-open-up"},
        "cwd": tmp_path,
        "log_path": tmp_path / "child.log",
        "config_hash": "h",
    }
    return ProcessSpec(**(values | changes))  # type: ignore[arg-type]


class Systemd:
    """Answers as systemctl and systemd-run would; ``states`` are given one after the other, the last for ever."""

    def __init__(self, *states: str, run: tuple[int, str] = (0, "")) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.environment_files: list[tuple[str, int]] = []
        self._states = list(states)
        self._run = run

    async def __call__(self, *argv: str, timeout_s: float = 5.0) -> tuple[int, str]:
        self.calls.append(argv)
        if argv[0] == "systemd-run":
            setting = next(argument for argument in argv if argument.startswith("--property=EnvironmentFile="))
            path = Path(setting.rpartition("=")[2])
            self.environment_files.append((path.read_text(), stat.S_IMODE(path.stat().st_mode)))
            return self._run
        if argv[1] == "show":
            return 0, self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if argv[1] == "show-environment":
            return 0, "PATH=/usr/bin\nhttp_proxy=http://proxy:3128\n"
        return 0, ""

    def verbs(self) -> list[str]:
        return [argv[1] for argv in self.calls if argv[0] == "systemctl"]


def state(
    active: str, *, main: int = 0, control: int = 0, job: str = "", result: str = "success", status: int = 0
) -> str:
    pids = f"MainPID={main}\nControlPID={control}"
    return f"{pids}\nResult={result}\nExecMainStatus={status}\nActiveState={active}\nJob={job}\n"


@pytest.fixture
async def child() -> int:
    """A process to be found by its pid."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    yield process.pid  # type: ignore[misc]
    process.kill()
    await process.wait()


def launcher(tmp_path: Path, systemd: Systemd) -> SystemdLauncher:
    return SystemdLauncher(Paths(Paths.state, tmp_path / "run"), SystemClock(), "edgelink-edge.service", systemd)


async def test_the_program_that_systemd_started_is_identified(tmp_path: Path, child: int) -> None:
    """Its environment went by a private file, which is gone again; nothing of it was in an argument."""
    systemd = Systemd(state("inactive"), state("active", main=child))
    identity = await launcher(tmp_path, systemd).launch(spec(tmp_path))

    assert (identity.pid, identity.start_ticks) == (child, procfs.read_stat(child).start_ticks)
    assert systemd.environment_files == [('PATH="/bin"\nRAY_TOKEN="sesame-open-up"\n', 0o600)]
    assert list((tmp_path / "run/units").iterdir()) == []
    assert not [argv for argv in systemd.calls if any("sesame" in argument for argument in argv)]
    (run,) = [argv for argv in systemd.calls if argv[0] == "systemd-run"]
    assert f"--unit={UNIT}" in run
    assert run[-4:] == ("--", "/usr/bin/easytier-core", "--name", "a$$b")
    assert stat.S_IMODE((tmp_path / "child.log").stat().st_mode) == 0o600


async def test_of_a_program_that_forks_the_one_that_forks_is_identified(tmp_path: Path, child: int) -> None:
    """systemd is not waited for until it has ended: the caller does that, with a deadline of its own."""
    queued = state("inactive", job="7 /org/freedesktop/systemd1/job/7")
    systemd = Systemd(state("inactive"), queued, state("activating", control=child))
    identity = await launcher(tmp_path, systemd).launch(spec(tmp_path, forks=True))
    assert identity.pid == child
    (run,) = [argv for argv in systemd.calls if argv[0] == "systemd-run"]
    assert "--no-block" in run


@pytest.mark.parametrize(
    ("before", "verbs"),
    [
        (["inactive"], []),
        (["failed"], ["reset-failed"]),
        (["active", "deactivating", "inactive"], []),
        (["deactivating", "failed"], ["reset-failed"]),
    ],
)
async def test_a_unit_of_a_predecessor_is_out_of_the_way_first(
    tmp_path: Path, child: int, before: list[str], verbs: list[str]
) -> None:
    """However it ended; systemd may need a moment to notice that it did."""
    systemd = Systemd(*(state(active) for active in before), state("active", main=child))
    await launcher(tmp_path, systemd).launch(spec(tmp_path))
    assert [verb for verb in systemd.verbs() if verb in ("stop", "reset-failed")] == verbs


async def test_what_is_still_in_the_unit_is_ended(tmp_path: Path, child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is this node's, by the unit's name, though the state directory that told of it was lost."""
    monkeypatch.setattr(module, "_NOTICE_S", 0.0)
    monkeypatch.setattr(procfs, "cgroup_members", {UNIT: [child]}.get)
    systemd = Systemd(state("active"), state("inactive"), state("active", main=child))
    await launcher(tmp_path, systemd).launch(spec(tmp_path))
    assert "stop" in systemd.verbs()


@pytest.mark.parametrize(("longest_s", "before"), [(10.0, ["active"] * 5), (0.0, ["active"])])
async def test_a_systemd_that_is_slow_to_notice_is_waited_for(
    tmp_path: Path, child: int, monkeypatch: pytest.MonkeyPatch, longest_s: float, before: list[str]
) -> None:
    """Nothing is in the unit any more, so nothing is ended: only once that has lasted too long."""
    monkeypatch.setattr(module, "_NOTICE_S", 0.0)
    monkeypatch.setattr(module, "_LONGEST_NOTICE_S", longest_s)
    monkeypatch.setattr(procfs, "cgroup_members", {UNIT: []}.get)
    systemd = Systemd(*map(state, before), state("failed"), state("active", main=child))
    await launcher(tmp_path, systemd).launch(spec(tmp_path))
    assert ("stop" in systemd.verbs()) == (longest_s == 0)
    assert "reset-failed" in systemd.verbs()


async def test_a_program_that_systemd_cannot_execute_is_an_error(tmp_path: Path) -> None:
    """With systemd's own words, its status, and where to read on."""
    failed = state("failed", result="exit-code", status=203)
    systemd = Systemd(state("inactive"), failed, run=(1, "Job for x failed."))
    with pytest.raises(ProcessStartError, match=r"exit-code, status 203.*Job for x failed.*journalctl -u"):
        await launcher(tmp_path, systemd).launch(spec(tmp_path))
    assert list((tmp_path / "run/units").iterdir()) == []


async def test_private_files_that_cannot_be_had_are_told_apart(tmp_path: Path) -> None:
    """The caller may go without them."""
    systemd = Systemd(state("inactive"), state("failed", result="exit-code", status=226), run=(1, "Job failed."))
    files = (PrivateFile(tmp_path / "hosts", Path("/etc/hosts")),)
    with pytest.raises(PrivateFilesError):
        await launcher(tmp_path, systemd).launch(spec(tmp_path, private_files=files))


async def test_a_systemctl_that_does_not_answer_says_nothing_of_the_program(tmp_path: Path, child: int) -> None:
    """On a board that has much to do: the program runs, and must not be taken for one that has ended."""
    systemd = Systemd(state("inactive"), "", state("active", main=child))
    assert (await launcher(tmp_path, systemd).launch(spec(tmp_path))).pid == child


@pytest.mark.parametrize("forks", [False, True])
async def test_a_program_that_has_ended_already_is_an_error(tmp_path: Path, forks: bool) -> None:
    """There is nothing to watch; its last words are told."""
    (tmp_path / "child.log").write_text("no such network\n")
    systemd = Systemd(state("inactive"), state("failed"))
    with pytest.raises(ProcessStartError, match=r"ended at once.*no such network"):
        await launcher(tmp_path, systemd).launch(spec(tmp_path, forks=forks))


async def test_a_start_that_is_given_up_leaves_no_unit(tmp_path: Path) -> None:
    """Nobody would remember what it started."""
    systemd = Systemd(state("inactive"), state("activating"))
    starting = asyncio.ensure_future(launcher(tmp_path, systemd).launch(spec(tmp_path)))
    await eventually(lambda: systemd.environment_files)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert systemd.calls[-1] == ("systemctl", "stop", UNIT)


@pytest.mark.parametrize(
    ("run", "then"),
    [((124, "systemd-run: no answer within 10 s"), state("active", main=1)), ((0, ""), "")],
    ids=["systemd-run", "systemctl"],
)
async def test_what_a_slow_systemd_may_have_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: tuple[int, str], then: str
) -> None:
    """Nobody would remember it, and its device and ports would keep the next one from starting for ever."""
    monkeypatch.setattr(module, "_START_TIMEOUT_S", 0.1)
    systemd = Systemd(state("inactive"), then, run=run)
    with pytest.raises(ProcessStartError, match=r"within 0\.1 s"):
        await launcher(tmp_path, systemd).launch(spec(tmp_path))
    assert systemd.calls[-1] == ("systemctl", "stop", UNIT)


def test_a_units_properties_are_those_of_the_specification(tmp_path: Path) -> None:
    """User, groups, directory, umask, output, files; its end at shutdown comes after the daemon's."""
    files = (PrivateFile(tmp_path / "hosts", Path("/etc/hosts")),)
    whole = spec(tmp_path, uid=1000, gid=1001, groups=(44, 107), umask=0o077, private_files=files, forks=True)
    found = properties(whole, tmp_path / "env", ["A", "B"], "edgelink-edge.service", (60, resource.RLIM_INFINITY))
    assert {
        "Type=forking",
        "GuessMainPID=no",
        "User=1000",
        "Group=1001",
        "SupplementaryGroups=44 107",
        "UMask=0077",
        "LimitRTPRIO=60:infinity",
        f"WorkingDirectory={tmp_path}",
        f"StandardOutput=append:{tmp_path}/child.log",
        f"BindReadOnlyPaths={tmp_path}/hosts:/etc/hosts",
        f"EnvironmentFile={tmp_path}/env",
        "UnsetEnvironment=A B",
        "Before=edgelink-edge.service",
    } <= set(found)
    plain = properties(spec(tmp_path), tmp_path / "env", [], "", (0, 0))
    assert "Type=exec" in plain
    assert not [setting for setting in plain if setting.startswith(("User=", "Before=", "BindReadOnlyPaths="))]


async def test_what_an_administrator_set_for_all_services_is_taken_away(
    tmp_path: Path, child: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would keep Ray from its own nodes; what was listed stays, and what the daemon itself was given."""
    monkeypatch.setattr(module.resource, "getrlimit", {resource.RLIMIT_RTPRIO: (60, 60)}.get)
    systemd = Systemd(state("inactive"), state("active", main=child))
    await launcher(tmp_path, systemd).launch(spec(tmp_path))
    (run,) = [argv for argv in systemd.calls if argv[0] == "systemd-run"]
    (unset,) = [argument.split("=", 2)[2].split() for argument in run if argument.startswith("--property=Unset")]
    assert {"http_proxy", "INVOCATION_ID"} <= set(unset)
    assert "PATH" not in unset
    assert "--property=LimitRTPRIO=60:60" in run


def test_values_are_quoted_as_systemd_reads_them() -> None:
    """Its rules: double quotes, and a backslash before four characters."""
    text = environment_text({"A": 'say "$HOME" `id` \\ ok', "B": "two\nlines", "NOTIFY_SOCKET": "/run/x"})
    assert text == 'A="say \\"\\$HOME\\" \\`id\\` \\\\ ok"\nB="two\nlines"\n'


def test_nodes_with_their_own_state_directories_have_their_own_units(tmp_path: Path) -> None:
    """Else one would end the other's."""
    names = {
        SystemdLauncher(Paths(state, tmp_path), SystemClock()).unit("ray")
        for state in (Paths.state, tmp_path / "a", tmp_path / "b")
    }
    assert len(names) == 3
    assert "edgelink-ray.service" in names


@pytest.mark.parametrize(
    ("wanted", "manager", "possible", "expected"),
    [
        ("auto", MANAGER, True, SystemdLauncher),
        ("auto", MANAGER, False, SessionLauncher),
        ("auto", None, True, SessionLauncher),
        ("auto", ServiceManager("/run/x", ""), True, SessionLauncher),
        ("session", MANAGER, True, SessionLauncher),
        ("systemd", None, True, SystemdLauncher),
    ],
)
def test_the_launcher_is_systemds_where_systemd_runs_the_daemon(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    manager: ServiceManager | None,
    possible: bool,
    expected: type,
) -> None:
    """Unless the configuration says otherwise."""
    monkeypatch.setattr(module, "is_systemd_running", lambda: possible)
    monkeypatch.setattr(module, "is_confined", lambda: False)
    monkeypatch.setattr(module.shutil, "which", lambda _name: "/usr/bin/systemd-run")
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    assert isinstance(choose_launcher(wanted, manager, Paths(tmp_path, tmp_path), SystemClock()), expected)


def test_asking_for_systemd_where_there_is_none_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is started."""
    monkeypatch.setattr(module, "is_systemd_running", lambda: False)
    with pytest.raises(ConfigError, match=r"process\.launcher"):
        choose_launcher("systemd", None, Paths(tmp_path, tmp_path), SystemClock())


def test_ray_is_not_put_into_the_daemons_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better no daemon than a Ray in which half of what people do is forbidden; on a terminal there is no sandbox."""
    monkeypatch.setattr(module, "is_confined", lambda: True)
    paths = Paths(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"edgelink-edge\.service's sandbox") as caught:
        choose_launcher("session", MANAGER, paths, SystemClock())
    assert "edgelink service install" in caught.value.hint
    assert isinstance(choose_launcher("session", None, paths, SystemClock()), SessionLauncher)


def test_who_has_fewer_capabilities_than_the_machine_is_confined(tmp_path: Path) -> None:
    """As systemd bounds a unit's; in a container that has few, all have few."""
    for pid, bounds in (("self", "000001ffffffffff"), ("1", "000001ffffffffff")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(f"Name:\tx\nCapBnd:\t{bounds}\n")
    assert not is_confined(tmp_path)
    (tmp_path / "self/status").write_text("CapBnd:\t0000000000003000\n")
    assert is_confined(tmp_path)


def test_easytier_and_the_broker_have_a_sandbox_and_ray_has_none(tmp_path: Path) -> None:
    """The device is EasyTier's alone; each writes into its working directory only."""
    tun = properties(spec(tmp_path, sandbox="tun"), tmp_path / "env", [], "", (0, 0))
    server = properties(spec(tmp_path, sandbox="server"), tmp_path / "env", [], "", (0, 0))
    plain = properties(spec(tmp_path), tmp_path / "env", [], "", (0, 0))
    for settings in (tun, server):
        assert {"NoNewPrivileges=yes", "ProtectSystem=strict", f"ReadWritePaths={tmp_path}"} <= set(settings)
    assert "DeviceAllow=/dev/net/tun rw" in tun
    assert {"PrivateDevices=yes", "CapabilityBoundingSet="} <= set(server)
    assert not [setting for setting in plain if setting.startswith(("Protect", "Private", "Capab", "NoNew"))]


@pytest.mark.parametrize(("name", "sandbox"), [("easytier", "tun"), ("mosquitto", "server"), ("ray", "none")])
def test_the_exposure_of_what_the_daemon_starts_is_as_documented(tmp_path: Path, name: str, sandbox: str) -> None:
    """`systemd-analyze security`, in the guide's table."""
    user = None if sandbox == "tun" else 1000
    settings = properties(spec(tmp_path, sandbox=sandbox, uid=user), tmp_path / "env", [], "", (0, 0))
    unit = tmp_path / f"edgelink-{name}.service"
    unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *settings, ""]))
    assert_as_documented(unit)
