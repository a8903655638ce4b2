"""The memory that env worker, control process and attendant share: counters, a ring of experience, the newest weights.

Nobody waits for anybody. Each word has one writer. Whatever is more than a word, a version of the weights, a row of
experience, a change of state, has a number and a checksum over that and all the rest: Python has no memory barriers,
and on aarch64 another process may see stores in another order than they were made, the count of rows before the row.
So the words only say where to look; that something is whole, and is what was looked for, is said by its checksum.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.policy import Weights
from edgelink.training.trainer.learning.spaces import Spaces

MAX_WEIGHTS_BYTES = 64 << 20  # of one version; memory is used only as far as there are weights
_CHUNK_BYTES = 128 << 10  # copied and summed in one control period
_SLOTS = 3  # of weights: the newest, the one that is being copied, and one to write the next into
_SLOT_HEAD_BYTES = 4096
_HEAD_WORDS = 5  # number, version, bytes of the shapes, bytes in all; and the checksum of these and the body
_PAGE = 4096
LATENESS_BIN_US, _LATENESS_BINS = 10, 4096  # up to 41 ms; later ones count in the last bin
_MESSAGE_BYTES = 1024
CHANGES = 64  # kept for the attendant, who reads them every few milliseconds

# One writer each: W the env worker, A the attendant, C the control process.
WORDS = (
    "worker_ns",  # W: it lives
    "worker_steps",  # W: how often the loop that serves the robot has come round; 0: it has not begun
    "link_ns",  # W: the driver was last heard
    "link_rtt_us",  # W
    "weights_version",  # W: the newest that is published
    "weights_published",  # W: its number, which grows with each, and whose rest by _SLOTS is its slot; 0: there is none
    "weights_confirmed_ns",  # W: when the version that was published last was said to be the newest still
    "may_begin",  # W: a replay, if that is what it is to do
    "resume_requests",  # A: of a person
    "stop_requests",  # A
    "worker_is_gone",  # A
    "close_request",  # A
    "heartbeat_ns",  # C: when the last control instant began
    "busy_since_ns",  # C: in the robot's code since; 0: between control instants
    "ticks",  # C
    "state",  # C: deadman.State
    "cause",  # C: deadman.Cause, of the state
    "hindrance",  # C: deadman.Cause, what is wrong at this moment
    "changes",  # C: of state, so far
    "rows",  # C: of experience, so far
    "weights_reading",  # C: the number whose slot is being copied, and not to be written to
    "policy_version",  # C
    "policy_ns",  # C: when it was loaded
    "policy_confirmed_ns",  # C: when it was last known to be the newest: when it came, or later
    "replay_is_over",  # C: nothing more of it is commanded
    "bad_checksums",  # C
    "missed",  # C: deadlines
    "max_lateness_ns",  # C
    "max_busy_ns",  # C: longest control instant
    "clamped_box",  # C: actions that limits have changed, by which
    "clamped_rate",  # C
    "clamped_workspace",  # C
    "not_numbers",  # C
    "holds",  # C
    "stops",  # C
    "resumes",  # C
    "stalls",  # C
    "stop_fails",  # C: so often in a row has the robot's stop() raised; 0: it has returned
    "stopping_since_ns",  # C: in the robot's stop() since, of the longest call; 0: it has returned, or raised
    "leaving",  # C: its loop is over and the robot stopped; the robot's code may take its time to let go of it
    "ended",  # C: it has left the robot at rest and let go of it
)
_WORD = {name: index for index, name in enumerate(WORDS)}
_CHANGE_DTYPE = np.dtype(
    [("number", "i8"), ("at_ns", "i8"), ("state", "i8"), ("cause", "i8"), ("held_s", "f8"), ("checksum", "i8")]
)
_NUMBER_BYTES = 8  # of a row: it counts in its checksum, but is 0 while the rest is being written


class Words:
    """The named words, as attributes."""

    __slots__ = ("_array",)
    _array: Any

    def __init__(self, array: Any) -> None:
        object.__setattr__(self, "_array", array)

    def __getattr__(self, name: str) -> int:
        return int(self._array[_WORD[name]])

    def __setattr__(self, name: str, value: int) -> None:
        self._array[_WORD[name]] = value

    def add(self, name: str, count: int = 1) -> None:
        """Only by the word's one writer."""
        self._array[_WORD[name]] += count


