"""`edgelink up` and `down`: what is decided from what, what is refused before anything is changed, and how a failed try
goes on; no root, no systemd, no network."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from recorded_machine import RecordedMachine, tree
from registry_world import World

from edgelink.cli import down, service_steps, up, up_steps
from edgelink.cli.patience import waiting_for
from edgelink.cli.up_plan import (
    Present,
    Road,
    choose_address,
    choose_python,
    choose_road,
    choose_user,
    missing_from,
)
from edgelink.config import Config
from edgelink.config.paths import Paths
from edgelink.errors import (
    EasyTierNotFoundError,
    EdgelinkError,
    ExitCode,
    MissingDependencyError,
    RegistryUnavailableError,
    UsageError,
)
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import put_membership
from edgelink.protocol.payloads import Lease, Role
from edgelink.protocol.token import Token
from edgelink.ray_cluster import pythons
from edgelink.ray_cluster.interpreter import Interpreter, RayUser, user_of

ALICE = 1234
PYTHON = Path("/usr/bin/env")  # a program of root's, on every machine
NO_NODE = Present()
OWN = Path("/opt/edgelink/bin")


def reason_of(error: BaseException | None) -> str:
    if isinstance(error, click.UsageError):
        return "Usage"
    assert isinstance(error, EdgelinkError), repr(error)
    return error.condition_reason


# -- what is decided


@pytest.fixture(scope="module")
def leases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lease]:
    world = World(tmp_path_factory.mktemp("registry"))
    return {"edge": world.join("robot"), "head": world.join("cloud", Role.HEAD)}


def present(name: str, leases: dict[str, Lease]) -> Present:
    lease = leases["edge"]
    return {
        "nothing": NO_NODE,
        "edge": Present(lease),
        "head": Present(leases["head"]),
        "relay": Present(lease.model_copy(update={"role": Role.RELAY, "is_relay": True}), holds_registry=True),
        "more relay": Present(lease.model_copy(update={"role": Role.RELAY, "is_relay": True})),
        "relay and head": Present(leases["head"].model_copy(update={"is_relay": True}), holds_registry=True),
    }[name]


@pytest.mark.parametrize(
    ("here", "typed", "road"),
    [
        ("nothing", "", "TokenMissing"),
        ("nothing", "terminal", Road.ASK),
        ("nothing", "token", Road.JOIN),
        ("nothing", "token terminal", Road.JOIN),
        ("nothing", "relay", Road.NEW_NETWORK),
        ("nothing", "relay token", Road.MORE_RELAY),
        *((node, typed, Road.GO_ON) for node in ("edge", "head") for typed in ("", "token", "terminal")),
        *((node, typed, "OtherRole") for node in ("edge", "head") for typed in ("relay", "relay token")),
        ("relay", "", Road.GO_ON),
        ("relay", "relay", Road.GO_ON),
        ("relay", "token", Road.JOIN),
        ("relay", "relay token", "OtherRole"),
        ("more relay", "", Road.GO_ON),
        ("more relay", "relay", Road.GO_ON),
        ("more relay", "relay token", Road.GO_ON),
        ("more relay", "token", Road.JOIN),
        ("relay and head", "", Road.GO_ON),
        ("relay and head", "relay", Road.GO_ON),
        ("relay and head", "token", Road.GO_ON),
    ],
)
def test_what_was_typed_and_what_is_here_say_what_to_do(
    here: str, typed: str, road: Road | str, leases: dict[str, Lease]
) -> None:
    """Without token, terminal and --relay it is a mistake of usage."""
    words = typed.split()

    def choose() -> Road:
        return choose_road(
            present(here, leases), relay="relay" in words, has_token="token" in words, can_ask="terminal" in words
        )

    if isinstance(road, Road):
        assert choose() is road
        return
    with pytest.raises(UsageError) as refused:
        choose()
    assert (refused.value.condition_reason, refused.value.exit_code) == (road, ExitCode.USAGE)


def interpreter(python: str) -> Interpreter:
    return Interpreter(Path(python), "3.11.7", "2.60.0", ALICE)


def test_the_one_python_with_ray_is_taken_and_of_several_a_person_chooses() -> None:
    """Nobody guesses where nobody can be asked. EdgeLink's own counts only where there is no other."""
    one, two = interpreter("/opt/a/bin/python"), interpreter("/opt/b/bin/python")
    for can_ask in (True, False):
        assert choose_python([one], OWN, can_ask=can_ask) == one
        with pytest.raises(MissingDependencyError) as none:
            choose_python([], OWN, can_ask=can_ask)
        assert none.value.condition_reason == "PythonNotFound"
    own = interpreter(str(OWN / "python"))
    assert choose_python([own, one], OWN, can_ask=False) == one
    assert choose_python([own], OWN, can_ask=False) == own
    assert choose_python([one, two], OWN, can_ask=True) is None
    with pytest.raises(UsageError) as several:
        choose_python([one, two], OWN, can_ask=False)
    assert several.value.condition_reason == "PythonUnclear"
    assert all(str(each.python) in several.value.message for each in (one, two))


