"""The registry is killed at each step of a change of the network's secret: all of it happened, or nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_world import Fleet, go_on

from edgelink import fault_points


def killed_at(fleet: Fleet, step: str, work: Callable[[], None]) -> None:
    """SIGKILL to another process that does this work, at that step; then the registry is opened again."""
    fleet.world.store.close()
    child = os.fork()
    if child == 0:
        try:
            fleet.world.open()
            fault_points.on_reached = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else None
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it never came to that step"
    fleet.world.open()


@pytest.mark.parametrize("step", fault_points.ROTATION_POINTS)
def test_a_registry_that_is_killed_goes_on_where_it_stood(tmp_path: Path, step: str) -> None:
    """SIGKILL at each step of a revocation: all of it happened or nothing, and the next daemon comes to the end."""
    fleet = Fleet(tmp_path)
    staying, stolen = fleet.join("edge-1"), fleet.join("edge-2")

    def work() -> None:
        fleet.revoke("edge-2", hold_s=60.0)
        go_on(fleet, staying)

    killed_at(fleet, step, work)
    is_undone = step.startswith("revoke.")
    assert (fleet.world.store.lease(stolen) is not None) == is_undone
    assert (stolen in fleet.rotations.sealed_secrets()) == is_undone
    assert (fleet.world.store.revocations.get(stolen) is None) == is_undone
    if is_undone:
        assert fleet.rotations.record is None
        fleet.revoke("edge-2", hold_s=60.0)
    go_on(fleet, staying)
    assert fleet.rotations.record is None
    assert fleet.held[staying].secret == fleet.world.authority.network.secret
    assert fleet.held[staying].epoch == 2, "one change, however often it was gone on with"
