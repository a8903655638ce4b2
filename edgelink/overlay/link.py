"""The overlay's device, and the machine's other ways, as the kernel sees them, told by netlink.

EasyTier's own "ready" line comes before the address is set, and no version notices a device that was taken down
or lost its address: the kernel's word is the only proof. Events only wake their watchers; what is true is observed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any, NamedTuple, NoReturn

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_LINK

from edgelink.clock import Clock, SystemClock
from edgelink.errors import ConfigError, OverlayAddressError
from edgelink.log import get_logger
from edgelink.reconcile import Wakeup

_GROUPS = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV4_RULE
_IFF_UP = 1
_AF_INET = 2
_MAIN_TABLE = 254
_RTN_UNICAST = 1
_LISTEN_AGAIN_S = 0.5
_UPLINKS_PAUSE_S = 0.5  # Docker's devices and Wi-Fi scans tell of themselves many times a second
_log = get_logger("links")


@dataclass(frozen=True)
class LinkState:
    """A device at one moment; ``LinkState()`` is a device that does not exist."""

    exists: bool = False
    is_up: bool = False
    addresses: tuple[IPv4Interface, ...] = ()
    mtu: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    index: int = 0
    routes: tuple[IPv4Network, ...] = ()  # what the main table sends there


class LocalNetwork(NamedTuple):
    """A network that this machine reaches through ``device``; connected when the device has an address in it."""

    device: str
    network: IPv4Network
    is_connected: bool = True
    address: IPv4Address | None = None  # ours in it


class Way(NamedTuple):
    """How the kernel would send a packet somewhere: through which device, from which address, to which neighbour."""

    device: str
    source: IPv4Address | None
    gateway: IPv4Address | None


class LinkMonitor:
    """Wakes watchers when their device, its addresses or its routes change."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._watchers: dict[str, list[Wakeup]] = {}
        self._uplink_watchers: list[tuple[str, Wakeup]] = []
        self._to_wake: set[Wakeup] = set()  # of other devices
        self._uplinks_changed = Wakeup()
        self._names: dict[int, str] = {}

    def watch(self, device: str, *wakeups: Wakeup) -> None:
        """Set ``wakeups`` at every change of ``device`` while :meth:`run` runs."""
        self._watchers.setdefault(device, []).extend(wakeups)

    def watch_uplinks(self, device: str, *wakeups: Wakeup) -> None:
        """Set ``wakeups`` at changes of any other device than ``device`` while :meth:`run` runs.

        The first change sets them at once. Changes within half a second after it set them once.
        """
        self._uplink_watchers += ((device, wakeup) for wakeup in wakeups)

    async def run(self) -> None:
        """Listen until cancelled; events lost to a full socket buffer are made up for by waking everybody."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_of_uplinks())
            await self._listen_for_ever()

    async def _tell_of_uplinks(self) -> NoReturn:
        while True:
            await self._uplinks_changed.wait(None)
            to_wake, self._to_wake = self._to_wake, set()
            for wakeup in to_wake:
                wakeup.set()
            await self._clock.sleep(_UPLINKS_PAUSE_S)

    async def _listen_for_ever(self) -> NoReturn:
        while True:
            try:
                await self._listen()
            except (OSError, NetlinkError) as error:
                _log.warning("links.events_lost", error=str(error))
            await self._clock.sleep(_LISTEN_AGAIN_S)

    async def _listen(self) -> NoReturn:
        async with AsyncIPRoute() as events:
            await events.bind(groups=_GROUPS)
            await self._learn_names()
            self._wake_all()
            while True:
                async for message in events.get():
                    self._dispatch(message)

    async def observe(self, device: str) -> LinkState:
        """The device now; works with and without :meth:`run`."""
        async with AsyncIPRoute() as netlink:
            try:
                link = (await netlink.link("get", ifname=device))[0]
                index = link["index"]
                addresses = [a async for a in await netlink.addr("dump", family=_AF_INET, index=index)]
                routes = [
                    IPv4Network(f"{route.get_attr('RTA_DST')}/{route['dst_len']}")
                    async for route in await netlink.route("dump", family=_AF_INET, table=_MAIN_TABLE, oif=index)
                    if route.get_attr("RTA_DST")
                ]
            except NetlinkError:
                return LinkState()  # not there, or gone between the two questions
        statistics = link.get_attr("IFLA_STATS64") or {}
        return LinkState(
            exists=True,
            is_up=bool(link["flags"] & _IFF_UP),
            addresses=tuple(_interface(address) for address in addresses),
            mtu=int(link.get_attr("IFLA_MTU")),
            rx_bytes=int(statistics.get("rx_bytes", 0)),
            tx_bytes=int(statistics.get("tx_bytes", 0)),
            index=int(index),
            routes=tuple(routes),
        )

    async def way_to(self, target: IPv4Address) -> Way | None:
        """How a packet to ``target`` would leave this machine now; None when it would not."""
        async with AsyncIPRoute() as netlink:
            try:
                route = (await netlink.route("get", dst=str(target)))[0]
                link = (await netlink.link("get", index=route.get_attr("RTA_OIF")))[0]
            except NetlinkError:
                return None
        source, gateway = route.get_attr("RTA_PREFSRC"), route.get_attr("RTA_GATEWAY")
        return Way(str(link.get_attr("IFLA_IFNAME")), source and IPv4Address(source), gateway and IPv4Address(gateway))

    async def own_addresses(self, exclude_device: str) -> frozenset[IPv4Address]:
        """The addresses of this machine's devices, but for loopback's and ``exclude_device``'s."""
        networks = await self.local_networks(exclude_device)
        return frozenset(item.address for item in networks if item.address is not None)

    async def local_networks(self, exclude_device: str) -> list[LocalNetwork]:
        """The networks this machine has addresses in or routes to, but for default routes and ``exclude_device``."""
        async with AsyncIPRoute() as netlink:
            names = await _device_names(netlink)
            addresses = [a async for a in await netlink.addr("dump", family=_AF_INET)]
            routes = [r async for r in await netlink.route("dump", family=_AF_INET, table=_MAIN_TABLE)]
        found = [
            LocalNetwork(names.get(a["index"], "?"), _interface(a).network, address=_interface(a).ip) for a in addresses
        ]
        for route in routes:
            destination = route.get_attr("RTA_DST")
            if destination and route["type"] == _RTN_UNICAST:  # what leads nowhere is no network we reach
                device = names.get(route.get_attr("RTA_OIF"), "?")
                network = IPv4Network(f"{destination}/{route['dst_len']}")
                found.append(LocalNetwork(device, network, is_connected=False))
        return [item for item in found if item.device not in (exclude_device, "lo")]

    async def _learn_names(self) -> None:
        async with AsyncIPRoute() as netlink:
            self._names = await _device_names(netlink)

    def _dispatch(self, message: Any) -> None:
        name = message.get_attr("IFLA_IFNAME")
        if name:
            self._names[message["index"]] = str(name)
        else:
            index = message.get_attr("RTA_OIF") or message.get("index")
            name = self._names.get(index) if index else None
        for wakeup in self._watchers.get(str(name), ()):
            wakeup.set()
        if to_wake := [wakeup for device, wakeup in self._uplink_watchers if name != device]:
            self._to_wake.update(to_wake)
            self._uplinks_changed.set()
        if name and message.get("event") == "RTM_DELLINK":
            self._names.pop(message["index"], None)

    def _wake_all(self) -> None:
        for watchers in (*self._watchers.values(), [wakeup for _, wakeup in self._uplink_watchers]):
            for wakeup in watchers:
                wakeup.set()


