"""The first of all rules leads what is for the overlay into a routing table of our own.

Otherwise whoever adds a more specific route gets the overlay's packets, in clear: a DHCP server can push one
(CVE-2024-3661), a VPN or an office's network brings one along. Our rule comes first, so theirs change nothing.

The table holds three routes. The first leads to the overlay's device, and names BBR
(:mod:`edgelink.overlay.congestion`). The second keeps our own address on this machine: where there are VRFs, table
local comes after our rule. The third leads nowhere, and is used while the device is away: without it the kernel would
send what is for a member by the default route, to whoever has that address out there. A sender is told at once
(EHOSTUNREACH), and a TCP connection that stands goes on when the device is back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.clock import Clock
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import CONTROL, PROTOCOL, routes_of

PRIORITY = 100  # the kernel's own rule for table local has 0; a VPN's and an administrator's have thousands
TABLE = 23310  # whatever is in it, or leads there, is ours

_AF_INET = 2
_MAIN_TABLE = 254
_UNICAST, _LOCAL, _UNREACHABLE = 1, 2, 7
_SCOPES = {_UNICAST: 253, _LOCAL: 254, _UNREACHABLE: 0}  # link, host, universe
_WORST = 2**32 - 1  # the metric
_INVERTED = 2  # FIB_RULE_INVERT
_IFF_UP = 1
_NO_SELECTORS = frozenset({"FRA_TABLE", "FRA_PRIORITY", "FRA_PROTOCOL", "FRA_DST", "FRA_SUPPRESS_PREFIXLEN"})
_log = get_logger("routes")


@dataclass(frozen=True)
class Entry:
    """One route of our table."""

    network: IPv4Network
    kind: int = _UNREACHABLE
    priority: int = _WORST
    tos: int = 0
    protocol: int = PROTOCOL
    device_index: int | None = None
    source: str | None = None
    control: str | None = None


class OwnRoutes:
    """The rule and the table, kept in place while EasyTier is wanted. Nothing stops where they cannot be made.

    Attributes:
        caveat: what is wrong. Empty when nothing is.
        undone: how often somebody else has taken our rule or a route away, or added a route to our table.
    """

    def __init__(self, clock: Clock, *, sets_bbr: bool) -> None:
        """``sets_bbr``: the route to the overlay's device names BBR."""
        self.caveat = ""
        self.undone = 0
        self._sets_bbr = sets_bbr
        self._spec: OverlaySpec | None = None  # what is in place
        self._outage = Outage(clock)
        self._busy = asyncio.Lock()

    async def keep(self, spec: OverlaySpec) -> None:
        """Have the rule and the routes for ``spec`` in place, and none of ours for another network. Idempotent."""
        async with self._busy:
            await self._keep(spec)

    async def follow(self) -> None:
        """Put back what was taken away. Nothing happens before the first :meth:`keep` and after :meth:`remove`."""
        async with self._busy:
            if self._spec is not None:
                await self._keep(self._spec)

    async def remove(self) -> None:
        """Take the rule and the routes away once the overlay has ended. Nothing happens where there are none."""
        async with self._busy:
            self._spec, self.caveat = None, ""
            try:
                async with AsyncIPRoute() as netlink:
                    await _remove_rules(netlink, but=None)
                    for message in await routes_of(netlink, TABLE):
                        await _delete(netlink, message)
                    await _remove_fence(netlink)
            except (NetlinkError, OSError) as error:
                _log.warning("routes.not_removed", error=str(error))

    async def _keep(self, spec: OverlaySpec) -> None:
        network = spec.overlay_ip.network
        was_in_place = self._spec is not None and self._spec.overlay_ip.network == network
        self._spec = spec
        try:
            async with AsyncIPRoute() as netlink:
                is_changed = await _put_rule(netlink, network)
                is_changed |= await self._put_routes(netlink, spec)
                if not was_in_place:
                    await _remove_fence(netlink)
        except (NetlinkError, OSError) as error:
            self.caveat = (
                f"packets to {network} may leave by another way: the rule and the routing table that keep them on "
                f"{spec.device} cannot be made: {error}"
            )
            if self._outage.is_news("failed"):
                _log.warning("routes.not_set", network=str(network), error=str(error))
            return
        if is_changed and was_in_place:
            self.undone += 1
            _log.warning("routes.put_back", network=str(network), count=self.undone)
        self.caveat = ""
        self._outage.over()

    async def _put_routes(self, netlink: Any, spec: OverlaySpec) -> bool:
        """Have exactly our routes in the table. Return whether somebody else than the kernel had changed it."""
        present = await routes_of(netlink, TABLE)
        entries = [as_entry(message) for message in present]
        dead_end = Entry(spec.overlay_ip.network)
        wanted = {dead_end}
        if dead_end not in entries:
            await netlink.route("replace", **_request(dead_end))
        index = await _device_index(netlink, spec)
        if index is not None:
            control = CONTROL if self._sets_bbr else None
            wanted.add(await _put_way(netlink, spec, index, control, entries))
            own = IPv4Network(spec.overlay_ip.ip)
            here = Entry(own, _LOCAL, 0, device_index=index, source=str(spec.overlay_ip.ip))
            wanted.add(here)
            if here not in entries:
                await netlink.route("replace", **_request(here))
        extra = [message for message, entry in zip(present, entries, strict=True) if entry not in wanted]
        for message in extra:
            await _delete(netlink, message)
        return dead_end not in entries or any(message["proto"] != PROTOCOL for message in extra)


