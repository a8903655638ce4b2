"""The configuration file: what is accepted, and how mistakes are named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from reference_pages.config import render
from telling import Words, refuses

from edgelink.cli.daemon import own_hostname
from edgelink.config import Config, load_config
from edgelink.config.load import override
from edgelink.config.models import hostname_like, is_hostname
from edgelink.errors import ConfigError, ExitCode


def write(path: Path, text: str) -> Path:
    file = path / "edgelink.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("os_name", "name"),
    [
        ("MyRobot_01", "myrobot-01"),
        ("franka-2.lab.example.org", "franka-2"),
        ("Größe__ 7!", "groe-7"),
        ("_-x-_", "x"),
        ("a" * 31 + "_" + "b" * 38, "a" * 31),
        ("机器人", ""),
        ("localhost", "localhost"),
    ],
)
def test_the_os_hostname_is_made_a_name_of_the_network(os_name: str, name: str) -> None:
    """Whatever people called their robot, it joins; where nothing is left, they are asked for a name."""
    assert hostname_like(os_name) == name
    assert not name or is_hostname(name)


def test_people_are_told_under_which_name_their_machine_joins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Words
) -> None:
    """What somebody chose is not changed, but refused where it is no name."""
    monkeypatch.setattr("socket.gethostname", lambda: "MyRobot_01")
    assert own_hostname(None, Config()) == "myrobot-01"
    told = capsys.readouterr().err
    assert all(name in told for name in ("'myrobot_01'", "'myrobot-01'"))
    words(told)
    assert own_hostname(None, Config(hostname="chosen")) == "chosen"
    with refuses(ConfigError, "'My_Robot'"):
        own_hostname("My_Robot", Config())
    monkeypatch.setattr("socket.gethostname", lambda: "机器人")
    with refuses(ConfigError, "'机器人'"):
        own_hostname(None, Config())
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize(
    "text", ["2024-99-99", "0123", "1234567", "on", "1e3", "1.10", "a: b", '"0123"', " 0123 "], ids=lambda text: text
)
def test_a_text_in_a_variable_is_as_it_was_typed(tmp_path: Path, text: str) -> None:
    """A user named 1234567 is no number. Quotes, which the file needs there, are no part of it."""
    config = load_config(write(tmp_path, ""), environ={"EDGELINK_RAY__USER": text})
    assert config.ray.user == text.strip().strip('"')


@pytest.mark.parametrize(
    ("written", "cpus"), [("010", 10), ("08", 8), ("0", 0), ("1_0", 10), ("0x10", 16), ("0b11", 3), ("+7", 7)]
)
def test_a_whole_number_is_the_one_that_was_written(tmp_path: Path, written: str, cpus: int) -> None:
    """YAML 1.1 takes 010 for 8, and 08 for no number."""
    assert load_config(write(tmp_path, f"ray: {{num_cpus: {written}}}"), environ={}).ray.num_cpus == cpus
    assert load_config(write(tmp_path, ""), environ={"EDGELINK_RAY__NUM_CPUS": written}).ray.num_cpus == cpus


def test_what_looks_like_a_time_is_no_number(tmp_path: Path) -> None:
    """YAML 1.1 takes 1:30 for 90, to the base of sixty; of an address with a port, too, it makes a number."""
    with pytest.raises(ConfigError, match=r"ray\.port: .*'1:30'"):
        load_config(write(tmp_path, "ray: {port: 1:30}"), environ={})
    assert load_config(write(tmp_path, "robot: {hold: [stop, 12:34, 0123]}"), environ={}).robot.hold == (
        "stop",
        "12:34",
        "0123",
    )


def test_a_relative_directory_for_ray_is_refused(tmp_path: Path) -> None:
    """As Ray does, after a start; every node is to have the same path."""
    with pytest.raises(ConfigError, match=r"ray\.temp_dir: .*has to begin with / \(got 'data/ray'\)"):
        load_config(write(tmp_path, "ray: {temp_dir: data/ray}"), environ={})


def test_texts_of_every_kind_are_as_they_were_typed(tmp_path: Path) -> None:
    """Names, paths, and words of which YAML makes a truth; what is no text is YAML."""
    environ = {
        "EDGELINK_HOSTNAME": "1234",
        "EDGELINK_OVERLAY__DEVICE": "0x10",
        "EDGELINK_RAY__PYTHON": "1.0",
        "EDGELINK_WEB__LISTEN": "off",
        "EDGELINK_RAY__ALLOW_ROOT": "on",
        "EDGELINK_RELAY__ADVERTISE": "[a, b]",
    }
    config = load_config(write(tmp_path, ""), environ)
    assert (config.hostname, config.overlay.device, config.ray.python) == ("1234", "0x10", Path("1.0"))
    assert (config.web.listen, config.ray.allow_root, config.relay.advertise) == ("off", True, ("a", "b"))


@pytest.mark.parametrize("text", ["", "~", "null"])
def test_an_empty_variable_takes_back_what_the_file_says(tmp_path: Path, text: str) -> None:
    """Compose files pass on variables that nobody has set."""
    file = write(tmp_path, "hostname: robot-1\nray: {user: ada}\n")
    config = load_config(file, environ={"EDGELINK_HOSTNAME": text, "EDGELINK_RAY__USER": text})
    assert (config.hostname, config.ray.user) == (None, None)


def test_each_mistake_is_told_with_the_place_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for a variable's mistake in a file, least of all in one that does not exist."""
    file = write(tmp_path, "ray: {prot: 1}\nweb: {port: 0}\n")
    environ = {"EDGELINK_RAY__PORT": "abc", "EDGELINK_RELAY": "{cidr: x}"}
    with pytest.raises(ConfigError) as raised:
        load_config(file, environ)
    for told in (
        f"{file}: line 1: ray.prot: unknown key",
        "EDGELINK_RAY__PORT: ray.port: ",
        "EDGELINK_RELAY: relay.cidr: ",
    ):
        assert told in raised.value.message
    assert raised.value.message.count(str(file)) == 1
    monkeypatch.setattr("edgelink.config.load.DEFAULT_CONFIG_FILE", tmp_path / "absent.yaml")
    with pytest.raises(ConfigError) as raised:
        load_config(None, environ)
    assert "absent" not in raised.value.message


