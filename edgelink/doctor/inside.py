"""Which ports of another node answer over the overlay, tried from this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgelink.config import Config
from edgelink.doctor.check import Finding, limited, ok, skipped
from edgelink.doctor.probes import of_each
from edgelink.process import ports
from edgelink.process.port_ranges import listed
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster import command
from edgelink.ray_cluster.rendezvous import TORCH_PORTS, ephemeral_ranges
from edgelink.relay.knocker import dial
from edgelink.shield.inside import documented

# ssh, web, and where notebooks, desktops, databases and robots' own software often listen.
_OFTEN = (21, 22, 23, 80, 111, 139, 443, 445, 1883, 2049, 2375, 3000, 3306, 3389, 5000, 5201, 5432, 5900, 6006, 6379)
_OFTEN_TOO = (7447, 8000, 8080, 8265, 8443, 8554, 8888, 9090, 9100, 9200, 10001, 11010, 11311, 15888, 27017)
_MOST = 1024
_AT_ONCE = 64  # a silent port takes a second, so 16 s at most
_SSH = 22


@dataclass(frozen=True)
class Tried:
    """What trying the ports of a node came to. ``silent``: nothing came back, not even a refusal."""

    asked: tuple[int, ...]
    open: tuple[int, ...]
    silent: tuple[int, ...]


def asked_ports(config: Config, wanted: Iterable[int], listening: Iterable[int]) -> list[int]:
    """Return what is tried: ``wanted``, EdgeLink's and Ray's, what often answers, and what listens here; pure."""
    rays = command.listening_ports(config.ray, is_head=True, has_client=True).values()
    own = (*map(ports.port_of, config.overlay.listeners), config.relay.broker_port, config.web.port)
    metrics = (config.metrics.port, config.metrics.relay_port)
    known = dict.fromkeys([*wanted, *own, *metrics, *rays, *TORCH_PORTS, *_OFTEN, *_OFTEN_TOO, *sorted(listening)])
    return [port for port in known if port][:_MOST]


async def try_ports(address: str, asked: Collection[int]) -> Tried:
    """Connect to each port of a node by TCP, for a second at most."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def try_one(port: int) -> bool | None:
        async with at_once:
            return await dial(address, port)

    answers = await of_each(try_one, asked)
    return Tried(
        tuple(asked),
        tuple(sorted(port for port, is_open in answers.items() if is_open)),
        tuple(sorted(port for port, is_open in answers.items() if is_open is None)),
    )


def from_overlay(config: Config, node: Mapping[str, Any], tried: Tried, *, is_head_or_relay: bool) -> Finding:
    """Return what that means; pure. ``is_head_or_relay``: this machine is, so that sshd may answer it.

    The other node's configuration is not known here: this machine's own stands for it.
    """
    who = f"{node['hostname']} ({node['overlay_ip']})"
    silent = f", {len(tried.silent)} of them silent" if tried.silent else ""
    figure = f"{len(tried.asked)} tcp ports of {who} tried{silent}"
    if not tried.open and node["rtt_ms"] is None:
        return skipped(f"{who} does not answer over the overlay at all", f"`edgelink ping {node['hostname']}`", figure)
    role = Role(node["role"]) if node["role"] in set(Role) else Role.EDGE
    is_relay = role in (Role.HEAD, Role.RELAY)  # one machine may be both
    wanted, _ = documented(config, role, is_relay=is_relay, ephemeral=ephemeral_ranges())
    wanted += [(_SSH, _SSH)] if is_head_or_relay else []
    others = [port for port in tried.open if not ports.is_within(port, wanted)]
    own = [port for port in tried.open if port not in others]
    told = f"tcp {_listed(own)}" if own else "no tcp port that was tried"
    if others:
        return limited(
            f"members reach tcp {_listed(others)} of {who}, which is not EdgeLink's",
            "opened there by `firewall.overlay_allow` or in the network? Else that node's firewall is off: "
            "`edgelink status` there says so (Shielded)",
            figure,
        )
    return ok(f"over the overlay {who} answers {told}, and nothing that is not EdgeLink's", figure)


def _listed(numbers: Iterable[int]) -> str:
    return listed((number, number) for number in numbers)
