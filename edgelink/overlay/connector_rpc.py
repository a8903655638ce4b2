"""Have a running EasyTier 2.0.3 dial another relay: its RPC can, but the easytier-cli that comes with it cannot.

Read from the sources of 2.0.3 (``proto/cli.proto``, ``proto/common.proto``, ``proto/rpc_impl``,
``tunnel/packet_def.rs``) and held against what its own CLI sends. One request is a frame, all numbers little-endian:
its length, a header of 16 bytes, a ``common.RpcPacket`` in protobuf. The packet wraps an ``RpcRequest``, and that a
``ManageConnectorRequest``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

from edgelink.errors import OverlayError
from edgelink.timeouts import timeout

_TIMEOUT_S = 5.0
_MAX_FRAME_BYTES = 1 << 20
_FRAME = struct.Struct("<I")
_HEADER = struct.Struct("<IIBBBBI")  # from, to, kind, flags, forward counter, reserved, length of the packet
_PEER = 1  # what both sides of this RPC call themselves
_REQUEST, _RESPONSE = 8, 9
_SERVICE = "ConnectorManageRpc"
_MANAGE = 2  # the service's second method
_ACTIONS = {"add": 0, "remove": 1}


async def manage_connector(rpc_port: int, action: str, url: str) -> None:
    """``add`` or ``remove`` a URL that EasyTier on this machine dials; removing it closes no connection.

    Raises:
        OverlayError: it does not answer, refuses, or is of a version that speaks otherwise.
    """
    try:
        async with timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", rpc_port)
            try:
                writer.write(request(action, url))
                (length,) = _FRAME.unpack(await reader.readexactly(_FRAME.size))
                if not _HEADER.size <= length <= _MAX_FRAME_BYTES:
                    raise ValueError("a frame of unexpected size")
                problem = refusal(await reader.readexactly(length))
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        raise OverlayError(f"EasyTier's RPC: {str(error) or type(error).__name__}", reason="RpcFailed") from error
    if problem:
        raise OverlayError(f"EasyTier's RPC: {action} {url}: {problem}", reason="RpcFailed")


def request(action: str, url: str, transaction_id: int = 1) -> bytes:
    """The whole frame; pure."""
    manage = _number(1, _ACTIONS[action]) + _bytes(2, _bytes(1, url.encode()))
    service = _SERVICE.encode()
    descriptor = _bytes(2, service) + _bytes(3, service) + _number(4, _MANAGE)
    call = _bytes(1, descriptor) + _bytes(2, manage) + _number(3, int(_TIMEOUT_S * 1000))
    packet = _number(1, _PEER) + _number(2, _PEER) + _number(3, transaction_id) + _bytes(4, descriptor)
    packet += _bytes(5, call) + _number(6, True) + _number(7, 1)
    header = _HEADER.pack(_PEER, _PEER, _REQUEST, 0, 1, 0, len(packet))
    return _FRAME.pack(len(header) + len(packet)) + header + packet


def refusal(frame: bytes) -> str:
    """What a response, without its length, complains of; empty when the request was obeyed. Pure.

    Raises:
        ValueError: it is no response.
    """
    kind = _HEADER.unpack_from(frame)[2]
    packet = dict(_fields(frame[_HEADER.size :]))
    if kind != _RESPONSE or not isinstance(body := packet.get(5, b""), bytes):
        raise ValueError("an answer of an unexpected kind")
    error = dict(_fields(body)).get(2)
    return "" if error is None else f"refused ({error!r})"


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protobuf message. Raises ValueError when it is none."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(data) or shift > 63:
                raise ValueError("an answer that is cut off")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(data):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 2:
                length = varint()
                yield key >> 3, data[position : position + length]
                position += length
            case other:
                raise ValueError(f"an answer with fields of type {other}")
