"""What a configuration asks of this machine, which its models cannot know."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from registry_world import World
from structlog.testing import capture_logs

from edgelink.cli.main import edgelink
from edgelink.config import Config, Paths
from edgelink.daemon.own_registry import warn_of_ignored_settings
from edgelink.daemon.usable import require_usable
from edgelink.errors import ConfigError, EdgelinkError
from edgelink.process import systemd_launcher
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import put_membership
from edgelink.protocol.payloads import RelayAddresses, Role
from edgelink.ray_cluster.interpreter import Interpreter, RayUser
from edgelink.ray_cluster.pythons import NOBODY_UID

NOBODYS = {"user": "no-such-user", "python": "/no/such/python"}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "state", tmp_path / "run")


def found_network(directory: Path, cidr: str) -> World:
    directory.mkdir(parents=True)
    return World(directory, cidr=IPv4Network(cidr))


def make_relay(paths: Paths, cidr: str) -> World:
    """What the first start of a relay leaves."""
    world = found_network(paths.state, cidr)
    key = NodeKey.generate()
    put_membership(paths, world.authority.relay_membership(key, "relay", previous=None, addresses=("127.0.0.1:8883",)))
    return world


def make_edge(paths: Paths, elsewhere: Path) -> None:
    """What joining leaves; the registry is on another machine."""
    world = found_network(elsewhere, "10.10.0.0/24")
    paths.state.mkdir(parents=True)
    key, token = NodeKey.generate(), world.token()
    put_membership(paths, world.membership(key, token, world.enrol(key, token)))


def mistakes(paths: Paths, **sections: Any) -> str:
    """What is said of them; empty for nothing."""
    try:
        require_usable(Config.model_validate(sections), paths, None)
    except ConfigError as error:
        return error.message
    return ""


def test_the_defaults_can_be_used_everywhere(paths: Paths, tmp_path: Path) -> None:
    """On a fresh machine and on one that has joined."""
    assert mistakes(paths) == ""
    make_edge(paths, tmp_path / "elsewhere")
    assert mistakes(paths) == ""


def test_ranges_have_to_lie_in_the_network_that_the_registry_has(paths: Paths) -> None:
    """Not in relay.cidr, which the first start settled, and which may have been given on its command line."""
    make_relay(paths, "10.99.0.0/24")
    assert mistakes(paths, relay={"ranges": {"edge": "10.99.0.10-10.99.0.20"}}) == ""
    assert "10.99.0.0/24" in mistakes(paths, relay={"ranges": {"edge": "10.10.0.10-10.10.0.20"}})


def test_before_the_first_start_ranges_have_to_lie_in_the_network_that_is_asked_for(paths: Paths) -> None:
    """Which would refuse them."""
    ranges = {"edge": "10.99.0.1-10.99.0.100"}
    assert "relay.ranges" in mistakes(paths, relay={"ranges": ranges})
    assert mistakes(paths, relay={"ranges": ranges, "cidr": "10.99.0.0/24"}) == ""
    shared = {"head": "10.10.0.5-10.10.0.9", "edge": "10.10.0.9-10.10.0.20"}
    assert "share 10.10.0.9" in mistakes(paths, relay={"ranges": shared})


def test_what_is_the_relays_does_not_matter_on_an_edge(paths: Paths, tmp_path: Path) -> None:
    """Machines may share a file."""
    make_edge(paths, tmp_path / "elsewhere")
    relay = {"ranges": {"edge": "10.99.0.1-10.99.0.100"}, "advertise": [f"192.0.2.{n}" for n in range(1, 20)]}
    assert mistakes(paths, relay=relay) == ""


def test_who_and_what_runs_ray_has_to_be_there(paths: Paths, tmp_path: Path) -> None:
    """Both are named at once. A relay has no Ray."""
    for _ in range(2):  # fresh, then joined
        said = mistakes(paths, ray=NOBODYS)
        for named in ("ray.user: ", "'no-such-user'", "ray.python: ", "/no/such/python"):
            assert named in said
        if not paths.state.exists():
            make_edge(paths, tmp_path / "elsewhere")
    relays = Paths(tmp_path / "relay", tmp_path / "run")
    make_relay(relays, "10.10.0.0/24")
    assert mistakes(relays, ray=NOBODYS) == ""


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"overlay": {"easytier_core": "/no/easytier-core"}}, "overlay.easytier_core"),
        ({"ray": {"python": "/no\0path"}}, "ray.python"),
        ({"ray": {"user": "no\0body"}}, "ray.user"),
        ({"robot": {"hold": ["x"], "user": "no-such-user"}}, "robot.user"),
        ({"relay": {"advertise": [f"192.0.2.{n}" for n in range(1, 20)]}}, "16"),
        ({"process": {"launcher": "systemd"}}, "process.launcher"),
    ],
)
def test_what_is_not_here_is_named(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], said: str
) -> None:
    """Each by its key, before a daemon that works is given up for it."""
    monkeypatch.setattr(systemd_launcher, "is_systemd_running", lambda: False)
    assert said in mistakes(paths, **sections)


def test_an_additional_relay_needs_an_overlay_of_its_own(paths: Paths, tmp_path: Path) -> None:
    """A reload refuses what a start would; the relay that holds the registry, and an edge, may use another's."""
    existing = {"kind": "existing"}
    network = found_network(tmp_path / "elsewhere", "10.10.0.0/24")
    key, token = NodeKey.generate(), network.token(Role.RELAY)
    addresses = RelayAddresses(overlay_peers=(), broker_addresses=())
    paths.state.mkdir(parents=True)
    put_membership(
        paths, network.membership(key, token, network.enrol(key, token, "relay-2", role=Role.RELAY, relay=addresses))
    )
    assert "no second relay" in mistakes(paths, overlay=existing)
    assert mistakes(paths) == ""
    for name, make in (("relay", make_relay), ("edge", make_edge)):
        other = Paths(tmp_path / name / "state", tmp_path / name / "run")
        make(other, "10.10.0.0/24" if name == "relay" else tmp_path / "edges")
        assert mistakes(other, overlay=existing) == ""


