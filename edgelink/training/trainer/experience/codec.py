"""Arrays made small for a WAN, without loss: what ``pack`` takes in, ``unpack`` gives back bit by bit.

By kind: flags, and integers that have two values, as bits; other integers in the smallest type that holds them; pixels
(uint8) as difference by XOR to the frame before; other numbers as difference in time of their bit patterns, each
environment's series in one piece, split into planes of equally significant bytes. Then Zstandard. Why so: ADR 0028.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEVEL = 3  # of Zstandard: higher ones gain 1 to 2 % on such data and cost several times the processor time
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_INTEGERS: tuple[type[np.signedinteger[Any]], ...] = (np.int8, np.int16, np.int32, np.int64)
_BITS, _FRAMES, _SERIES, _PLAIN = "bits", "frames", "series", "plain"  # how an array was made ready for Zstandard


@dataclass(frozen=True)
class Packed:
    """One array on its way."""

    method: str
    dtype: str  # as numpy writes it, of the array that is given back
    sent_dtype: str  # of what was packed: integers may be narrower
    shape: tuple[int, ...]
    data: bytes
    low: int = 0  # of the two values that bits stand for, the lower one

    @property
    def raw_bytes(self) -> int:
        """Size of the array before."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def pack(array: NDArray[Any]) -> Packed:
    """``array`` in as few bytes as its kind allows; axis 0 is time."""
    sent, low = array, 0
    if array.dtype == np.bool_:
        method, content = _BITS, np.packbits(array.reshape(-1)).tobytes()
    elif array.dtype.kind == "i" and array.size:
        low, high = int(array.min()), int(array.max())
        if high - low <= 1:
            method, content = _BITS, np.packbits((array != low).reshape(-1)).tobytes()
        else:
            sent = array.astype(_narrowest(low, high))
            method, content = _PLAIN, byte_planes(sent)
    elif array.dtype == np.uint8 and array.ndim > 1:
        method, content = _FRAMES, _xor(array).tobytes()
    elif array.dtype.kind in "uf" and array.dtype.itemsize in _UNSIGNED and array.ndim > 0:
        method, content = _SERIES, _series(sent)
    else:
        method, content = _PLAIN, np.ascontiguousarray(array).tobytes()
    return Packed(method, array.dtype.str, sent.dtype.str, array.shape, deflate(content), low)


def unpack(packed: Packed) -> NDArray[Any]:
    """The very array that was packed; its own memory, to be written to."""
    content = inflate(packed.data)
    dtype, shape = np.dtype(packed.dtype), packed.shape
    count = int(np.prod(shape, dtype=np.int64))
    if packed.method == _BITS:
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=count).astype(dtype)
        return (bits + np.array(packed.low, dtype) if packed.low else bits).reshape(shape)
    if packed.method == _FRAMES:
        differences = np.frombuffer(content, np.uint8).reshape(shape)
        frames: NDArray[Any] = np.bitwise_xor.accumulate(differences, axis=0) if count else differences.copy()
        return frames
    if packed.method == _SERIES:
        return _from_series(content, np.dtype(packed.sent_dtype), shape).astype(dtype, copy=False)
    if dtype.kind == "i":
        return from_byte_planes(content, np.dtype(packed.sent_dtype)).astype(dtype).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape).copy()


def pack_all(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Packed]:
    return {name: pack(array) for name, array in arrays.items()}


def unpack_all(packed: Mapping[str, Packed]) -> dict[str, NDArray[Any]]:
    return {name: unpack(found) for name, found in packed.items()}


def deflate(content: bytes) -> bytes:
    """By Zstandard."""
    compressor, _ = _zstandard()
    result: bytes = compressor(level=_LEVEL).compress(content)
    return result


def inflate(content: bytes) -> bytes:
    """What was given to :func:`deflate`."""
    _, decompressor = _zstandard()
    result: bytes = decompressor().decompress(content)
    return result


def byte_planes(numbers: NDArray[Any]) -> bytes:
    """All first bytes, then all second ones, …: neighbours in a plane are alike, neighbours in a number are not."""
    flat = np.ascontiguousarray(numbers).reshape(-1)
    return np.ascontiguousarray(flat.view(np.uint8).reshape(-1, flat.itemsize).T).tobytes()


def from_byte_planes(content: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The flat array whose planes these are."""
    planes = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


def zigzag(differences: NDArray[Any]) -> NDArray[Any]:
    """Unsigned differences that wrap around, so that small ones of either sign have zeros in front."""
    bits = differences.dtype.itemsize * 8
    sign = differences >> np.array(bits - 1, differences.dtype)
    result: NDArray[Any] = (differences << np.array(1, differences.dtype)) ^ (np.array(0, differences.dtype) - sign)
    return result


def from_zigzag(numbers: NDArray[Any]) -> NDArray[Any]:
    one = np.array(1, numbers.dtype)
    result: NDArray[Any] = (numbers >> one) ^ (np.array(0, numbers.dtype) - (numbers & one))
    return result


def _narrowest(low: int, high: int) -> type[np.signedinteger[Any]]:
    fitting = (kind for kind in _INTEGERS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return next(fitting)


def _xor(frames: NDArray[Any]) -> NDArray[Any]:
    result = np.array(frames, order="C")
    np.bitwise_xor(frames[1:], frames[:-1], out=result[1:])
    return result


def _series(array: NDArray[Any]) -> bytes:
    patterns = np.ascontiguousarray(array).view(_UNSIGNED[array.dtype.itemsize])
    differences = patterns.copy()
    differences[1:] = patterns[1:] - patterns[:-1]
    return byte_planes(zigzag(np.moveaxis(differences, 0, -1)))


def _from_series(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    unsigned = np.dtype(_UNSIGNED[dtype.itemsize])
    differences = from_zigzag(from_byte_planes(content, unsigned)).reshape((*shape[1:], shape[0]))
    patterns = np.cumsum(differences, axis=-1, dtype=unsigned)
    return np.ascontiguousarray(np.moveaxis(patterns, -1, 0)).view(dtype)


@cache
def _zstandard() -> tuple[Any, Any]:
    import zstandard

    return zstandard.ZstdCompressor, zstandard.ZstdDecompressor
