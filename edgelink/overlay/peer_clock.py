"""How far the clocks of other machines are from ours, by ICMP timestamps (RFC 792), which Linux answers by itself.

Over the overlay nobody filters them, and they take no daemon of ours on the other side. They count the milliseconds
since midnight UTC, so that what differs by whole days is not seen.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from edgelink.clock import Clock

_REQUEST, _REPLY = 13, 14
_FORMAT = struct.Struct("!BBHHHIII")  # type, code, checksum, id, sequence, originate, receive, transmit
_DAY_MS = 86_400_000
_NOT_STANDARD = 1 << 31  # the sender has no UTC
_TRIES = 2


def offsets_s(addresses: Sequence[str], clock: Clock, *, timeout_s: float = 0.6) -> dict[str, float]:
    """By address the seconds that it is ahead of us; without those that do not say. Blocks; needs CAP_NET_RAW."""
    found: dict[str, float] = {}
    identifier = os.getpid() & 0xFFFF
    try:
        end = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        return found
    with end, selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        for attempt in range(_TRIES):
            for address in set(addresses) - found.keys():
                with suppress(OSError):  # no route: no answer
                    end.sendto(_request(identifier, attempt, _now_ms(clock)), (address, 0))
            deadline_s = clock.monotonic_s() + timeout_s
            while found.keys() < set(addresses) and (left_s := deadline_s - clock.monotonic_s()) > 0:
                if not selector.select(left_s):
                    break
                packet, (source, _) = end.recvfrom(256)
                offset_ms = offset_in(packet, identifier, _now_ms(clock))
                if source in addresses and offset_ms is not None:
                    found[source] = offset_ms / 1000
    return found


def offset_in(packet: bytes, identifier: int, now_ms: int) -> float | None:
    """What an IPv4 packet with an answer to us says, in milliseconds; None for any other packet. Pure."""
    body = packet[(packet[0] & 0xF) * 4 :][: _FORMAT.size] if packet else b""
    if len(body) < _FORMAT.size:
        return None
    kind, _, _, its_identifier, _, sent_ms, received_ms, answered_ms = _FORMAT.unpack(body)
    if kind != _REPLY or its_identifier != identifier or (received_ms | answered_ms) & _NOT_STANDARD:
        return None
    return (_around_noon(received_ms - sent_ms) + _around_noon(answered_ms - now_ms)) / 2


def _around_noon(difference_ms: int) -> int:
    """Midnight may lie between the two."""
    return (difference_ms + _DAY_MS // 2) % _DAY_MS - _DAY_MS // 2


def _now_ms(clock: Clock) -> int:
    return round(clock.now().timestamp() * 1000) % _DAY_MS


def _request(identifier: int, sequence: int, now_ms: int) -> bytes:
    empty = _FORMAT.pack(_REQUEST, 0, 0, identifier, sequence, now_ms, 0, 0)
    total = sum(struct.unpack(f"!{_FORMAT.size // 2}H", empty))
    total = (total & 0xFFFF) + (total >> 16)
    return empty[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + empty[4:]
