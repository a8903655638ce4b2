"""EdgeLink as a service: what is written where, what is left alone, what is removed; no systemd, no root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from exposure import assert_as_documented
from recorded_machine import RecordedMachine, tree
from telling import Words, refuses

from edgelink.api import schema
from edgelink.cli import service, service_steps
from edgelink.config import Config
from edgelink.config.paths import Paths
from edgelink.errors import ConfigError, DeadlineError, EdgelinkError, ExitCode, MissingDependencyError, UsageError
from edgelink.process.service_manager import ONLINE, WAITS_FOR_ONLINE
from edgelink.service.installation import chosen_roles, to_install, to_uninstall
from edgelink.service.look import look
from edgelink.service.steps import Machine, ServiceError, do
from edgelink.service.units import (
    ROLES,
    TMPFILES,
    UNITS,
    UnitFile,
    files_for,
    is_as_written,
    own_program,
    quoted,
    unit_path,
)

PROGRAM = ("/opt/edgelink/bin/edgelink",)
EDGE = unit_path("edge")
PROTECTIONS = (
    *("User", "CapabilityBoundingSet", "NoNewPrivileges", "MemoryDenyWriteExecute", "SystemCallFilter"),
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "DeviceAllow", "PrivateNetwork", "PrivateUsers"),
    *("ProtectKernelModules", "ProtectKernelLogs", "ProtectKernelTunables", "ProtectControlGroups", "ProtectClock"),
    *("ProtectHostname", "ProtectProc", "ProcSubset", "RestrictNamespaces", "RestrictAddressFamilies", "IPAddressDeny"),
    *("RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "SystemCallArchitectures", "UMask"),
)


@pytest.fixture
def machine(tmp_path: Path) -> RecordedMachine:
    return RecordedMachine(tmp_path / "root")


def files(role: str = "edge", config: Config | None = None) -> list[UnitFile]:
    return files_for(role, PROGRAM, config or Config())


def install(machine: Machine, role: str = "edge", *, force: bool = False) -> int:
    """How many steps it took."""
    steps = to_install(machine, [role], files(role), force=force)
    do(steps, machine)
    return len(steps)


def test_an_installation_is_four_files_and_a_link(machine: RecordedMachine) -> None:
    """The daemon's unit, what waits for it, the target, Ray's directory; started at boot as `enable` does it."""
    install(machine)
    assert set(tree(machine)) == {
        "etc/systemd/system/edgelink-edge.service",
        "etc/systemd/system/edgelink-wait-online.service",
        "etc/systemd/system/edgelink-online.target",
        "etc/systemd/system/multi-user.target.wants/edgelink-edge.service",
        "etc/tmpfiles.d/edgelink.conf",
    }
    assert tree(machine)["etc/systemd/system/multi-user.target.wants/edgelink-edge.service"] == str(EDGE)
    assert machine.asked == [("daemon-reload",)]


@pytest.mark.parametrize("role", ROLES)
def test_the_units_run_this_edgelink(role: str) -> None:
    """With this role; no placeholder is left; a node's waits for its enrolment, a relay's first start is its own."""
    unit, wait, target, _ = (file.text for file in files(role))
    assert f"\nExecStart=/opt/edgelink/bin/edgelink {role}\n" in unit
    assert "\nConditionFileIsExecutable=/opt/edgelink/bin/edgelink\n" in unit
    assert "\nExecStart=/opt/edgelink/bin/edgelink wait " in wait
    assert not re.search(r"@[A-Z]", unit + wait + target)
    assert ("ConditionPathExists=/var/lib/edgelink/membership.json" in unit) is (role != "bootstrap")


def test_no_boot_waits_for_a_machine_that_is_no_node() -> None:
    """Neither enrolled nor the relay. And what the guide shows is started by the target: nothing else waits for it."""
    _, wait, *_ = (file.text for file in files())
    paths = Paths()
    alternatives = re.findall(r"^AssertPathExists=\|(.*)$", wait, re.MULTILINE)
    assert set(alternatives) == {str(paths.membership), str(paths.registry_database)}
    guide = (Path(__file__).parent.parent / "docs/how-to/systemd.md").read_text()
    unit = re.search(r"^# /etc/systemd/system/gripper.service\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert unit is not None
    assert f"After={ONLINE}" in unit[1]
    assert f"WantedBy={ONLINE}" in unit[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """With a program that exists in place of the documented one."""
    written = {file.path.name: file.text for role in ROLES for file in files_for(role, (sys.executable,), Config())}
    paths = [tmp_path / name for name in written if name.startswith("edgelink-")]
    for path in paths:
        path.write_text(written[path.name])
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("unit", ["edgelink-bootstrap", "edgelink-head", "edgelink-edge", "edgelink-wait-online"])
def test_the_exposure_of_the_units_is_as_documented(tmp_path: Path, unit: str) -> None:
    """`systemd-analyze security`, in the guide's table."""
    written = {file.path.stem: file for role in ROLES for file in files(role) if file.path.suffix == ".service"}
    path = tmp_path / f"{unit}.service"
    path.write_text(written[unit].text)
    assert_as_documented(path)


