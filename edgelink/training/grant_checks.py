"""What of a grant does not fit the driver, found before it starts: ranks, devices, MASTER_ADDR."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from edgelink.errors import ConfigError
from edgelink.training.framework import PLAIN, RLINF, Framework
from edgelink.wording import few

MASTER = "MASTER_ADDR"


def addresses_of(name: str) -> set[str]:
    """The IPv4 addresses of a host's name, or of an address itself; empty if nobody knows it."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET)}
    except (OSError, UnicodeError):
        return set()


def check_grant(
    granted: Mapping[str, Any],
    framework: Framework,
    environment: Mapping[str, str],
    resolve: Callable[[str], set[str]] = addresses_of,
) -> None:
    """Refuse what the workers would trip over.

    Args:
        granted: the head daemon's answer.
        environment: the driver's.

    Raises:
        ConfigError: somebody in Ray has no rank, devices of the overlay have several names, or ``MASTER_ADDR`` is no
            node's. Names the nodes.
    """
    _check_ranks(granted.get("without_rank", ()), framework)
    nodes: Sequence[Mapping[str, Any]] = granted["nodes"]
    # On a network that was there already each machine has a device of its own, and RLinf reads the name on each node.
    if framework.tells_workers or granted.get("overlay") != "existing":
        _check_devices(nodes)
    if (master := environment.get(MASTER)) is not None and len(nodes) > 1:
        _check_master(master, nodes, framework, resolve)


def say_what_is_left(granted: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Name the detached actors of former jobs, which live until somebody ends them."""
    if left := granted.get("left_actors"):
        say(
            f"detached actors of former jobs are still alive: {few(left)}; their names are taken and they hold "
            "resources; `ray.kill(ray.get_actor(NAME, namespace=NAMESPACE))` ends one"
        )


def _check_ranks(without_rank: Sequence[str], framework: Framework) -> None:
    """With a cluster section the plan says so; RLinf looks at the ranks without one, too."""
    if framework is RLINF and without_rank:
        raise ConfigError(
            f"{', '.join(without_rank)}: alive in Ray without a node rank; RLinf wants a rank on all nodes, or on none",
            hint="end it there: only Ray that EdgeLink starts has a rank",
            reason="RankMissing",
        )


def _check_devices(nodes: Sequence[Mapping[str, Any]]) -> None:
    by_device: dict[str, list[str]] = {}
    for node in nodes:
        if device := node.get("device"):
            by_device.setdefault(device, []).append(node["hostname"])
    if len(by_device) > 1:
        told = "; ".join(f"{device} on {', '.join(names)}" for device, names in by_device.items())
        raise ConfigError(
            f"the overlay's device has several names: {told}; collectives are told one name for all nodes",
            hint="set the same overlay.device on every node, and restart its daemon",
            reason="DevicesDiffer",
        )


def _check_master(
    master: str, nodes: Sequence[Mapping[str, Any]], framework: Framework, resolve: Callable[[str], set[str]]
) -> None:
    names = {node["overlay_ip"]: node["hostname"] for node in nodes}
    found = resolve(master)
    if found & set(names):
        return
    if framework is PLAIN and any(ip_address(address).is_loopback for address in found):
        return  # processes of this machine alone
    means = f" ({', '.join(sorted(found))})" if found - {master} else "" if found else " (no such host)"
    known = ", ".join(f"{name} {address}" for address, name in names.items())
    raise ConfigError(
        f"{MASTER}={master}{means} is no node's address in the overlay, so the other nodes cannot reach it: {known}",
        hint=f"leave {MASTER} out of --env and driver.pass_env: it is the head's address then, or name one of these",
        reason="MasterUnreachable",
    )
