"""Does another firewall of this machine stand in the way? What ufw and firewalld let in, and what a node needs.

ufw is read from its files: `ufw status` needs root as they do, and puts its rules into words. A rule in `user.rules`
is a line of ``### tuple ### ACTION PROTOCOL PORTS TO PORTS FROM [PROFILE PROFILE] DIRECTION[_DEVICE]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Network
from typing import NamedTuple

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, ok, skipped
from edgelink.doctor.own_ports import own_ports

_ANY = "any"
_EVERYWHERE = IPv4Network("0.0.0.0/0")
_UFW_RULE = "### tuple ### "
_RANGE = re.compile(r"[:-]")  # ufw's, firewalld's


class UfwRule(NamedTuple):
    """What may come in, or may not; ``ports`` as in `user.rules`, ``device`` empty for all of them."""

    action: str
    protocol: str
    ports: str
    source: IPv4Network
    device: str


class Zone(NamedTuple):
    """What firewalld does with what comes in by some devices; ``ports`` as in ``3478-3479/udp``."""

    name: str
    accepts_all: bool
    ports: Sequence[str]
    services: Sequence[str]


def other_firewalls(surroundings: Surroundings) -> Finding:
    """Does ufw or firewalld keep out what EdgeLink needs, or something take its tables away?

    Of ufw, its own rules in their order. Of firewalld, target, ports and services of two zones: the overlay device's
    and that of the device that leads to the Internet. Not looked at are ufw's `before.rules`, and firewalld's rich
    rules, policies and zones of source addresses.
    """
    config = surroundings.config
    if config.overlay.kind == "existing":
        return skipped("whoever made the existing overlay knows what its firewalls have to let in")
    # Others have to reach a relay's ports from outside, and none of any other node's.
    needed = [port for port, key in own_ports(surroundings).items() if key.startswith("relay.")]
    found: dict[str, list[str]] = {}  # what to do, by firewall
    try:
        if _ufw_is_on(surroundings):
            found["ufw"] = _about_ufw(surroundings, needed)
        if _firewalld_is_on(surroundings):
            found["firewalld"] = _about_firewalld(surroundings, needed)
        if found and not surroundings.daemons and not surroundings.may_read_state:
            return NOT_ROOT  # a relay that is stopped is told from an edge by its state
    except PermissionError:
        return NOT_ROOT
    flushes = "flush ruleset" in surroundings.text("etc/nftables.conf")
    caveat = (
        "; a reload of nftables.service takes every table away, EdgeLink's are back within a second" if flushes else ""
    )
    if not found:
        return ok(f"neither ufw nor firewalld is on{caveat}")
    if remedies := [remedy for each in found.values() for remedy in each]:
        what = "the overlay's device or a port that this node needs"
        return failed(
            f"{' and '.join(n for n, each in found.items() if each)} keeps out {what}{caveat}", "; ".join(remedies)
        )
    return ok(f"{' and '.join(found)} lets in what this node needs{caveat}")


def ufw_rules(text: str) -> list[UfwRule]:
    """Those of a `user.rules` that are about what comes in, whatever address of this machine it is for; pure."""
    rules = []
    for line in text.splitlines():
        words = line.partition(" comment=")[0].removeprefix(_UFW_RULE).split()
        if not line.startswith(_UFW_RULE) or len(words) not in (7, 9):
            continue
        action, protocol, numbers, to, from_numbers, source = words[:6]
        direction, _, device = words[-1].partition("_")
        is_refusal_for_some = not action.startswith(("allow", "limit")) and to != str(_EVERYWHERE)
        if ":" in action or direction != "in" or from_numbers != _ANY or is_refusal_for_some:  # route:allow forwards
            continue
        with suppress(ValueError):  # ufw writes nothing else than IPv4 there
            action = action.partition("_")[0]  # allow_log, allow_log-all
            rules.append(UfwRule(action, protocol, numbers, IPv4Network(source, strict=False), device))
    return rules


def ufw_remedies(
    rules: Sequence[UfwRule],
    device: str,
    needed: Iterable[tuple[str, int]],
    *,
    network: IPv4Network = _EVERYWHERE,
    uplink: str | None = None,
) -> list[str]:
    """The commands that let in what is not let in: all of the overlay, and ``needed`` from everywhere; pure.

    ``uplink``: the device that leads to the Internet; a rule for that one is good enough for ``needed``.
    """

    def decides(rule: UfwRule, protocol: str, number: int | None, source: IPv4Network, by: str | None) -> bool:
        return (
            rule.protocol in (protocol, _ANY)
            and rule.device in ("", by)
            and source.subnet_of(rule.source)
            and (rule.ports == _ANY or (number is not None and is_among(number, rule.ports.split(","))))
        )

    def remedy(what: str, rule: UfwRule | None) -> str:
        return f"ufw allow {what}" if rule is None else f"ufw insert 1 allow {what}"  # the first that fits decides

    remedies = []
    rule = next((rule for rule in rules if decides(rule, _ANY, None, network, device)), None)
    if rule is None or rule.action != "allow":  # `limit` lets six connections in half a minute through
        remedies.append(remedy(f"in on {device}", rule))
    for protocol, port in needed:
        rule = next((rule for rule in rules if decides(rule, protocol, port, _EVERYWHERE, uplink)), None)
        if rule is None or rule.action not in ("allow", "limit"):
            remedies.append(remedy(f"{port}/{protocol}", rule))
    return remedies


def zone_of(device: str | None, zones: str, default: str) -> Zone:
    """Of a device, ``default`` where it is in none; ``zones`` is what `firewall-cmd --list-all-zones` prints. Pure."""
    found: dict[str, Mapping[str, list[str]]] = {}
    for block in re.split(r"\n(?=\S)", zones):
        head, *lines = block.split("\n")
        pairs = (line.partition(":") for line in lines)
        found[head.partition(" ")[0]] = {key.strip(): value.split() for key, _, value in pairs}
    name = next((name for name, told in found.items() if device in told.get("interfaces", ())), default)
    told = found.get(name, {})
    return Zone(name, told.get("target") == ["ACCEPT"], told.get("ports", ()), told.get("services", ()))


def firewalld_remedies(
    overlay: Zone,
    outside: Zone,
    device: str,
    needed: Iterable[tuple[str, int]],
    ports_of_service: Callable[[str], Sequence[str]],
) -> list[str]:
    """The same; ``overlay`` is the zone of the overlay's device, ``outside`` that of what leads to the Internet.

    Pure but for ``ports_of_service``, which is asked where the zone's own ports are not enough.
    """
    remedies = []
    if not overlay.accepts_all:
        remedies.append(f"firewall-cmd --permanent --zone=trusted --change-interface={device}")
    closed = [] if outside.accepts_all else [each for each in needed if not _is_open(*each, outside.ports)]
    for service in outside.services if closed else ():
        opened = ports_of_service(service)
        closed = [each for each in closed if not _is_open(*each, opened)]
    for protocol, port in closed:
        remedies.append(f"firewall-cmd --permanent --zone={outside.name} --add-port={port}/{protocol}")
    return [*remedies, "firewall-cmd --reload"] if remedies else []


def is_among(port: int, numbers: Iterable[str]) -> bool:
    """Whether a port is one of these, or in a range such as ``3478:3479`` or ``3478-3479``; pure."""
    bounds = (_RANGE.split(each) for each in numbers)
    return any(each[0].isdecimal() and int(each[0]) <= port <= int(each[-1]) for each in bounds)


def _is_open(protocol: str, port: int, opened: Iterable[str]) -> bool:
    return is_among(
        port, (numbers for numbers, _, kind in (each.partition("/") for each in opened) if kind == protocol)
    )


def _ufw_is_on(surroundings: Surroundings) -> bool:
    is_enabled = re.search(r"^ENABLED=yes", surroundings.text("etc/ufw/ufw.conf"), re.MULTILINE) is not None
    policy = re.search(r'^DEFAULT_INPUT_POLICY="?(\w+)', surroundings.text("etc/default/ufw"), re.MULTILINE)
    return is_enabled and (policy is None or policy[1] != "ACCEPT")


def _about_ufw(surroundings: Surroundings, needed: Iterable[tuple[str, int]]) -> list[str]:
    """PermissionError: only root may read its rules."""
    text = ""
    with suppress(FileNotFoundError):
        text = (surroundings.root / "etc/ufw/user.rules").read_text(errors="replace")
    network = surroundings.membership.lease.cidr if surroundings.membership else _EVERYWHERE
    device = surroundings.config.overlay.device
    return ufw_remedies(ufw_rules(text), device, needed, network=network, uplink=surroundings.uplink)


def _firewalld_is_on(surroundings: Surroundings) -> bool:
    """PermissionError: it runs, and does not talk to whoever asks."""
    state = surroundings.probes.run(["firewall-cmd", "--state"]).printed
    if state == "running" or surroundings.probes.is_root:
        return state == "running"
    if surroundings.probes.run(["systemctl", "is-active", "firewalld"]).printed == "active":
        raise PermissionError
    return False


def _about_firewalld(surroundings: Surroundings, needed: Iterable[tuple[str, int]]) -> list[str]:
    """PermissionError likewise."""

    def told(*question: str) -> str:
        answer = surroundings.probes.run(["firewall-cmd", *question]).printed
        if answer is None and not surroundings.probes.is_root:
            raise PermissionError
        return answer or ""

    def ports_of_service(name: str) -> list[str]:
        found = re.search(r"^  ports:(.*)", told(f"--info-service={name}"), re.MULTILINE)
        return found[1].split() if found else []

    default, zones = told("--get-default-zone"), told("--list-all-zones")
    device = surroundings.config.overlay.device
    overlay, outside = (zone_of(each, zones, default) for each in (device, surroundings.uplink))
    return firewalld_remedies(overlay, outside, device, needed, ports_of_service)