def test_every_protection_that_is_missing_has_its_reason(tmp_path: Path) -> None:
    """In the unit's own comments: of the large ones, what is not set is named."""
    for role in ROLES:
        text = files(role)[0].text
        for setting in PROTECTIONS:
            assert re.search(rf"^{setting}=|^#.*\b{setting}=", text, re.MULTILINE), (role, setting)


def test_children_of_the_unit_itself_are_not_in_a_sandbox() -> None:
    """`process.launcher: session`: EasyTier, Ray and all that people run in it are in the daemon's unit."""
    text = files(config=Config.model_validate({"process": {"launcher": "session"}}))[0].text
    assert not re.search(
        r"^(Protect|Private|Restrict[A-Z]|NoNew|Capab|System)", text.replace("RestartPrevent", ""), re.MULTILINE
    )


def test_a_configuration_elsewhere_is_named_and_rays_directory_is_kept() -> None:
    """`--config` goes into the unit; what tidies /tmp up leaves Ray's own directory alone, and an older EdgeLink's."""
    config = Config.model_validate({"ray": {"temp_dir": "/data/ray"}})
    unit, *_, tmpfiles = files_for("edge", PROGRAM, config, Path("/srv/my robots/edge$1.yaml"))
    assert 'ExecStart=/opt/edgelink/bin/edgelink edge --config "/srv/my robots/edge$$1.yaml"' in unit.text
    assert tmpfiles.path == TMPFILES
    assert tmpfiles.text.endswith("\nx /data/ray\n")


def test_a_word_of_a_command_line_stays_one_word() -> None:
    """Neither blanks nor systemd's specifiers and variables change it."""
    temp = files_for("edge", ("/e",), Config.model_validate({"ray": {"temp_dir": "/data/my ray/100%"}}))
    assert temp[-1].text.endswith('\nx "/data/my ray/100%%"\n'), "systemd-tmpfiles refuses the file else"
    assert quoted("/opt/edge-link_1/bin/edgelink") == "/opt/edge-link_1/bin/edgelink"
    assert quoted('/a b/100%/"$x"\\') == '"/a b/100%%/\\"$$x\\"\\\\"'


def test_a_second_installation_changes_nothing(machine: RecordedMachine) -> None:
    """Nor does it bother systemd."""
    install(machine)
    before = tree(machine)
    assert install(machine) == 0
    assert tree(machine) == before
    assert machine.asked == [("daemon-reload",)]


def test_what_an_older_edgelink_wrote_is_renewed(machine: RecordedMachine) -> None:
    """Its own file is known by its digest, whatever is in it."""
    do(to_install(machine, ["edge"], files_for("edge", ("/usr/bin/edgelink",), Config()), force=False), machine)
    install(machine)
    assert "ExecStart=/opt/edgelink/bin/edgelink edge\n" in (machine.read(EDGE) or "")