def test_a_damaged_membership_is_no_mistake_of_the_configuration(paths: Paths) -> None:
    """It is told where it is needed."""
    paths.state.mkdir()
    paths.membership.write_text("{")
    assert mistakes(paths, ray=NOBODYS) == ""


@pytest.fixture
def file(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of this machine."""
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(paths.state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(paths.runtime))
    monkeypatch.setenv("EDGELINK_CONFIG", str(tmp_path / "edgelink.yaml"))
    return tmp_path / "edgelink.yaml"


@pytest.mark.parametrize("words", [["config", "check"], ["service", "check"]])
def test_a_check_looks_at_the_machine_too(file: Path, words: list[str]) -> None:
    """As a reload does."""
    for text, is_usable in (("ray: {port: 7000}\n", True), ("ray: {user: no-such-user}\n", False)):
        file.write_text(text)
        result = CliRunner().invoke(edgelink, words)
        assert (result.exception is None) is is_usable
        assert is_usable or isinstance(result.exception, ConfigError)


@pytest.mark.parametrize(
    ("ray", "more", "reason"),
    [
        ('"2.60.0"', "gcs_store: true", None),
        ('"2.59.0"', "gcs_store: true", "NoGcsStore"),
        ('"2.59.0"', "gcs_store: false", None),
        ("null", "gcs_store: false", "DependencyMissing"),
        ('"2.9.0"', "gcs_store: false", "RayTooOld"),
    ],
)
def test_a_check_asks_the_interpreter_for_ray(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: str, more: str, reason: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4321)  # asked as ourselves
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '[\"3.11.7\", {ray}, false, [], {{}}]'\n")
    python.chmod(0o755)
    file.write_text(f"ray: {{python: {python}, {more}}}\n")
    error = CliRunner().invoke(edgelink, ["config", "check"]).exception
    assert (error.condition_reason if isinstance(error, EdgelinkError) else error) == reason


@pytest.mark.parametrize("allow_root", [True, False])
@pytest.mark.parametrize("cause", [PermissionError(), FileNotFoundError()])
def test_an_interpreter_that_only_root_may_run_is_good_for_a_ray_of_root(
    file: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError, *, allow_root: bool
) -> None:
    """Nobody may not ask it, and that is no mistake of the configuration."""

    async def inspect(_python: Path, *, asker: RayUser) -> Interpreter:
        raise ConfigError(asker.name) from cause

    monkeypatch.setattr("edgelink.ray_cluster.interpreter.inspect_interpreter", inspect)
    file.write_text(f"ray: {{python: /bin/sh, allow_root: {str(allow_root).lower()}}}\n")
    is_good = allow_root and isinstance(cause, PermissionError)
    assert (CliRunner().invoke(edgelink, ["config", "check"]).exit_code == 0) is is_good


def test_a_check_asks_no_interpreter_as_root(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Ray is to run as root."""
    asked: list[RayUser] = []

    async def inspect(python: Path, *, asker: RayUser) -> Interpreter:
        asked.append(asker)
        return Interpreter(python, "3.11.7", "2.60.0", 0)

    monkeypatch.setattr("edgelink.ray_cluster.interpreter.inspect_interpreter", inspect)
    file.write_text("ray: {python: /bin/sh, user: root, allow_root: true}\n")
    assert CliRunner().invoke(edgelink, ["config", "check"]).exit_code == 0
    assert [asker.uid for asker in asked] == [NOBODY_UID]


def test_what_is_in_effect_is_shown_without_secrets(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, variables and defaults; as YAML that may be a file again, and as JSON."""
    monkeypatch.setenv("EDGELINK_RAY__PORT", "7001")
    file.write_text("ray: {port: 7000, environment: {WANDB_API_KEY: 0123456789abcdef}}\n")
    told = [CliRunner().invoke(edgelink, ["config", "show", *options]).stdout for options in ([], ["--json"])]
    assert "0123456789abcdef" not in "".join(told)
    shown, as_json = yaml.safe_load(told[0]), json.loads(told[1])
    assert shown == as_json
    assert (shown["ray"]["port"], shown["overlay"]["device"]) == (7001, Config().overlay.device)
    assert Config.model_validate(shown).ray.port == 7001


@pytest.mark.parametrize(("overlay_ip", "is_told"), [(None, False), ("10.10.0.1", False), ("10.10.0.7", True)])
def test_another_address_of_the_relay_comes_too_late(paths: Paths, overlay_ip: str | None, is_told: bool) -> None:
    """Its lease was settled by the first start."""
    world = make_relay(paths, "10.10.0.0/24")
    config = Config.model_validate({"relay": {"overlay_ip": overlay_ip, "network_name": "lab"}})
    with capture_logs() as logs:
        warn_of_ignored_settings(config, world.network)
    assert [line["setting"] for line in logs] == ["relay.overlay_ip"] * is_told
