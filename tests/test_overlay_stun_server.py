"""The relay's STUN server: what is answered, with what, how large, and how often."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.overlay.stun_client import ask
from edgelink.overlay.stun_message import Request, mapped_address, parse, refusal, success
from edgelink.overlay.stun_message import request as plain_request
from edgelink.overlay.stun_server import ALL, PER_SOURCE, StunServer
from edgelink.testing import FakeClock

# RFC 5769, 2.1: a request with USERNAME, MESSAGE-INTEGRITY, FINGERPRINT and PRIORITY, an attribute of ICE.
RFC_5769_REQUEST = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae"
    "802200105354554e207465737420636c69656e74"
    "002400046e0001ff80290008932ff9b151263b36"
    "000600096576746a3a68367659202020"
    "000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2"
    "80280004e57a3bcf"
)
TRANSACTION_ID = bytes.fromhex("b7e7a701bc34d686fa87dfae")
# RFC 5769, 2.2: the address in the answer, and its attribute, are 192.0.2.1:32853.
RFC_5769_MAPPED = bytes.fromhex("002000080001a147e112a643")
HEADER = bytes.fromhex("000100002112a442") + TRANSACTION_ID


def request(*attributes: tuple[int, bytes], header: bytes = HEADER) -> bytes:
    body = b"".join(struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4) for kind, value in attributes)
    return header[:2] + struct.pack("!H", len(body)) + header[4:] + body


def change(flags: int) -> bytes:
    """As EasyTier asks: the attribute is always there."""
    return request((0x0003, struct.pack("!I", flags)))


def test_the_answer_is_that_of_the_rfc() -> None:
    """XOR-MAPPED-ADDRESS alone, byte by byte as in RFC 5769."""
    answer = success(Request(TRANSACTION_ID), (IPv4Address("192.0.2.1"), 32853))
    assert answer == bytes.fromhex("0101000c2112a442") + TRANSACTION_ID + RFC_5769_MAPPED


def test_a_client_reads_the_answer_of_the_rfc() -> None:
    """RFC 5769, 2.2, with SOFTWARE before the address; another transaction's answer, or a cut one, is none."""
    answer = bytes.fromhex(
        "0101003c2112a442b7e7a701bc34d686fa87dfae"
        "8022000b7465737420766563746f7220"
        "002000080001a147e112a643"
        "000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7"
        "80280004c07d4c96"
    )
    assert mapped_address(answer, TRANSACTION_ID) == (IPv4Address("192.0.2.1"), 32853)
    assert mapped_address(answer, bytes(12)) is None
    assert mapped_address(answer[:44], TRANSACTION_ID) is None
    assert mapped_address(plain_request(TRANSACTION_ID), TRANSACTION_ID) is None
    assert parse(plain_request(TRANSACTION_ID)) == Request(TRANSACTION_ID)


def test_the_request_of_the_rfc_is_understood_but_for_ice() -> None:
    """Its checksum holds, its credentials are not asked for, and the one attribute that is not STUN's own is named."""
    assert parse(RFC_5769_REQUEST) == Request(TRANSACTION_ID, unknown=(0x0024,))
    assert refusal(Request(TRANSACTION_ID), (0x0024,)) == (
        bytes.fromhex("011100102112a442") + TRANSACTION_ID + bytes.fromhex("0009000400000414" + "000a000200240000")
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER[:-1],
        bytes.fromhex("0101") + HEADER[2:],  # an answer
        bytes.fromhex("0003") + HEADER[2:],  # TURN's Allocate
        HEADER[:4] + bytes(4) + HEADER[8:],  # RFC 3489: no cookie
        HEADER + b"more",
        request((0x0003, b"\0\0")),
        request((0x8022, b"four"))[:-8] + struct.pack("!HH", 0x8022, 40) + b"four",
        RFC_5769_REQUEST[:-1] + b"\0",  # its FINGERPRINT is wrong
        request((0x8022, bytes(600))),
    ],
)
def test_what_is_not_a_well_formed_binding_request_is_not_answered(data: bytes) -> None:
    """Not even with an error: nothing here is worth an answer to an address that may be forged."""
    assert parse(data) is None


def test_a_fingerprint_counts_only_as_the_last_attribute() -> None:
    """A checksum in the middle covers nothing of what follows."""
    start = HEADER[:2] + struct.pack("!H", 16) + HEADER[4:]
    good = start + struct.pack("!HHI", 0x8028, 4, zlib.crc32(start) ^ 0x5354554E)
    assert parse(good + struct.pack("!HHI", 0x0003, 4, 0)) is None


