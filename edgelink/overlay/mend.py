"""Put right by netlink what somebody did to the overlay's device, while EasyTier goes on working behind it.

As long as EasyTier holds the device open, nothing but the kernel's settings is lost: its connections to the other
nodes last, so the overlay is back in milliseconds instead of the second that a new EasyTier takes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.overlay.config_file import OverlaySpec
from edgelink.process import procfs

_AF_INET = 2
_IFF_UP = 1
_SCOPE_LINK = 253
_PROTO_KERNEL = 2

Mend = Callable[[str, OverlaySpec, int], Awaitable[None]]
HeldTun = Callable[[int], str]


async def mend_device(name: str, spec: OverlaySpec, mtu: int) -> None:
    """Give the device that is now called ``name`` its name, MTU, only address, and route, and set it up. Idempotent.

    Raises:
        OSError: the kernel refused, for example because another device has the name.
    """
    try:
        async with AsyncIPRoute() as netlink:
            await _mend(netlink, name, spec, mtu)
    except NetlinkError as error:
        raise OSError(error.code, f"{name}: {error}") from error


async def _mend(netlink: Any, name: str, spec: OverlaySpec, mtu: int) -> None:
    link = (await netlink.link("get", ifname=name))[0]
    index = link["index"]
    if name != spec.device:
        await _rename(netlink, index, spec.device)
    if int(link.get_attr("IFLA_MTU")) != mtu:
        await netlink.link("set", index=index, mtu=mtu)
    ip, prefixlen = str(spec.overlay_ip.ip), spec.overlay_ip.network.prefixlen
    has_ours = False
    for address in [a async for a in await netlink.addr("dump", family=_AF_INET, index=index)]:
        found = (address.get_attr("IFA_LOCAL"), address["prefixlen"])
        if found == (ip, prefixlen):
            has_ours = True
        else:
            await netlink.addr("del", index=index, address=found[0], prefixlen=found[1])
    if not has_ours:
        await netlink.addr("add", index=index, address=ip, prefixlen=prefixlen)
    await netlink.link("set", index=index, state="up")
    with _unless(errno.EEXIST):  # setting the address or the device up brings the route, as a rule
        await netlink.route(
            "add", dst=str(spec.overlay_ip.network), oif=index, prefsrc=ip, scope=_SCOPE_LINK, proto=_PROTO_KERNEL
        )


async def _rename(netlink: Any, index: int, name: str) -> None:
    with _unless(errno.EBUSY):  # older kernels want it down for that
        await netlink.link("set", index=index, ifname=name)
        return
    await netlink.link("set", index=index, state="down")
    await netlink.link("set", index=index, ifname=name)


@contextmanager
def _unless(code: int) -> Iterator[None]:
    """Suppress netlink's error with this code."""
    try:
        yield
    except NetlinkError as error:
        if error.code != code:
            raise


def held_tun(pid: int) -> str:
    """The present name of the TUN device that a process holds open; empty when it holds none, or we may not see."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
            with suppress(OSError):
                for line in entry.read_text().splitlines():
                    if line.startswith("iff:"):
                        return line.partition(":")[2].strip()
    return ""


def tun_holder(device: str) -> str:
    """The process that holds a TUN device of our network namespace open, as ``name (pid N)``."""
    for pid in procfs.all_pids():
        if held_tun(pid) == device and procfs.network_namespace_of(pid) == procfs.network_namespace_of(os.getpid()):
            return f"{procfs.command_of(pid)} (pid {pid})"
    return "no process (a lasting device)"