@pytest.mark.parametrize(
    ("asked", "ray", "owner", "sudo", "user"),
    [
        ("bob", {"user": "carol"}, "alice", "dave", "bob"),
        (None, {"user": "carol"}, "alice", "dave", "carol"),
        (None, {}, "alice", "dave", "alice"),
        (None, {}, "root", "dave", "dave"),
        (None, {}, "root", "", "UserUnclear"),
        (None, {}, "", "", "UserUnclear"),
        ("root", {}, "root", "dave", "RayAsRoot"),
        (None, {"user": "root"}, "root", "dave", "RayAsRoot"),
        (None, {"allow_root": True}, "root", "dave", "root"),
        ("root", {"allow_root": True}, "alice", "dave", "root"),
        (None, {"allow_root": True}, "alice", "dave", "alice"),
    ],
)
def test_rays_user_is_the_one_named_else_the_pythons_owner_else_who_called_sudo(
    asked: str | None, ray: dict[str, object], owner: str, sudo: str, user: str
) -> None:
    """Never root, unless the configuration accepts that."""
    config = Config.model_validate({"ray": ray})
    if user[0].islower():
        assert choose_user(asked, config, owner, sudo, can_ask=False) == user
        return
    with pytest.raises(EdgelinkError) as refused:
        choose_user(asked, config, owner, sudo, can_ask=False)
    assert refused.value.condition_reason == user
    if user == "UserUnclear":
        assert choose_user(asked, config, owner, sudo, can_ask=True) is None


@pytest.mark.parametrize(
    ("asked", "configured", "guessed", "hosts"),
    [
        (("a.example",), ("b.example",), "8.8.8.8", ("a.example",)),
        ((), ("b.example",), "8.8.8.8", ("b.example",)),
        ((), (), "8.8.8.8", ("8.8.8.8",)),
        ((), (), "10.0.0.5", None),
        ((), (), "", None),
    ],
)
def test_a_relay_is_dialled_where_it_is_told_or_at_a_public_address(
    asked: tuple[str, ...], configured: tuple[str, ...], guessed: str, hosts: tuple[str, ...] | None
) -> None:
    """A private address is what a cloud's machine sees of itself: it is asked for the public one."""
    config = Config.model_validate({"relay": {"advertise": configured}})
    if hosts is not None:
        assert choose_address(asked, config, guessed, can_ask=False) == hosts
        return
    assert choose_address(asked, config, guessed, can_ask=True) == ()
    with pytest.raises(UsageError) as refused:
        choose_address(asked, config, guessed, can_ask=False)
    assert refused.value.condition_reason == "AddressUnclear"


def test_only_what_the_configuration_does_not_say_is_written() -> None:
    """Of each section, key by key."""
    config = Config.model_validate({"ray": {"python": "/a"}, "relay": {"advertise": ["b.example"]}})
    assert missing_from(config, {"ray": {"python": "/a"}, "relay": {"advertise": ["b.example"]}}) == {}
    assert missing_from(config, {"ray": {"python": "/a", "user": "alice"}}) == {"ray": {"user": "alice"}}
    assert missing_from(config, {"relay": {"advertise": ["c.example"]}}) == {"relay": {"advertise": ["c.example"]}}


# -- whose program it is


def fake_python(at: Path, answer: str = '["3.11.7", "2.60.0", false, [], {}]') -> Path:
    at.parent.mkdir(parents=True)
    at.write_text(f"#!/bin/sh\necho '{answer}'\n")
    at.chmod(0o755)
    return at