def test_what_a_person_changed_is_left_alone(machine: RecordedMachine) -> None:
    """All such files are named, nothing is written or removed; --force does both."""
    install(machine)
    changed = (machine.read(EDGE) or "") + "Nice=-5\n"
    machine.path(EDGE).write_text(changed)
    machine.path(UNITS / ONLINE).write_text("[Unit]\n")
    before = tree(machine)
    with pytest.raises(ConfigError, match=r"edgelink-edge\.service was changed by hand.*online\.target was") as caught:
        install(machine)
    assert "systemctl edit" in caught.value.hint
    with pytest.raises(ConfigError, match="changed by hand"):
        to_uninstall(machine, None, force=False)
    assert tree(machine) == before

    install(machine, force=True)
    assert is_as_written(machine.read(EDGE) or "")


def test_a_masked_unit_is_refused(machine: RecordedMachine) -> None:
    """An administrator has forbidden it."""
    machine.path(UNITS).mkdir(parents=True)
    machine.path(EDGE).symlink_to("/dev/null")
    with pytest.raises(ConfigError, match="is masked"):
        install(machine)


def test_nothing_of_an_installation_is_left(machine: RecordedMachine) -> None:
    """What was there before is there again, also directories; the units are stopped first, waiting ones before all."""
    for directory in (UNITS, TMPFILES.parent):
        machine.path(directory).mkdir(parents=True)
    (machine.path(UNITS) / "robot.service").write_text("[Service]\n")
    before = sorted(machine.root.rglob("*"))
    install(machine)
    machine.asked.clear()
    do(to_uninstall(machine, None, force=False), machine)
    assert sorted(machine.root.rglob("*")) == before
    assert machine.asked[0] == ("stop", WAITS_FOR_ONLINE, ONLINE, "edgelink-edge.service")
    assert machine.asked[-1] == ("daemon-reload",)
    assert to_uninstall(machine, None, force=False) == []


def test_relay_and_head_on_one_machine_share_what_waits(machine: RecordedMachine) -> None:
    """It stays until the last of them goes."""
    for role in ("bootstrap", "head"):
        install(machine, role)
    do(to_uninstall(machine, "head", force=False), machine)
    left = tree(machine)
    assert "etc/systemd/system/edgelink-bootstrap.service" in left
    assert f"etc/systemd/system/{ONLINE}" in left
    assert "etc/systemd/system/edgelink-head.service" not in left
    do(to_uninstall(machine, "bootstrap", force=False), machine)
    assert tree(machine) == {}


def test_a_machine_is_head_or_edge(machine: RecordedMachine) -> None:
    """Two units for one socket would fight."""
    install(machine, "head")
    with pytest.raises(UsageError, match=r"edgelink-head\.service is installed") as caught:
        install(machine, "edge")
    assert "uninstall head" in caught.value.hint


def test_an_image_gets_the_same_files_without_a_systemd(tmp_path: Path) -> None:
    """Nobody is asked to reload or to stop anything."""
    image = RecordedMachine(tmp_path / "image", is_booted=False)
    install(image)
    assert len(tree(image)) == 5
    do(to_uninstall(image, None, force=False), image)
    assert tree(image) == {}
    assert image.asked == []


@pytest.mark.parametrize(
    ("asked", "known", "chosen"),
    [
        (None, ["edge"], ["edge"]),
        (None, ["bootstrap", "head"], ["bootstrap", "head"]),
        ("head", ["bootstrap", "head"], ["head"]),
        ("bootstrap", ["edge"], ["bootstrap"]),
        ("edge", [], ["edge"]),
        ("head", ["bootstrap"], ["head"]),
    ],
)
def test_the_role_is_the_machines(asked: str | None, known: list[str], chosen: list[str]) -> None:
    """Known from its state, or named."""
    assert chosen_roles(asked, known) == chosen


