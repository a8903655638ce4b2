"""A time-out is a TimeoutError, whatever happened to its task before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from old_timeouts import mark_this_task, old_timeouts  # noqa: F401

from edgelink.timeouts import timeout

pytestmark = pytest.mark.usefixtures("old_timeouts")


async def _nothing() -> None:
    pass


async def test_asyncios_own_is_none_in_a_marked_task() -> None:
    """What the other tests here rely on: Python 3.11.2 does so, and the fixture as well."""
    await mark_this_task()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()


@pytest.mark.parametrize("prepare", [_nothing, mark_this_task])
async def test_what_takes_too_long_is_a_time_out(prepare: Callable[[], Awaitable[None]]) -> None:
    """Also in what cleans up after a cancellation; the marks stay as they were."""
    await prepare()
    task = asyncio.current_task()
    assert task is not None
    marks = task.cancelling()
    with pytest.raises(TimeoutError):
        async with timeout(0):
            await asyncio.Event().wait()
    assert task.cancelling() == marks


@pytest.mark.parametrize("prepare", [_nothing, mark_this_task])
@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_what_is_done_in_time_is_none(prepare: Callable[[], Awaitable[None]], timeout_s: float | None) -> None:
    """Nor is an error of the block's own."""
    await prepare()
    async with timeout(timeout_s):
        await asyncio.sleep(0)
    with pytest.raises(KeyError):
        async with timeout(timeout_s):
            raise KeyError


@pytest.mark.parametrize("prepare", [_nothing, mark_this_task])
@pytest.mark.parametrize("timeout_s", [0, 60.0], ids=["with a time-out", "alone"])
async def test_a_cancellation_stays_one(prepare: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    """One from outside, also in the moment in which the time is over."""
    ends: list[str] = []
    entered = asyncio.Event()

    async def work() -> None:
        await prepare()
        try:
            async with timeout(timeout_s):
                entered.set()
                await asyncio.Event().wait()
        except TimeoutError:
            ends.append("timed out")
        except asyncio.CancelledError:
            ends.append("cancelled")

    task = asyncio.ensure_future(work())
    await entered.wait()  # the time is over in the very turn of the loop in which this goes on
    task.cancel()
    await asyncio.wait([task])
    assert ends == ["cancelled"]


@pytest.mark.parametrize("prepare", [_nothing, mark_this_task])
async def test_what_was_cancelled_elsewhere_is_no_time_out(prepare: Callable[[], Awaitable[None]]) -> None:
    """Such as a task or a future that the block waits for."""
    await prepare()
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with timeout(60):
            await waited_for


async def test_the_outer_of_two_ends_both() -> None:
    """The inner one, which has time left, does not take the outer's end for its own."""
    await mark_this_task()
    inner_ended: list[str] = []
    with pytest.raises(TimeoutError):
        async with timeout(0):
            try:
                async with timeout(60):
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                inner_ended.append("cancelled")
                raise
    assert inner_ended == ["cancelled"]


async def test_a_clean_up_goes_on_after_a_time_out_of_its_own() -> None:
    """What a cancelled task ends step by step, it ends to the last step."""
    steps: list[str] = []
    entered = asyncio.Event()

    async def work() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            try:
                async with timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                steps.append("did not end in time")
            steps.append("killed")

    task = asyncio.ensure_future(work())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["did not end in time", "killed"]