@pytest.mark.parametrize("order", [1, -1])
def test_the_short_form_of_a_section_goes_with_variables_for_its_keys(tmp_path: Path, order: int) -> None:
    """Whether it stands in the file or in a variable, and in whatever order the environment has them."""
    ports = {"EDGELINK_FIREWALL__RENDEZVOUS_PORTS": "[29500]"}
    environ = {"EDGELINK_FIREWALL": "off", **ports}
    for config in (
        load_config(write(tmp_path, "firewall: off\n"), ports),
        load_config(write(tmp_path, ""), dict(list(environ.items())[::order])),
    ):
        assert not config.firewall.enabled
        assert config.firewall.rendezvous_ports == ((29500, 29500),)


def test_ports_that_do_not_go_together_are_told_with_all_places(tmp_path: Path) -> None:
    """One may stand in the file, the other in a variable."""
    file = write(tmp_path, "ray: {min_worker_port: 30000}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, environ={"EDGELINK_RAY__MAX_WORKER_PORT": "29000"})
    assert raised.value.message.startswith(f"{file}, EDGELINK_RAY__MAX_WORKER_PORT: ray: ")


def test_an_edges_workers_may_have_the_ports_of_the_heads_services(tmp_path: Path) -> None:
    """GCS and dashboard run on the head only."""
    file = write(tmp_path, "ray: {min_worker_port: 6000, max_worker_port: 9000}\n")
    assert load_config(file, environ={}).ray.min_worker_port == 6000


def test_variables_of_a_nodes_ray_keep_their_case(tmp_path: Path) -> None:
    file = tmp_path / "edgelink.yaml"
    file.write_text("ray: {environment: {MUJOCO_GL: egl}}\n")
    assert load_config(file, {}).ray.environment == {"MUJOCO_GL": "egl"}
    in_one = {"EDGELINK_RAY__ENVIRONMENT": "{ROS_DOMAIN_ID: '7'}"}
    assert load_config(file, in_one).ray.environment == {"ROS_DOMAIN_ID": "7"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{ROS_DOMAIN_ID: 7}", r"ray.environment.ROS_DOMAIN_ID: .*a text.*7"),
        ("{A B: c}", "ray.environment.*'A B'"),
        ('{A: "b\\0c"}', "ray.environment.A"),
        ("{PATH: /opt/bin}", "ray.environment.PATH: "),
        ("{RAY_gcs_storage_path: /tmp}", "ray.environment.RAY_gcs_storage_path: .*EdgeLink"),
    ],
)
def test_an_unusable_variable_of_a_nodes_ray_is_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "edgelink.yaml"
    file.write_text(f"ray:\n  environment: {text}\n")
    with pytest.raises(ConfigError, match=named):
        load_config(file, {})


def test_one_variable_of_a_nodes_ray_is_none_of_edgelinks() -> None:
    """Names of EdgeLink's own variables are read without regard to case."""
    with pytest.raises(ConfigError, match="EDGELINK_RAY__ENVIRONMENT__MUJOCO_GL: one variable") as caught:
        load_config(None, {"EDGELINK_RAY__ENVIRONMENT__MUJOCO_GL": "egl"})
    assert "EDGELINK_RAY__ENVIRONMENT='{" in str(caught.value.hint)


def test_off_needs_no_quotes(tmp_path: Path) -> None:
    """YAML makes a truth of it, which is no word for where the page is served."""
    assert load_config(write(tmp_path, "web: {listen: off}\n"), environ={}).web.listen == "off"
    with pytest.raises(ConfigError, match=r"web\.listen"):
        load_config(write(tmp_path, "web: {listen: on}\n"), environ={})


