"""BBR for the tunnel's own TCP, without a change to the host's default.

Linux's default, cubic, takes each lost packet for congestion. A route may name another congestion control
(``congctl``), which each connection takes that begins while the route holds. So a table of ours mirrors table main
with ``congctl bbr`` in each route, and rules lead two kinds of TCP there: to the relays that EasyTier dials, and from
EasyTier's own listeners. Table main stays untouched, and what looks at the machine's ways without asking for TCP sees
it as it is: our table cannot hide that the uplink changed. The overlay's own route has BBR in the table that keeps it
(:mod:`edgelink.overlay.own_routes`).

The rules stand directly before main's, so that whatever decides earlier goes on deciding. What the mirror cannot copy
faithfully becomes a ``throw`` there: main decides. The kernel takes routes of a lost device or address out of every
table at once; for other changes netlink wakes us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NoReturn

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.clock import Clock
from edgelink.config.schemes import tcp_ends
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor
from edgelink.overlay.relay_names import ipv4_addresses
from edgelink.process.host_tcp import MTU_PROBING, PROC_SYS
from edgelink.reconcile import Wakeup

CONTROL = "bbr"
PROTOCOL = 233  # who made a route; none of rtnetlink.h's and of iproute2's rt_protos: what has it is ours
TABLE = 233
PRIORITY = 32765  # main's rule has 32766

_AF_INET = 2
_MAIN_TABLE = 254
_UNICAST, _THROW = 1, 9
_LINK_SCOPE = 253
_ONLINK = 4
_TCP = 6
_MOST_ROUTES = 1000  # more are a router's, which follows them itself
_COPIED = frozenset(
    {"RTA_TABLE", "RTA_DST", "RTA_PRIORITY", "RTA_OIF", "RTA_GATEWAY", "RTA_PREFSRC", "RTA_METRICS", "RTA_MULTIPATH"}
)
_COPIED_OF_HOP = frozenset({"RTA_GATEWAY"})
_METRIC = "RTAX_"
_RESOLVES_AGAIN_S = 600.0
_LOOK_S = 30.0  # events tell of changes; this look makes up for a lost one
_log = get_logger("congestion")


@dataclass(frozen=True)
class Hop:
    """One of several ways of a route."""

    device_index: int
    gateway: str | None
    weight: int
    flags: int


@dataclass(frozen=True)
class Route:
    """A route as far as the mirror copies it."""

    destination: IPv4Network
    priority: int
    tos: int
    kind: int = _THROW
    scope: int = 0
    device_index: int | None = None
    gateway: str | None = None
    source: str | None = None
    flags: int = 0
    metrics: tuple[tuple[str, int | str], ...] = ()
    hops: tuple[Hop, ...] = ()

    @property
    def key(self) -> tuple[IPv4Network, int, int]:
        """What no two routes of one table share."""
        return self.destination, self.priority, self.tos


@dataclass(frozen=True, order=True)
class Rule:
    """TCP of this machine ``to`` a network, or from the local port ``source_port``."""

    to: str = ""
    source_port: int = 0


@dataclass(frozen=True)
class _Wanted:
    """``addresses``: of the relays that EasyTier dials over TCP, by the host in the peer's URL."""

    spec: OverlaySpec
    addresses: Mapping[str, frozenset[str]]
    resolved_s: float  # on the monotonic clock


def rules_for(spec: OverlaySpec, addresses: Iterable[str], *, has_probing: bool) -> frozenset[Rule]:
    """The rules for an EasyTier that dials ``addresses`` over TCP; pure.

    A rule with a port hides "fragmentation needed" from a connection: the kernel looks for the route that it concerns
    without ports. Where TCP does not probe (``has_probing``) listeners therefore get no rule. The others name no port.
    """
    rules = {Rule(to=f"{address}/32") for address in addresses}
    if has_probing:
        rules |= {Rule(source_port=end.port) for end in tcp_ends(spec.listeners) if end.port}
    return frozenset(rules)


