"""Which process holds a port of this machine: a busy port is reported with its holder, before anything is started."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Literal

from edgelink.process import procfs

Protocol = Literal["tcp", "udp"]
_LISTEN = {"tcp": "0A", "udp": "07"}  # states of proc_net(5): LISTEN, and an unconnected UDP socket


def is_port_free(protocol: Protocol, address: str, port: int) -> bool:
    """Whether we could listen there now."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if protocol == "tcp":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # leftovers in TIME_WAIT are no holders
        try:
            probe.bind((address, port))
            if protocol == "tcp":
                probe.listen(1)
        except OSError:
            return False
    return True


def port_holder(protocol: Protocol, port: int) -> str:
    """The process that listens on ``port``, as ``name (pid N)``; ``another process`` when it cannot be told."""
    inodes = _listening_inodes(protocol, port)
    links = {f"socket:[{inode}]" for inode in inodes}
    for pid in procfs.all_pids() if links else ():
        if links & _open_files(pid):
            return f"{procfs.command_of(pid)} (pid {pid})"
    return "another process"


def _listening_inodes(protocol: Protocol, port: int) -> set[str]:
    inodes = set()
    for table in (protocol, f"{protocol}6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN[protocol] and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _open_files(pid: int) -> set[str]:
    directory = f"/proc/{pid}/fd"
    links = set()
    with suppress(OSError):
        for entry in os.listdir(directory):  # noqa: PTH208
            with suppress(OSError):
                links.add(os.readlink(f"{directory}/{entry}"))  # noqa: PTH115 (thousands of them)
    return links
