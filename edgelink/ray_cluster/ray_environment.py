"""Environments, pure: of `ray start`, of Ray's own commands, and what the head gives to a driver.

Ray's nodes start with nothing but what is listed here, because RLinf carries every variable of the driver that differs
from the head's environment at `ray start` to all nodes: whatever leaks in there turns up on the robots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import MappingProxyType

from edgelink.process import import_hook
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.ride_through import grpc_setting, ray_settings

MARKER_NAME = "EDGELINK_RAY_OF"
RIDE_THROUGH_NAME = "EDGELINK_RIDE_THROUGH_S"  # tells the driver how long an outage it has to bear
# What of the environment of `ray start` is this machine's own: a driver gets the same, or none.
_OF_MACHINE = ("HOME", "USER", "LOGNAME", "PATH", "LANG")


def auth_environment(capabilities: RayCapabilities, token_path: Path | None) -> dict[str, str]:
    """How a process speaks to this Ray. Set even where there is no token: a leftover ~/.ray/auth_token would count."""
    if not capabilities.token_auth:
        return {}
    if token_path is None:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


# With statistics disabled, the dashboard tells https://usage-stats.ray.io/ that they are (2.60): to no URL of any kind.
_NOWHERE = "nowhere:"

# What Ray sends although nothing happens, less often. Names and defaults are those of Ray's ray_config_def.h.
SELDOM = MappingProxyType(
    {
        # The GCS asks each node for the demand that Ray's autoscaler and `ray status` show; every second by itself.
        "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
        # Nodes repeat their resources to the GCS although they are the same; every three seconds by itself.
        "RAY_ray_syncer_message_refresh_interval_ms": "10000",
    }
)


def ray_environment(
    *,
    python: Path,
    user: RayUser,
    capabilities: RayCapabilities,
    marker: str,
    node_rank: int,
    device: str,
    ride_through_s: int,
    token_path: Path | None,
    language: str = "C.UTF-8",
    own: Mapping[str, str] = MappingProxyType({}),
    hook: Path | None = None,
) -> dict[str, str]:
    """All that `ray start`, and with it every worker here, starts with. GLOO_SOCKET_IFNAME is RLinf's to set.

    Args:
        own: `ray.environment`.
        hook: the folder of the import hook, for workers. None: they get none.
    """
    name, _, value = marker.partition("=")
    return {
        "LANG": language,
        **own,
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "HOME": str(user.home),
        "USER": user.name,
        "LOGNAME": user.name,
        "RLINF_NODE_RANK": str(node_rank),
        "RLINF_COMM_NET_DEVICES": device,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": _NOWHERE,
        name: value,
        **SELDOM,
        **ray_settings(ride_through_s),
        **auth_environment(capabilities, token_path),
        **import_hook.variables(hook, own.get("PYTHONPATH", "")),
    }


def helper_environment(
    *, python: Path, user: RayUser, capabilities: RayCapabilities, token_path: Path | None
) -> dict[str, str]:
    """What our own helper runs with; without the mark, it is no part of the node's Ray."""
    return {
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "HOME": str(user.home),
        "LANG": "C.UTF-8",
        "RAY_USAGE_STATS_ENABLED": "0",
        **auth_environment(capabilities, token_path),
    }


def program_environment(ride_through_s: int, hook: Path | None) -> dict[str, str]:
    """What any program that EdgeLink starts gets, whether or not this node has a Ray."""
    return {**grpc_setting(ride_through_s), **import_hook.variables(hook)}


def command_environment(
    *,
    python: Path,
    capabilities: RayCapabilities,
    head_ip: IPv4Address,
    ray_port: int,
    ride_through_s: int,
    token_path: Path | None,
    hook: Path | None = None,
) -> dict[str, str]:
    """The variables with which plain `ray status` and friends work on this node."""
    return {
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "RAY_ADDRESS": f"{head_ip}:{ray_port}",
        "no_proxy": f"localhost,127.0.0.1,{head_ip}",  # Ray's dashboard is asked over HTTP
        "EDGELINK_RAY_PYTHON": str(python),
        **ray_settings(ride_through_s),
        **auth_environment(capabilities, token_path),
        **import_hook.variables(hook),
    }


def driver_variables(
    *,
    python: Path,
    capabilities: RayCapabilities,
    head_ip: IPv4Address,
    ray_port: int,
    ride_through_s: int,
    token_path: Path | None,
    device: str,
    cidr: IPv4Network,
    hook: Path | None = None,
) -> dict[str, str]:
    """What the head grants to a driver; :mod:`edgelink.training.driver_environment` decides about the caller's own."""
    return {
        "EDGELINK_RAY_PYTHON": str(python),
        RIDE_THROUGH_NAME: str(ride_through_s),
        "RAY_ADDRESS": f"{head_ip}:{ray_port}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RLINF_NODE_RANK": "0",
        "RLINF_COMM_NET_DEVICES": device,
        "no_proxy": f"localhost,127.0.0.1,{head_ip},{cidr}",
        **ray_settings(ride_through_s),
        **auth_environment(capabilities, token_path),
        **({} if hook is None else {import_hook.HOOK: str(hook)}),
    }


def of_machine(environment: Mapping[str, str], own: Collection[str] = ()) -> dict[str, str]:
    """What of the environment of a `ray start` is that machine's own; ``own`` are the names in `ray.environment`.

    The import hook is not: a driver may be another user's, who must run nothing that Ray's user may write.
    """
    found = {name: environment[name] for name in (*_OF_MACHINE, *own) if name in environment}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = found["PYTHONPATH"].removeprefix(f"{environment.get(import_hook.HOOK)}:")
    return found
