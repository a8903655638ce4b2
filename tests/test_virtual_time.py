"""The loop on which simulations run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any

import pytest

from edgelink.testing.virtual_time import LoopClock, Program, VirtualLoop, run


async def upper(program: Program) -> int:
    program.print((await program.read()).upper())
    program.complain("a word of complaint")
    await LoopClock().sleep(3)
    return 4


stopped: ContextVar[bool] = ContextVar("stopped", default=False)


class Here:
    """Everything that a test finds around it."""

    def __init__(self) -> None:
        self.programs = {"upper": upper}
        self.is_stopped = False

    def listens(self, host: str, port: int, source: str) -> bool:
        return port == 1

    def stands_still(self, context: Context) -> bool:
        return self.is_stopped and context.get(stopped, False)


def on_loop(main: Coroutine[Any, Any, Any], seed: int = 0, outside: Here | None = None) -> Any:
    return run(VirtualLoop(seed, outside or Here()), main)


def test_a_day_takes_no_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86400):
                await asyncio.Event().wait()
        return LoopClock().monotonic_s()

    assert on_loop(main()) == 86400


def test_the_least_of_time_passes_as_well() -> None:
    """Several wait in turn for what the rounding of a sum has left of their time: they are not there for ever."""

    async def waits(place: int, until_s: float) -> None:
        for _ in range(place):
            await asyncio.sleep(0)
        while (left_s := until_s - LoopClock().monotonic_s()) > 0:
            await LoopClock().sleep(left_s)
            await asyncio.sleep(0)

    async def main() -> None:
        await LoopClock().sleep(82.65)
        await asyncio.gather(*(waits(place, 82.65 + 3e-12) for place in range(3)))

    on_loop(main())


def test_tasks_that_are_ready_together_run_in_an_order_that_the_seed_draws() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def note(number: int) -> None:
            await asyncio.sleep(0)
            order.append(number)

        await asyncio.gather(*map(note, range(8)))
        return order

    assert on_loop(main(), 1) == on_loop(main(), 1)
    assert on_loop(main(), 1) != on_loop(main(), 2)


def test_a_program_is_a_function() -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec("/bin/upper", stdin=pipe, stdout=pipe, stderr=pipe)
        assert await program.communicate(b"words") == (b"WORDS", b"a word of complaint")
        assert program.returncode == 4
        assert LoopClock().monotonic_s() == 3

    on_loop(main())


def test_a_program_that_is_killed_ends() -> None:
    async def main() -> None:
        program = await asyncio.create_subprocess_exec("upper", stdin=asyncio.subprocess.PIPE)
        program.kill()
        assert await program.wait() == -9

    on_loop(main())


def test_other_programs_are_not_there() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/bin/true")

    on_loop(main())


def test_nobody_listens_but_whom_the_test_names() -> None:
    async def main() -> None:
        _, writer = await asyncio.open_connection("10.10.0.2", 1)
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("10.10.0.2", 2)

    on_loop(main())


def test_what_stands_still_goes_on_later() -> None:
    outside, ticks = Here(), []

    async def tick() -> None:
        stopped.set(True)
        while True:
            await LoopClock().sleep(1)
            ticks.append(LoopClock().monotonic_s())

    async def main() -> None:
        task = asyncio.create_task(tick())
        await LoopClock().sleep(2.5)
        outside.is_stopped = True
        await LoopClock().sleep(10)
        outside.is_stopped = False
        await LoopClock().sleep(2)
        task.cancel()

    on_loop(main(), outside=outside)
    assert ticks == [1, 2, 12.5, 13.5]


def test_tasks_that_wait_for_each_other_for_ever_are_told_of() -> None:
    with pytest.raises(AssertionError, match="every task waits"):
        on_loop(asyncio.Event().wait())


def test_tasks_that_wake_each_other_for_ever_are_told_of() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="for ever"):
        on_loop(main())
