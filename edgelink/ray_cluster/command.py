"""The command lines of `ray start`, pure.

Without ``--block``: whoever kills that one kills raylet and GCS with it. Every port that Ray listens on is
pinned, so that the firewall can name it. No secret is ever in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.config import RayConfig
from edgelink.process.port_ranges import merged
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.temp_dir import sessions_in

RANK_LABEL = "edgelink.rank"
NODE_LABEL = "edgelink.node"
RANK_RESOURCE_PREFIX = "edgelink-rank-"  # Ray without labels: a custom resource says it
_METRICS_PORTS = {"autoscaler metrics": 44217, "dashboard metrics": 44227}  # not pinned, but known


def head_argv(
    config: RayConfig,
    capabilities: RayCapabilities,
    *,
    python: Path,
    ip: IPv4Address,
    node_id: str,
    node_rank: int = 0,
    has_client: bool = False,
    gcs_store: Path | None = None,
) -> tuple[str, ...]:
    """`ray start --head` on the overlay address; the dashboard on loopback only.

    Args:
        gcs_store: where the GCS keeps its tables. None: in memory. It goes by the command line, because workers inherit
            the environment.
    """
    settings = {"gcs_storage": "rocksdb", "gcs_storage_path": str(gcs_store)}
    client = (f"--ray-client-server-port={config.client_server_port}",) if has_client else ()
    return (
        *_start(python),
        "--head",
        f"--port={config.port}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={config.dashboard_port}",
        *client,
        f"--temp-dir={sessions_in(config.temp_dir)}",
        *((f"--system-config={json.dumps(settings)}",) if gcs_store is not None else ()),
        *_common(config, capabilities, ip, node_id, node_rank),
    )


def worker_argv(
    config: RayConfig,
    capabilities: RayCapabilities,
    *,
    python: Path,
    ip: IPv4Address,
    node_id: str,
    node_rank: int,
    head: str,
) -> tuple[str, ...]:
    """`ray start --address=…`; ``head`` is ``ip:port``."""
    return (*_start(python), f"--address={head}", *_common(config, capabilities, ip, node_id, node_rank))


def listening_ports(config: RayConfig, *, is_head: bool, has_client: bool = False) -> dict[str, int]:
    """The single ports that this node's Ray listens on, by the configuration key that sets each."""
    keys = [
        *("node_manager_port", "object_manager_port", "runtime_env_agent_port", "dashboard_agent_grpc_port"),
        *("dashboard_agent_listen_port", "metrics_export_port"),
    ]
    if is_head:
        keys = ["port", *keys, "dashboard_port", *(["client_server_port"] if has_client else [])]
    return {f"ray.{key}": getattr(config, key) for key in keys}


def ports_for_members(config: RayConfig, *, is_head: bool) -> tuple[tuple[int, int], ...]:
    """The ports, as ranges, that the Ray of this node needs for the others of its cluster; pure."""
    single = {*listening_ports(config, is_head=is_head, has_client=is_head).values()}
    single |= {*_METRICS_PORTS.values()} if is_head else set()
    return merged([*((port, port) for port in single), (config.min_worker_port, config.max_worker_port)])


def firewalled_ports(
    config: RayConfig, gcs_port: int | None = None, *, also: Iterable[int] = ()
) -> tuple[tuple[int, int], ...]:
    """All ports that Ray may listen on, as ranges, whatever this node's part in the cluster is.

    Args:
        also: other ports of ours that nobody but the overlay is to reach.
    """
    single = {*listening_ports(config, is_head=True, has_client=True).values(), *_METRICS_PORTS.values()}
    single |= {gcs_port} if gcs_port else set()
    single |= set(also)
    return merged([*((port, port) for port in single), (config.min_worker_port, config.max_worker_port)])


def _start(python: Path) -> tuple[str, ...]:
    return (str(python), "-m", "ray.scripts.scripts", "start")


def _common(
    config: RayConfig, capabilities: RayCapabilities, ip: IPv4Address, node_id: str, node_rank: int
) -> tuple[str, ...]:
    sizes = {
        "num-cpus": config.num_cpus,
        "num-gpus": config.num_gpus,
        "object-store-memory": config.object_store_memory,
    }
    return (
        f"--node-ip-address={ip}",
        f"--node-manager-port={config.node_manager_port}",
        f"--object-manager-port={config.object_manager_port}",
        f"--runtime-env-agent-port={config.runtime_env_agent_port}",
        f"--dashboard-agent-grpc-port={config.dashboard_agent_grpc_port}",
        f"--dashboard-agent-listen-port={config.dashboard_agent_listen_port}",
        f"--metrics-export-port={config.metrics_export_port}",
        f"--min-worker-port={config.min_worker_port}",
        f"--max-worker-port={config.max_worker_port}",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
        *(f"--{name}={value}" for name, value in sizes.items() if value is not None),
        *_rank_arguments(capabilities, node_id, node_rank),
    )


def _rank_arguments(capabilities: RayCapabilities, node_id: str, node_rank: int) -> tuple[str, ...]:
    if capabilities.labels:
        return (f"--labels={RANK_LABEL}={node_rank},{NODE_LABEL}={node_id}",)
    return ("--resources=" + json.dumps({f"{RANK_RESOURCE_PREFIX}{node_rank}": 1}),)
