"""A full disk costs what it has to, and no daemon: what is kept comes later, what is required is not done."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
import structlog
from full_disk import Disk
from structlog.testing import capture_logs

from edgelink import log
from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.errors import NotRecordedError
from edgelink.process import output
from edgelink.reconcile import Wakeup, run_reconciler
from edgelink.state_files import StateFiles
from edgelink.testing import beside, eventually
from edgelink.testing.virtual_time import LoopClock, Nobody, VirtualLoop, run


class World:
    """State files with their loop running."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory = directory
        self.disk = disk
        self.clock = LoopClock()
        self.conditions = ConditionSet(self.clock, [], [StateFiles.condition])
        self.files = StateFiles(self.conditions)

    @property
    def reason(self) -> str:
        return self.conditions.get(StateFiles.condition).reason

    @property
    def message(self) -> str:
        return self.conditions.get(StateFiles.condition).message


Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Runs a story in virtual time: the loop's patience grows to 15 s."""

    async def lives(story: Story) -> None:
        world = World(tmp_path, Disk(monkeypatch))
        async with beside(run_reconciler(world.files, world.conditions, world.clock)):
            await eventually(lambda: world.reason == "Recorded")
            await story(world)

    return lambda story: run(VirtualLoop(0, Nobody()), lives(story))


def test_what_is_kept_is_written_when_there_is_room(live: Callable[[Story], None]) -> None:
    """The newest content; nobody asks again, and both ends of the outage are logged once."""

    async def story(world: World) -> None:
        path = world.directory / "run.json"
        world.files.keep(path, "first")
        world.disk.is_full = True
        with capture_logs() as logs:
            world.files.keep(path, "second")
            await eventually(lambda: world.reason == "NotRecorded")
            world.files.keep(path, "third")
            assert path.read_text() == "first"
            for part in (str(path), "No space left on device", "free some space"):
                assert part in world.message
            world.disk.is_full = False
            await eventually(lambda: path.read_text() == "third")
            await eventually(lambda: world.reason == "Recorded")
            await eventually(lambda: "state-files.recovered" in [entry["event"] for entry in logs])
        told = [entry["event"] for entry in logs if entry["event"].startswith("state-files.")]
        assert told == ["state-files.failed", "state-files.recovered"]

    live(story)


def test_what_is_gone_meanwhile_is_not_written(live: Callable[[Story], None]) -> None:
    """A run that has ended leaves no lock behind when there is room again."""

    async def story(world: World) -> None:
        path = world.directory / "run.json"
        world.disk.is_full = True
        world.files.keep(path, "held")
        world.files.keep(path, None)
        world.disk.is_full = False
        await eventually(lambda: world.reason == "Recorded")
        assert not path.exists()

    live(story)


def test_what_is_required_is_refused(live: Callable[[Story], None]) -> None:
    """The caller is told, and nothing is written later behind its back; the condition ends with the cause."""

    async def story(world: World) -> None:
        path, other = world.directory / "spec.json", world.directory / "lock.json"
        world.disk.is_full = True
        with pytest.raises(NotRecordedError, match="No space left"):
            world.files.require(path, "content")
        world.files.refused(other, "database or disk is full")
        await eventually(lambda: str(path) in world.message)
        await eventually(lambda: str(other) in world.message)
        world.disk.is_full = False
        await eventually(lambda: world.reason == "Recorded")
        assert list(world.directory.iterdir()) == []

    live(story)


async def test_a_full_disk_met_elsewhere_is_no_defect(tmp_path: Path) -> None:
    """Whatever a reconciler writes: the condition says what is the matter."""

    class Writes:
        name: ClassVar[str] = "writes"
        condition: ClassVar[str] = "Done"
        wakeup = Wakeup()

        async def reconcile(self) -> float:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "hosts"))

    conditions = ConditionSet(SystemClock(), ["Done"])
    task = asyncio.create_task(run_reconciler(Writes(), conditions, SystemClock()))
    await eventually(lambda: conditions.get("Done").reason == "NotRecorded")
    assert str(tmp_path / "hosts") in conditions.get("Done").message
    assert not conditions.get("Done").final
    task.cancel()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    """As with `edgelink head -- CMD`, whose daemon logs to a file; the line is still in what `edgelink logs` shows."""
    try:
        with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
            log.configure(stream=full)
            log.get_logger("test").info("disk.is_full")
    finally:
        structlog.reset_defaults()
    assert "disk.is_full" in log.recent()[-1]


def test_an_output_is_bounded_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy has no room: then it is done without."""

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "easytier.log"
    path.write_text("x" * 100)
    monkeypatch.setattr(output.shutil, "copyfileobj", full)
    assert output.bound(path, 50)
    assert [file.name for file in tmp_path.iterdir()] == ["easytier.log"]
    assert path.read_text() == ""