async def _put_way(netlink: Any, spec: OverlaySpec, index: int, control: str | None, entries: list[Entry]) -> Entry:
    """Have the route to the overlay's device. Return it: a kernel without BBR gets it without."""
    way = Entry(
        spec.overlay_ip.network, _UNICAST, 0, device_index=index, source=str(spec.overlay_ip.ip), control=control
    )
    if way in entries:
        return way
    try:
        await netlink.route("replace", **_request(way))
    except NetlinkError:
        if control is None:
            raise
        way = replace(way, control=None)
        if way not in entries:
            await netlink.route("replace", **_request(way))
    return way


async def _device_index(netlink: Any, spec: OverlaySpec) -> int | None:
    """The index of the overlay's device. None: it is not up with our address, so that no route can lead there."""
    try:
        link = (await netlink.link("get", ifname=spec.device))[0]
        addresses = [a async for a in await netlink.addr("dump", family=_AF_INET, index=link["index"])]
    except NetlinkError:
        return None
    has_ours = any(address.get_attr("IFA_LOCAL") == str(spec.overlay_ip.ip) for address in addresses)
    return int(link["index"]) if has_ours and link["flags"] & _IFF_UP else None


async def _put_rule(netlink: Any, network: IPv4Network) -> bool:
    """Have our rule once. Return whether it was not there."""
    is_there = await _remove_rules(netlink, but=network)
    if not is_there:
        await netlink.rule(
            "add",
            family=_AF_INET,
            priority=PRIORITY,
            table=TABLE,
            protocol=PROTOCOL,
            dst=str(network.network_address),
            dst_len=network.prefixlen,
        )
    return not is_there


async def _remove_rules(netlink: Any, *, but: IPv4Network | None) -> bool:
    """Remove the rules that lead into our table, but for one to this network. Return whether that one is there."""
    is_there = False
    for message in [m async for m in await netlink.rule("dump", family=_AF_INET)]:
        if message.get_attr("FRA_TABLE") != TABLE:
            continue
        if not is_there and but is not None and _leads(message, but):
            is_there = True
            continue
        await netlink.rule("del", **_rule_request(message))
    return is_there


def _leads(message: Any, network: IPv4Network) -> bool:
    """Whether a rule is as we make it; pure."""
    to = f"{message.get_attr('FRA_DST')}/{message['dst_len']}"
    is_first = message.get_attr("FRA_PRIORITY") == PRIORITY and not message["flags"] & _INVERTED
    return is_first and to == str(network) and dict(message["attrs"]).keys() <= _NO_SELECTORS


def _rule_request(message: Any) -> dict[str, Any]:
    """What deletes a rule into our table: the kernel takes the first that has all of this."""
    request: dict[str, Any] = {"family": _AF_INET, "table": TABLE, "priority": message.get_attr("FRA_PRIORITY") or 0}
    if (to := message.get_attr("FRA_DST")) is not None:
        request |= {"dst": to, "dst_len": message["dst_len"]}
    return request


async def _remove_fence(netlink: Any) -> None:
    """Remove the route in table main that did the same before there was a table of our own."""
    for message in await routes_of(netlink, _MAIN_TABLE):
        if message["proto"] == PROTOCOL and message["type"] == _UNREACHABLE:
            await _delete(netlink, message)


async def _delete(netlink: Any, message: Any) -> None:
    request = _request(as_entry(message)) | {"table": message.get_attr("RTA_TABLE"), "scope": message["scope"]}
    request.pop("metrics", None)
    with suppress(NetlinkError):  # gone with its device, or replaced
        await netlink.route("del", **request)


def as_entry(message: Any) -> Entry:
    """A route of a netlink dump; pure."""
    attributes = dict(message["attrs"])
    metrics = dict(attributes["RTA_METRICS"]["attrs"]) if "RTA_METRICS" in attributes else {}
    return Entry(
        network=IPv4Network(f"{attributes.get('RTA_DST', '0.0.0.0')}/{message['dst_len']}"),
        kind=message["type"],
        priority=attributes.get("RTA_PRIORITY", 0),
        tos=message["tos"],
        protocol=message["proto"],
        device_index=attributes.get("RTA_OIF"),
        source=attributes.get("RTA_PREFSRC"),
        control=metrics.get("RTAX_CC_ALGO"),
    )


def _request(entry: Entry) -> dict[str, Any]:
    optional = {
        "oif": entry.device_index,
        "prefsrc": entry.source,
        "metrics": {"cc_algo": entry.control} if entry.control else None,
    }
    return {
        "family": _AF_INET,
        "table": TABLE,
        "dst": str(entry.network),
        "type": entry.kind,
        "scope": _SCOPES.get(entry.kind, 0),
        "tos": entry.tos,
        "proto": entry.protocol,
        "priority": entry.priority,
    } | {name: value for name, value in optional.items() if value is not None}
