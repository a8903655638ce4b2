"""Keep EasyTier from the public STUN servers that it asks without having been told to, and lead it to our relays' own
(decisions 0011 and 0017).

2.0.3 to 2.4.4 ask UDP servers, 2.5.0 and later TCP servers, at start and every ten seconds to ten minutes, and have no
switch for it. So EasyTier alone gets a hosts file in which those names lead nowhere, or, where a version cannot be told
in its configuration whom to ask, to a relay: they are neither looked up in DNS nor contacted. All other names resolve
as before.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from edgelink.overlay.capabilities import Capabilities
from edgelink.process import Identity
from edgelink.process.private_files import PrivateFile, renew
from edgelink.timeouts import timeout

# The defaults in EasyTier's sources, src/common/stun.rs of the tagged releases.
_UDP_2_0_3 = (  # get_default_servers, the same up to 2.2.2
    "stun.miwifi.com",
    "stun.chat.bilibili.com",
    "stun.hitv.com",
    "stun.cdnbye.com",
    "stun.douyucdn.cn",
    "fwa.lifesizecloud.com",
    "global.turn.twilio.com",
    "turn.cloudflare.com",
    "stun.isp.net.au",
    "stun.nextcloud.com",
    "stun.freeswitch.org",
    "stun.voip.blackberry.com",
    "stunserver.stunprotocol.org",
    "stun.sipnet.com",
    "stun.radiojar.com",
    "stun.sonetel.com",
)
# From 2.2.3 on: miwifi, bilibili and hitv of the above, and what the TXT record of stun.easytier.cn lists, which no
# hosts file can hold back; from 2.4.5 on an empty `stun_servers` switches these and the IPv6 ones off.
_TCP_2_5_0 = (  # DEFAULT_TCP_STUN_SERVERS, 2.5.0 to 2.6.4
    "stun.hot-chilli.net",
    "stun.fitauto.ru",
    "fwa.lifesizecloud.com",
    "global.turn.twilio.com",
    "turn.cloudflare.com",
    "stun.voip.blackberry.com",
    "stun.radiojar.com",
)
_LATER = ("stun.cloudflare.com",)  # UDP, in development versions after 2.6.4
NAMES = tuple(dict.fromkeys(_UDP_2_0_3 + _TCP_2_5_0 + _LATER))

# The port that EasyTier asks where it has only a name, as it has of all but one of these.
DEFAULT_PORT = 3478

# The kernel refuses to send there, with EACCES (UDP) or ENETUNREACH (TCP), so that not even loopback sees a packet;
# 0.0.0.0 and 127.0.0.1 would reach a STUN server on this machine.
NOWHERE = "255.255.255.255"
# As long as a relay's name does not resolve: nobody answers there. Being refused at once, 2.0.3 would spin.
UNANSWERED = "127.0.0.1"


_RESOLVE_TIMEOUT_S = 2.0


def is_asked_by(capabilities: Capabilities) -> bool:
    """Whether this version asks public STUN servers that its configuration cannot switch off."""
    return not capabilities.stun_switch or capabilities.tcp_stun


def usable_by(servers: Sequence[str], capabilities: Capabilities) -> tuple[str, ...]:
    """Those of our relays' servers (host:port) that this version can be told of, one of each relay first; pure.

    EasyTier asks the first two, and one of the rest by chance: one relay that dies must not be both.
    """
    if not capabilities.stun_switch:
        return tuple(server for server in servers if int(server.rpartition(":")[2]) == DEFAULT_PORT)
    seen: Counter[str] = Counter()
    rounds = []
    for server in servers:
        host = server.rpartition(":")[0]
        rounds.append((seen[host], server))
        seen[host] += 1
    return tuple(server for _, server in sorted(rounds, key=lambda item: item[0]))


async def addresses_of(servers: Sequence[str]) -> tuple[str, ...]:
    """The IPv4 addresses that the hosts file leads to: two at most, more are never asked at once."""
    found: list[str] = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            async with timeout(_RESOLVE_TIMEOUT_S):
                answers = await asyncio.get_running_loop().getaddrinfo(
                    host, int(port), family=socket.AF_INET, type=socket.SOCK_DGRAM
                )
        except (OSError, TimeoutError, UnicodeError):  # the latter: an empty or too long label
            continue
        found += [str(answer[4][0]) for answer in answers]
    return tuple(dict.fromkeys(found))[:2] or (UNANSWERED,)


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

    def prepare(self, servers: Sequence[str] = ()) -> tuple[PrivateFile, ...]:
        """Write the files; none where the machine's own hosts file already leads all the names nowhere.

        Args:
            servers: addresses of our own STUN servers, for EasyTier's first names; the others lead nowhere.
        """
        own = _read(self._hosts)
        if not servers and not leading_somewhere(own):
            self._generated.unlink(missing_ok=True)
            return ()
        files = [PrivateFile(self._write(self._generated.name, render_hosts(own, servers)), self._hosts)]
        if (order := files_first(_read(self._nsswitch))) is not None:
            files.append(PrivateFile(self._write("easytier.nsswitch.conf", order), self._nsswitch))
        if self._cache_daemon.is_socket():  # glibc would ask it first, and it has the machine's hosts file
            files.append(PrivateFile(Path(os.devnull), self._cache_daemon))
        return tuple(files)

    def renew(self, identity: Identity, servers: Sequence[str] = ()) -> None:
        """Bring the files of a running EasyTier up to date with the machine's own.

        Raises:
            PrivateFilesError: it was started without, or the kernel does not let us.
            ProcessLookupError: it is gone.
        """
        renew(identity, self.prepare(servers))

    def give_up(self) -> bool:
        """The files cannot be put in place. Whether that leaves names that lead somewhere."""
        self._generated.unlink(missing_ok=True)
        return bool(leading_somewhere(_read(self._hosts)))

    def leading_to(self) -> tuple[str, ...]:
        """The servers that the present files lead to, also those of a predecessor."""
        lines = (line.split() for line in _read(self._generated).decode(errors="replace").splitlines())
        found = {words[1]: words[0] for words in reversed([line for line in lines if len(line) > 1])}
        return tuple(found[name] for name in _UDP_2_0_3[:2] if found.get(name, NOWHERE) != NOWHERE)

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


def render_hosts(own: bytes, servers: Sequence[str] = ()) -> bytes:
    """The machine's hosts file with the names before it. One a line: some C libraries cut long lines off.

    EasyTier asks its first two names, and one of the rest by chance: ``servers`` are for these two.
    """
    leading = dict(zip(_UDP_2_0_3, servers, strict=False))
    lines = "".join(f"{leading.get(name, NOWHERE):<15} {name}\n" for name in NAMES)
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
