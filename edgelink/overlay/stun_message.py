"""STUN messages (RFC 8489) as far as a Binding server and its client need them. Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

_HEADER = struct.Struct("!HHI12s")
_ATTRIBUTE = struct.Struct("!HH")
_COOKIE = 0x2112A442
_REQUEST, _SUCCESS, _ERROR = 0x0001, 0x0101, 0x0111
CHANGE_REQUEST, _USERNAME, _INTEGRITY, _ERROR_CODE, _UNKNOWN, _XOR_MAPPED = (
    0x0003,
    0x0006,
    0x0008,
    0x0009,
    0x000A,
    0x0020,
)
_FINGERPRINT, _FINGERPRINT_XOR = 0x8028, 0x5354554E
_CHANGE_ADDRESS, _CHANGE_PORT = 4, 2
_OPTIONAL = 0x8000  # from here on, what is not understood is skipped
_IPV4 = 1
_UNKNOWN_ATTRIBUTE = 420
_MAX_BYTES = 548  # what a request may have on a path of unknown MTU (RFC 8489, 6.1)


@dataclass(frozen=True)
class Request:
    """A well-formed Binding request. ``unknown``: attributes that would have to be understood and are not."""

    transaction_id: bytes
    change_address: bool = False
    change_port: bool = False
    unknown: tuple[int, ...] = ()


def parse(data: bytes) -> Request | None:
    """The Binding request in a datagram; None where it is anything else, or malformed."""
    if not _HEADER.size <= len(data) <= _MAX_BYTES:
        return None
    kind, length, cookie, transaction_id = _HEADER.unpack_from(data)
    if kind != _REQUEST or cookie != _COOKIE or length % 4 or length != len(data) - _HEADER.size:
        return None
    flags, unknown, at = 0, [], _HEADER.size
    is_signed = False  # of what follows MESSAGE-INTEGRITY, only FINGERPRINT counts
    while at < len(data):
        attribute, size = _ATTRIBUTE.unpack_from(data, at)
        value = data[at + _ATTRIBUTE.size : at + _ATTRIBUTE.size + size]
        if len(value) != size:
            return None
        if attribute == _FINGERPRINT:
            is_last = at + _ATTRIBUTE.size + size == len(data)
            if size != 4 or not is_last or struct.unpack("!I", value)[0] != zlib.crc32(data[:at]) ^ _FINGERPRINT_XOR:
                return None
        elif attribute == CHANGE_REQUEST and not is_signed:
            if size != 4:
                return None
            (flags,) = struct.unpack("!I", value)
        elif attribute < _OPTIONAL and attribute not in (_USERNAME, _INTEGRITY) and not is_signed:
            unknown.append(attribute)
        is_signed = is_signed or attribute == _INTEGRITY
        at += _ATTRIBUTE.size + size + -size % 4
    return Request(transaction_id, bool(flags & _CHANGE_ADDRESS), bool(flags & _CHANGE_PORT), tuple(unknown))


def success(request: Request, source: tuple[IPv4Address, int]) -> bytes:
    """The answer: whom the request came from, XORed so that no router rewrites it."""
    address, port = source
    value = struct.pack("!BBHI", 0, _IPV4, port ^ _COOKIE >> 16, int(address) ^ _COOKIE)
    return _message(_SUCCESS, request, _ATTRIBUTE.pack(_XOR_MAPPED, len(value)) + value)


def refusal(request: Request, attributes: Sequence[int]) -> bytes:
    """420 Unknown Attribute, naming which; without the words, which nobody reads and which would make it large."""
    code = _ATTRIBUTE.pack(_ERROR_CODE, 4) + struct.pack("!HBB", 0, *divmod(_UNKNOWN_ATTRIBUTE, 100))
    names = struct.pack(f"!{len(attributes)}H", *attributes)
    unknown = _ATTRIBUTE.pack(_UNKNOWN, len(names)) + names + bytes(-len(names) % 4)
    return _message(_ERROR, request, code + unknown)


def _message(kind: int, request: Request, body: bytes) -> bytes:
    return _HEADER.pack(kind, len(body), _COOKIE, request.transaction_id) + body


def request(transaction_id: bytes) -> bytes:
    """A Binding request without any attribute; the id has 12 bytes."""
    return _message(_REQUEST, Request(transaction_id), b"")


def mapped_address(data: bytes, transaction_id: bytes) -> tuple[IPv4Address, int] | None:
    """Whom the server saw, from its answer; None where the datagram is no answer to this request."""
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[::3] != (_SUCCESS, transaction_id):
        return None
    at = _HEADER.size
    while at + _ATTRIBUTE.size <= len(data):
        attribute, size = _ATTRIBUTE.unpack_from(data, at)
        value = data[at + _ATTRIBUTE.size : at + _ATTRIBUTE.size + size]
        if attribute == _XOR_MAPPED and len(value) == size == 8 and value[1] == _IPV4:
            port, address = struct.unpack("!HI", value[2:])
            return IPv4Address(address ^ _COOKIE), port ^ _COOKIE >> 16
        at += _ATTRIBUTE.size + size + -size % 4
    return None
