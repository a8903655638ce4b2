"""How far another machine's clock is from ours, by the ICMP timestamps in its answer."""

from __future__ import annotations

import struct

import pytest

from edgelink.overlay.peer_clock import offset_in

OURS = 77
DAY_MS = 86_400_000


def answer(sent_ms: int, received_ms: int, answered_ms: int, *, kind: int = 14, identifier: int = OURS) -> bytes:
    header = bytes([0x46]) + bytes(23)  # an IPv4 header with one option
    return header + struct.pack("!BBHHHIII", kind, 0, 0, identifier, 0, sent_ms, received_ms, answered_ms)


@pytest.mark.parametrize(
    ("sent_ms", "received_ms", "answered_ms", "now_ms", "offset_ms"),
    [
        (1000, 1050, 1050, 1100, 0),  # the same clock, 50 ms each way
        (1000, 8550, 8552, 1102, 7500),  # ahead of us
        (9000, 1050, 1050, 9100, -8000),  # behind us
        (DAY_MS - 20, 5, 5, 30, 0),  # midnight lies between
        (5, DAY_MS - 2000, DAY_MS - 2000, 15, -2010),  # it is not midnight there yet
    ],
)
def test_half_of_the_way_there_and_back_is_taken_out(
    sent_ms: int, received_ms: int, answered_ms: int, now_ms: int, offset_ms: int
) -> None:
    """As NTP does it."""
    assert offset_in(answer(sent_ms, received_ms, answered_ms), OURS, now_ms) == offset_ms


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x45" * 10,
        answer(1, 1, 1, kind=0),
        answer(1, 1, 1, kind=13),
        answer(1, 1, 1, identifier=OURS + 1),
        answer(1, 1 << 31, 1),
    ],
)
def test_other_packets_say_nothing(packet: bytes) -> None:
    """Pings, other people's answers, clocks that have no UTC, pieces of packets."""
    assert offset_in(packet, OURS, 1) is None
