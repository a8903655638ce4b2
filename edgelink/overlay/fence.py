"""What the overlay's device does not take, no other way takes.

While EasyTier is started anew its device is gone, and with it the route to the overlay's network: without a word of
ours the kernel sends what is for a member by the default route, to whoever has that address out there. The same where
the device has its address and is not up yet, when even a socket bound to our overlay address is let out.

A route for the same network that leads nowhere has the last say: worse than any other, the device's own and a local
network's included, it is used only where there is none but wider ones. A sender is told at once (EHOSTUNREACH); a
TCP connection that stands goes on when the device is back.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.clock import Clock
from edgelink.log import get_logger
from edgelink.outage import Outage

_AF_INET = 2
_MAIN_TABLE = 254
_RTN_UNREACHABLE = 7
_WORST = 2**32 - 1  # the metric
PROTOCOL = 233  # who made a route; none of rtnetlink.h's and of iproute2's rt_protos: what has it is ours
_log = get_logger("fence")


class Fence:
    """The route, kept in place while EasyTier is wanted; nothing stops where it cannot be made."""

    def __init__(self, clock: Clock) -> None:
        self.caveat = ""  # what is wrong; empty when nothing is
        self._outage = Outage(clock)

    async def keep(self, network: IPv4Network) -> None:
        """Have the route to ``network``, and none of ours to another."""
        try:
            async with AsyncIPRoute() as netlink:
                found = await _ours(netlink)
                if network not in found:
                    await netlink.route("add", **_route(network))
                for former in found - {network}:
                    await netlink.route("del", **_route(former))
        except (NetlinkError, OSError) as error:
            self.caveat = f"while the overlay is down, packets to {network} may leave by another way: {error}"
            if self._outage.is_news("failed"):
                _log.warning("fence.failed", network=str(network), error=str(error))
            return
        self.caveat = ""
        self._outage.over()

    async def remove(self) -> None:
        """Once the overlay has ended; nothing happens where there is none."""
        try:
            async with AsyncIPRoute() as netlink:
                for network in await _ours(netlink):
                    await netlink.route("del", **_route(network))
        except (NetlinkError, OSError) as error:
            _log.warning("fence.not_removed", error=str(error))
        self.caveat = ""


async def _ours(netlink: AsyncIPRoute) -> set[IPv4Network]:
    routes = await netlink.route("dump", family=_AF_INET, table=_MAIN_TABLE, proto=PROTOCOL)
    return {
        IPv4Network(f"{route.get_attr('RTA_DST')}/{route['dst_len']}")
        async for route in routes
        if route["proto"] == PROTOCOL and route["type"] == _RTN_UNREACHABLE
    }


def _route(network: IPv4Network) -> dict[str, str | int]:
    return {
        "dst": str(network),
        "family": _AF_INET,
        "table": _MAIN_TABLE,
        "type": _RTN_UNREACHABLE,
        "proto": PROTOCOL,
        "priority": _WORST,
    }
