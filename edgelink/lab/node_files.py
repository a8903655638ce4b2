"""What lies on a lab node's disk before anything runs there: its private directories, names and configuration.

``<lab>/<node>/`` on the host holds what the node sees under the usual paths; see ``binds``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from edgelink.files import private_directory
from edgelink.lab.mount_points import MOUNT_POINTS
from edgelink.lab.topology import RELAY_ADDRESS, RELAY_DNS_NAME

_MIB = 1024 * 1024
_SHARED_FILES = ("hosts", "resolv.conf")
# Nothing listens there inside a node, so a look-up fails at once instead of after a resolver's time-out.
_RESOLVER = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def write_node_files(node_directory: Path, hostname: str, config: Mapping[str, Any]) -> None:
    private_directory(node_directory)
    for target, mode in MOUNT_POINTS.items():
        private_directory(private_copy(node_directory, target), mode)
    for name in ("home", "scratch"):
        private_directory(node_directory / name)
    (node_directory / "hosts").write_text(
        f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n{RELAY_ADDRESS} {RELAY_DNS_NAME}\n"
    )
    (node_directory / "resolv.conf").write_text(_RESOLVER)
    for name in _SHARED_FILES:
        (node_directory / name).chmod(0o644)
    config_file = private_copy(node_directory, Path("/etc/edgelink")) / "edgelink.yaml"
    config_file.write_text(yaml.safe_dump(dict(config), sort_keys=False))


def clear_runtime(node_directory: Path) -> None:
    """/run is in memory on a real machine: a reboot empties it."""
    runtime = Path("/run/edgelink")
    shutil.rmtree(private_copy(node_directory, runtime))
    private_directory(private_copy(node_directory, runtime), MOUNT_POINTS[runtime])


def private_copy(node_directory: Path, target: Path) -> Path:
    """Where on the host the node's own ``target`` (such as /var/lib/edgelink) lies."""
    return node_directory / str(target).strip("/").replace("/", "-")


def binds(node_directory: Path) -> tuple[tuple[str, str], ...]:
    directories = [(private_copy(node_directory, target), target) for target in MOUNT_POINTS]
    # /etc/resolv.conf may be a link to nowhere on the host: then there is no resolver in the node either.
    files = [(node_directory / name, Path("/etc") / name) for name in _SHARED_FILES if Path("/etc", name).exists()]
    return tuple((str(source), str(target)) for source, target in [*directories, *files])


def node_config(
    *, ray_python: Path | None, accelerators: bool, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The configuration file of every node: small Rays that fit side by side on one machine."""
    ray: dict[str, Any] = {
        "python": str(ray_python or sys.executable),
        "allow_root": True,
        "num_cpus": 2,
        "object_store_memory": 120 * _MIB,
    }
    if not accelerators:
        ray["num_gpus"] = 0
    return _merged(
        {"version": 1, "relay": {"advertise": [str(RELAY_ADDRESS)]}, "ray": ray, "exec": {"allow_root": True}},
        overrides or {},
    )


def _merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in overrides.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