@given(st.binary(max_size=600) | st.binary(max_size=200).map(lambda tail: request(header=HEADER)[:20] + tail))
def test_no_datagram_breaks_it_and_no_answer_is_much_larger(data: bytes) -> None:
    """Whatever comes: no exception; an answer exceeds its question by 16 bytes at most."""
    framed = data[:2] + struct.pack("!H", max(len(data) - 20, 0)) + data[4:] if len(data) >= 20 else data
    for datagram in (data, framed):
        found = parse(datagram)
        if found is not None:
            answers = [success(found, (IPv4Address("192.0.2.1"), 1)), refusal(found, found.unknown or (3,))]
            assert max(map(len, answers)) <= len(datagram) + 16


class Client:
    """A socket that asks and remembers what came back, and from which port."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    async def ask(self, port: int, data: bytes) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendto(self.socket, data, ("127.0.0.1", port))
        async with asyncio.timeout(20):
            answer, (_, from_port) = await loop.sock_recvfrom(self.socket, 1000)
        return answer, from_port


@asynccontextmanager
async def serving(ports: tuple[int, ...]) -> AsyncIterator[tuple[StunServer, ConditionSet]]:
    conditions = ConditionSet(SystemClock(), (), (StunServer.condition,))
    server = StunServer(ports, conditions, SystemClock(), others=lambda *_: None, host="127.0.0.1")
    try:
        await server.reconcile()
        yield server, conditions
    finally:
        server.close()


def free_ports(count: int) -> tuple[int, ...]:
    ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for end in ends:
        end.bind(("127.0.0.1", 0))
    ports = tuple(end.getsockname()[1] for end in ends)
    for end in ends:
        end.close()
    return ports


async def test_each_port_answers_and_the_other_one_when_asked_to() -> None:
    """CHANGE-REQUEST: none, the port, the address (which there is no other of)."""
    one, two = free_ports(2)
    async with serving((one, two)) as (_, conditions):
        assert conditions.get("StunServing").reason == "Serving"
        client = Client()
        expected = success(Request(TRANSACTION_ID), (IPv4Address("127.0.0.1"), client.port))
        assert await client.ask(one, request()) == (expected, one)
        assert await client.ask(two, change(0)) == (expected, two)
        assert await client.ask(one, change(2)) == (expected, two)
        for flags in (4, 6):
            answer, port = await client.ask(one, change(flags))
            assert (answer[:2], port) == (b"\x01\x11", one)
        client.socket.close()


async def test_our_own_client_is_answered_and_silence_is_told() -> None:
    """Both ports see the same address; nobody is at the third."""
    one, two, nobody = free_ports(3)
    async with serving((one, two)):
        servers = [f"127.0.0.1:{port}" for port in (one, two, nobody)]
        seen = await asyncio.to_thread(ask, servers[:2], SystemClock(), timeout_s=20)
        assert seen[servers[0]] == seen[servers[1]]
        assert seen[servers[0]] is not None
        silent = await asyncio.to_thread(ask, servers, SystemClock(), timeout_s=0.2)
    assert silent[servers[2]] is None


async def test_a_busy_port_is_a_condition_and_served_when_it_is_free() -> None:
    """The other port works meanwhile; nothing has to be restarted."""
    one, two = free_ports(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", one))
        async with serving((one, two)) as (server, conditions):
            condition = conditions.get("StunServing")
            assert (condition.status, condition.reason) == ("False", "PortBusy")
            assert f"udp {one}" in condition.message
            client = Client()
            assert (await client.ask(two, change(0)))[1] == two
            refused, _ = await client.ask(two, change(2))
            assert refused[:2] == b"\x01\x11"
            other.close()
            await server.reconcile()
            assert conditions.is_true("StunServing")
            assert (await client.ask(one, request()))[1] == one
            client.socket.close()


class Heard:
    """Which questions of these sources, as the addresses of no STUN that comes through, are not dropped."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._sources: list[str] = []
        self._server = StunServer(
            [3478],
            ConditionSet(self.clock, [], []),
            self.clock,
            others=lambda _data, source, _send: self._sources.append(source[0]),
        )

    def of(self, sources: Iterable[str]) -> int:
        """Return how many of these questions are heard, one from each source."""
        self._sources.clear()
        for source in sources:
            self._server.received(3478, b"no STUN", (source, 1))
        return len(self._sources)


async def test_one_source_cannot_use_up_what_all_have() -> None:
    """After its burst a source gets its rate, others theirs; after a pause it has its burst again."""
    heard, (a_s, at_once) = Heard(), PER_SOURCE
    assert heard.of(["198.51.100.1"] * 2000) == at_once
    assert heard.of(["198.51.100.2"]) == 1
    await heard.clock.advance(1.0)
    assert heard.of(["198.51.100.1"] * 2000) == a_s
    await heard.clock.advance(at_once / a_s)
    assert heard.of(["198.51.100.1"] * 2000) == at_once


async def test_all_sources_together_are_limited() -> None:
    """A flood from forged addresses gets the common rate."""
    heard, (a_s, at_once) = Heard(), ALL
    sources = [str(IPv4Address(number)) for number in range(20_000)]
    assert heard.of(sources) == at_once
    await heard.clock.advance(1.0)
    assert heard.of(sources) == a_s
