"""Changes in a directory are told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from edgelink.process.inotify import watching


async def test_a_rename_a_write_and_a_removal_call_back(tmp_path: Path) -> None:
    """Both ways in which an editor saves a file are noticed, and nothing is once the watch has ended."""
    changed = asyncio.Event()
    (tmp_path / "new").write_text("x")
    with watching(tmp_path, changed.set):
        (tmp_path / "new").replace(tmp_path / "hosts")
        await asyncio.wait_for(changed.wait(), 20)
        changed.clear()
        with (tmp_path / "hosts").open("a") as file:
            file.write("y")
        await asyncio.wait_for(changed.wait(), 20)
        changed.clear()
        (tmp_path / "hosts").unlink()
        await asyncio.wait_for(changed.wait(), 20)
    changed.clear()
    (tmp_path / "later").touch()
    await asyncio.sleep(0)
    assert not changed.is_set()


async def test_a_directory_that_is_not_there_is_no_obstacle(tmp_path: Path) -> None:
    """It is logged; whoever watches goes on without."""
    with watching(tmp_path / "absent", lambda: None):
        await asyncio.sleep(0)
