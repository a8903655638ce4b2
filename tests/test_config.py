"""The configuration file: what is accepted, and how mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgelink.config import Config, load_config
from edgelink.config.load import override
from edgelink.config.reference import render
from edgelink.errors import ConfigError, ExitCode


def write(path: Path, text: str) -> Path:
    file = path / "edgelink.yaml"
    file.write_text(text)
    return file


def test_a_heading_with_nothing_below_it_says_nothing(tmp_path: Path) -> None:
    """All keys of a section commented out leave its name behind."""
    file = write(tmp_path, "ray:\n#  port: 7000\n")
    assert load_config(file, environ={}).ray.port == 6379
    assert load_config(file, environ={"EDGELINK_RAY__PORT": "6380"}).ray.port == 6380


@pytest.mark.parametrize(
    ("name", "text"), [("EDGELINK_RAY__PORT", "[6380"), ("EDGELINK_HOSTNAME__X", "y"), ("EDGELINK_RAY__PORT__X", "1")]
)
def test_an_unusable_variable_is_named(tmp_path: Path, name: str, text: str) -> None:
    """A mistake in the environment is as plain as one in the file."""
    file = write(tmp_path, "hostname: robot-1\nray: {port: 7000}\n")
    with pytest.raises(ConfigError, match=name):
        load_config(file, environ={name: text})


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Another encoding, or no text at all."""
    file = tmp_path / "edgelink.yaml"
    file.write_bytes(b"hostname: \xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(file, environ={})


def test_defaults_need_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a configuration file works."""
    monkeypatch.setattr("edgelink.config.load.DEFAULT_CONFIG_FILE", tmp_path / "absent.yaml")
    config = load_config(environ={})
    assert config.overlay.device == "et0"
    assert config.ray.port == 6379
    assert config.firewall.enabled


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """Every key is also an EDGELINK_ variable; nested keys take two underscores."""
    file = write(tmp_path, "ray:\n  port: 7000\nhostname: robot-1\n")
    config = load_config(file, environ={"EDGELINK_RAY__PORT": "6380", "EDGELINK_TOKEN_FILE": "/x"})
    assert (config.ray.port, config.hostname) == (6380, "robot-1")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ray:\n  prot: 1\n", "ray.prot: unknown key"),
        ("ray:\n  port: 70000\n", "ray.port"),
        ("overlay:\n  device: a-name-that-is-too-long\n", "overlay.device"),
        ("hostname: Robot_1\n", "hostname"),
        ("relay:\n  cidr: 10.0.0.0/8\n", "relay.cidr"),
        ("- a\n- b\n", "top level must be a mapping"),
        ("ray: [\n", "not valid YAML"),
    ],
)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, text: str, named: str) -> None:
    """Bad input is refused with the path of the key, before anything starts."""
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, text), environ={})
    assert named in raised.value.message
    assert raised.value.exit_code is ExitCode.CONFIG


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """Nobody should have to mend a file in as many rounds as it has mistakes."""
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, "ray:\n  prot: 1\noverlay:\n  mtu: 1\n"), environ={})
    assert "ray.prot" in raised.value.message
    assert "overlay.mtu" in raised.value.message


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    """A mistyped --config must not silently mean the defaults."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "no-such.yaml", environ={})


def test_flags_win_and_absent_flags_change_nothing(tmp_path: Path) -> None:
    """A flag that was not given must not reset what the file says."""
    config = load_config(write(tmp_path, "relay:\n  network_name: lab\n"), environ={})
    changed = override(config, {"relay": {"network_name": None, "advertise": ("203.0.113.10",)}})
    assert (changed.relay.network_name, changed.relay.advertise) == ("lab", ("203.0.113.10",))
    with pytest.raises(ConfigError, match=r"relay\.cidr"):
        override(config, {"relay": {"cidr": "10.0.0.0/30"}})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("relay", "advertise", ["relay.example.org:8883"]),
        ("relay", "advertise", ["not a host"]),
        ("relay", "advertise", ["relay..example.org"]),
        ("relay", "advertise", ["relay-.example.org"]),
        ("relay", "advertise", ["x" * 64 + ".example.org"]),
        ("relay", "advertise", [".".join(["x" * 60] * 4)]),
        ("relay", "easytier_listeners", ["tcp:11010"]),
        ("relay", "easytier_listeners", ["tcp://0.0.0.0"]),
        ("overlay", "listeners", ["http://0.0.0.0:80"]),
        ("overlay", "listeners", ["tcp://0.0.0.0:99999"]),
    ],
)
def test_addresses_are_checked_before_use(section: str, key: str, value: list[str]) -> None:
    """What nobody can dial or listen on is refused with its key, not found out by a robot."""
    with pytest.raises(ConfigError, match=rf"{section}\.{key}"):
        override(Config(), {section: {key: tuple(value)}})


def test_usable_addresses_are_accepted() -> None:
    """Names, IPv4 and IPv6, every scheme that EasyTier listens on; no listener at all."""
    relay = {
        "advertise": ("a.example", "x" * 63 + ".b-c.example", "10.0.0.1", "[2001:db8::1]"),
        "easytier_listeners": ("wss://[::]:443",),
    }
    assert override(Config(), {"relay": relay}).relay.advertise == relay["advertise"]
    assert Config.model_validate({"overlay": {"listeners": []}}).overlay.listeners == ()


def test_the_reference_page_is_what_the_models_say() -> None:
    """Documentation that is generated must not be stale."""
    page = Path(__file__).parent.parent / "docs" / "reference" / "config.md"
    assert page.read_text() == render(), "run: python -m edgelink.config.reference > docs/reference/config.md"


def test_every_key_is_explained() -> None:
    """A key without a meaning is a riddle."""
    rows = [line.split(" | ") for line in render().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if not row[2].rstrip(" |")] == []
