"""Which machine this is, by what an image of its disk does not carry: the board's numbers, and the network devices.

A copied disk brings key and credentials along, and the machine id and the file systems' UUIDs as well; the board and
the network devices stay behind. Containers and network namespaces share their host's board but not its devices, so
devices decide wherever they are seen (:func:`edgelink.relay.claims.is_same_machine`).

What is told is a keyed hash of each part: it can be compared within one network, and says nothing to anybody else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.protocol.payloads import MAX_MACHINE_PARTS

# Numbers of the board: of a PC's firmware (root only), and of a Jetson or Raspberry Pi.
BOARD_FILES = (
    Path("/sys/class/dmi/id/product_uuid"),
    Path("/sys/class/dmi/id/board_serial"),
    Path("/proc/device-tree/serial-number"),
)
_HASH_BYTES = 16
_ETHERNET = 1  # ARPHRD_ETHER; Wi-Fi devices are of it as well
_NAMESPACE_KINDS = ("veth", "macvlan", "ipvlan")  # what stands for a network card in a container
# What vendors write who did not fill it in: the same on many machines.
_UNFILLED = ("", "none", "not specified", "not applicable", "default string", "to be filled by o.e.m.", "system serial")
_UNFILLED_UUIDS = ("03000200-0400-0500-0006-000700080009",)


@dataclass(frozen=True)
class Device:
    """A network device: ``kind`` as the kernel names what is made by software, empty for hardware; ``permanent`` is
    the address that it was made with, empty where the kernel knows none."""

    kind: str
    address: str
    permanent: str = ""


async def machine_parts(network_id: str, board_files: Sequence[Path] = BOARD_FILES) -> tuple[str, ...]:
    """The hashes of what can be read of this machine, the same at each start; empty when nothing can be."""
    return fingerprint(network_id, _board(board_files), addresses(await _devices()))


def fingerprint(network_id: str, board: Iterable[str], macs: Iterable[str]) -> tuple[str, ...]:
    """What is told of a machine with these board numbers and MAC addresses; pure."""
    parts = [("mac", mac.lower()) for mac in macs] + [("board", number.lower()) for number in board]
    hashes = {f"{kind}:{_hash(network_id, kind, value)}" for kind, value in parts}
    return tuple(sorted(hashes, reverse=True)[:MAX_MACHINE_PARTS])  # devices first, should there be too many


def addresses(devices: Iterable[Device]) -> list[str]:
    """The MAC addresses by which a machine is known; pure.

    What the cards were made with, where the kernel knows it: Wi-Fi takes another address for each network. Else those
    in use, of hardware, or, in a container without any, of what stands for it there.
    """
    devices = list(devices)
    permanent = [device.permanent for device in devices if _is_filled(device.permanent)]
    in_use = [device for device in devices if _is_filled(device.address)]
    hardware = [device.address for device in in_use if not device.kind]
    return permanent or hardware or [device.address for device in in_use if device.kind in _NAMESPACE_KINDS]


def _board(files: Sequence[Path]) -> list[str]:
    found = []
    for path in files:
        try:
            number = path.read_text(errors="replace").strip("\0 \n")
        except OSError:
            continue  # another kind of machine, or not for us to read
        if number.lower() not in (*_UNFILLED, *_UNFILLED_UUIDS) and _is_filled(number):
            found.append(number)
    return found


def _is_filled(number: str) -> bool:
    """Whether it is more than zeros or ones all over."""
    return len(set(number.lower()) - set(":-.")) > 1


async def _devices() -> list[Device]:
    """Those of this network namespace, but for loopback and whatever has no address of Ethernet's."""
    found = []
    try:
        async with AsyncIPRoute() as netlink:
            async for link in await netlink.link("dump"):
                if link["ifi_type"] != _ETHERNET:
                    continue
                info = link.get_attr("IFLA_LINKINFO")
                kind = info.get_attr("IFLA_INFO_KIND") if info else None
                permanent = link.get_attr("IFLA_PERM_ADDRESS")
                found.append(Device(str(kind or ""), str(link.get_attr("IFLA_ADDRESS") or ""), str(permanent or "")))
    except (OSError, NetlinkError):
        return []
    return found


def _hash(network_id: str, kind: str, value: str) -> str:
    text = f"{kind}\0{value}".encode()
    return hmac.new(f"edgelink machine\0{network_id}".encode(), text, hashlib.sha256).hexdigest()[: 2 * _HASH_BYTES]
