"""EasyTier 2.0.3's RPC for what its CLI lacks: the frame is held against one that the CLI itself sent."""

from __future__ import annotations

import asyncio
import struct

import pytest

from edgelink.errors import OverlayError
from edgelink.overlay.connector_rpc import manage_connector, refusal, request

# `easytier-cli 2.0.3 -p … connector`, as it was received: method 1, without arguments, transaction 0x1a71e8aad54d2dd4.
_FROM_CLI = (
    b"\x80\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x08\x00\x01\x00p\x00\x00\x00\x08\x01\x10\x01\x18\xd4\xdb\xf4\xd4"
    b'\xd5\xa8\x9d\x8f\xa7\x01"*\x12\x12ConnectorManageRpc\x1a\x12ConnectorManageRpc \x01*/\n*'
    b"\x12\x12ConnectorManageRpc"
    b"\x1a\x12ConnectorManageRpc \x01\x18\x88'0\x018\x01"
)
URL = "tcp://198.51.100.7:11010"


def test_the_frame_is_that_of_the_cli() -> None:
    """But for the method, its argument, and the lengths that grow with it."""
    argument = b"\x12\x1a\n\x18" + URL.encode()  # url = 2 { url = 1 }; the action 0, add, is left out
    body = _FROM_CLI[_FROM_CLI.index(b"*/") + 2 :]
    call = body[:44].replace(b" \x01", b" \x02") + b"\x12" + bytes([len(argument)]) + argument + b"\x18\x88'"
    packet = b'\x08\x01\x10\x01\x18\x01"' + _FROM_CLI[_FROM_CLI.index(b'"*') + 1 :][:43].replace(b" \x01", b" \x02")
    packet += b"*" + bytes([len(call)]) + call + b"0\x018\x01"
    header = _FROM_CLI[4:16] + struct.pack("<I", len(packet))
    assert request("add", URL) == struct.pack("<I", len(header) + len(packet)) + header + packet
    assert b"\x08\x01" + argument in request("remove", URL)


def frame(body: bytes, kind: int = 9) -> bytes:
    packet = b"\x08\x01\x10\x01*" + bytes([len(body)]) + body + b"8\x01"
    return struct.pack("<IIBBBBI", 1, 1, kind, 0, 1, 0, len(packet)) + packet


def test_what_is_refused_is_told() -> None:
    """A response carries an error, or nothing of importance."""
    assert refusal(frame(b"\x18\x05")) == ""
    assert "nope" in refusal(frame(b"\x12\x06\n\x04nope"))
    with pytest.raises(ValueError, match="unexpected kind"):
        refusal(frame(b"", kind=8))
    with pytest.raises(ValueError, match="cut off"):
        refusal(frame(b"\x18\x85"))


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\x7f", b"HTTP/1.0 400\r\n\r\n", b"\x02\x00\x00\x00xx"])
async def test_an_unexpected_answer_is_an_error(answer: bytes) -> None:
    """Whatever listens there, the caller gets an OverlayError in time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with pytest.raises(OverlayError, match="EasyTier's RPC"):
            await manage_connector(server.sockets[0].getsockname()[1], "add", URL)