def test_a_program_is_asked_as_the_user_who_can_change_it_and_never_as_root(tmp_path: Path) -> None:
    """An environment of alice's: its interpreter is a link to one of root's."""
    link = tmp_path / "env/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(PYTHON)
    owner = os.geteuid()
    if owner == 0:
        owner = ALICE
        os.chown(link, ALICE, ALICE, follow_symlinks=False)
    asker = pythons.asker_of(link, None)
    assert asker is not None
    assert asker.uid == owner

    own = pythons.asker_of(PYTHON, None)
    assert own is not None
    assert own.uid == pythons.NOBODY_UID
    caller = user_of(ALICE)
    assert pythons.asker_of(PYTHON, caller) == caller
    assert pythons.asker_of(tmp_path / "nothing", caller) is None


def test_links_that_lead_in_a_circle_are_no_program(tmp_path: Path, here: Here) -> None:
    """Anybody can make one in their home."""
    circle = tmp_path / "home/env/bin/python"
    circle.parent.mkdir(parents=True)
    circle.symlink_to(circle)
    (tmp_path / "home/other").mkdir()
    (tmp_path / "home/other/bin").symlink_to(tmp_path / "home/other/bin")
    assert list(pythons.candidates([tmp_path / "home"], tmp_path)) == []
    assert pythons.asker_of(circle, None) is None
    assert reason_of(here.up(here.token(), "--python", str(circle)).exception) == "ConfigInvalid"


def test_a_program_that_everybody_can_change_is_not_asked(tmp_path: Path) -> None:
    """Nor one in such a directory. A sticky one, as /tmp is, does no harm."""
    python = fake_python(tmp_path / "env/bin/python")
    python.parent.chmod(0o777)
    assert pythons.asker_of(python, None) is None
    python.parent.chmod(0o1777)
    assert pythons.asker_of(python, None) is not None
    python.chmod(0o777)
    assert pythons.asker_of(python, None) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to two users")
def test_a_program_that_two_users_can_change_is_not_asked(tmp_path: Path) -> None:
    """Either could have the other one run something."""
    python = fake_python(tmp_path / "env/bin/python")
    os.chown(python, ALICE, ALICE)
    os.chown(python.parent.parent, ALICE + 1, ALICE)
    assert pythons.asker_of(python, user_of(ALICE)) is None


async def test_pythons_with_ray_are_found_in_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's, virtual environments, conda's; each once. Those without Ray, that fail, or that are in somebody
    else's home, are left out."""
    monkeypatch.setattr("os.geteuid", lambda: ALICE)  # asked as ourselves
    wanted = [
        fake_python(tmp_path / where)
        for where in (
            "usr/bin/python3",
            "opt/train/bin/python",
            "opt/conda/envs/rl/bin/python",
            "home/alice/project/.venv/bin/python",
            "home/alice/.pyenv/versions/3.11.7/bin/python",
        )
    ]
    fake_python(tmp_path / "opt/edgelink/bin/python", '["3.11.7", null, false, [], {}]')
    fake_python(tmp_path / "opt/broken/bin/python", "no answer")
    (tmp_path / "opt/link").symlink_to(tmp_path / "opt/train")
    elsewhere = fake_python(tmp_path / "users/bob/env/bin/python")
    fake_python(tmp_path / "home/carol/env/bin/python")
    places = pythons.candidates([tmp_path / "users/bob", tmp_path / "home/alice"], tmp_path)
    found = [each.python for each in await pythons.find_pythons(places, None)]
    train, link = tmp_path / "opt/train", tmp_path / "opt/link"
    assert {Path(str(each).replace(str(link), str(train))) for each in found} == {*wanted, elsewhere}
    assert len(found) == len(wanted) + 1


# -- what is done


