"""``firewall.overlay_allow``: ports that the operator opens to members, such as ``udp/7447 from edge``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Literal

_FORM = re.compile(r"(?:(?P<protocol>tcp|udp)/)?(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?(?: from (?P<who>\S+))?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")  # HOSTNAME_PATTERN
ROLES = ("relay", "head", "edge")


@dataclass(frozen=True)
class Allowed:
    """One entry. ``who``: an overlay address, a role or a node's name, as in access rules. None: all members."""

    protocol: Literal["tcp", "udp"]
    first: int
    last: int
    who: IPv4Address | str | None = None


def parse_allowed(text: str) -> Allowed:
    """Return the entry. Raises ValueError, which says what is wrong with it."""
    found = _FORM.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(f"{text!r} is not like 8888, 8000-8099, udp/7447, or `8888 from edge-1`")
    first = int(found["first"])
    last = int(found["last"] or first)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r}: a port is 1 to 65535, and the first of a range is not above its last one")
    return Allowed("udp" if found["protocol"] == "udp" else "tcp", first, last, _who(text, found["who"]))


def _who(text: str, who: str | None) -> IPv4Address | str | None:
    if who is None:
        return None
    try:
        return IPv4Address(who)
    except AddressValueError:
        if _NAME.fullmatch(who) is None or re.fullmatch(r"[0-9.-]+", who):
            raise ValueError(
                f"{text!r}: {who} is neither an address, a role ({', '.join(ROLES)}), nor a node's name"
            ) from None
    return who
