"""What is left of a run in progress when the head's daemon ends."""

from __future__ import annotations

import os
from pathlib import Path

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.daemon.head import Head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.testing import FakeClock


async def test_a_daemon_that_is_asked_to_end_leaves_the_lock_to_the_next_one(tmp_path: Path) -> None:
    """The run's request is closed by the daemon's end and not by the run."""
    paths, clock = Paths(tmp_path / "state", tmp_path / "run"), FakeClock()
    daemon = Head(Config(), paths, clock, ThisMachine(), None)
    with daemon.runs.lock.held_by(Caller(os.getpid(), 0, 0)):
        daemon.stop_request.request()
    assert Head(Config(), paths, clock, ThisMachine(), None).base.conditions.is_true("DriverRunning")
