"""Whose Ray the head buries under a run in progress, and what is left of that run when the head's daemon ends."""

from __future__ import annotations

import os
from pathlib import Path

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import NetworkState
from edgelink.roles.head import Head, put_out
from edgelink.testing import FakeClock


def test_only_who_was_put_out_is_buried() -> None:
    """By the registry's signed word. Who is in no directory may be healthy: a registry that was restored from an older
    backup has never heard of it."""
    healthy, stolen, earlier = (NodeKey.generate().node_id for _ in range(3))
    state = NetworkState(network_id="n", generation=0, number=1, secret_epoch=2, revoked=(stolen, earlier))
    assert put_out([healthy, stolen], state) == {stolen}
    assert put_out([healthy, stolen], None) == set()


async def test_a_daemon_that_is_asked_to_end_leaves_the_lock_to_the_next_one(tmp_path: Path) -> None:
    """The run's request is closed by the daemon's end and not by the run."""
    paths, clock = Paths(tmp_path / "state", tmp_path / "run"), FakeClock()
    daemon = Head(Config(), paths, clock, ThisMachine(), None)
    with daemon.runs.lock.held_by(Caller(os.getpid(), 0, 0)):
        daemon.stop_request.request()
    assert Head(Config(), paths, clock, ThisMachine(), None).conditions.is_true("DriverRunning")