@dataclass(frozen=True)
class Layout:
    """From which all three compute the same addresses."""

    spaces: Spaces
    rigs: int
    ring_rows: int
    action_repeat: int = 1  # control instants of a step

    @property
    def row(self) -> np.dtype[Any]:
        """One row of experience: a step of every rig."""
        rigs, spaces = self.rigs, self.spaces
        seen = (spaces.observation_dtype, (rigs, *spaces.observation_shape))
        kind, one = ("i8", ()) if spaces.action_count is not None else ("f4", (len(spaces.action_low),))
        return np.dtype(
            [
                ("number", "i8"),  # from 1; 0 while it is being written
                ("at_ns", "i8"),  # when the action was first in force
                ("version", "i8"),  # of the weights
                ("follows", "i8"),  # its observations are what the row before led to
                ("step", "i8", (rigs,)),  # of the attempt, from 1; 0: a hold has broken it off, or it began unseen
                ("observations", *seen),
                ("actions", kind, (rigs, *one)),  # as drawn
                ("executed", kind, (rigs, self.action_repeat, *one)),  # as commanded at each instant, within the limits
                ("log_probs", "f4", (rigs,)),
                ("rewards", "f4", (rigs,)),
                ("terminated", "?", (rigs,)),
                ("truncated", "?", (rigs,)),
                ("next_observations", *seen),
            ],
            align=True,
        )

    def offsets(self) -> tuple[int, int, int, int, int, int]:
        """Of changes, lateness, checksums of rows, ring and weights; and the size of all."""
        changes = _paged(len(WORDS) * 8 + _MESSAGE_BYTES)
        lateness = changes + _paged(CHANGES * _CHANGE_DTYPE.itemsize)
        sums = lateness + _paged(_LATENESS_BINS * 8)
        ring = sums + _paged(self.ring_rows * 8)
        weights = ring + _paged(self.ring_rows * self.row.itemsize)
        return changes, lateness, sums, ring, weights, weights + _SLOTS * (MAX_WEIGHTS_BYTES + _SLOT_HEAD_BYTES)