def mirror(main: Iterable[Any], control: str = CONTROL) -> dict[tuple[IPv4Network, int, int], Route]:
    """What our table is to hold, by key, for the netlink messages of table main's routes; pure.

    A route that already names a congestion control stays the user's.
    """
    wanted: dict[tuple[IPv4Network, int, int], Route] = {}
    for message in main:
        route = as_route(message)
        if route.kind == _UNICAST and "cc_algo" not in dict(route.metrics):
            route = replace(route, metrics=tuple(sorted((*route.metrics, ("cc_algo", control)))))
        else:
            route = Route(route.destination, route.priority, route.tos)
        wanted.setdefault(route.key, route)  # the kernel takes the first of equals
    return wanted


def as_route(message: Any) -> Route:
    """A route of a netlink dump; a ``throw`` where it has what a copy would lose; pure."""
    attributes = dict(message["attrs"])
    destination = IPv4Network(f"{attributes.get('RTA_DST', '0.0.0.0')}/{message['dst_len']}")
    key = Route(destination, int(attributes.get("RTA_PRIORITY", 0)), int(message["tos"]))
    hops = attributes.get("RTA_MULTIPATH", ())
    is_whole = attributes.keys() <= _COPIED and all(dict(hop["attrs"]).keys() <= _COPIED_OF_HOP for hop in hops)
    if message["type"] != _UNICAST or not is_whole:
        return key
    metrics = dict(attributes["RTA_METRICS"]["attrs"]) if "RTA_METRICS" in attributes else {}
    return replace(
        key,
        kind=_UNICAST,
        scope=int(message["scope"]),
        device_index=attributes.get("RTA_OIF"),
        gateway=attributes.get("RTA_GATEWAY"),
        source=attributes.get("RTA_PREFSRC"),
        flags=int(message["flags"]) & _ONLINK,
        metrics=tuple(sorted((name.removeprefix(_METRIC).lower(), value) for name, value in metrics.items())),
        hops=tuple(
            Hop(hop["oif"], dict(hop["attrs"]).get("RTA_GATEWAY"), hop["hops"], hop["flags"] & _ONLINK) for hop in hops
        ),
    )


class TunnelCongestion:
    """The table and the rules, kept in step while EasyTier is wanted; nothing stops where they cannot be had."""

    def __init__(
        self,
        links: LinkMonitor,
        clock: Clock,
        device: str,
        *,
        is_wanted: bool = True,
        proc_sys: Path = PROC_SYS,
    ) -> None:
        """``device``: the overlay's. Without ``is_wanted`` a predecessor's rules and routes go."""
        self.caveat = ""  # what is wrong; empty when nothing is
        self._clock = clock
        self._is_wanted = is_wanted
        self._proc_sys = proc_sys
        self._wanted: _Wanted | None = None
        self._changed = Wakeup()
        self._busy = asyncio.Lock()
        self._outage = Outage(clock)
        links.watch(device, self._changed)
        links.watch_uplinks(device, self._changed)

    async def run(self) -> NoReturn:
        """Follow the machine's routes until cancelled."""
        while True:
            is_event = await self._changed.wait(_LOOK_S)
            async with self._busy:
                if self._wanted is not None:
                    if not is_event:  # the routes do not wait for DNS
                        await self._resolve_again(self._wanted)
                    await self._follow(self._wanted)

    async def _resolve_again(self, wanted: _Wanted) -> None:
        age_s = self._clock.monotonic_s() - wanted.resolved_s
        if age_s >= _RESOLVES_AGAIN_S or not all(wanted.addresses.values()):
            self._wanted = await self._resolved(wanted.spec)

    async def _resolved(self, spec: OverlaySpec) -> _Wanted:
        """With the IPv4 addresses of the relays. A name that DNS does not know now keeps its former ones."""
        known = self._wanted.addresses if self._wanted else {}
        hosts = {end.host for end in tcp_ends(spec.peers)}
        found = await asyncio.gather(*map(ipv4_addresses, hosts))
        addresses = {
            host: frozenset(ips) or known.get(host, frozenset()) for host, ips in zip(hosts, found, strict=True)
        }
        return _Wanted(spec, addresses, self._clock.monotonic_s())

    async def keep(self, spec: OverlaySpec) -> None:
        """Have the rules and routes for ``spec`` in place, before its connections begin. Idempotent."""
        async with self._busy:
            if not self._is_wanted:
                await self._clear()
                return
            if self._wanted is None or self._wanted.spec != spec:
                self._wanted = await self._resolved(spec)
            await self._follow(self._wanted)

    async def _follow(self, wanted: _Wanted) -> None:
        addresses = frozenset[str]().union(*wanted.addresses.values())
        has_probing = _has_probing(self._proc_sys)
        rules = rules_for(wanted.spec, addresses, has_probing=has_probing)
        caveat = await self._try(rules) and await self._try(rules)  # a device may go between two questions
        if not (caveat or has_probing) and tcp_ends(wanted.spec.listeners):
            caveat = "EasyTier's listener does without BBR, because net.ipv4.tcp_mtu_probing is off"
        self._tell(caveat)

    async def _try(self, rules: frozenset[Rule]) -> str:
        try:
            async with AsyncIPRoute() as netlink:
                return await _put(netlink, rules)
        except (NetlinkError, OSError) as error:
            return _why(error, self._proc_sys)

    async def remove(self) -> None:
        """Once EasyTier has ended. Nothing happens where there is nothing of ours."""
        async with self._busy:
            self._wanted = None
            await self._clear()

    async def _clear(self) -> None:
        with suppress(NetlinkError, OSError):
            async with AsyncIPRoute() as netlink:
                await _clear(netlink)
        self._tell("")

    def _tell(self, caveat: str) -> None:
        self.caveat = caveat
        if not caveat:
            self._outage.over()
        elif self._outage.is_news(caveat):
            _log.warning("congestion.not_set", why=caveat)


