"""What short-lived children answer, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from edgelink.process import procfs
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.testing import eventually

pytestmark = pytest.mark.processes

MAX_BYTES = 1 << 20


async def start(script: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", script),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def pipes() -> set[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return {os.readlink(link) for link in links if os.path.islink(link) and "pipe:" in os.readlink(link)}  # noqa: PTH114, PTH115


@pytest.mark.parametrize("beside", ["sleep 600", "setsid sleep 600"])
async def test_a_background_process_that_holds_the_pipes_costs_nothing(beside: str) -> None:
    """The answer counts all the same; no descriptor is left, and nothing of its session."""
    before = pipes()
    process = await start(f"{beside} & echo $!; exit 3")
    async with asyncio.timeout(30):
        output, _ = await answer_of(process, MAX_BYTES)
        left = int(output)
        try:
            await end(process)
            assert process.returncode == 3
            await eventually(lambda: pipes() <= before)
            if beside == "sleep 600":
                await eventually(lambda: not is_running(left))
        finally:
            if is_running(left):
                os.kill(left, signal.SIGKILL)
    await end(process)


def is_running(pid: int) -> bool:
    try:
        return not procfs.read_stat(pid).is_zombie
    except ProcessLookupError:
        return False


async def test_a_long_answer_comes_whole() -> None:
    """And of its complaints the end."""
    process = await start("head -c 1000000 /dev/zero; head -c 100000 /dev/zero >&2; echo last >&2")
    async with asyncio.timeout(30):
        output, complaint = await answer_of(process, MAX_BYTES)
        await end(process)
    assert len(output) == 1_000_000
    assert len(complaint) == 16 * 1024
    assert complaint.endswith(b"last\n")


async def test_an_endless_answer_is_refused() -> None:
    """While the child still runs; it is ended by the caller."""
    process = await start("cat /dev/zero")
    async with asyncio.timeout(30):
        with pytest.raises(AnswerTooLongError):
            await answer_of(process, MAX_BYTES)
        await end(process)
    assert process.returncode == -signal.SIGKILL


async def test_a_child_that_closes_its_pipes_and_goes_on_is_waited_for(tmp_path: Path) -> None:
    """It answers with its exit status, too."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = await start(f"echo word; exec >&- 2>&-; read line < {gate}; exit 5")
    answer = asyncio.ensure_future(answer_of(process, MAX_BYTES))
    await asyncio.to_thread(gate.write_text, "go\n")
    async with asyncio.timeout(30):
        assert await answer == (b"word\n", b"")
        await end(process)
    assert process.returncode == 5
