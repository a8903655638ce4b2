"""A registry whose disk is full keeps its session: what it could not put down it does at a later look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rotation_world import ADMIN_ADDRESS, Network

from edgelink.errors import NotCommittedError
from edgelink.testing import eventually


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


class Disk:
    """Full, or not: then what writes through :meth:`guard` is done."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0

    def guard(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if self.is_full:
                self.refused += 1
                raise NotCommittedError("registry.sqlite3: cannot be written: database or disk is full")
            return write(*args)

        return guarded


@pytest.mark.parametrize("what", ["receive", "advance"])
async def test_a_full_disk_ends_no_session(network: Network, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Neither an answer nor a step that is due is lost with it."""
    member, disk, rotations = network.join("edge-1"), Disk(), network.world.authority.rotations
    monkeypatch.setattr(rotations, what, disk.guard(getattr(rotations, what)))
    async with network.serving(), network.running(member):
        await eventually(lambda: member.reason() == "Current")
        disk.is_full = True
        network.rotate(member)
        await eventually(lambda: disk.refused > 0)
        await eventually(lambda: member.on_disk.next_epoch == 2)
        assert network.service.is_connected
        disk.is_full = False
        network.service.rotation.wakeup.set()
        await eventually(lambda: rotations.record is None and member.on_disk.epoch == 2)
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1


async def test_what_cannot_be_noted_is_noted_later(network: Network) -> None:
    """The daemon's own part, which writes as well, is asked again, and is not asked in the middle of anything."""
    disk, noted = Disk(), []
    network.service.rotation.on_change = disk.guard(lambda: noted.append(None))
    async with network.serving():
        disk.is_full = True
        network.service.rotation.look()
        await eventually(lambda: disk.refused > 0)
        assert network.service.is_connected
        assert not noted
        disk.is_full = False
        network.service.rotation.wakeup.set()
        await eventually(lambda: bool(noted))
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1