def check_collision(cidr: IPv4Network, networks: Iterable[LocalNetwork]) -> None:
    """Refuse an overlay network that this machine already uses for something else.

    A route to a wider network (10.0.0.0/8 through a company VPN) is no collision: the overlay's own, narrower
    route wins. A network that a device has an address in, or a narrower route, is.

    Raises:
        OverlayAddressError: naming the device and the network.
    """
    for item in networks:
        overlaps = item.network.overlaps(cidr) if item.is_connected else item.network.subnet_of(cidr)
        if overlaps:
            raise OverlayAddressError(
                f"the overlay network {cidr} collides with {item.network}, which this machine reaches through "
                f"{item.device}",
                hint="give the overlay another network (relay.cidr, before the first `edgelink relay`), "
                f"or renumber {item.device}",
                reason="CidrCollision",
            )


async def _device_names(netlink: Any) -> dict[int, str]:
    return {link["index"]: str(link.get_attr("IFLA_IFNAME")) async for link in await netlink.link("dump")}


def _interface(address: Any) -> IPv4Interface:
    ip = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
    return IPv4Interface(f"{ip}/{address['prefixlen']}")


async def existing_address(device: str) -> IPv4Address:
    """The one address of a device that something else made. Raises ConfigError as :func:`only_address` does."""
    return only_address(device, await LinkMonitor().observe(device))


def only_address(device: str, state: LinkState) -> IPv4Address:
    """The one address of a device that was observed; pure. Raises ConfigError when there is not exactly one."""
    if len(state.addresses) != 1:
        found = ", ".join(map(str, state.addresses)) or "none"
        raise ConfigError(
            f"overlay.device {device}: needs exactly one IPv4 address, found {found}",
            hint="name the device that the other nodes reach this machine by",
        )
    return state.addresses[0].ip
