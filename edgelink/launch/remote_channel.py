"""The bytes between who asks for a program and the process that runs it, after both have agreed on a key.

A frame is its length (4 bytes) and a sealed text: a kind (1 byte) and what belongs to it. Each direction counts its
frames, and the count is the nonce: a frame that is lost, repeated, altered or moved to another place cannot be opened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.secret import SecretBox

from edgelink.errors import UntrustedError

PORT = 9750
HELLO_WITHIN_S = 5.0
STARTED, OUTPUT, ERRORS, ENDED, FAILED = b"S", b"O", b"E", b"X", b"F"  # from the program's node
CONNECTIONS = b"N"  # from it, too, in the place of a program
REQUEST, INPUT, INPUT_END, SIGNAL = b"R", b"I", b"C", b"K"  # from who asks
MAX_DATA_BYTES = 64 * 1024  # of output or input in a frame
MAX_FRAME_BYTES = 1024 * 1024  # a request with all of its environment
_LENGTH = struct.Struct("!I")


def agreed_key(own: PrivateKey, other: bytes) -> bytes:
    """Return the key that both ends make of their own half and the other's. Raises UntrustedError."""
    try:
        return bytes(Box(own, PublicKey(other)).shared_key())
    except (CryptoError, ValueError, TypeError, RuntimeError) as error:
        raise UntrustedError("the other end's key is none") from error


def framed(data: bytes) -> bytes:
    """Return ``data`` as a frame."""
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each frame that is whole with ``data``. Raises UntrustedError for one that is too long."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MAX_FRAME_BYTES:
                raise UntrustedError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            frame, self._data = self._data[_LENGTH.size : end], self._data[end:]
            yield frame

    @property
    def rest(self) -> bytes:
        """What came of a frame that is not whole yet."""
        return self._data


class Seal:
    """Seals what one end sends, and opens what it gets."""

    def __init__(self, key: bytes, *, is_asker: bool, sent: int = 0, opened: int = 0) -> None:
        self.key = key
        self.sent = sent
        self.opened = opened
        self._is_asker = is_asker
        self._box = SecretBox(key)

    def seal(self, kind: bytes, data: bytes = b"") -> bytes:
        """Return a frame."""
        nonce = self._nonce(self.sent, from_asker=self._is_asker)
        self.sent += 1
        return framed(self._box.encrypt(kind + data, nonce).ciphertext)

    def open(self, frame: bytes) -> tuple[bytes, bytes]:
        """Return the kind and the data of a frame. Raises UntrustedError."""
        nonce = self._nonce(self.opened, from_asker=not self._is_asker)
        try:
            text = self._box.decrypt(frame, nonce)
        except (CryptoError, ValueError) as error:
            raise UntrustedError("what came on the connection is not from the other end") from error
        self.opened += 1
        return text[:1], text[1:]

    @staticmethod
    def _nonce(count: int, *, from_asker: bool) -> bytes:
        return (b"a" if from_asker else b"n") + count.to_bytes(SecretBox.NONCE_SIZE - 1, "big")
