"""Work apart: nothing of it sticks to whoever waits for it, and his cancellation counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from old_timeouts import mark_this_task

from edgelink.errors import EdgelinkError
from edgelink.tasks import apart


async def test_what_it_returns_or_raises_is_passed_on() -> None:
    """And a mark that it leaves on its task is not."""

    async def work() -> int:
        await mark_this_task()
        return 7

    async def failing() -> int:
        raise EdgelinkError("broken")

    assert await apart(work()) == 7
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(EdgelinkError, match="broken"):
        await apart(failing())


async def _a_group_that_fails(entered: asyncio.Event) -> None:
    """Its other task takes until the end of the test's cancellation to end."""

    async def fail() -> None:
        raise EdgelinkError("broken")

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            entered.set()
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(clean_up())
        await asyncio.sleep(0)
        tasks.create_task(fail())


async def _an_answer_in_that_moment(entered: asyncio.Event) -> None:
    answer = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(answer.set_result, "it")
    asyncio.get_running_loop().call_soon(entered.set)
    await asyncio.wait_for(answer, 60)


async def _deafness(entered: asyncio.Event) -> None:
    try:
        entered.set()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize("work", [_a_group_that_fails, _an_answer_in_that_moment, _deafness])
async def test_a_cancellation_counts_whatever_the_work_makes_of_it(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
) -> None:
    """Or a loop around it, and with it a daemon that is stopped, would go on for ever."""
    entered, rounds = asyncio.Event(), 0

    async def loop() -> None:
        nonlocal rounds
        while rounds < 2:
            rounds += 1
            try:
                await apart(work(entered))
            except* EdgelinkError:
                pass

    task = asyncio.ensure_future(loop())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), rounds) == (True, 1)


async def test_the_work_has_ended_when_a_cancellation_is_through() -> None:
    """However often one is impatient."""
    steps: list[str] = []
    entered = asyncio.Event()

    async def work() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("ended")

    task = asyncio.ensure_future(apart(work()))
    await entered.wait()
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["ended"]