def test_a_role_that_is_not_the_machines_is_refused() -> None:
    """With what to do."""
    with pytest.raises(UsageError, match="enrolled as edge, not as head"):
        chosen_roles("head", ["edge"])
    with refuses(UsageError, reason="RoleUnknown"):
        chosen_roles(None, [])


def test_the_program_is_the_one_that_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in /usr/local/bin stays a link: an upgrade goes on behind it. Else this environment's, else a module."""
    program = tmp_path / "venv/bin/edgelink"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    link = tmp_path / "edgelink"
    link.symlink_to(program)
    assert own_program(str(link)) == (str(link),)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    assert own_program("/x/edgelink/cli/main.py") == (str(program),)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert own_program("/x/edgelink/cli/main.py")[1:] == ("-m", "edgelink.cli.main")


def test_a_look_tells_files_and_what_systemd_says(machine: RecordedMachine) -> None:
    """A unit that is as written, another's, changed; drop-ins; a restart count."""
    install(machine)
    machine.told.update(
        {
            "edgelink-edge.service": "ActiveState=active\nSubState=running\nStatusText=Degraded: a = b\nNRestarts=3\n",
            ONLINE: "ActiveState=active\n",
        }
    )
    seen = look(machine, {"edge": files()})
    assert (seen.units[0].file, seen.units[0].says, seen.units[0].restarts) == ("current", "Degraded: a = b", 3)
    assert seen.units[0].enabled
    assert (seen.is_well, seen.online, seen.drop_ins) == (True, True, ())

    drop_in = machine.path(Path(f"{EDGE}.d"))
    drop_in.mkdir()
    (drop_in / "override.conf").write_text("[Service]\nLimitRTPRIO=60\n")
    newer = look(machine, {"edge": files_for("edge", ("/elsewhere/edgelink",), Config())})
    assert (newer.units[0].file, newer.drop_ins) == ("outdated", (f"{EDGE}.d/override.conf",))
    machine.path(EDGE).write_text("[Service]\n")
    assert look(machine, {"edge": files()}).units[0].file == "changed"


@pytest.fixture
def command(machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch) -> RecordedMachine:
    """The machine that the commands find; they are root's, and nothing is enrolled."""
    for name in ("EDGELINK_STATE_DIR", "EDGELINK_RUNTIME_DIR", "EDGELINK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("state", "runtime"):
        monkeypatch.setattr(Paths, name, machine.root / name)
    paths = Paths(machine.root / "state", machine.root / "runtime")
    monkeypatch.setattr(Paths, "from_environment", classmethod(lambda _cls: paths))
    monkeypatch.setattr(service_steps, "this_machine", lambda: machine)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(service_steps, "own_program", lambda: ("/bin/sh",))
    return machine


def call(*arguments: str) -> Result:
    return CliRunner().invoke(service.command, arguments, standalone_mode=False)


def test_the_relays_service_is_named_by_its_role_or_by_its_verb(command: RecordedMachine) -> None:
    relay, bootstrap = (call("install", name, "--dry-run").output for name in ("relay", "bootstrap"))
    assert "edgelink-bootstrap.service" in relay
    assert relay == bootstrap


def test_a_dry_run_shows_the_files_and_changes_nothing(command: RecordedMachine) -> None:
    """Every step in order, with the text; of `install --now` and of `uninstall`."""
    shown = call("install", "edge", "--now", "--dry-run")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in heads if line] == ["write"] * 4 + ["run", "link", "run"]
    assert "    ExecStart=/bin/sh edge" in lines
    assert heads[-1] == "run systemctl restart edgelink-edge.service"
    assert tree(command) == {}
    assert command.asked == []

    assert call("install", "edge").exit_code == 0
    before = tree(command)
    shown = call("uninstall", "--purge", "--dry-run")
    assert f"remove {EDGE}" in shown.output.splitlines()
    assert shown.output.splitlines()[-1] == f"remove {Paths.state}"
    assert tree(command) == before