def test_a_heading_within_a_section_may_be_filled_by_a_variable(tmp_path: Path) -> None:
    """As one at the top level may."""
    file = write(tmp_path, "relay:\n  ranges:\n")
    config = load_config(file, {"EDGELINK_RELAY__RANGES__EDGE": "10.10.0.100-10.10.0.199"})
    assert list(config.relay.ranges or ()) == ["edge"]


@pytest.mark.parametrize("text", ["2024-13-01", "!!int abc", "!!bool maybe", "[" * 2000, "0x" + "f" * 5000])
def test_a_value_that_cannot_be_read_is_a_mistake_in_its_file_or_variable(tmp_path: Path, text: str) -> None:
    """YAML's own refusals are of many types."""
    file = write(tmp_path, f"ray:\n  port: {text}\n")
    with pytest.raises(ConfigError, match=str(file)):
        load_config(file, environ={})
    with pytest.raises(ConfigError, match="EDGELINK_RAY__PORT: "):
        load_config(write(tmp_path, ""), environ={"EDGELINK_RAY__PORT": text})


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


def test_a_default_file_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor be looked for, in a directory that is root's alone: it is no absent one."""
    monkeypatch.setattr("edgelink.config.load.DEFAULT_CONFIG_FILE", tmp_path / "edgelink.yaml")

    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        for look in ("stat", "open", "read_text"):
            patched.setattr(Path, look, refused)
        with pytest.raises(ConfigError, match=r"edgelink\.yaml: cannot be read: Permission denied"):
            load_config(environ={})


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """Every key is also an EDGELINK_ variable; nested keys take two underscores."""
    file = write(tmp_path, "ray:\n  port: 7000\nhostname: robot-1\n")
    config = load_config(file, environ={"EDGELINK_RAY__PORT": "6380", "EDGELINK_TOKEN_FILE": "/x"})
    assert (config.ray.port, config.hostname) == (6380, "robot-1")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ray:\n  prot: 1\n", "ray.prot: unknown key"),
        ("relay:\n  credentials: true\n", "relay.credentials: unknown key"),  # a key that there was
        ("ray:\n  port: 70000\n", "ray.port"),
        ("overlay:\n  device: a-name-that-is-too-long\n", "overlay.device"),
        ("hostname: Robot_1\n", "hostname"),
        ("relay:\n  cidr: 10.0.0.0/8\n", "relay.cidr"),
        ("- a\n- b\n", "has no keys"),
        ("a: 1\nray: [\n", "line 2 opens a bracket"),
        (
            "ray: {min_worker_port: 30000, max_worker_port: 20000}\n",
            "min_worker_port 30000 is above max_worker_port 20000",
        ),
        ("ray: {min_worker_port: 30000}\n", "min_worker_port 30000 is above max_worker_port 20999"),
        ("ray: {port: 20001}\n", "node_manager_port and port are both 20001"),
        (
            "ray: {object_manager_port: 20150}\n",
            "object_manager_port 20150 is one of min_worker_port to max_worker_port",
        ),
        ("relay: {ranges: {edge: 10.10.0.9-10.10.0.3}}\n", "relay.ranges.edge"),
        ("ride_through: 5x\n", "ride_through: '5x'"),
        ("ray: {environment: {PATH: /x}}\n", "ray.environment.PATH: PATH "),
        ("access: run\n", "access"),
        ("access: per-run\noverlay: {kind: existing}\n", "line 2: overlay: kind: "),
        ("relay: 3\n", "line 1: relay: has to be a section"),
        ("ray:\n  port: 6380\nray:\n  num_cpus: 4\n", "line 3 has the key ray again"),
        ("ray:\n  port: 6380\n  port: 6381\n", "line 3 has the key port again"),
    ],
)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, text: str, named: str, words: Words) -> None:
    """Bad input is refused with the path of the key, before anything starts."""
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, text), environ={})
    assert named in raised.value.message
    assert raised.value.exit_code is ExitCode.CONFIG
    words(raised.value, DIRECTORY=tmp_path)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """Nobody should have to mend a file in as many rounds as it has mistakes."""
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, "ray:\n  prot: 1\noverlay:\n  mtu: 1\n"), environ={})
    assert "ray.prot" in raised.value.message
    assert "overlay.mtu" in raised.value.message


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    """A mistyped --config must not silently mean the defaults."""
    with pytest.raises(ConfigError, match="cannot be read") as raised:
        load_config(tmp_path / "no-such.yaml", environ={})
    assert "--config" in raised.value.hint


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
        ("relay", "advertise", ["[2001:db8:::1]"]),
        ("relay", "advertise", ["[1.2.3]"]),
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


def test_every_key_is_explained() -> None:
    """A key without a meaning is a riddle."""
    rows = [line.split(" | ") for line in render().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if not row[2].rstrip(" |")] == []
