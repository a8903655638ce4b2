"""Environments and command lines of Ray and of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from pydantic import ValidationError

from edgelink.config import RayConfig
from edgelink.errors import ConfigError
from edgelink.ray_cluster import command, ray_environment
from edgelink.ray_cluster.interpreter import RayUser
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.ride_through import ray_settings

NEW = RayCapabilities.for_version("2.60.0")
OLD = RayCapabilities.for_version("2.48.0")
PYTHON = Path("/opt/venv/bin/python3")
USER = RayUser(1000, 1000, "robot", Path("/home/robot"))
HEAD = IPv4Address("10.10.0.2")
TOKEN_FILE = Path("/run/edgelink/ray/token")


def start_environment(
    capabilities: RayCapabilities = NEW, token_path: Path | None = TOKEN_FILE, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    return ray_environment.ray_environment(
        python=PYTHON,
        user=USER,
        capabilities=capabilities,
        marker="EDGELINK_RAY_ID=abc",
        node_rank=3,
        device="et0",
        ride_through_s=120,
        token_path=token_path,
        own=own or {},
    )


def granted(token_path: Path | None = TOKEN_FILE) -> dict[str, str]:
    return ray_environment.driver_variables(
        python=PYTHON,
        capabilities=NEW,
        head_ip=HEAD,
        ray_port=6379,
        ride_through_s=120,
        token_path=token_path,
        device="et0",
        cidr=IPv4Network("10.10.0.0/24"),
    )


@pytest.mark.parametrize(
    ("version", "labels", "token_auth"),
    [("2.47.0", False, False), ("2.48.0", False, False), ("2.49.1", True, False), ("2.52.0", True, True)],
)
def test_capabilities_follow_the_version(version: str, labels: bool, token_auth: bool) -> None:
    """Labels are used from 2.49 on, token authentication from 2.52 on."""
    found = RayCapabilities.for_version(version)
    assert (found.labels, found.token_auth) == (labels, token_auth)


@pytest.mark.parametrize("version", ["2.46.9", "1.13.0", "unknown"])
def test_too_old_ray_is_refused(version: str) -> None:
    """Ray before 2.47 is refused with what to install."""
    with pytest.raises(ConfigError) as caught:
        RayCapabilities.for_version(version)
    assert caught.value.condition_reason == "RayTooOld"


def test_ray_starts_with_nothing_else_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` gets exactly the listed variables: nothing of the daemon's environment leaks in."""
    monkeypatch.setenv("http_proxy", "http://proxy")
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:1")
    found = start_environment()
    assert found == {
        "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/robot",
        "USER": "robot",
        "LOGNAME": "robot",
        "LANG": "C.UTF-8",
        "RLINF_NODE_RANK": "3",
        "RLINF_COMM_NET_DEVICES": "et0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": "nowhere:",
        "EDGELINK_RAY_ID": "abc",
        "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
        "RAY_ray_syncer_message_refresh_interval_ms": "10000",
        **ray_settings(120),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/run/edgelink/ray/token",
    }


def test_a_nodes_own_variables_are_added() -> None:
    """`ray.environment`; the language may be another one."""
    own = {"LD_LIBRARY_PATH": "/opt/vendor/lib", "LANG": "ja_JP.UTF-8"}
    assert start_environment(own=own) == {**start_environment(), **own}


def test_workers_begin_with_the_import_hook_and_then_their_nodes_code() -> None:
    """And have as long to wait as the outage, and TCP's next try after it, may take."""
    hook = Path("/run/edgelink/import-hook/1000")
    found = ray_environment.ray_environment(
        python=PYTHON,
        user=USER,
        capabilities=NEW,
        marker="EDGELINK_RAY_ID=abc",
        node_rank=3,
        device="et0",
        ride_through_s=120,
        token_path=None,
        own={"PYTHONPATH": "/opt/vendor"},
        hook=hook,
    )
    assert (found["EDGELINK_IMPORT_HOOK"], found["PYTHONPATH"]) == (str(hook), f"{hook}:/opt/vendor")
    assert int(found["EDGELINK_GRPC_TIMEOUT_MS"]) >= 1000 * (120 + 120)
    assert ray_environment.of_machine(found, ("PYTHONPATH",))["PYTHONPATH"] == "/opt/vendor"
    assert "PYTHONPATH" not in start_environment()


def test_the_configuration_takes_no_variable_that_edgelink_sets() -> None:
    """Whatever it tells Ray, a driver or the collectives of a node, but for the language."""
    every = {
        *start_environment(),
        *start_environment(token_path=None),
        *granted(),
        "GLOO_SOCKET_IFNAME",
        "CCL_MNIC_NAME",
    }
    for name in every - {"LANG", "no_proxy"}:
        with pytest.raises(ValidationError, match=rf"environment\.{name}"):
            RayConfig(environment={name: "x"})


def test_auth_mode_is_always_said_where_ray_knows_it() -> None:
    """A leftover ~/.ray/auth_token must not decide: the mode is explicit, and absent where Ray does not know it."""
    assert start_environment(token_path=None)["RAY_AUTH_MODE"] == "disabled"
    assert not [name for name in start_environment(OLD) if name.startswith("RAY_AUTH")]


