"""What goes over a WAN in the built-in trainer: smaller than before, and the same bits after."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgelink.training.trainer.experience import weights_codec
from edgelink.training.trainer.experience.codec import pack, pack_all, unpack, unpack_all
from edgelink.training.trainer.experience.pieces import chunks
from edgelink.training.trainer.experience.weights_codec import Offer, Patterns, decode, encode, way_to_newest

ANY_KIND = st.sampled_from(["f4", "f8", "f2", "u1", "u2", "i1", "i2", "i4", "i8", "u8", "?", "c8"])
ANY_SHAPE = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@given(ANY_KIND.flatmap(lambda kind: arrays.arrays(np.dtype(kind), ANY_SHAPE)))
@settings(max_examples=150 if os.environ.get("EDGELINK_SOAK") else 50, deadline=None)
def test_every_array_comes_back_bit_by_bit(array: Any) -> None:
    """Whatever its type and shape, NaNs and negative zeros included; the result can be written to."""
    back = unpack(pack(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


def test_frames_that_hardly_change_become_small() -> None:
    """A moving square on a noisy ground: the ground crosses once, not with each frame."""
    generator = np.random.default_rng(0)
    frames = np.repeat(generator.integers(0, 255, (1, 2, 84, 84, 3), dtype=np.uint8), 64, axis=0)
    for step in range(64):
        frames[step, :, step : step + 8, 10:18] = 255
    packed = pack(frames)
    assert packed.raw_bytes == frames.nbytes
    assert len(packed.data) < frames.nbytes / 30
    assert (unpack(packed) == frames).all()


def test_a_fragments_columns_take_what_they_tell() -> None:
    """A bit an action of two, next to nothing for constant rewards and rare ends, and smooth series below raw."""
    steps = np.linspace(0, 3, 128, dtype=np.float32)
    columns = {
        "observations": np.sin(steps[:, None, None] + np.arange(32, dtype=np.float32).reshape(8, 4)),
        "actions": np.random.default_rng(0).integers(0, 2, (128, 8)),
        "rewards": np.ones((128, 8), np.float32),
        "terminated": np.zeros((128, 8), np.bool_),
    }
    packed = pack_all(columns)
    assert {name: (array == columns[name]).all() for name, array in unpack_all(packed).items()} == dict.fromkeys(
        columns, True
    )
    sizes = {name: len(found.data) for name, found in packed.items()}
    assert sizes["actions"] < 128 * 8 / 4
    assert sizes["rewards"] < 60
    assert sizes["terminated"] < 30
    assert sizes["observations"] < 0.9 * columns["observations"].nbytes


def some_weights(seed: int = 0, step: float = 0.0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    shapes = {"policy.0.weight": (64, 17), "policy.0.bias": (64,), "conv": (8, 4, 3, 3), "mean": (17,), "scale": ()}
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    change = np.random.default_rng(1)
    return {
        name: (array + step * change.normal(size=array.shape)).astype(np.float32) for name, array in weights.items()
    }


def test_weights_are_rounded_once_and_never_again() -> None:
    """Matrices to bf16, to the nearest; vectors not at all; what an edge holds is encoded to itself."""
    weights = some_weights()
    received = decode(encode(Patterns.of(weights))).weights()
    assert {name: array.shape for name, array in received.items()} == {n: a.shape for n, a in weights.items()}
    for name, array in weights.items():
        if array.ndim < 2:
            assert received[name].tobytes() == array.tobytes()
        else:
            np.testing.assert_allclose(received[name], array, rtol=2**-8)
    again = decode(encode(Patterns.of(received))).weights()
    assert all(again[name].tobytes() == received[name].tobytes() for name in weights)


@pytest.mark.torch
def test_bf16_rounds_to_the_nearest_even() -> None:
    """As torch does, at the ties too; infinities and NaN stay what they are."""
    import torch

    values = np.concatenate(
        [
            np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32),
            np.array([0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0x80000000], np.uint32).view(np.float32),
        ]
    )
    ours = weights_codec.from_bf16(weights_codec.to_bf16(values))
    theirs = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert np.isnan(weights_codec.from_bf16(weights_codec.to_bf16(np.array([np.nan], np.float32))))[0]


@given(st.integers(0, 3), st.sampled_from([0.0, 1e-4, 1e-2, 1.0]))
@settings(max_examples=12, deadline=None)
def test_a_difference_leads_to_the_same_weights_as_a_whole_version(seed: int, step: float) -> None:
    """Bit by bit, however far apart the two are; without the base it is refused."""
    base, new = Patterns.of(some_weights(seed)), Patterns.of(some_weights(seed, step))
    difference = encode(new, base)
    by_difference, whole = decode(difference, base), decode(encode(new))
    assert by_difference.layout == whole.layout
    assert by_difference.half.tobytes() == whole.half.tobytes()
    assert by_difference.exact.tobytes() == whole.exact.tobytes()
    with pytest.raises(ValueError, match="older"):
        decode(difference)


def test_weights_cost_less_than_half_of_float32() -> None:
    """A whole version below 2 bytes a weight; after a usual step of training the difference is below that again."""
    generator = np.random.default_rng(0)
    before = {"w": (generator.normal(size=(256, 256)) / 16).astype(np.float32)}
    after = {"w": before["w"] + (generator.normal(size=(256, 256)) * 1e-4).astype(np.float32)}
    raw_bytes = before["w"].nbytes
    whole, difference = encode(Patterns.of(after)), encode(Patterns.of(after), Patterns.of(before))
    assert len(whole) < 0.45 * raw_bytes
    assert len(difference) < 0.5 * len(whole)


def offer(version: int, base: int | None) -> Offer:
    return Offer(version, whole=("w",), base=base, difference=() if base is None else ("d",))


@pytest.mark.parametrize(
    ("version", "offers", "expected"),
    [
        (None, [offer(4, 3)], [(4, True)]),  # new here: nothing to add a difference to
        (3, [offer(4, 3)], [(4, False)]),
        (2, [offer(3, 2), offer(4, 3)], [(3, False), (4, False)]),
        (0, [offer(n, n - 1) for n in (1, 2, 3, 4)], [(4, True)]),  # more differences than a whole version
        (2, [offer(4, 3)], [(4, True)]),  # one is missing
        (3, [offer(4, None)], [(4, True)]),
        (4, [offer(3, 2), offer(4, 3)], []),
        (4, [], []),
    ],
)
def test_the_shortest_way_to_the_newest_version(
    version: int | None, offers: list[Offer], expected: list[tuple[int, bool]]
) -> None:
    """Differences in a row while they are few and none is missing, else the whole newest version."""
    assert [(step.version, whole) for step, whole in way_to_newest(version, offers)] == expected


@given(st.binary(max_size=50), st.integers(1, 20))
@settings(deadline=None)
def test_chunks_join_to_the_whole(content: bytes, size: int) -> None:
    """None larger than asked, and at least one."""
    pieces = list(chunks(content, size))
    assert b"".join(pieces) == content
    assert pieces
    assert max(map(len, pieces)) <= size
