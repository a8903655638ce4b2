"""Is this machine closed where it has to be?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgelink.config import Config
from edgelink.doctor.check import Finding, Surroundings, failed, limited, listed, ok, skipped
from edgelink.process import ports
from edgelink.ray_cluster.command import firewalled_ports
from edgelink.ray_cluster.rendezvous import wanted_ranges

_ABOUT_DROPPED = (
    "`edgelink registry list` on the relay tells who holds which address, `ip neigh` here which neighbour sends from "
    "one of them, `ip route get ADDRESS` which rule or route leads to one; `nft list table inet edgelink_easytier` has "
    "all that was dropped in the last quarter of an hour"
)
_LIMITED = ("TokenlessRay", "RendezvousOpen", "SwitchedOff", "LeftOpen")  # somebody's choice; anything else is a fault


def firewall_in_place(surroundings: Surroundings) -> Finding:
    """Are EdgeLink's tables in place around Ray, the training and EasyTier's RPC?"""
    shielded = [c for daemon in surroundings.daemons for c in daemon["conditions"] if c["type"] == "Shielded"]
    open_ones = [condition for condition in shielded if condition["status"] == "False"]
    if not shielded or all(condition["status"] == "Unknown" for condition in shielded):
        return skipped("no daemon says that there is anything to close yet")
    if dropped := [condition["message"] for condition in shielded if condition["reason"] == "PacketsDropped"]:
        found = limited("; ".join(dropped), _ABOUT_DROPPED)
    else:
        found = ok("; ".join(condition["message"] for condition in shielded))
    if not open_ones:
        return found
    return (limited if all(c["reason"] in _LIMITED for c in open_ones) else failed)(
        "; ".join(condition["message"] for condition in open_ones),
        "the documentation's page Ports and firewall explains each of these",
        ", ".join(condition["reason"] for condition in open_ones),
    )


def from_outside(config: Config, found: Mapping[str, Any]) -> Finding:
    """What a relay's knocking means, as the daemon tells it; pure."""
    told = found.get("closed")  # None: the daemon's firewall is off
    trainings = wanted_ranges(config) if told is None else told
    rpc = config.overlay.rpc_port
    closed = [*firewalled_ports(config.ray, also=(config.web.port,)), *trainings, (rpc, rpc)]
    own = {ports.port_of(url) for url in config.overlay.listeners}
    wrong = [port for port in found["open"] if port not in own and ports.is_within(port, closed)]
    others = [port for port in found["open"] if port not in own and port not in wrong]
    figure = f"{len(found['asked'])} ports of {found['address']}, tried by {found['relay']}"
    if wrong:
        return failed(
            f"of Ray, the training or EasyTier's RPC, the Internet reaches tcp {_listed(wrong)}",
            "`edgelink status` says why (Shielded); else `ray.allow_from` is too wide, or a router forwards it",
            figure,
        )
    what = f"; tcp {_listed(others)} answers, which is not EdgeLink's" if others else ""
    told = f"nothing of Ray, the training or EasyTier's RPC answers the Internet{what}"
    left = [port for port in found.get("not_asked", ()) if port not in own and ports.is_within(port, closed)]
    if left:
        return limited(
            f"of the ports that were tried {told}; {len(left)} others were not tried, for which one knock had no room",
            f"try some of them in a minute: `--port N`, 64 at most ({listed(left)})",
            figure,
        )
    return ok(told, figure)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
