"""What the processes of a robot share: nothing half-written is ever used, and what is lost is counted."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import obedient_robot
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgelink.training.trainer.robot import realtime, shared
from edgelink.training.trainer.robot.interface import Sensed
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock, WeightsReader, WeightsWriter
from edgelink.training.trainer.robot.step_recorder import StepRecorder


@pytest.fixture
def block() -> SharedBlock:
    return SharedBlock(Layout(obedient_robot.SPACES, rigs=1, ring_rows=8))


def sensed(value: float) -> Sensed:
    no = np.zeros(1, np.bool_)
    return Sensed(np.full((1, 2), value, np.float32), np.full(1, value, np.float32), no, no)


def write(recorder: StepRecorder, numbers: range, versions: Sequence[int] = ()) -> None:
    for index, number in enumerate(numbers):
        one = np.full((1, 1), number, np.float32)
        recorder.begin(number, versions[index] if versions else 1, np.full((1, 2), number, np.float32), one, one[0])
        recorder.commanded(0, one)
        recorder.reward(sensed(number + 1))
        recorder.finish(sensed(number + 1))


def test_steps_come_out_as_they_went_in(block: SharedBlock) -> None:
    """Through another mapping of the same memory, as in another process."""
    reader = RingReader(SharedBlock(block.layout, block.descriptor))
    recorder = StepRecorder(block)
    write(recorder, range(3))
    recorder.break_off()
    write(recorder, range(3, 5))
    rows = reader.take(10)
    assert rows["observations"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert rows["next_observations"][:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert rows["rewards"][:, 0].tolist() == [1, 2, 3, 4, 5]
    assert rows["follows"].tolist() == [0, 1, 1, 0, 1]
    assert len(reader.take(10)) == 0


def test_a_slow_reader_loses_the_oldest_and_knows_how_many(block: SharedBlock) -> None:
    """The writer never waits for it."""
    reader = RingReader(block)
    write(StepRecorder(block), range(20))
    rows = reader.take(100)
    assert rows["observations"][-1, 0, 0] == 19
    assert len(rows) + reader.dropped == 20
    assert len(rows) >= 7
    assert (np.diff(rows["number"]) == 1).all()


def test_steps_by_old_weights_can_be_left_out(block: SharedBlock) -> None:
    """Those at the beginning, and all if there are no others."""
    reader, recorder = RingReader(block), StepRecorder(block)
    write(recorder, range(5), [1, 1, 2, 3, 3])
    assert reader.skip_older(2) == 2
    assert reader.skip_older(2) == 0
    assert reader.take(1)["version"].tolist() == [2]
    assert reader.skip_older(4) == 2
    assert reader.available == 0
    write(recorder, range(5, 7))
    assert reader.take(10)["observations"][:, 0, 0].tolist() == [5, 6]


def test_a_row_that_is_being_overwritten_is_not_given(block: SharedBlock) -> None:
    """Its number says so."""
    reader = RingReader(block)
    write(StepRecorder(block), range(4))
    block.ring["number"][1] = 0
    assert reader.take(10)["number"].tolist() == [1, 3, 4]
    assert reader.dropped == 1


ROW = Layout(obedient_robot.SPACES, 1, 8).row


@pytest.mark.parametrize("name", [name for name in ROW.names or () if name != "number"])
def test_a_row_of_which_something_is_not_to_be_seen_yet_is_not_given(block: SharedBlock, name: str) -> None:
    """Though its number is: processors may show stores to another core in another order than they were made."""
    reader = RingReader(block)
    write(StepRecorder(block), range(3))
    block.row_bytes[1, (ROW.fields or {})[name][1]] ^= 1
    assert reader.take(10)["number"].tolist() == [1, 3]
    assert reader.dropped == 1


def test_a_row_that_still_is_the_one_before_it_is_not_given(block: SharedBlock) -> None:
    """Whole, with its checksum, and nothing of it but the number is the new one's."""
    reader, recorder = RingReader(block), StepRecorder(block)
    write(recorder, range(8))
    reader.skip_to(0)
    before, checksum = block.ring[:1].copy(), int(block.row_checksums[0])
    write(recorder, range(8, 9))
    block.ring[:1], block.row_checksums[0] = before, checksum
    block.ring["number"][0] = 9
    assert len(reader.take(10)) == 0
    assert reader.dropped == 1


