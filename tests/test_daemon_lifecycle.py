"""How a daemon stops, and what becomes of its children."""

from __future__ import annotations

import asyncio
import errno

import pytest
from old_timeouts import old_timeouts  # noqa: F401
from stopping import stop_request

from edgelink.daemon.lifecycle import end_all, run_until_stopped
from edgelink.errors import ConfigError, ProcessStopError
from edgelink.timeouts import timeout


async def test_children_are_ended_after_the_tasks_that_would_bring_them_back() -> None:
    """Order of a stop: reconcilers first, then what they keep alive."""
    events: list[str] = []
    stop = stop_request()

    async def reconciler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("reconciler ended")

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(reconciler())
        await asyncio.sleep(0)
        stop.request()

    async def stop_children() -> None:
        events.append("children ended")

    await run_until_stopped(stop, live, stop_children)
    assert events == ["reconciler ended", "children ended"]


@pytest.mark.usefixtures("old_timeouts")
async def test_the_end_of_the_children_may_take_longer_than_it_waits_for_each() -> None:
    """Its time-outs are time-outs, also before Python 3.11.3, where a task that is marked as cancelled has none."""
    ended: list[str] = []
    stop = stop_request()

    async def live(_tasks: asyncio.TaskGroup) -> None:
        stop.request()

    async def stop_children() -> None:
        try:
            async with timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append("killed")

    await run_until_stopped(stop, live, stop_children)
    assert ended == ["killed"]


async def test_a_failed_start_ends_what_it_started_and_says_why() -> None:
    """Nothing half-started is left behind, and the error is the one that happened."""
    ended: list[str] = []

    async def live(_tasks: asyncio.TaskGroup) -> None:
        raise ConfigError("no good")

    async def stop_children() -> None:
        ended.append("children")

    with pytest.raises(ConfigError, match="no good"):
        await run_until_stopped(stop_request(), live, stop_children)
    assert ended == ["children"]


async def test_a_restart_under_systemd_leaves_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade of the daemon is no reason to end a run (ADR 0003)."""
    ended: list[str] = []
    stop = stop_request()
    stop.request(keep_children=True)

    async def live(_tasks: asyncio.TaskGroup) -> None:
        await asyncio.sleep(0)

    async def stop_children() -> None:
        ended.append("children")

    await run_until_stopped(stop, live, stop_children)
    assert ended == []


async def test_a_crash_of_the_daemon_leaves_the_children_to_the_next_one() -> None:
    """A defect of ours does not end an overlay and a Ray that work (promise 2)."""
    ended: list[str] = []

    async def defective() -> None:
        raise KeyError("a defect")

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(defective())

    async def stop_children() -> None:
        ended.append("children")

    with pytest.raises(KeyError, match="a defect"):
        await run_until_stopped(stop_request(), live, stop_children)
    assert ended == []


async def test_of_several_failures_one_is_told() -> None:
    """Whoever reads the end of a daemon gets one plain message, never a group of exceptions."""

    async def refused(why: str) -> None:
        raise ConfigError(why)

    async def live(tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(refused("first"))
        tasks.create_task(refused("second"))

    async def stop_children() -> None:
        raise ProcessStopError("does not end")

    with pytest.raises(ConfigError, match="first"):
        await run_until_stopped(stop_request(), live, stop_children)


@pytest.mark.parametrize("error", [ProcessStopError("Ray: still running"), OSError(errno.EROFS, "still running")])
async def test_what_does_not_end_keeps_nothing_else_alive(error: Exception) -> None:
    """A Ray that cannot be ended is told, and EasyTier is ended all the same."""
    ended: list[str] = []

    async def stuck() -> None:
        raise error

    async def willing() -> None:
        ended.append("easytier")

    with pytest.raises(type(error), match="still running"):
        await end_all(stuck, willing)
    assert ended == ["easytier"]
