"""The end of a daemon: nothing that hangs in a thread holds it up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgelink.cli.bootstrap import command
from edgelink.cli.daemon_threads import DaemonThreads, run_daemon
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import ReloadRequested

_PROGRAM = """
import asyncio, threading
from edgelink.cli.daemon_threads import run_daemon

async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)

run_daemon(main())
"""


@pytest.mark.timeout(90)
def test_a_resolver_that_does_not_answer_does_not_hold_the_daemon() -> None:
    """Stands for a call that never returns: the program ends all the same."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


async def test_answers_and_errors_arrive() -> None:
    """As from any other executor."""
    loop = asyncio.get_running_loop()
    with DaemonThreads() as threads:
        assert await loop.run_in_executor(threads, threading.current_thread) is not threading.current_thread()
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(threads, int, "x")


@pytest.mark.parametrize("has_joined", [True, False])
@pytest.mark.parametrize("token", ["", "no token", None])
def test_a_relay_that_has_joined_needs_its_token_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_joined: bool, token: str | None
) -> None:
    """It is read again at each reload, and by a container that starts its daemon anew; by then it may be gone."""
    ran: list[object] = []
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    monkeypatch.setattr("edgelink.cli.daemon.prepare", lambda *_, **__: (Config(), Paths(tmp_path, tmp_path)))
    monkeypatch.setattr("edgelink.daemon.relays.is_additional_relay", lambda _paths: has_joined)
    monkeypatch.setattr("edgelink.daemon.relays.run_relay", lambda *arguments: arguments[-1])
    monkeypatch.setattr("edgelink.cli.daemon_threads.run_daemon", ran.append)
    done = CliRunner().invoke(command, ["--join", "--token-file", str(file)], standalone_mode=False)
    assert ran == ([None] if has_joined else [])
    assert (done.exception is None) == has_joined


def test_a_reload_is_the_same_program_in_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its arguments; a SIGHUP that comes before the new program listens does not end it."""
    executed = []
    monkeypatch.setattr("os.execv", lambda *arguments: executed.append(arguments))
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "edgelink.cli.main", "edge"])
    before = signal.getsignal(signal.SIGHUP)

    async def reloaded() -> None:
        raise ReloadRequested

    try:
        run_daemon(reloaded())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert executed == [(sys.executable, [sys.executable, "-m", "edgelink.cli.main", "edge"])]
