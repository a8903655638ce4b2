"""The slots that bound how many lab nodes of one machine start Ray at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

from edgelink.clock import SystemClock
from edgelink.lab.ray_slots import RaySlots
from edgelink.testing import FakeClock

_HOLDER = """
import sys, time
from pathlib import Path
from edgelink.clock import SystemClock
from edgelink.lab.ray_slots import RaySlots
RaySlots(Path(sys.argv[1]), SystemClock(), print, 1).take("edge-1 of lab other")
print("held", flush=True)
time.sleep(1000)
"""


class PassingClock(FakeClock):
    """Its time passes while somebody waits; after ``then_s`` ``then`` happens, once."""

    def __init__(self, then_s: float, then: object) -> None:
        super().__init__()
        self._then_s = then_s
        self._slot = then

    def block(self, seconds: float) -> None:
        super().block(seconds)
        if self.monotonic_s() >= self._then_s and isinstance(self._slot, int):
            os.close(self._slot)
            self._slot = None


def slots(directory: Path, said: list[str], count: int, clock: FakeClock | None = None) -> RaySlots:
    return RaySlots(directory, cast("SystemClock", clock or FakeClock()), said.append, count)


def test_no_more_than_so_many_are_held(tmp_path: Path) -> None:
    """By whoever: each lab has its own object. A slot that was given back is there for the next."""
    ours, theirs = slots(tmp_path, [], 2), slots(tmp_path, [], 2)
    first, second = ours.take_free("a"), theirs.take_free("b")
    assert first is not None
    assert second is not None
    assert ours.take_free("c") is None
    os.close(second)
    with ours.held("c"):
        assert theirs.take_free("d") is None
    os.close(first)


def test_it_says_whom_it_waits_for_once_that_takes_long(tmp_path: Path) -> None:
    """A slot that is free soon is waited for without a word."""
    for then_s, told in ((9.0, 0), (30.0, 1)):
        said: list[str] = []
        held = slots(tmp_path, [], 1).take_free("cloud of lab other")
        clock = PassingClock(FakeClock().monotonic_s() + then_s, held)
        os.close(slots(tmp_path, said, 1, clock).take("edge-1 of lab ours"))
        assert len(said) == told
        assert all("edge-1 of lab ours waits" in line and "cloud of lab other" in line for line in said)


def test_a_holder_that_dies_holds_nothing(tmp_path: Path) -> None:
    """It can be killed at any moment, and nobody cleans up after it."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        ours = slots(tmp_path, [], 1)
        assert ours.take_free("c") is None
        assert ours.holders() == ["edge-1 of lab other"]
        holder.kill()
        holder.wait()
        slot = ours.take_free("c")
        assert slot is not None
        os.close(slot)


def test_there_are_two_at_least(tmp_path: Path) -> None:
    """A lab of a head and an edge must not wait for itself on a machine of one core."""
    made = RaySlots(tmp_path, SystemClock(), print)
    taken = [made.take_free("a"), made.take_free("b")]
    assert None not in taken
    for slot in taken:
        os.close(cast("int", slot))