async def _put(netlink: AsyncIPRoute, rules: frozenset[Rule]) -> str:
    """Bring table and rules up to date, the table first. Returns a caveat."""
    rules_now = [message async for message in await netlink.rule("dump", family=_AF_INET)]
    if not any(message.get_attr("FRA_TABLE") == _MAIN_TABLE for message in rules_now):
        # Without CONFIG_IP_MULTIPLE_TABLES every table is main.
        return "BBR is not set: this machine has no rule that leads to table main"
    main = [r async for r in await netlink.route("dump", family=_AF_INET, table=_MAIN_TABLE)]
    wanted = mirror(main)
    present = await routes_of(netlink, TABLE)
    if foreign := sum(1 for message in present if message["proto"] != PROTOCOL):
        return f"BBR is not set: routing table {TABLE} holds {foreign} routes of another program"
    if len(wanted) > _MOST_ROUTES:
        await _clear(netlink)
        return f"BBR is not set: table main has {len(wanted)} routes, and {_MOST_ROUTES} are followed at most"
    ours = {route.key: route for route in map(as_route, present)}
    changed = [route for key, route in wanted.items() if ours.get(key) != route]
    for route in sorted(changed, key=lambda route: route.scope != _LINK_SCOPE):
        await netlink.route("replace", **_as_request(route))
    for key in ours.keys() - wanted.keys():
        with suppress(NetlinkError):  # gone with its device
            await netlink.route("del", **_as_request(ours[key]))
    await _put_rules(netlink, rules)
    return ""


async def _put_rules(netlink: AsyncIPRoute, rules: frozenset[Rule]) -> None:
    present = [message async for message in await netlink.rule("dump", family=_AF_INET) if _is_ours(message)]
    found = set()
    for message in present:
        rule = _as_rule(message)
        if rule in rules and rule not in found:
            found.add(rule)
        else:
            await netlink.rule("del", **_rule_request(message))
    for rule in sorted(rules - found):
        await _add_rule(netlink, rule)


async def _add_rule(netlink: AsyncIPRoute, rule: Rule) -> None:
    request: dict[str, Any] = {
        "family": _AF_INET,
        "priority": PRIORITY,
        "table": TABLE,
        "protocol": PROTOCOL,
        "ip_proto": _TCP,
        "iifname": "lo",  # what this machine itself sends
    }
    if rule.to:
        network = IPv4Network(rule.to)
        request |= {"dst": str(network.network_address), "dst_len": network.prefixlen}
    if rule.source_port:
        request["sport_range"] = f"{rule.source_port}:{rule.source_port}"
    await netlink.rule("add", **request)
    # Linux before 4.17 ignores what it does not know: the rule would be one for everything.
    made = [m async for m in await netlink.rule("dump", family=_AF_INET) if m.get_attr("FRA_TABLE") == TABLE]
    for message in made:
        if not _is_ours(message) or message.get_attr("FRA_IP_PROTO") != _TCP:
            await netlink.rule("del", **_rule_request(message))
            raise OSError(0, "this kernel has no rules for TCP alone (Linux 4.17 and later have)")