def test_a_change_that_is_announced_before_it_is_to_be_seen_is_waited_for(block: SharedBlock) -> None:
    """It is nothing yet, or what was there 64 changes before."""
    for number in range(70):
        before = block._changes.copy()
        block.write_change(number, 1, 2, 0.5)
        made = block._changes.copy()
        block._changes[:] = before
        assert block.change(number) is None
        block._changes[:] = made
        block._changes["cause"][number % 64] ^= 1
        assert block.change(number) is None
        block._changes[:] = made
        assert block.change(number).tolist()[:-1] == (number + 1, number, 1, 2, 0.5)


def polled(reader: WeightsReader) -> Any:
    for _ in range(100):
        if reader.poll():
            break
    return reader.weights


def test_the_newest_weights_arrive_in_pieces(block: SharedBlock) -> None:
    """One piece a control instant; what was skipped is never seen."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    large = {"a": np.arange(200_000, dtype=np.float32).reshape(2, -1), "b": np.ones(3, np.float32)}
    writer.publish(1, obedient_robot.weights())
    writer.publish(5, large)
    assert not reader.poll()
    found = polled(reader)
    assert reader.version == 5
    assert found.keys() == large.keys()
    assert all((found[name] == value).all() for name, value in large.items())
    assert not reader.poll()


PIECES = 3
LARGE = (PIECES * (128 << 10) - 8192) // 4  # numbers that, with the page of their shapes, are copied in as many pieces


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40))
@example([2] * 12)
def test_versions_go_on_arriving_however_fast_they_are_published(published_between: list[int]) -> None:
    """One for each time that it takes to copy one, the newest when that was begun; and each is whole."""
    block = SharedBlock(Layout(obedient_robot.SPACES, rigs=1, ring_rows=2))
    os.close(block.descriptor)
    writer, reader = WeightsWriter(block), WeightsReader(block)
    newest = begun_with = polls = 0
    for count in published_between:
        for _ in range(count):
            newest += 1
            writer.publish(newest, {"a": np.full(LARGE, newest, np.float32)})
        if newest <= max(reader.version, 0):
            assert not reader.poll()
            continue
        begun_with = begun_with if polls else newest
        polls += 1
        assert reader.poll() is (polls == PIECES)
        if polls == PIECES:
            assert reader.version == begun_with
            polls = 0
        if reader.weights is not None:
            assert (reader.weights["a"] == reader.version).all()
    assert block.words.bad_checksums == 0


def test_a_writer_that_is_killed_spoils_no_version(block: SharedBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that is being copied, nor the newest; and the next one publishes on."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    for version in (1, 2):
        writer.publish(version, {"a": np.full(LARGE, version, np.float32)})
        assert not reader.poll()

    def be_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shared, "_checksum", be_killed)
        writer.publish(3, {"a": np.full(LARGE, 3, np.float32)})
    for version in (1, 2):
        assert (polled(reader)["a"] == version).all()
    assert not reader.poll()
    WeightsWriter(block).publish(4, {"a": np.full(LARGE, 4, np.float32)})
    assert (polled(reader)["a"] == 4).all()
    assert block.words.bad_checksums == 0


def test_weights_that_change_while_they_are_read_are_not_used(block: SharedBlock) -> None:
    """By a writer that has not seen, on another core, that they are being read: then the newest is read."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    writer.publish(1, {"a": np.full(LARGE, 1, np.float32)})
    assert not reader.poll()
    block.words.weights_reading = 0
    for version in (2, 3):
        writer.publish(version, {"a": np.full(LARGE, version, np.float32)})
    assert [reader.poll() for _ in range(PIECES - 1)] == [False] * (PIECES - 1)
    assert (polled(reader)["a"] == 3).all()
    assert (reader.version, block.words.bad_checksums) == (3, 0)