class SharedBlock:
    """The memory itself, without a name that could be left behind; its file descriptor is handed around."""

    def __init__(self, layout: Layout, descriptor: int | None = None) -> None:
        self.layout = layout
        changes, lateness, sums, ring, weights, size = layout.offsets()
        if descriptor is None:
            descriptor = os.memfd_create("edgelink-robot")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self.words = Words(np.frombuffer(self._map, np.int64, len(WORDS)))
        self.message = np.frombuffer(self._map, np.uint8, _MESSAGE_BYTES, len(WORDS) * 8)
        self._changes = np.frombuffer(self._map, _CHANGE_DTYPE, CHANGES, changes)
        self.lateness = np.frombuffer(self._map, np.int64, _LATENESS_BINS, lateness)
        self.row_checksums = np.frombuffer(self._map, np.int64, layout.ring_rows, sums)
        self.ring = np.frombuffer(self._map, layout.row, layout.ring_rows, ring)
        self.row_bytes = self.ring.view(np.uint8).reshape(layout.ring_rows, -1)
        slot = MAX_WEIGHTS_BYTES + _SLOT_HEAD_BYTES
        self.slots = [np.frombuffer(self._map, np.uint8, slot, weights + index * slot) for index in range(_SLOTS)]

    def lateness_us(self, share: float) -> float | None:
        """Which lateness ``share`` of all control instants had at most; None before the first."""
        counts = np.cumsum(self.lateness)
        if counts[-1] == 0:
            return None
        return float((np.searchsorted(counts, share * counts[-1]) + 1) * LATENESS_BIN_US)

    def later_than(self, lateness_us: int) -> int:
        """How many control instants were."""
        return int(self.lateness[lateness_us // LATENESS_BIN_US :].sum())

    def write_message(self, text: str) -> None:
        """What went wrong, for people; the control process writes it, before it notes the change."""
        encoded = text.encode(errors="replace")[: len(self.message)]
        self.message[:] = 0
        self.message[: len(encoded)] = np.frombuffer(encoded, np.uint8)

    def read_message(self) -> str:
        return self.message.tobytes().rstrip(b"\0").decode(errors="replace")

    def write_change(self, at_ns: int, state: int, cause: int, held_s: float) -> None:
        """Of the robot's state; the control process writes it."""
        number = self.words.changes + 1
        entry = self._changes[(number - 1) % CHANGES : (number - 1) % CHANGES + 1]
        entry[0] = number, at_ns, state, cause, held_s, 0
        entry["checksum"] = _change_checksum(entry)
        self.words.changes = number

    def change(self, index: int) -> Any:
        """From 0, or what has taken its place since; None: not all of it is to be seen yet."""
        entry = self._changes[index % CHANGES : index % CHANGES + 1].copy()
        is_whole = entry["checksum"][0] == _change_checksum(entry) and entry["number"][0] > index
        return entry[0] if is_whole else None

    def note_lateness(self, late_ns: int) -> None:
        self.lateness[min(late_ns // (1000 * LATENESS_BIN_US), _LATENESS_BINS - 1)] += 1
        if late_ns > self.words.max_lateness_ns:
            self.words.max_lateness_ns = late_ns


class RingReader:
    """One reader of the ring of experience, from where it stands now. A slow one loses the oldest rows."""

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._next = block.words.rows  # rows before this one are taken, or none of ours
        self.dropped = 0

    @property
    def available(self) -> int:
        return self._block.words.rows - self._next

    def skip_to(self, count: int) -> int:
        """Leave all but the newest ``count`` rows; how many that were."""
        left = max(0, self.available - count)
        self._next += left
        return left

    def skip_older(self, version: int) -> int:
        """Leave the rows by weights before ``version``, up to the first that is not; how many that were."""
        ring = self._block.ring
        waiting = ring["version"][np.arange(self._next, self._block.words.rows) % len(ring)]
        is_new = waiting >= version
        left = int(is_new.argmax()) if is_new.any() else len(waiting)
        self._next += left
        return left

    def take(self, most: int) -> Any:
        """Copies of the oldest rows, up to ``most``; those that are not whole, for they were overwritten meanwhile, or
        not all of them is to be seen yet, are counted, not given."""
        block, capacity = self._block, len(self._block.ring)
        oldest = self._block.words.rows - capacity + 1  # one more may be in the writer's hands
        if self._next < oldest:
            self.dropped += oldest - self._next
            self._next = oldest
        count = max(0, min(most, self.available))
        numbers = np.arange(self._next, self._next + count)
        content, checksums = block.row_bytes[numbers % capacity], block.row_checksums[numbers % capacity]
        rows = content.view(block.ring.dtype)[:, 0]
        is_whole = (rows["number"] == numbers + 1) & (numbers > block.words.rows - capacity)
        summed = [row_checksum(row, number + 1) for row, number in zip(content, numbers.tolist(), strict=True)]
        is_whole &= checksums == np.asarray(summed, np.int64)
        self._next += count
        self.dropped += int(count - is_whole.sum())
        return rows[is_whole]


class WeightsWriter:
    """Publishes versions of weights; the env worker's end."""

    def __init__(self, block: SharedBlock) -> None:
        self._block = block

    def publish(self, version: int, weights: Weights) -> None:
        """Into a slot that is neither the newest version's, which a reader may be about to copy, nor the one that it
        copies: so versions go on arriving however fast they come, and one that is killed here spoils nothing.

        Raises:
            ValueError: they are larger than the shared memory.
        """
        shapes = {name: list(value.shape) for name, value in weights.items()}
        header = json.dumps(shapes).encode()
        head_bytes = _paged(len(header))
        parts = [np.ascontiguousarray(value, np.float32).reshape(-1).view(np.uint8) for value in weights.values()]
        size = head_bytes + sum(part.size for part in parts)
        if size > MAX_WEIGHTS_BYTES:
            raise ValueError(
                f"weights of {size >> 20} MiB are too large for a robot's control process: at most "
                f"{MAX_WEIGHTS_BYTES >> 20} MiB; make the network smaller"
            )
        words = self._block.words
        number = words.weights_published
        taken = (number % _SLOTS, words.weights_reading % _SLOTS)
        while number % _SLOTS in taken:
            number += 1
        slot = self._block.slots[number % _SLOTS]
        head, body = slot[: 8 * _HEAD_WORDS].view(np.int64), slot[_SLOT_HEAD_BYTES : _SLOT_HEAD_BYTES + size]
        body[: len(header)] = np.frombuffer(header, np.uint8)
        at = head_bytes
        for part in parts:
            body[at : at + part.size] = part
            at += part.size
        head[:-1] = number, version, len(header), size
        head[-1] = _checksum(body, _checksum(head[:-1]))
        words.weights_version = version
        words.weights_published = number


class WeightsReader:
    """The newest version whenever it begins with one, and always a whole one; the control process's end.

    Each ``poll`` does a bounded piece of the work.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self.version = -1
        self.weights: Weights | None = None
        self._done = 0  # number of the last one that is copied, or spoiled
        self._doubted = 0  # number of one that was not whole: perhaps not all of it was to be seen yet
        self._number = 0  # being copied; 0: nothing is
        self._head = np.zeros(_HEAD_WORDS, np.int64)  # of that
        self._at = self._size = self._sum = 0
        self._buffers = [np.zeros(0, np.uint8), np.zeros(0, np.uint8)]
        self._current = 0

    def poll(self) -> bool:
        """Go on copying; true when a new version has just become the present one."""
        if self._number == 0 and not self._begin():
            return False
        slot = self._block.slots[self._number % _SLOTS]
        begin, end = self._at, min(self._at + _CHUNK_BYTES, self._size)
        target = self._buffers[1 - self._current]
        target[begin:end] = slot[_SLOT_HEAD_BYTES + begin : _SLOT_HEAD_BYTES + end]
        self._sum = _checksum(target[begin:end], self._sum)
        self._at = end
        if end < self._size:
            return False
        number, version, header_size, size, checksum = (int(value) for value in self._head)
        wanted, self._number = self._number, 0
        self._block.words.weights_reading = 0
        if (number, checksum) != (wanted, self._sum):
            if wanted == self._doubted:  # a second time: it will not get better
                self._block.words.add("bad_checksums")
                self._done = wanted
            self._doubted = wanted
            return False
        self._done, self._current = wanted, 1 - self._current
        self.version, self.weights = version, _views(target[:size], header_size)
        return True

    def _begin(self) -> bool:
        """Claim the newest; false if there is none, or it was replaced in this very moment."""
        words = self._block.words
        number = words.weights_published
        if number <= self._done:
            return False
        words.weights_reading = number
        if words.weights_published != number:  # the writer may not have seen the claim: the next instant will do
            return False
        self._head[:] = self._block.slots[number % _SLOTS][: 8 * _HEAD_WORDS].view(np.int64)
        self._number, self._at, self._sum = number, 0, _checksum(self._head[:-1])
        self._size = min(max(int(self._head[3]), 0), MAX_WEIGHTS_BYTES)
        if len(self._buffers[1 - self._current]) < self._size:
            self._buffers[1 - self._current] = np.zeros(self._size, np.uint8)
        return True


def _views(body: Any, header_size: int) -> Weights:
    shapes: dict[str, list[int]] = json.loads(body[:header_size].tobytes())
    at, views = _paged(header_size), {}
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        views[name] = body[at : at + size].view(np.float32).reshape(shape)
        at += size
    return views


def row_checksum(content: Any, number: int) -> int:
    """Of the bytes of a row of the ring that has this number."""
    return _checksum(content[_NUMBER_BYTES:], number & 0xFFFFFFFF)


def _change_checksum(entry: Any) -> int:
    return _checksum(entry.view(np.uint8)[: -entry.dtype["checksum"].itemsize])


def _paged(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _checksum(part: Any, before: int = 0) -> int:
    return zlib.crc32(part, before)
