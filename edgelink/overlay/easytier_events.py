"""What EasyTier says of its dialling, read from its output.

Words are matched, not layouts. One record may go on over several lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

# `2026-11-21T07:06:35.639586977Z  INFO CORE::…: […] …`.
_RECORD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Refusal(StrEnum):
    """Why EasyTier's last attempt to reach a peer failed, as far as its words tell."""

    HANDSHAKE = "handshake"  # closed by the other side after we said which network we are of
    REFUSED = "refused"  # nothing listens there
    SILENT = "silent"  # no answer
    NO_WAY = "no way"  # this machine cannot send there
    NAME = "name"  # the peer's name does not resolve


# In the words of 2.6.4, measured by hand, and of later development versions (docs/reference/easytier.md).
_WORDS = (
    (
        Refusal.HANDSHAKE,
        r"during wait handshake|WaitRespError|identity not match|secret mismatch|not in whitelist|secret key error"
        r"|unknown credential|must use the same secure mode|unexpected packet type during handshake",
    ),
    (Refusal.REFUSED, r"ConnectionRefused|Connection refused"),
    (Refusal.NO_WAY, r"NetworkUnreachable|Network is unreachable|No route to host|TunnelError\(Shutdown\)|NoDnsRecord"),
    (Refusal.NAME, r"failed to lookup address|dns|resolve"),
    (Refusal.SILENT, r"Timeout|Elapsed|deadline has elapsed|timed out"),
)
_ENOUGH = 2  # connected and thrown out again and again


def last_refusal(output: str) -> Refusal | None:
    """Why EasyTier is not connected, from the end of its output; None when it is, or cannot be told."""
    records = [record for record in _records(output.splitlines()) if _is_of_dialling(record)]
    if not records:
        return None
    seen = Counter("added" if "new peer added" in record else "removed" for record in records if "rror" not in record)
    if min(seen["added"], seen["removed"]) >= _ENOUGH:  # 2.6.4 lets a wrong secret in for a moment, each second
        return Refusal.HANDSHAKE
    if "connect to peer error" not in records[-1]:
        return None
    return next((kind for kind, words in _WORDS if re.search(words, records[-1], re.IGNORECASE)), None)


def _is_of_dialling(record: str) -> bool:
    return any(words in record for words in ("connect to peer error", "new peer added", "peer removed"))


def _records(lines: Iterable[str]) -> list[str]:
    """Lines with those that carry them on: an error goes over nine of them."""
    records: list[str] = []
    for line in lines:
        if _RECORD.match(line):
            records.append(line)
        elif records:
            records[-1] += f" {line.strip()}"
    return records