def test_installing_is_said_and_so_is_doing_it_again(command: RecordedMachine) -> None:
    """And that it is not started yet."""
    first, second = call("install", "edge"), call("install", "edge")
    assert "installed edgelink-edge.service, started at boot" in first.output
    assert "systemctl restart edgelink-edge" in first.output
    assert "nothing to do" in second.output


def test_nothing_is_started_where_nobody_is_enrolled(command: RecordedMachine) -> None:
    """The unit would be skipped, and waited for in vain. Nothing is written; for an image it is, without --now."""
    for role in ("edge", "head"):
        error = call("install", role, "--now").exception
        assert isinstance(error, UsageError)
        assert error.condition_reason == "NotEnrolled"
        assert "`edgelink up TOKEN`" in error.hint
    assert tree(command) == {}
    Paths.from_environment().membership.parent.mkdir(parents=True)
    Paths.from_environment().membership.touch()
    service_steps.require_enrolled(["edge"])
    Paths.from_environment().membership.unlink()
    service_steps.require_enrolled(["bootstrap"])


def test_a_mistake_in_the_configuration_hides_nothing_of_the_service(command: RecordedMachine, tmp_path: Path) -> None:
    """What systemd has is shown, and the mistake beside it."""
    call("install", "edge")
    (tmp_path / "edgelink.yaml").write_text("overlay: {devise: et0}\n")
    command.told["edgelink-edge.service"] = "ActiveState=active\nSubState=running\nStatusText=Ready\n"
    looked = call("status", "--json", "--config", str(tmp_path / "edgelink.yaml"))
    answer = json.loads(looked.stdout)
    schema.Service.model_validate(answer)
    assert (answer["well"], answer["units"][0]["says"], answer["units"][0]["file"]) == (True, "Ready", "unknown")
    assert "overlay.devise: unknown key" in answer["config_error"]
    shown = call("status", "--config", str(tmp_path / "edgelink.yaml")).output
    assert "edgelink-edge.service: active (running)" in shown
    assert "overlay.devise: unknown key" in shown
    assert json.loads(call("status", "--json").stdout)["config_error"] is None


def test_who_uninstalls_another_role_is_told_which_is_installed(command: RecordedMachine) -> None:
    """Nothing is removed."""
    call("install", "head")
    before = tree(command)
    said = call("uninstall", "edge").output
    assert all(unit in said for unit in ("edgelink-edge.service", "edgelink-head.service"))
    assert "`edgelink service uninstall head`" in said
    assert tree(command) == before