async def _clear(netlink: AsyncIPRoute) -> None:
    """The rules first: a table without rules does nothing, and a rule without its table leads on to main."""
    for message in [m async for m in await netlink.rule("dump", family=_AF_INET) if _is_ours(m)]:
        await netlink.rule("del", **_rule_request(message))
    for message in await routes_of(netlink, TABLE):
        if message["proto"] == PROTOCOL:
            with suppress(NetlinkError):  # gone with its device
                await netlink.route("del", **_as_request(as_route(message)))


async def routes_of(netlink: AsyncIPRoute, table: int) -> list[Any]:
    """Return the routes of one table as netlink tells of them."""
    try:
        found = await netlink.route("dump", family=_AF_INET, table=table)
        return [message async for message in found if message.get_attr("RTA_TABLE") == table]
    except NetlinkError:
        return []  # strict kernels answer ENOENT for a table that was never used


def _is_ours(message: Any) -> bool:
    return (message.get_attr("FRA_PROTOCOL"), message.get_attr("FRA_TABLE")) == (PROTOCOL, TABLE)


def _as_rule(message: Any) -> Rule | None:
    """None for a rule that is not as we make them now."""
    if message.get_attr("FRA_IP_PROTO") != _TCP or message.get_attr("FRA_PRIORITY") != PRIORITY:
        return None
    to, ports = message.get_attr("FRA_DST"), message.get_attr("FRA_SPORT_RANGE")
    return Rule(f"{to}/{message['dst_len']}" if to else "", int(ports.partition(":")[0]) if ports else 0)


def _rule_request(message: Any) -> dict[str, Any]:
    """What deletes exactly this rule."""
    request: dict[str, Any] = {"family": _AF_INET, "table": TABLE, "dst_len": message["dst_len"]}
    for name, key in (
        ("FRA_PRIORITY", "priority"),
        ("FRA_DST", "dst"),
        ("FRA_PROTOCOL", "protocol"),
        ("FRA_IP_PROTO", "ip_proto"),
        ("FRA_IIFNAME", "iifname"),
        ("FRA_SPORT_RANGE", "sport_range"),
    ):
        if (value := message.get_attr(name)) is not None:
            request[key] = value
    return request


def _as_request(route: Route) -> dict[str, Any]:
    request: dict[str, Any] = {
        "family": _AF_INET,
        "table": TABLE,
        "proto": PROTOCOL,
        "type": route.kind,
        "scope": route.scope,
        "tos": route.tos,
        "dst": str(route.destination),
        "flags": route.flags,
    }
    optional = {
        "priority": route.priority or None,
        "oif": route.device_index,
        "gateway": route.gateway,
        "prefsrc": route.source,
        "metrics": dict(route.metrics) or None,
        "multipath": [
            {"oif": hop.device_index, "gateway": hop.gateway, "hops": hop.weight, "flags": hop.flags}
            for hop in route.hops
        ]
        or None,
    }
    return request | {name: value for name, value in optional.items() if value is not None}


def _has_probing(proc_sys: Path) -> bool:
    with suppress(OSError, ValueError):
        return int((proc_sys / MTU_PROBING).read_text()) > 0
    return False


def _why(error: Exception, proc_sys: Path) -> str:
    """The caveat for an error of the kernel's."""
    with suppress(OSError):
        controls = (proc_sys / "net/ipv4/tcp_available_congestion_control").read_text().split()
        if CONTROL not in controls:
            return f"BBR is not set: this kernel has {', '.join(controls)}; lossy links carry less (`modprobe tcp_bbr`)"
    return f"BBR is not set: {error}; lossy links carry less (`host.tcp_congestion: bbr` sets it for the machine)"
