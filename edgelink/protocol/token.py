"""Tokens: what an operator hands out so that a machine may enrol.

A token is one word. It names the relay's addresses, pins the network's CA and the registry's key by value, so that
nothing on the way has to be trusted, and carries the secret that opens the broker for enrolment and nothing else.

``elt1_`` + base64url(length, u16 · fields · checksum, 4 bytes of SHA-256). A field is u8 length + bytes. The length
tells a token that was cut off from one that was mistyped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from dataclasses import dataclass, field
from typing import NoReturn

from edgelink.config.hosts import has_address_in_brackets
from edgelink.errors import TokenError
from edgelink.log import hide

PREFIX = "elt1_"
_CHECKSUM_BYTES = 4
_LENGTH = struct.Struct(">H")
_ADDRESS = re.compile(r"^(?P<host>[A-Za-z0-9.-]{1,240}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})$")
_ASK = "ask the operator for a new one: `edgelink token create` on the relay"


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` (IPv6 in brackets) as host and port; ValueError when it is not one."""
    match = _ADDRESS.match(address)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise ValueError(f"{address!r} is not host:port")
    if not has_address_in_brackets(match["host"]):
        raise ValueError(f"{address!r} is not host:port, with an IPv6 address in the brackets")
    return match["host"].strip("[]"), int(match["port"])


@dataclass(frozen=True)
class Token:
    """``secret`` is also the password of the broker user :attr:`broker_username`."""

    token_id: str
    secret: str = field(repr=False)
    ca_sha256: bytes
    registry_verify_key: str
    network_id: str
    addresses: tuple[str, ...]

    @property
    def broker_username(self) -> str:
        return f"token-{self.token_id}"

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        return tuple(split_address(address) for address in self.addresses)

    def encode(self) -> str:
        fields = [
            self.token_id.encode(),
            self.secret.encode(),
            self.ca_sha256,
            base64.b64decode(self.registry_verify_key),
            self.network_id.encode(),
            *(address.encode() for address in self.addresses),
        ]
        payload = b"".join(bytes([len(item)]) + item for item in fields)
        body = _LENGTH.pack(len(payload)) + payload
        return PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; white space inside it (a line broken by a mail program) does not matter.

        Raises:
            TokenError: saying whether it was cut off, mistyped, or is no token at all.
        """
        fields = _fields(_checked_payload("".join(text.split())))
        if len(fields) < 6:
            raise TokenError("the token names no relay", hint=_ASK)
        try:
            token_id, secret, network_id, *addresses = (item.decode("ascii") for item in (*fields[:2], *fields[4:]))
            for address in addresses:
                split_address(address)
        except ValueError as error:
            raise TokenError("the token holds something unusable", hint=_ASK) from error
        hide(secret)
        return cls(token_id, secret, fields[2], base64.b64encode(fields[3]).decode(), network_id, tuple(addresses))


def _checked_payload(text: str) -> bytes:
    if not text:
        raise TokenError("the token is empty", hint=_ASK)
    if not text.startswith(PREFIX):
        if PREFIX.startswith(text):
            _refuse_cut_off()
        raise TokenError(f"this is not a token: a token begins with {PREFIX}", hint=f"check what was pasted, or {_ASK}")
    digits = text.removeprefix(PREFIX)
    if wrong := re.search(r"[^A-Za-z0-9_-]", digits):
        raise TokenError(
            f"the token is mistyped: {wrong.group()!r} at place {len(PREFIX) + wrong.start() + 1} cannot be part of it",
            hint="copy it again, whole",
        )
    try:
        body = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        _refuse_cut_off()  # one left-over digit: whole tokens never have that length
    if len(body) < _LENGTH.size or len(body) < (whole := _LENGTH.size + _LENGTH.unpack_from(body)[0] + _CHECKSUM_BYTES):
        _refuse_cut_off()
    canonical = base64.urlsafe_b64encode(body).decode().rstrip("=")
    content, checksum = body[:-_CHECKSUM_BYTES], body[-_CHECKSUM_BYTES:]
    if len(body) > whole or canonical != digits or _checksum(content) != checksum:
        raise TokenError("the token is mistyped: its checksum does not match", hint="copy it again, whole")
    return content[_LENGTH.size :]


def _refuse_cut_off() -> NoReturn:
    raise TokenError("the token is cut off: its end is missing", hint="copy it again, whole")


def _fields(payload: bytes) -> list[bytes]:
    fields = []
    position = 0
    while position < len(payload):
        end = position + 1 + payload[position]
        fields.append(payload[position + 1 : end])
        position = end
    return fields


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"edgelink-token" + body).digest()[:_CHECKSUM_BYTES]
