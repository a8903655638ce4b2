"""The end of a daemon: nothing that hangs in a thread holds it up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from edgelink.cli.daemon_threads import DaemonThreads

_PROGRAM = """
import asyncio, threading
from edgelink.cli import daemon

async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)

daemon.run(main())
"""


def test_a_resolver_that_does_not_answer_does_not_hold_the_daemon() -> None:
    """Stands for a call that never returns: the program ends all the same."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 0, ended.stderr


async def test_answers_and_errors_arrive() -> None:
    """As from any other executor."""
    loop = asyncio.get_running_loop()
    with DaemonThreads() as threads:
        assert await loop.run_in_executor(threads, threading.current_thread) is not threading.current_thread()
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(threads, int, "x")