def test_ride_through_is_the_same_for_nodes_drivers_and_commands() -> None:
    """RLinf carries what differs between driver and head to all nodes: here nothing does."""
    settings = ray_settings(120)
    command = ray_environment.command_environment(
        python=PYTHON, capabilities=NEW, head_ip=HEAD, ray_port=6379, ride_through_s=120, token_path=TOKEN_FILE
    )
    for found in (start_environment(), command, granted()):
        assert settings.items() <= found.items()
    assert granted()["EDGELINK_RIDE_THROUGH_S"] == "120"


def test_what_is_this_machines_own_is_told_apart() -> None:
    """A driver gets these as the head's Ray has them: RLinf would carry other values to all nodes."""
    assert ray_environment.of_machine(start_environment()) == {
        "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/robot",
        "USER": "robot",
        "LOGNAME": "robot",
        "LANG": "C.UTF-8",
    }


def test_what_a_node_was_given_is_its_own() -> None:
    """A driver beside that Ray has it, too, and RLinf, which carries what differs, carries nothing."""
    own = {"CUDA_VISIBLE_DEVICES": "2,3"}
    started_with = start_environment(own=own)
    assert ray_environment.of_machine(started_with, own) == {**ray_environment.of_machine(started_with), **own}


def test_command_environment_makes_ray_status_work() -> None:
    """Address, authentication and PATH are there."""
    found = ray_environment.command_environment(
        python=PYTHON,
        capabilities=NEW,
        head_ip=HEAD,
        ray_port=6380,
        ride_through_s=120,
        token_path=TOKEN_FILE,
    )
    assert found["RAY_ADDRESS"] == "10.10.0.2:6380"
    assert found["PATH"].startswith("/opt/venv/bin:/usr/")
    assert "127.0.0.1" in found["no_proxy"].split(","), "the dashboard, where a proxy of the caller's does not lead"
    assert found["RAY_AUTH_TOKEN_PATH"] == str(TOKEN_FILE)


def worker(config: RayConfig | None = None, capabilities: RayCapabilities = NEW) -> tuple[str, ...]:
    return command.worker_argv(
        config or RayConfig(),
        capabilities,
        python=PYTHON,
        ip=IPv4Address("10.10.0.11"),
        node_id="abc",
        node_rank=1,
        head="10.10.0.2:6379",
    )


def head(config: RayConfig | None = None, *, has_client: bool = False) -> tuple[str, ...]:
    return command.head_argv(config or RayConfig(), NEW, python=PYTHON, ip=HEAD, node_id="abc", has_client=has_client)


def test_every_listening_port_is_pinned_in_argv() -> None:
    """Whatever the firewall and the port check know is what Ray is told."""
    for argv, is_head, has_client in ((worker(), False, False), (head(has_client=True), True, True)):
        given = {int(word.partition("=")[2]) for word in argv if "port=" in word}
        ports = set(command.listening_ports(RayConfig(), is_head=is_head, has_client=has_client).values())
        assert given == ports | {20100, 20999}


def test_ray_start_never_blocks_and_names_its_address() -> None:
    """No --block: whoever kills that kills Ray. The node address is always said; the dashboard stays on loopback."""
    for argv, ip in ((worker(), "10.10.0.11"), (head(), "10.10.0.2")):
        assert "--block" not in argv
        assert f"--node-ip-address={ip}" in argv
        assert "--disable-usage-stats" in argv
    assert "--dashboard-host=127.0.0.1" in head()
    assert "--address=10.10.0.2:6379" in worker()


def test_client_port_only_where_ray_client_is_installed() -> None:
    """Ray refuses the flag without its client packages."""
    assert not [word for word in head() if "client" in word]
    assert "--ray-client-server-port=20007" in head(has_client=True)


def test_a_head_port_of_10001_is_not_ray_clients() -> None:
    """verl's guide uses Ray Client's usual port for the head."""
    argv = head(RayConfig(port=10001), has_client=True)
    assert [word for word in argv if word.endswith("=10001")] == ["--port=10001"]
    assert "--ray-client-server-port=20007" in argv


def test_rank_is_a_label_or_on_old_ray_a_resource() -> None:
    """The rank can be read back from Ray in both worlds."""
    assert "--labels=edgelink.rank=1,edgelink.node=abc" in worker()
    assert '--resources={"edgelink-rank-1": 1}' in worker(capabilities=OLD)


def test_sizes_are_passed_on_and_zero_gpus_are_zero() -> None:
    """`ray.num_gpus: 0` hides accelerators; unset sizes are Ray's to find."""
    argv = worker(RayConfig(num_gpus=0, num_cpus=2, object_store_memory=100 * 2**20))
    assert {"--num-gpus=0", "--num-cpus=2", "--object-store-memory=104857600"} <= set(argv)
    assert not [word for word in worker() if word.startswith("--num-")]
