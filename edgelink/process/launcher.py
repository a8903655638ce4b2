"""Start a foreign program so that it outlives the daemon.

Its own session, no terminal, output appended to a private file (never a pipe, whose reader would end with the daemon),
and an environment that is exactly what the caller lists.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from edgelink.errors import ProcessStartError
from edgelink.process import procfs
from edgelink.process.identity import Identity, identify
from edgelink.process.private_files import PrivateFile, call_with

# What a program needs of the machine: ``tun``: a device and the network; ``server``: its directory and the network;
# ``program``: likewise, and the files of EdgeLink itself; ``none``: whatever people run in it.
Sandbox = Literal["tun", "server", "program", "none"]


@dataclass(frozen=True)
class ProcessSpec:
    """What to start. ``env`` is complete: nothing is inherited."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    config_hash: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()  # supplementary groups, where uid is given (GPUs, cameras and serial ports need them)
    umask: int = 0o022
    private_files: tuple[PrivateFile, ...] = ()  # what it alone finds in place of the machine's own files
    sandbox: Sandbox = "none"  # where systemd starts it; the plain way has none
    forks: bool = False  # it ends soon, and what it leaves behind goes on, as with `ray start`


class Launcher(Protocol):
    """One way of starting programs that outlive the daemon."""

    async def launch(self, spec: ProcessSpec) -> Identity:
        """Start ``spec``.

        Raises:
            PrivateFilesError: it cannot have ``private_files``; nothing was started.
            ProcessStartError: it cannot be executed, or is gone at once.
        """


class SessionLauncher:
    """The plain way: a child in a session of its own."""

    async def launch(self, spec: ProcessSpec) -> Identity:
        pid = call_with(spec.private_files, lambda: _spawn(spec)) if spec.private_files else _spawn(spec)
        try:
            return identify(pid, spec.config_hash)
        except ProcessLookupError:  # ended already, but ours to reap: whoever waits for it learns how it ended
            started = procfs.read_stat(pid).start_ticks
            return Identity(pid, started, procfs.boot_id(), spec.config_hash)


def open_log(spec: ProcessSpec) -> int:
    """The descriptor of the private file that the child appends to. Raises ProcessStartError."""
    try:
        log = os.open(spec.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ProcessStartError(f"{spec.name}: {spec.log_path}: cannot be written: {error.strerror}") from error
    os.fchmod(log, 0o600)
    return log


def _spawn(spec: ProcessSpec) -> int:
    """Fork and exec, some milliseconds; what goes wrong in the child before its exec is raised here."""
    log = open_log(spec)
    try:
        child = subprocess.Popen(
            spec.argv,
            env={name: value for name, value in spec.env.items() if name != "NOTIFY_SOCKET"},
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=spec.uid,
            group=spec.gid,
            extra_groups=None if spec.uid is None else spec.groups,
            umask=spec.umask,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ProcessStartError(
            f"{spec.name}: {spec.argv[0]}: cannot be started: {error}",
            hint="check that the file is there, executable and made for this machine",
        ) from error
    finally:
        os.close(log)
    # The end of the child is watched and reaped through its pidfd (SupervisedProcess.wait), not through Popen,
    # which would otherwise complain about, or steal, a child that outlives this object.
    child.returncode = 0
    return child.pid
