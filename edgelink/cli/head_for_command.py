"""``edgelink head -- CMD``: a head daemon for the length of one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.cli.daemon import require_network_administrator
from edgelink.cli.driver_run import read_cluster_file, run_driver_here
from edgelink.clock import Clock, SystemClock
from edgelink.config import Paths, load_config
from edgelink.errors import EdgelinkError, ExitCode, UsageError
from edgelink.files import private_directory

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 60.0


def run_head_for_command(
    cluster_file: Path | None,
    timeout_s: float,
    argv: tuple[str, ...],
    *,
    config_path: Path | None,
    token_file: str | None,
    hostname: str | None,
) -> int:
    """Start the daemon, run the command as ``edgelink run`` does, stop the daemon; the command's exit status.

    The daemon writes its log to a file, so that the terminal is the command's. It gets its own session: Ctrl+C
    reaches the command first, and the daemon is stopped afterwards, in order.
    """
    require_network_administrator(load_config(config_path))
    if cluster_file is not None:
        read_cluster_file(cluster_file)
    paths = Paths.from_environment()
    log = private_directory(private_directory(paths.state) / "logs") / "head.log"
    options = [("--config", config_path), ("--token-file", token_file), ("--hostname", hostname)]
    flags = [str(part) for flag, value in options if value is not None for part in (flag, value)]
    with log.open("ab") as output:
        log.chmod(0o600)
        daemon = subprocess.Popen(
            [sys.executable, "-m", "edgelink.cli.main", "head", *flags],
            stdin=None if token_file == "-" else subprocess.DEVNULL,  # noqa: S105 - a dash, not a password
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    try:
        _wait_until_answering(daemon, paths, log, SystemClock())
        return run_driver_here(paths, cluster_file, timeout_s, argv)
    finally:
        _stop(daemon)


def _wait_until_answering(daemon: subprocess.Popen[bytes], paths: Paths, log: Path, clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + _START_TIMEOUT_S
    while clock.monotonic_s() < deadline_s:
        if daemon.poll() is not None:
            _raise_as_the_daemon_did(daemon.returncode, log)
        try:
            if call(paths.node_socket, "GET", "/status")["pid"] != daemon.pid:
                raise UsageError("a head daemon already runs on this machine", hint="use `edgelink run -- CMD`")
            return
        except DaemonNotRunningError:
            try:
                daemon.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
    raise EdgelinkError(f"the head daemon did not answer within {_START_TIMEOUT_S:g} s", hint=f"see {log}")


def _raise_as_the_daemon_did(status: int, log: Path) -> None:
    lines = log.read_text(errors="replace").splitlines()[-6:]
    error = EdgelinkError("the head daemon ended at once:\n  " + "\n  ".join(lines), hint=f"its whole log is {log}")
    error.exit_code = ExitCode(status) if status in set(ExitCode) else ExitCode.FAILED
    raise error


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is not None:
        return
    os.kill(daemon.pid, signal.SIGTERM)
    try:
        daemon.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        click.echo(f"edgelink: the head daemon (pid {daemon.pid}) is still stopping", err=True)