def test_only_root_installs_but_anybody_may_look(command: RecordedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written before that is said."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert isinstance(call("install", "edge").exception, MissingDependencyError)
    assert tree(command) == {}
    assert call("install", "edge", "--dry-run").exit_code == 0
    assert call("status").return_value == ExitCode.FAILED


@pytest.mark.parametrize("name", ["edgelink.yaml", "100% of $HOME.yaml"])
def test_a_configuration_elsewhere_has_to_be_named_once(command: RecordedMachine, tmp_path: Path, name: str) -> None:
    """Whoever looks, or renews the unit, means the one that it was installed with; another one can be named."""
    (tmp_path / name).write_text("ray: {temp_dir: /srv/ray}\n")
    assert call("install", "edge", "--config", str(tmp_path / name)).exit_code == 0
    unit = command.path(EDGE).read_text()
    assert "--config" in unit
    assert json.loads(call("status", "--json").stdout)["units"][0]["file"] == "current"
    assert "nothing to do" in call("install", "edge").output
    assert command.path(EDGE).read_text() == unit
    (tmp_path / "other.yaml").write_text("{}\n")
    assert call("install", "edge", "--config", str(tmp_path / "other.yaml")).exit_code == 0
    assert f"--config {tmp_path / 'other.yaml'}\n" in command.path(EDGE).read_text()


def test_a_mistake_in_the_configuration_does_not_keep_it_installed(command: RecordedMachine, tmp_path: Path) -> None:
    """What is to be ended is known without it."""
    call("install", "edge")
    (tmp_path / "edgelink.yaml").write_text("overlay: {devise: et0}\n")
    gone = call("uninstall", "--config", str(tmp_path / "edgelink.yaml"))
    assert gone.exit_code == 0, gone.exception
    assert "overlay.devise" in gone.output
    assert not command.path(EDGE).exists()


def test_uninstall_says_what_stays_and_what_systemd_has(command: RecordedMachine, words: Words) -> None:
    """The state of the node, and an administrator's drop-ins."""
    command.path(Path("/state")).mkdir(parents=True)
    call("install", "edge")
    drop_in = command.path(Path(f"{EDGE}.d"))
    drop_in.mkdir()
    (drop_in / "override.conf").write_text("[Service]\n")
    answer = json.loads(call("status", "--json").stdout)
    assert (answer["well"], answer["units"][0]["enabled"], answer["units"][0]["file"]) == (False, True, "current")
    schema.Service.model_validate(answer)
    assert answer["schema"] == 1
    gone = call("uninstall")
    assert gone.exit_code == 0, gone.exception
    assert not command.path(EDGE).exists()
    assert f"{EDGE}.d/override.conf" in gone.output
    assert f"left: {Paths.state}" in gone.output
    words(gone.output, STATE=Paths.state)
    assert "is not installed" in call("uninstall").output


def test_a_node_of_its_own_is_not_the_machines(command: RecordedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The units serve /var/lib/edgelink."""
    monkeypatch.setattr(Paths, "from_environment", classmethod(lambda _cls: Paths(Path("/elsewhere"))))
    error = call("install", "edge").exception
    assert isinstance(error, UsageError)
    assert error.condition_reason == "OtherNode"


def test_a_daemon_that_runs_by_hand_is_not_fought(command: RecordedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the socket that the service would want."""
    call("install", "edge")
    command.told["edgelink-edge.service"] = "77"
    monkeypatch.setattr(service_steps, "running_daemons", lambda _paths: [{"role": "edge", "pid": 78}])
    with pytest.raises(UsageError, match="pid 78") as caught:
        service_steps.require_startable(command, ["edge"])
    assert caught.value.condition_reason == "RunsByHand"
    monkeypatch.setattr(service_steps, "running_daemons", lambda _paths: [{"role": "edge", "pid": 77}])
    service_steps.require_startable(command, ["edge"])


@pytest.mark.parametrize(("status", "kind"), [("78", ConfigError), ("1", ServiceError)])
def test_a_daemon_that_ended_for_good_is_not_waited_for(
    command: RecordedMachine, monkeypatch: pytest.MonkeyPatch, status: str, kind: type[EdgelinkError]
) -> None:
    """Its exit status decides the command's, and its unit is named."""
    command.told["edgelink-edge.service"] = f"ActiveState=failed\nResult=exit-code\nExecMainStatus={status}\n"

    def waiting(*_arguments: object, look: object, **_more: object) -> None:
        assert callable(look)
        look()

    monkeypatch.setattr(service_steps, "wait_ready", waiting)
    with pytest.raises(kind, match=rf"edgelink-edge\.service failed \(exit-code, status {status}\)") as caught:
        service_steps.start(command, ["edge"], 1)
    assert "journalctl -u edgelink-edge.service" in caught.value.hint


def test_a_node_that_is_not_ready_in_time_goes_on_trying(
    command: RecordedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """75, with what it waits for."""

    def waiting(*_arguments: object, **_more: object) -> None:
        raise DeadlineError("not ready after 1 s: edge e: RayJoined HeadNotSeen: no head")

    monkeypatch.setattr(service_steps, "wait_ready", waiting)
    with pytest.raises(DeadlineError, match="HeadNotSeen") as caught:
        service_steps.start(command, ["edge"], 1)
    assert "goes on trying" in caught.value.hint
    assert caught.value.exit_code == ExitCode.TRY_AGAIN
    assert command.asked == [("restart", "edgelink-edge.service")]
