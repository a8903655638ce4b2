"""Environments, pure: of `ray start`, of the driver, and of Ray's own commands.

Ray's nodes start with nothing but what is listed here, because RLinf carries every variable of the driver that differs
from the head's environment at `ray start` to all nodes: whatever leaks in there turns up on the robots.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from edgelink.ray_cluster.capabilities import RayCapabilities
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser
from edgelink.ray_cluster.ride_through import NCCL_HEARTBEAT, RLINF_TIMEOUT, ray_settings

MARKER_NAME = "EDGELINK_RAY_OF"
RIDE_THROUGH_NAME = "EDGELINK_RIDE_THROUGH_S"  # tells the driver how long an outage it has to bear
# Settings of RLinf and Ray that people set on purpose, and that mean the same on every node.
_DRIVER_KEEPS = frozenset(
    {
        "RLINF_LOG_LEVEL",
        RLINF_TIMEOUT,
        "RLINF_CATCH_FAILURE",
        "RLINF_EXT_MODULE",
        "RLINF_PATH_ENV_MERGE_MODE",
        "RLINF_CODE_WORKING_DIR",
        "RLINF_DATA_ROOT",
        "RAY_DEDUP_LOGS",
        "RAY_COLOR_PREFIX",
        "RAY_BACKEND_LOG_LEVEL",
        "RAY_PROFILING",
        "RAY_DEBUG",
        "RAY_RUNTIME_ENV_HOOK",
    }
)
_DRIVER_DROPS_PREFIXES = ("RLINF_", "RAY_", "EDGELINK_")
# One process's or one machine's own: leftovers of torchrun, of another cluster, of a service manager.
_DRIVER_DROPS = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "MCCL_SOCKET_IFNAME", "CCL_MNIC_NAME"),
        *("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)


def auth_environment(capabilities: RayCapabilities, token_path: Path | None) -> dict[str, str]:
    """How a process speaks to this Ray. Set even where there is no token: a leftover ~/.ray/auth_token would count."""
    if not capabilities.token_auth:
        return {}
    if token_path is None:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


# With statistics disabled, the dashboard tells https://usage-stats.ray.io/ that they are (2.60): to no URL of any kind.
_NOWHERE = "nowhere:"


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
) -> dict[str, str]:
    """All that `ray start`, and with it every worker here, starts with. GLOO_SOCKET_IFNAME is RLinf's to set."""
    name, _, value = marker.partition("=")
    return {
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "HOME": str(user.home),
        "USER": user.name,
        "LOGNAME": user.name,
        "LANG": language,
        "RLINF_NODE_RANK": str(node_rank),
        "RLINF_COMM_NET_DEVICES": device,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": _NOWHERE,
        name: value,
        **ray_settings(ride_through_s),
        **auth_environment(capabilities, token_path),
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


def command_environment(
    *,
    python: Path,
    capabilities: RayCapabilities,
    head_ip: IPv4Address,
    ray_port: int,
    ride_through_s: int,
    token_path: Path | None,
    path: str = SYSTEM_PATH,
) -> dict[str, str]:
    """The variables with which plain `ray status` and friends work on this node."""
    return {
        "PATH": _in_front(str(python.parent), path),
        "RAY_ADDRESS": f"{head_ip}:{ray_port}",
        "EDGELINK_RAY_PYTHON": str(python),
        **ray_settings(ride_through_s),
        **auth_environment(capabilities, token_path),
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
) -> dict[str, str]:
    """What the head grants to a driver; :func:`driver_environment` puts it into the caller's environment."""
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
    }


def driver_environment(
    base: Mapping[str, str], granted: Mapping[str, str], keep: frozenset[str] = frozenset()
) -> dict[str, str]:
    """The driver's environment: the caller's own, less what would mislead Ray or RLinf, plus what the head grants.

    HOME, PATH, TERM, WANDB_*, HF_*, proxies and all else of the caller stay. ``keep`` saves further names.
    """
    environment = {name: value for name, value in base.items() if _is_kept(name, keep)}
    overlay_hosts = granted.get("no_proxy", "")
    for name in ("no_proxy", "NO_PROXY"):  # which of the two is read differs between libraries
        environment[name] = ",".join(part for part in (base.get(name, ""), overlay_hosts) if part)
    environment |= {name: value for name, value in granted.items() if name not in ("no_proxy", "PATH")}
    if NCCL_HEARTBEAT in base:  # the caller's own was checked, see check_collectives
        environment[NCCL_HEARTBEAT] = base[NCCL_HEARTBEAT]
    python = granted.get("EDGELINK_RAY_PYTHON")
    if python:
        environment["PATH"] = _in_front(str(Path(python).parent), base.get("PATH", SYSTEM_PATH))
    return environment


def _is_kept(name: str, keep: frozenset[str]) -> bool:
    if name in _DRIVER_KEEPS or name in keep:
        return True
    return name not in _DRIVER_DROPS and not name.startswith(_DRIVER_DROPS_PREFIXES)


def _in_front(directory: str, path: str) -> str:
    return ":".join([directory, *(entry for entry in path.split(":") if entry != directory)])
