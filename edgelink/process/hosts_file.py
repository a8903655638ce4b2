"""A marked block in the machine's hosts file: the names of the overlay's addresses (ADR 0026).

torch and gRPC ask for the name of a peer's address. Where DNS is configured but does not answer, each question costs
ten seconds. The block is the only thing that is ever changed, and it can be taken out again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.errors import NotRecordedError
from edgelink.files import not_recorded, write_atomic

DOMAIN = "edgelink.internal"  # .internal is reserved for private use: no name of anybody else's is taken
_BEGIN = "# BEGIN EdgeLink: the overlay's addresses; `host.hosts: leave` takes this out"
_END = "# END EdgeLink"


def with_block(text: str, names: Mapping[IPv4Address, str], short: Collection[str] = ()) -> str:
    """Return ``text`` with these names in our block, or without one where there are none; nothing else changes. Pure.

    Args:
        short: the names that stand there without the domain, too. One that another line of the file has never does.
    """
    kept = _without_block(text)
    if not names:
        return kept
    own = {word.lower() for line in kept.splitlines() for word in line.partition("#")[0].split()[1:]}
    if kept and not kept.endswith("\n"):
        kept += "\n"
    lines = [_BEGIN]
    for address, name in sorted(names.items()):
        both = f"{name}.{DOMAIN} {name}" if name in short and name not in own else f"{name}.{DOMAIN}"
        # torch listens on both families at once, and asks for the IPv4 address in IPv6's clothes: a line of its own.
        lines += [f"{address} {both}", f"::ffff:{address} {both}"]
    return kept + "\n".join([*lines, _END]) + "\n"


def short_names(hosts: Path) -> frozenset[str]:
    """Return the names that stand in our block without the domain; none where the file cannot be read."""
    try:
        text = hosts.read_text(errors="surrogateescape")
    except OSError:
        return frozenset()
    inside = set(text.splitlines()) - set(_without_block(text).splitlines())
    return frozenset(line.split()[2] for line in inside if len(line.split()) == 3 and not line.startswith("#"))


def _without_block(text: str) -> str:
    """A block without an end, which an editor may have cut, is left to whoever cut it, but for its first line."""
    kept: list[str] = []
    inside: list[str] | None = None
    for line in text.splitlines(keepends=True):
        words = line.strip()
        if words == _BEGIN:
            kept += inside or []
            inside = []
        elif inside is None:
            kept.append(line)
        elif words == _END:
            inside = None
        else:
            inside.append(line)
    return "".join([*kept, *(inside or [])])


def set_names(hosts: Path, names: Mapping[IPv4Address, str], short: Collection[str] = ()) -> bool:
    """Have our block in ``hosts`` hold these names; whether something was changed. ``short``: see :func:`with_block`.

    Raises:
        NotRecordedError: the file cannot be read or written.
    """
    try:
        target = hosts.resolve()
        present = target.read_bytes()
        facts = target.stat()
    except OSError as error:
        raise NotRecordedError(f"{hosts}: cannot be read: {error.strerror}") from error
    wanted = with_block(present.decode(errors="surrogateescape"), names, short).encode(errors="surrogateescape")
    if wanted == present:
        return False
    try:
        write_atomic(target, wanted, mode=stat.S_IMODE(facts.st_mode), uid=facts.st_uid, gid=facts.st_gid)
    except NotRecordedError as error:
        # A container's hosts file is a mount: it cannot be replaced, only written.
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        _write_in_place(target, wanted, present)
    return True


def _write_in_place(target: Path, content: bytes, before: bytes) -> None:
    """All of it, or what there was ``before``, for which there is room."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        try:
            try:
                _overwrite(descriptor, content)
            except OSError:
                _overwrite(descriptor, before)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise not_recorded(target, error) from error


def _overwrite(descriptor: int, content: bytes) -> None:
    written = 0
    while written < len(content):  # on a disk that gets full, the kernel writes a part and says so
        written += os.pwrite(descriptor, content[written:], written)
    os.ftruncate(descriptor, len(content))
    os.fsync(descriptor)
