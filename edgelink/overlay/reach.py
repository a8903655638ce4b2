"""Pings, for machines that are no nodes, such as robots; and who is heard although nothing answers."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import Set
from contextlib import suppress
from ipaddress import IPv4Address

from icmplib import ICMPLibError, async_ping

from edgelink.overlay.echo_wire import PORT
from edgelink.tasks import apart
from edgelink.timeouts import timeout


async def answers_ping(target: IPv4Address, timeout_s: float) -> bool:
    """Whether ``target`` answers one ping.

    Without CAP_NET_RAW this takes the kernel's `net.ipv4.ping_group_range` to let this user ping.
    """
    try:
        host = await apart(async_ping(str(target), count=1, timeout=timeout_s, privileged=may_open_raw()))
    except (ICMPLibError, OSError):
        return False
    return bool(host.is_alive)


@functools.cache
def may_open_raw() -> bool:
    """Whether we have CAP_NET_RAW here."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    except PermissionError:
        return False
    return True


async def heard_echoes(wanted: Set[IPv4Address], timeout_s: float) -> set[IPv4Address]:
    """Return the addresses of ``wanted`` that send an echo packet, a question or an answer, within ``timeout_s``.

    It returns as soon as all of them have. This tells a way that works in one direction from one that is cut.
    Needs CAP_NET_RAW. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    heard = set[IPv4Address]()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as listener:
        listener.setblocking(False)
        with suppress(TimeoutError):
            async with timeout(timeout_s):
                while heard < wanted:
                    packet = await loop.sock_recv(listener, 128)
                    ports = packet[4 * (packet[0] & 0xF) :][:4]  # behind the IPv4 header
                    if PORT in struct.unpack("!HH", ports):
                        heard |= {IPv4Address(packet[12:16])} & wanted  # the source in its IPv4 header
    return heard
