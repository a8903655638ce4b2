"""EasyTier's first words over TCP, as far as they tell an EasyTier from anything else. Pure.

A frame is its length, a header and a message. The listener answers each first message with one of its own, before it
judges who has asked (read in 2.6.0 to 2.6.4, measured on the wheel).
"""

from __future__ import annotations

import secrets
import struct

_HEADER = struct.Struct("<IIIBBBBI")  # length of the rest, sender, receiver, type, flags, hops, reserved, length
_HANDSHAKE = 2
_MAGIC = bytes.fromhex("08e1cb868f0d")  # the message's first field, in protobuf
_NETWORK = b"edgelink-doctor"  # no network's name, and no secret: the listener answers and forgets us
_NO_DIGEST = bytes(32)
ANSWER_BYTES = _HEADER.size + len(_MAGIC)


def question() -> bytes:
    """The first message of an EasyTier of another network."""
    peer_id = 1 + secrets.randbelow(2**31)
    message = _MAGIC + b"\x10" + _varint(peer_id) + b"\x18\x01" + _field(5, _NETWORK) + _field(6, _NO_DIGEST)
    size = _HEADER.size - 4 + len(message)
    return _HEADER.pack(size, peer_id, 0, _HANDSHAKE, 0, 1, 0, len(message)) + message


def is_easytier(asked: bytes, answer: bytes) -> bool:
    """Whether ``answer`` to the question ``asked`` is another EasyTier's. An echo of the question is not."""
    if len(answer) < ANSWER_BYTES:
        return False
    _, sender, _, kind, *_ = _HEADER.unpack_from(answer)
    has_magic = answer[_HEADER.size : ANSWER_BYTES] == _MAGIC
    return bool(kind == _HANDSHAKE and has_magic and sender != _HEADER.unpack_from(asked)[1])


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
