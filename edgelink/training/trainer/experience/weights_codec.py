"""A policy's weights on their way from the learner to the edges: in bf16, versioned, mostly as a difference.

What is sent in bf16 is what the edge acts by and what its log probabilities are of, so the learner's ratios are exact.
Vectors (biases, and the mean and deviation by which observations are normalised) stay in float32: they are few, and
eight bits are too few for a mean. ADR 0028 has the figures of planes, XOR and differences.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelink.training.trainer.experience.codec import (
    byte_planes,
    deflate,
    from_byte_planes,
    from_zigzag,
    inflate,
    zigzag,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER = struct.Struct("<QQ")  # lengths of layout and matrices, both deflated
_HALF, _EXACT = np.dtype(np.uint16), np.dtype(np.uint32)
MOST_DIFFERENCES = 3  # in a row instead of a whole version: more would be larger than that


@dataclass(frozen=True)
class Patterns:
    """Weights as the bit patterns that are sent."""

    layout: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each tensor, in order
    half: NDArray[np.uint16]  # bf16 of all tensors with two or more axes
    exact: NDArray[np.uint32]  # float32 of all others

    @classmethod
    def of(cls, weights: Mapping[str, NDArray[Any]]) -> Patterns:
        arrays = {name: np.asarray(array, dtype=np.float32) for name, array in weights.items()}
        halves = [to_bf16(array).reshape(-1) for array in arrays.values() if array.ndim >= 2]
        exacts = [
            np.ascontiguousarray(array).reshape(-1).view(np.uint32) for array in arrays.values() if array.ndim < 2
        ]
        return cls(
            tuple((name, array.shape) for name, array in arrays.items()),
            np.concatenate(halves) if halves else np.zeros(0, np.uint16),
            np.concatenate(exacts) if exacts else np.zeros(0, np.uint32),
        )

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """What an edge acts by."""
        halves, exacts = from_bf16(self.half), self.exact.view(np.float32)
        result, places = {}, {True: 0, False: 0}
        for name, shape in self.layout:
            is_half = len(shape) >= 2
            start = places[is_half]
            places[is_half] = end = start + int(np.prod(shape, dtype=np.int64))
            result[name] = (halves if is_half else exacts)[start:end].reshape(shape)
        return result


def to_bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The patterns of ``array`` rounded to bf16, to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def from_bf16(patterns: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(patterns: Patterns, base: Patterns | None = None) -> bytes:
    """As a whole, or as the difference to ``base``, which must have the same layout."""
    layout = b""
    half, exact = patterns.half, patterns.exact
    if base is None:
        layout = deflate(json.dumps(patterns.layout).encode())
    else:
        half, exact = zigzag(half - base.half), zigzag(exact - base.exact)
    matrices = deflate(byte_planes(half))
    return _HEADER.pack(len(layout), len(matrices)) + layout + matrices + deflate(byte_planes(exact))


def decode(content: bytes, base: Patterns | None = None) -> Patterns:
    """What was given to :func:`encode`, with the same ``base``.

    Raises:
        ValueError: ``content`` is a difference and there is no ``base``.
    """
    layout_bytes, matrix_bytes = _HEADER.unpack_from(content)
    start = _HEADER.size
    layout = content[start : start + layout_bytes]
    matrices = content[start + layout_bytes : start + layout_bytes + matrix_bytes]
    half = from_byte_planes(inflate(matrices), _HALF)
    exact = from_byte_planes(inflate(content[start + layout_bytes + matrix_bytes :]), _EXACT)
    if layout:
        names = tuple((name, tuple(shape)) for name, shape in json.loads(inflate(layout)))
        return Patterns(names, half, exact)
    if base is None:
        raise ValueError("a difference between two versions of the weights, and the older one is not here")
    return Patterns(base.layout, from_zigzag(half) + base.half, from_zigzag(exact) + base.exact)


@dataclass(frozen=True)
class Offer:
    """One version that can be had; the tuples hold what the chunks are fetched by, in order.

    A small difference may come along as ``enclosed``: half a round trip, where fetching takes three.
    """

    version: int
    whole: tuple[Any, ...]
    base: int | None = None  # the version that ``difference`` is to
    difference: tuple[Any, ...] = ()
    whole_bytes: int = 0
    difference_bytes: int = 0
    enclosed: bytes = b""


def way_to_newest(version: int | None, offers: Sequence[Offer]) -> list[tuple[Offer, bool]]:
    """How to get from ``version`` to the newest of ``offers``: each step, and whether it is a whole version. Pure."""
    if not offers:
        return []
    newest = max(offers, key=lambda offer: offer.version)
    if version is not None and version >= newest.version:
        return []
    by_version = {offer.version: offer for offer in offers}
    chain: list[tuple[Offer, bool]] = []
    at: int | None = newest.version
    while at is not None and at != version and len(chain) < MOST_DIFFERENCES:
        offer = by_version.get(at)
        if offer is None or not (offer.difference or offer.enclosed):
            break
        chain.append((offer, False))
        at = offer.base
    if version is not None and at == version:
        return chain[::-1]
    return [(newest, True)]
