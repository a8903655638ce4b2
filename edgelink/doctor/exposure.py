"""Is this machine closed where it has to be, and does another firewall of it stand in the way?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgelink.config import Config
from edgelink.doctor.check import Finding, Surroundings, Verdict
from edgelink.process import ports
from edgelink.ray_cluster.command import firewalled_ports
from edgelink.ray_cluster.rendezvous import wanted_ranges

_LIMITED = ("TokenlessRay", "RendezvousOpen", "SwitchedOff")  # somebody's choice; anything else is a fault
_UFW_RULE = re.compile(r"^### tuple ### (?:route:)?allow (\S+) (\S+) (\S+) \S+ (\S+) (in\S*)", re.MULTILINE)


def firewall_in_place(surroundings: Surroundings) -> Finding:
    """Are EdgeLink's tables in place around Ray, the training and EasyTier's RPC?"""
    shielded = [c for daemon in surroundings.daemons for c in daemon["conditions"] if c["type"] == "Shielded"]
    open_ones = [condition for condition in shielded if condition["status"] == "False"]
    if not shielded or all(condition["status"] == "Unknown" for condition in shielded):
        return Finding(Verdict.SKIPPED, "no daemon says that there is anything to close yet")
    if not open_ones:
        return Finding(Verdict.OK, "; ".join(condition["message"] for condition in shielded))
    verdict = Verdict.LIMITED if all(c["reason"] in _LIMITED for c in open_ones) else Verdict.FAILED
    return Finding(
        verdict,
        "; ".join(condition["message"] for condition in open_ones),
        figure=", ".join(condition["reason"] for condition in open_ones),
        remedy="docs/reference/ports.md says what is closed, how, and what each of these means",
    )


def other_firewalls(surroundings: Surroundings) -> Finding:
    """Does ufw or firewalld keep out what EdgeLink needs, or something take its tables away?"""
    root, config = surroundings.root, surroundings.config
    if config.overlay.kind == "existing":
        return Finding(Verdict.SKIPPED, "whoever made the existing overlay knows what its firewalls have to let in")
    is_relay = any(daemon["role"] == "bootstrap" for daemon in surroundings.daemons)
    needed = needed_ports(config, is_relay=is_relay)
    remedies: list[str] = []
    found: list[str] = []
    if _ufw_is_on(root):
        found.append("ufw")
        remedies += ufw_remedies(_text(root / "etc/ufw/user.rules"), config.overlay.device, needed)
    if surroundings.run(["firewall-cmd", "--state"]) == "running":
        found.append("firewalld")
        zone = surroundings.run(["firewall-cmd", f"--get-zone-of-interface={config.overlay.device}"]) or ""
        opened = surroundings.run(["firewall-cmd", "--list-ports"]) or ""
        remedies += firewalld_remedies(zone, opened.split(), config.overlay.device, needed)
    flushes = "flush ruleset" in _text(root / "etc/nftables.conf")
    caveat = (
        "; a reload of nftables.service takes every table away, EdgeLink's are back within a second" if flushes else ""
    )
    if remedies:
        what = "the overlay's device or a port that this node needs"
        return Finding(Verdict.FAILED, f"{' and '.join(found)} keeps out {what}{caveat}", remedy="; ".join(remedies))
    if found:
        return Finding(Verdict.OK, f"{' and '.join(found)} lets in what this node needs{caveat}")
    return Finding(Verdict.OK, f"neither ufw nor firewalld is on{caveat}")


def from_outside(config: Config, found: Mapping[str, Any]) -> Finding:
    """What a relay's knocking means, as the daemon tells it; pure."""
    told = found.get("closed")  # None: a daemon that is older, or whose firewall is off
    trainings = wanted_ranges(config) if told is None else told
    closed = [
        *firewalled_ports(config.ray, also=(config.web.port,)),
        *trainings,
        (config.overlay.rpc_port, config.overlay.rpc_port),
    ]
    own = {ports.port_of(url) for url in config.overlay.listeners}
    wrong = [port for port in found["open"] if port not in own and any(low <= port <= high for low, high in closed)]
    others = [port for port in found["open"] if port not in own and port not in wrong]
    figure = f"{len(found['asked'])} ports of {found['address']}, tried by {found['relay']}"
    if wrong:
        return Finding(
            Verdict.FAILED,
            f"of Ray, the training or EasyTier's RPC, the Internet reaches tcp {_listed(wrong)}",
            figure=figure,
            remedy="`edgelink status` says why (Shielded); else `ray.allow_from` is too wide, or a router forwards it",
        )
    what = f"; tcp {_listed(others)} answers, which is not EdgeLink's" if others else ""
    return Finding(
        Verdict.OK, f"nothing of Ray, the training or EasyTier's RPC answers the Internet{what}", figure=figure
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def needed_ports(config: Config, *, is_relay: bool) -> tuple[tuple[str, int], ...]:
    """What others have to reach from outside, by protocol; a node that is no relay needs nothing. Pure."""
    if not is_relay:
        return ()
    relay = config.relay
    listeners = [("tcp", ports.port_of(url)) for url in relay.easytier_listeners if url.startswith(("tcp", "ws"))]
    listeners += [("udp", ports.port_of(url)) for url in relay.easytier_listeners if not url.startswith(("tcp", "ws"))]
    return (*listeners, ("tcp", relay.broker_port), *(("udp", port) for port in relay.stun_ports))


def ufw_remedies(rules: str, device: str, needed: Sequence[tuple[str, int]]) -> list[str]:
    """The commands that let in what its ``user.rules`` do not let in from everywhere; pure."""
    allowed = {(protocol, port, way) for protocol, port, _, source, way in _UFW_RULE.findall(rules) if _is_any(source)}
    remedies = []
    if not {("any", "any", "in"), ("any", "any", f"in_{device}")} & allowed:
        remedies.append(f"ufw allow in on {device}")
    for protocol, port in needed:
        if not any((kind, number, "in") in allowed for kind in (protocol, "any") for number in (str(port), "any")):
            remedies.append(f"ufw allow {port}/{protocol}")
    return remedies


def firewalld_remedies(zone: str, opened: Sequence[str], device: str, needed: Sequence[tuple[str, int]]) -> list[str]:
    """The same; ``zone`` is the device's, ``opened`` the ports of the default zone. Pure."""
    remedies = []
    if zone != "trusted":
        remedies.append(f"firewall-cmd --permanent --zone=trusted --change-interface={device}")
    closed = [f"{port}/{protocol}" for protocol, port in needed if f"{port}/{protocol}" not in opened]
    remedies += [f"firewall-cmd --permanent --add-port={port}" for port in closed]
    return [*remedies, "firewall-cmd --reload"] if remedies else []


def _ufw_is_on(root: Path) -> bool:
    is_enabled = re.search(r"^ENABLED=yes", _text(root / "etc/ufw/ufw.conf"), re.MULTILINE) is not None
    policy = re.search(r'^DEFAULT_INPUT_POLICY="?(\w+)', _text(root / "etc/default/ufw"), re.MULTILINE)
    return is_enabled and (policy is None or policy[1] != "ACCEPT")


def _is_any(source: str) -> bool:
    return source in ("0.0.0.0/0", "any")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
