"""What a worker knows about itself: where it runs and with which code. Reported from the inside, never planned."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelink.training.trainer.package import content_hash

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>: IPv4 address of a device
_RANK_VARIABLE = "RLINF_NODE_RANK"
_DEVICE_VARIABLE = "RLINF_COMM_NET_DEVICES"


@dataclass(frozen=True)
class Whereabouts:
    """One worker's place, as it finds it."""

    hostname: str
    pid: int
    network_namespace: str  # the inode, as in "net:[4026531840]"
    ray_node_id: str
    node_ip: str  # as Ray sees it
    node_rank: int | None  # RLINF_NODE_RANK, as set before `ray start` there
    device: str | None  # RLINF_COMM_NET_DEVICES, likewise
    device_address: str | None  # read from the device
    code_hash: str
    python: str
    notice: str = ""  # what keeps it from its work, or from doing it well, for people


@dataclass(frozen=True)
class Traffic:
    """Byte counters of the overlay device; None where there is no such device."""

    rx_bytes: int | None
    tx_bytes: int | None


def rates(
    before: Mapping[Any, Traffic], after: Mapping[Any, Traffic], seconds: float
) -> dict[int, tuple[float, float]]:
    """Mbit/s that each node rank has sent and received, by the counters of one worker there; of a node whose counters
    began anew, or that is gone, nothing."""
    ranks = {slot.node_rank: found for slot, found in before.items()}
    told = {}
    for slot, found in after.items():
        first = ranks.get(slot.node_rank, Traffic(None, None))
        sent, received = _more(first.tx_bytes, found.tx_bytes), _more(first.rx_bytes, found.rx_bytes)
        if sent is not None and received is not None and seconds > 0:
            told[slot.node_rank] = (sent * 8e-6 / seconds, received * 8e-6 / seconds)
    return told


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None or after < before else after - before


class Located:
    """Mix-in of every worker: ``whereabouts`` and ``traffic``."""

    def whereabouts(self) -> Whereabouts:
        import ray

        device = os.environ.get(_DEVICE_VARIABLE) or None
        return Whereabouts(
            hostname=socket.gethostname(),
            pid=os.getpid(),
            network_namespace=str(Path("/proc/self/ns/net").readlink()),
            ray_node_id=ray.get_runtime_context().get_node_id(),
            node_ip=ray.util.get_node_ip_address(),
            node_rank=int(rank) if (rank := os.environ.get(_RANK_VARIABLE, "")).isdigit() else None,
            device=device,
            device_address=device_address(device) if device else None,
            code_hash=content_hash(Path(__file__).parent),
            python=".".join(str(part) for part in sys.version_info[:3]),
        )

    def traffic(self) -> Traffic:
        device = os.environ.get(_DEVICE_VARIABLE)
        return read_traffic(device) if device else Traffic(None, None)


def device_address(device: str) -> str | None:
    """The device's IPv4 address; None when it has none or does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request: Any = struct.pack("256s", device.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def read_traffic(device: str, table: Path = Path("/proc/self/net/dev")) -> Traffic:
    """Counters from ``/proc``: it follows the process's network namespace, /sys that of its mount."""
    for line in table.read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == device:
            fields = numbers.split()
            return Traffic(int(fields[0]), int(fields[8]))
    return Traffic(None, None)