class Here:
    """A machine that is nothing yet; the relay that it asks is a registry in a directory."""

    def __init__(self, directory: Path) -> None:
        self.machine = RecordedMachine(directory / "root")
        self.paths = Paths(directory / "state", directory / "run")
        self.config = directory / "etc/edgelink/edgelink.yaml"
        (directory / "registry").mkdir()
        self.world = World(directory / "registry")
        self.relay_answers = True
        self.enrolled: list[Enrolment] = []
        self.started: list[tuple[list[str], str]] = []

    def token(self, role: Role = Role.EDGE) -> str:
        return self.world.token(role).encode()

    async def join(self, enrolment: Enrolment, _config: Config, paths: Paths, _clock: object) -> Lease:
        if not self.relay_answers:
            raise RegistryUnavailableError("no relay")
        self.enrolled.append(enrolment)
        paths.state.mkdir(parents=True, exist_ok=True)
        key = NodeKey.load_or_create(paths.node_key)
        record = next(each for each in self.world.authority.tokens() if each.token_id == enrolment.token.token_id)
        result = self.world.enrol(key, enrolment.token, enrolment.hostname, role=record.role)
        return put_membership(paths, self.world.membership(key, enrolment.token, result)).lease

    def start(self, _machine: object, roles: list[str], _timeout_s: float, verb: str) -> None:
        self.started.append((roles, verb))

    def up(self, *words: str) -> Result:
        return CliRunner().invoke(up.command, words, standalone_mode=False)

    @property
    def changed(self) -> list[str]:
        """Everything that is there of a node."""
        places = (self.machine.root, self.paths.state, self.config.parent)
        return [str(path) for place in places for path in place.rglob("*") if path.is_file()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    here = Here(tmp_path)
    for name in ("EDGELINK_STATE_DIR", "EDGELINK_RUNTIME_DIR", "EDGELINK_CONFIG", "EDGELINK_EASYTIER", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which `up` changes
    monkeypatch.setattr(Paths, "state", here.paths.state)
    monkeypatch.setattr(Paths, "runtime", here.paths.runtime)
    monkeypatch.setattr(Paths, "from_environment", classmethod(lambda _cls: here.paths))
    monkeypatch.setattr(service_steps, "this_machine", lambda: here.machine)
    monkeypatch.setattr(service_steps, "own_program", lambda: ("/bin/sh",))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("edgelink.config.load.DEFAULT_CONFIG_FILE", here.config)
    monkeypatch.setattr(up_steps, "DEFAULT_CONFIG_FILE", here.config)
    monkeypatch.setattr(up_steps, "check_machine", lambda: None)
    monkeypatch.setattr(up_steps, "find_mosquitto", lambda: None)
    monkeypatch.setattr(up_steps, "find_easytier", lambda _configured, _cache: None)
    monkeypatch.setattr(shutil, "which", lambda name, **_options: f"/usr/sbin/{name}")
    monkeypatch.setattr(up_steps, "join", here.join)
    monkeypatch.setattr(service_steps, "start", here.start)

    async def inspect(python: Path, *, asker: RayUser) -> Interpreter:
        assert asker.name == "nobody"
        return interpreter(str(python))

    monkeypatch.setattr(up_steps, "inspect_interpreter", inspect)
    return here


RAY = ("--python", str(PYTHON), "--user", "nobody")


def test_a_token_makes_a_node(here: Here) -> None:
    """Configuration, place, service; its role is the token's."""
    done = here.up(here.token(Role.HEAD), *RAY, "--hostname", "cloud")
    assert done.exception is None, done.output
    assert yaml.safe_load(here.config.read_text()) == {"ray": {"python": str(PYTHON), "user": "nobody"}}
    assert [each.hostname for each in here.enrolled] == ["cloud"]
    assert here.started == [(["head"], "restart")]
    assert "etc/systemd/system/multi-user.target.wants/edgelink-head.service" in tree(here.machine)


def test_a_machine_without_ray_is_asked_for_no_interpreter(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its account is whose programs other nodes start there. The same again, without the option, changes nothing."""
    monkeypatch.setattr(up_steps, "inspect_interpreter", None)
    monkeypatch.setattr(up_steps, "find_pythons", None)
    assert here.up(here.token(), "--no-ray", "--user", "nobody").exception is None
    written = here.config.read_text()
    assert yaml.safe_load(written) == {"ray": {"enabled": False, "user": "nobody"}}
    assert here.up(here.token()).exception is None
    assert here.config.read_text() == written


def test_a_try_that_failed_goes_on_where_it_stopped(here: Here) -> None:
    """The relay did not answer: what was found is kept, the token is still good. Once more changes nothing."""
    token = here.token()
    here.relay_answers = False
    assert reason_of(here.up(token, *RAY).exception) == "RegistryUnavailable"
    written = here.config.read_text()
    assert not here.paths.membership.exists()
    assert here.started == []

    here.relay_answers = True
    assert here.up(token).exception is None
    assert here.config.read_text() == written
    assert here.started == [(["edge"], "restart")]

    here.machine.told["edgelink-edge.service"] = "4711"  # its daemon's pid
    again = here.up(token)
    assert again.exception is None
    assert len(here.enrolled) == 1
    assert here.started[1:] == [(["edge"], "start")]


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        ((), "TokenMissing", 2),
        (("elt1_abc", *RAY), "TokenRefused", 1),
        (("TOKEN", "--relay", "--python", "/x"), "Usage", 2),
        (("TOKEN", "--no-ray", "--python", "/x"), "Usage", 2),
        (("TOKEN", "--advertise", "relay.example"), "Usage", 2),
        (("--relay", "--advertise", "relay.example", "--hostname", "relay"), "Usage", 2),
        (("TOKEN", "--python", "/nowhere/bin/python"), "ConfigInvalid", 78),
        (("TOKEN", "--python", str(PYTHON), "--user", "nobody-of-this-name"), "ConfigInvalid", 78),
        (("TOKEN", "--python", str(PYTHON), "--user", "root"), "RayAsRoot", 78),
        (("TOKEN", "--python", str(PYTHON)), "UserUnclear", 2),
        (("TOKEN", *RAY, "--hostname", "Not A Name"), "ConfigInvalid", 78),
        (("--relay", "--advertise", "two words"), "ConfigInvalid", 78),
    ],
)
def test_mistakes_are_told_before_anything_is_changed(
    here: Here, words: tuple[str, ...], reason: str, code: int
) -> None:
    """Each with its reason and exit status."""
    refused = here.up(*(here.token() if word == "TOKEN" else word for word in words))
    assert reason_of(refused.exception) == reason
    assert (refused.exception.exit_code if isinstance(refused.exception, EdgelinkError) else 2) == code
    assert (here.changed, here.enrolled, here.started) == ([], [], [])


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("root", "NotPrivileged"), ("systemd", "NoSystemd"), ("nft", "DependencyMissing"), ("easytier", "DownloadFailed")],
)
def test_what_the_machine_lacks_is_told_before_the_token_is_used(
    here: Here, monkeypatch: pytest.MonkeyPatch, missing: str, reason: str
) -> None:
    """All of it ends with 78: the machine has to be changed first."""

    def fails(*_arguments: object) -> None:
        raise EasyTierNotFoundError("cannot be downloaded", reason="DownloadFailed")

    if missing == "root":
        monkeypatch.setattr("os.geteuid", lambda: ALICE)
    elif missing == "systemd":
        monkeypatch.setattr(service_steps, "this_machine", lambda: RecordedMachine(here.machine.root, is_booted=False))
    elif missing == "nft":
        monkeypatch.setattr(shutil, "which", lambda _name, **_options: None)
    else:
        monkeypatch.setattr(up_steps, "find_easytier", fails)
        monkeypatch.setattr(up_steps, "acquire", fails)
    refused = here.up(here.token(), *RAY).exception
    assert isinstance(refused, EdgelinkError)
    assert (refused.condition_reason, refused.exit_code) == (reason, ExitCode.CONFIG)
    assert (here.changed, here.enrolled, here.started) == ([], [], [])


def test_what_a_person_wrote_stays_in_the_configuration(here: Here) -> None:
    """Comments, other keys and the file's mode."""
    here.config.parent.mkdir(parents=True)
    here.config.write_text("# ours\nhostname: franka-1\nray: {num_gpus: 0}  # none here\n")
    here.config.chmod(0o640)
    assert here.up(here.token(), *RAY).exception is None
    assert here.config.read_text() == (
        f"# ours\nhostname: franka-1\nray: {{python: {PYTHON}, user: nobody, num_gpus: 0}}  # none here\n"
    )
    assert here.config.stat().st_mode & 0o777 == 0o640
    assert [each.hostname for each in here.enrolled] == ["franka-1"]


def test_an_easytier_that_only_the_caller_names_is_written_down(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has none of the caller's variables."""
    monkeypatch.setenv("EDGELINK_EASYTIER", "wheel")
    assert here.up(here.token(), *RAY).exception is None
    assert yaml.safe_load(here.config.read_text())["overlay"] == {"easytier_core": "wheel"}


def test_relay_makes_the_relay_and_prints_no_token_into_a_file(here: Here) -> None:
    """A token is a secret: only a person at a terminal sees one."""
    done = here.up("--relay", "--advertise", "relay.example.org")
    assert done.exception is None, done.output
    assert yaml.safe_load(here.config.read_text()) == {"relay": {"advertise": ["relay.example.org"]}}
    assert here.started == [(["bootstrap"], "restart")]
    assert "elt1_" not in done.output
    assert here.enrolled == []


def at_a_terminal(wishes: up_steps.Wishes, *typed: str) -> Result:
    command = click.Command("up", callback=lambda: up_steps.bring_up(wishes, 1.0))
    return CliRunner().invoke(command, [], input="".join(f"{line}\n" for line in typed), standalone_mode=False)


def test_a_person_is_asked_for_what_is_not_clear(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token, which is not shown; which Python of several; whose Ray it is."""

    async def two(_places: object, _otherwise: object) -> list[Interpreter]:
        return [interpreter("/opt/a/bin/python"), interpreter(str(PYTHON))]

    monkeypatch.setattr(up_steps, "find_pythons", two)
    token = here.token()
    done = at_a_terminal(up_steps.Wishes(can_ask=True), token, "2", "nobody")
    assert done.exception is None, done.output
    assert yaml.safe_load(here.config.read_text())["ray"] == {"python": str(PYTHON), "user": "nobody"}
    assert token not in done.output
    assert len(here.enrolled) == 1


def test_a_person_at_a_relay_with_a_private_address_is_asked_for_the_public_one(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public one is taken."""
    for guessed, typed, written in (
        ("10.0.0.5", ["relay.example.org"], "relay.example.org"),
        ("8.8.8.8", [], "8.8.8.8"),
    ):
        monkeypatch.setattr(up_steps, "outgoing_address", lambda guessed=guessed: guessed)
        here.config.unlink(missing_ok=True)
        done = at_a_terminal(up_steps.Wishes(relay=True, can_ask=True), *typed)
        assert done.exception is None, done.output
        assert yaml.safe_load(here.config.read_text()) == {"relay": {"advertise": [written]}}


def test_an_interrupted_try_says_how_to_go_on(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C while the relay is asked."""

    async def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(up_steps, "join", interrupted)
    done = here.up(here.token(), *RAY)
    assert isinstance(done.exception, KeyboardInterrupt | click.Abort)
    assert "goes on" in done.output
    assert here.started == []


def test_down_stops_and_disables_and_up_without_a_token_brings_it_back(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease stays, and so does the unit."""
    stopped: list[str] = []
    monkeypatch.setattr("edgelink.cli.stopping.stop_node", lambda *_: stopped)
    monkeypatch.setattr("edgelink.daemon.leave.refuse_during_run", lambda *_: None)
    assert here.up(here.token(), *RAY).exception is None
    link = "etc/systemd/system/multi-user.target.wants/edgelink-edge.service"
    lease = here.paths.membership.read_bytes()
    for _ in range(2):
        done = CliRunner().invoke(down.command, [], standalone_mode=False)
        assert done.exception is None, done.output
        assert link not in tree(here.machine)
        assert "etc/systemd/system/edgelink-edge.service" in tree(here.machine)
        assert here.paths.membership.read_bytes() == lease
        assert any(asked[0] == "stop" and "edgelink-edge.service" in asked for asked in here.machine.asked)
        assert "edgelink up" in done.output

    assert here.up().exception is None
    assert link in tree(here.machine)
    assert here.started[-1] == (["edge"], "restart")
    assert len(here.enrolled) == 1


# -- how it is told


def test_a_long_wait_says_what_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, on stderr; a short one says nothing."""
    said = threading.Event()
    echo: Callable[..., None] = click.echo

    def tell(*arguments: object, **options: object) -> None:
        echo(*arguments, **options)
        said.set()

    monkeypatch.setattr(click, "echo", tell)
    with waiting_for("asking the relay", expected_s=0.0):
        assert said.wait(10)
    assert "asking the relay" in capsys.readouterr().err
    with waiting_for("asking the relay", expected_s=3600.0):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.processes
def test_a_token_is_soon_no_argument_any_more(tmp_path: Path) -> None:
    """As `ps` shows the process, while all other arguments stay."""
    world = World(tmp_path)
    token = world.token().encode()
    assert Token.parse(token)
    code = "import sys; from edgelink.cli.options import read_token; read_token(sys.argv[2], None); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "up", token, "--hostname", "robot"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        process.communicate("\n", timeout=10)
    assert words[3:7] == ["up", "x" * len(token), "--hostname", "robot"]


@pytest.mark.processes
@pytest.mark.parametrize("argument", ["None", "'-'"])
def test_a_person_is_asked_for_the_token_and_the_terminal_does_not_show_it(tmp_path: Path, argument: str) -> None:
    token = World(tmp_path).token().encode()
    ours, theirs = pty.openpty()
    code = f"from edgelink.cli.options import read_token; print(read_token({argument}, None))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        shown = b""
        while b"token" not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, f"{token}\n".encode())
        read, _ = process.communicate(timeout=10)
    os.close(theirs)
    shown += os.read(ours, 1024)
    os.close(ours)
    assert read.decode().strip() == token
    assert token.encode() not in shown
