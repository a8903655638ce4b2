"""Stop this machine's daemons and wait until they, and what they ran, are gone."""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from pathlib import Path

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.cli.layout import say
from edgelink.cli.patience import waiting_for
from edgelink.cli.status import who
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths, load_config
from edgelink.daemon.leftovers import end_leftovers
from edgelink.errors import ConfigError, DeadlineError


def config_to_end_by(config_path: Path | None) -> Config:
    """The configuration; where it has mistakes they are told, and the defaults do: what is to be ended is known by its
    records and marks."""
    try:
        return load_config(config_path)
    except ConfigError as error:
        say(f"{error.message}; what runs here is ended all the same")
        return Config()


def stop_node(config: Config, paths: Paths, timeout_s: float) -> list[str]:
    """Stop the node's daemon, then the relay's where they share the machine; says what was stopped, a line each.

    Raises:
        DaemonError: the caller may not.
        DeadlineError: a daemon has not ended within ``timeout_s``.
        UsageError: a daemon runs, but does not answer.
        ProcessStopError: something that a dead daemon left does not end.
    """
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    told = []
    with waiting_for(f"stopping this machine's daemon, Ray and EasyTier (at most {timeout_s:g} s)"):
        for socket in (paths.node_socket, paths.bootstrap_socket):
            with suppress(DaemonNotRunningError):
                told.append(_stop_daemon(socket, deadline_s - clock.monotonic_s(), timeout_s))
        found = asyncio.run(end_leftovers(config, paths, clock))
    if found:
        told.append(f"ended what a daemon had left behind: {', '.join(found)}")
    return told


def _stop_daemon(socket: Path, left_s: float, timeout_s: float) -> str:
    """Returns once the daemon's process is gone: it goes last, after its children."""
    status = call(socket, "GET", "/status")
    pid = int(status["pid"])
    name = who(status)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"stopped {name} (pid {pid})"
    try:
        call(socket, "POST", "/stop")
        ended, _, _ = select.select([process], [], [], max(0.0, left_s))
    finally:
        os.close(process)
    if not ended:
        raise DeadlineError(
            f"{name} (pid {pid}) was still ending its Ray and EasyTier after {timeout_s:g} s",
            hint="its log says what does not end; `edgelink stop` again waits for it again",
        )
    return f"stopped {name} (pid {pid})"
