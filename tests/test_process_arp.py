"""Who answers ARP: the request as it is on the wire, and what counts as an answer to it."""

from __future__ import annotations

import socket
import threading
from ipaddress import IPv4Address

import pytest

from edgelink.clock import SystemClock
from edgelink.overlay.reach import may_open_raw
from edgelink.process import arp

ROBOT = IPv4Address("127.0.0.7")
REQUEST = bytes.fromhex("0001 0800 06 04 0001  000000000000 7f000001  000000000000 7f000007")
REPLY = bytes.fromhex("0001 0800 06 04 0002  021122334455 7f000007  000000000000 7f000001")
PADDED = REPLY + bytes(18)  # Ethernet carries no fewer than 46 bytes


@pytest.mark.parametrize(
    ("packet", "is_answer"),
    [
        (REPLY, True),
        (PADDED, True),
        (REQUEST, False),
        (REPLY.replace(ROBOT.packed, IPv4Address("127.0.0.8").packed), False),
        (REPLY[:20], False),
    ],
)
def test_what_counts_as_an_answer(packet: bytes, is_answer: bool) -> None:
    """Only a reply of that very address."""
    assert arp.is_reply_of(ROBOT, packet) is is_answer


@pytest.mark.skipif(not may_open_raw(), reason="needs CAP_NET_RAW")
def test_a_device_that_answers_is_there() -> None:
    """Everybody on the LAN is asked, as the kernel asks, and what else is heard meanwhile is no answer."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as robot:
        robot.bind(("lo", 0x0806))
        robot.settimeout(20)

        def live() -> None:
            heard.append(robot.recv(64))
            for packet in (b"noise", REPLY):
                robot.sendto(packet, ("lo", 0x0806, 0, 0, b"\xff" * 6))

        living = threading.Thread(target=live)
        living.start()
        assert arp.answers(ROBOT, "lo", 20.0, SystemClock())
        living.join()
    assert heard == [REQUEST]
    assert not arp.answers(ROBOT, "lo", 0.0, SystemClock()), "nobody has answered this one"
