"""Keep EasyTier from the public STUN servers that it asks without having been told to (decisions 0011 and 0017).

2.6.4 asks TCP servers at its start and every fifteen seconds, and has no switch for it. So EasyTier alone gets a hosts
file in which those names lead nowhere: they are neither looked up in DNS nor contacted. All other names resolve as
before. Its configuration names our relays' own servers for UDP.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from edgelink.process import Identity
from edgelink.process.private_files import PrivateFile, renew

NAMES = (
    # DEFAULT_TCP_STUN_SERVERS in src/common/stun.rs, 2.6.0 to 2.6.4.
    "stun.hot-chilli.net",
    "stun.fitauto.ru",
    "fwa.lifesizecloud.com",
    "global.turn.twilio.com",
    "turn.cloudflare.com",
    "stun.voip.blackberry.com",
    "stun.radiojar.com",
    "stun.cloudflare.com",  # UDP, in development versions after 2.6.4
)

# The kernel refuses to send there, with EACCES (UDP) or ENETUNREACH (TCP), so that not even loopback sees a packet;
# 0.0.0.0 and 127.0.0.1 would reach a STUN server on this machine.
NOWHERE = "255.255.255.255"


def one_of_each_relay_first(servers: Sequence[str]) -> tuple[str, ...]:
    """Order our relays' servers (host:port) so that the first ones are of different relays; pure.

    EasyTier asks the first two, and one of the rest by chance: one relay that dies must not be both.
    """
    seen: Counter[str] = Counter()
    rounds = []
    for server in servers:
        host = server.rpartition(":")[0]
        rounds.append((seen[host], server))
        seen[host] += 1
    return tuple(server for _, server in sorted(rounds, key=lambda item: item[0]))


class PrivateHosts:
    """The files that EasyTier gets in place of the machine's own, and their upkeep while it runs.

    Args:
        directory: where the generated files lie.
        etc, run: the machine's own directories.
    """

    def __init__(self, directory: Path, *, etc: Path = Path("/etc"), run: Path = Path("/run")) -> None:
        self.watched = etc
        self._directory = directory
        self._generated = directory / "easytier.hosts"
        self._hosts = etc / "hosts"
        self._nsswitch = etc / "nsswitch.conf"
        self._cache_daemon = run / "nscd" / "socket"

    def prepare(self) -> tuple[PrivateFile, ...]:
        """Write the files; none where the machine's own hosts file already leads all the names nowhere."""
        own = _read(self._hosts)
        if not leading_somewhere(own):
            self._generated.unlink(missing_ok=True)
            return ()
        files = [PrivateFile(self._write(self._generated.name, render_hosts(own)), self._hosts)]
        if (order := files_first(_read(self._nsswitch))) is not None:
            files.append(PrivateFile(self._write("easytier.nsswitch.conf", order), self._nsswitch))
        if self._cache_daemon.is_socket():  # glibc would ask it first, and it has the machine's hosts file
            files.append(PrivateFile(Path(os.devnull), self._cache_daemon))
        return tuple(files)

    def renew(self, identity: Identity) -> None:
        """Bring the files of a running EasyTier up to date with the machine's own.

        Raises:
            PrivateFilesError: it was started without, or the kernel does not let us.
            ProcessLookupError: it is gone.
        """
        renew(identity, self.prepare())

    def give_up(self) -> bool:
        """The files cannot be put in place. Whether that leaves names that lead somewhere."""
        self._generated.unlink(missing_ok=True)
        return bool(leading_somewhere(_read(self._hosts)))

    def _write(self, name: str, content: bytes) -> Path:
        """In place, for a running EasyTier has this very file mounted.

        The names come first in it, in lines that keep their place, so a look-up in the middle of the writing finds
        them, too.
        """
        path = self._directory / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            if file.read() != content:
                os.fchmod(file.fileno(), 0o644)
                os.pwrite(file.fileno(), content, 0)
                os.ftruncate(file.fileno(), len(content))
        return path


def render_hosts(own: bytes) -> bytes:
    """The machine's hosts file with the names before it. One a line: some C libraries cut long lines off."""
    lines = "".join(f"{NOWHERE:<15} {name}\n" for name in NAMES)
    return f"# Made by EdgeLink for easytier-core alone.\n{lines}".encode() + own


def leading_somewhere(hosts: bytes) -> list[str]:
    """Those names that a hosts file does not lead nowhere."""
    nowhere: set[str] = set()
    for line in hosts.decode(errors="replace").splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if _is_nowhere(address):
            nowhere.update(name.lower() for name in names)
    return [name for name in NAMES if name not in nowhere]


def files_first(nsswitch: bytes) -> bytes | None:
    """``nsswitch.conf`` with ``files`` as the first source of host names; None where it is, or is not asked.

    systemd-resolved and others before it would answer from the machine's hosts file, or ask DNS.
    """
    found = re.search(rb"^[ \t]*hosts:([^#\n]*)", nsswitch, re.MULTILINE)
    if found is None:
        return None
    if found[1].split()[:1] == [b"files"]:
        return None
    kept = re.sub(rb"(?<!\S)files(\s*\[[^\]]*\])?(?!\S)", b"", found[1])
    return nsswitch[: found.start()] + b"hosts: files " + b" ".join(kept.split()) + nsswitch[found.end() :]


def _is_nowhere(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return address == NOWHERE or parsed.is_loopback or parsed.is_unspecified


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
