"""How a host is written where it is dialled; no pydantic, for commands that only read a token."""

from __future__ import annotations

from ipaddress import IPv6Address


def has_address_in_brackets(host: str) -> bool:
    """Whether brackets hold an IPv6 address, where there are any."""
    try:
        if host.startswith("["):
            IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True