def test_a_version_that_is_replaced_while_it_is_claimed_is_left_for_the_newest(block: SharedBlock) -> None:
    """Its slot may be written to already: nothing of it is copied for nothing."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    writer.publish(1, {"a": np.full(LARGE, 1, np.float32)})

    class Racing(shared.Words):
        def __setattr__(self, name: str, value: int) -> None:
            if name == "weights_reading" and block.words.weights_version < 3:
                for version in (2, 3):
                    writer.publish(version, {"a": np.full(LARGE, version, np.float32)})
            super().__setattr__(name, value)

    reader._block = SharedBlock(block.layout, block.descriptor)
    reader._block.words = Racing(block.words._array)
    assert [reader.poll() for _ in range(1 + PIECES)] == [False] * PIECES + [True]
    assert reader.version == 3


def test_weights_that_are_announced_before_they_are_to_be_seen_are_read_again(block: SharedBlock) -> None:
    """Processors may show stores to another core in another order than they were made."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    writer.publish(1, {"a": np.ones(10, np.float32)})
    slot = block.slots[block.words.weights_published % len(block.slots)]
    made = slot[: 3 * 4096].copy()
    slot[: 3 * 4096] = 0
    assert not reader.poll()
    slot[: 3 * 4096] = made
    assert reader.poll()
    assert (reader.version, block.words.bad_checksums) == (1, 0)


def test_spoiled_weights_are_counted_and_the_old_ones_stay(block: SharedBlock) -> None:
    """By their checksum."""
    writer, reader = WeightsWriter(block), WeightsReader(block)
    writer.publish(1, {"a": np.ones(10, np.float32)})
    assert (polled(reader)["a"] == 1).all()
    writer.publish(2, {"a": np.zeros(10, np.float32)})
    newest = block.slots[block.words.weights_published % len(block.slots)]
    newest[shared._SLOT_HEAD_BYTES + 4096] ^= 1
    assert (polled(reader)["a"] == 1).all()
    assert (reader.version, block.words.bad_checksums) == (1, 1)
    writer.publish(3, {"a": np.full(10, 3, np.float32)})
    assert (polled(reader)["a"] == 3).all()


def test_weights_that_are_too_large_are_refused(block: SharedBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do."""
    monkeypatch.setattr(shared, "MAX_WEIGHTS_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="smaller"):
        WeightsWriter(block).publish(1, {"a": np.ones(1 << 20, np.float32)})


def test_lateness_is_told_by_share(block: SharedBlock) -> None:
    """In steps of 10 µs, the last of which holds all that is later."""
    assert block.lateness_us(0.5) is None
    for late_us in [5] * 98 + [1_000, 90_000]:
        block.note_lateness(late_us * 1000)
    assert block.lateness_us(0.5) == 10
    assert block.lateness_us(0.99) == 1010
    assert (block.later_than(1000), block.later_than(2000)) == (2, 1)
    assert block.words.max_lateness_ns == 90_000_000


def test_what_the_system_does_not_allow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to give the user; the loop runs in the ordinary class then."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "nice", refuse)
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    assert realtime.schedule(50).startswith("SCHED_OTHER at niceness 15, ")
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    assert re.match(r"SCHED_OTHER: SCHED_FIFO .* rtprio of 50", realtime.schedule(50))
    assert realtime.schedule(0).startswith("SCHED_OTHER, ")


@pytest.mark.parametrize(("before", "after"), [("1000", "0"), ("0", "0"), ("-500", "-500"), ("x", "x")])
def test_who_commands_a_robot_is_not_killed_first(tmp_path: Path, before: str, after: str) -> None:
    """Nor sooner than before, where something protects it."""
    adjustment = tmp_path / "oom_score_adj"
    adjustment.write_text(before)
    realtime.outlive_workers(adjustment)
    assert adjustment.read_text() == after
    realtime.outlive_workers(tmp_path)


def test_deadlines_are_absolute() -> None:
    """Never early; the next instant is a multiple of the period, whenever one asks."""
    deadline_ns = realtime.now_ns() + 5_000_000
    realtime.sleep_until(deadline_ns)
    assert realtime.now_ns() >= deadline_ns
    realtime.sleep_until(deadline_ns)  # one that has passed is no wait
    assert realtime.next_instant(1_234, 100) == 1_300
    assert realtime.next_instant(1_300, 100) == 1_400
    assert realtime.next_instant(1_234, 100, 40) == 1_240
