"""Start a program as a transient unit of systemd, outside of the daemon's own unit.

There it is neither in the daemon's sandbox nor counted to it, `systemctl status` shows it by name, and stopping or
killing the daemon's unit does not reach it. What it gets is what :class:`SessionLauncher` gives: a session of its own,
output appended to a private file, exactly the environment that was listed. That goes by a private file, because
properties of a unit can be read by every user (`systemctl show`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from edgelink.clock import Clock
from edgelink.config import Paths
from edgelink.errors import ConfigError, PrivateFilesError, ProcessStartError
from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger
from edgelink.process import procfs
from edgelink.process.identity import Identity, identify
from edgelink.process.launcher import Launcher, ProcessSpec, SessionLauncher, open_log
from edgelink.process.output import tail
from edgelink.process.sandbox import sandbox
from edgelink.process.service_manager import (
    NOT_IN_TIME,
    ServiceManager,
    is_confined,
    is_systemd_running,
    run_command,
)

_STOP_TIMEOUT_S = 15.0  # of a unit; the daemon's own ladder is over long before
_START_TIMEOUT_S = 10.0
_NOTICE_S = 1.0  # in which systemd has noticed the end of what has just been stopped; under load it may take
_LONGEST_NOTICE_S = 10.0
_LOOK_S = 0.02
_EXIT_NAMESPACE = "226"  # systemd.exec(5): the mount namespace could not be made
_STATE = ("ActiveState", "Result", "MainPID", "ControlPID", "ExecMainStatus", "Job")
# What systemd adds of its own (systemd.exec(5)), besides what an administrator has set for all services.
_ADDED = frozenset(
    {
        *("PATH", "LANG", "USER", "LOGNAME", "HOME", "SHELL", "TERM", "XDG_RUNTIME_DIR", "XDG_SESSION_ID"),
        *("INVOCATION_ID", "SYSTEMD_EXEC_PID", "MANAGERPID", "JOURNAL_STREAM", "LOG_NAMESPACE", "NOTIFY_SOCKET"),
        *("MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "CREDENTIALS_DIRECTORY"),
    }
)
_log = get_logger("systemd")

RunCommand = Callable[..., Awaitable[tuple[int, str]]]


class _LateError(ProcessStartError):
    """What is becoming of the unit is not known: it may run, or yet be started."""


class SystemdLauncher:
    """``daemon_unit`` is stopped before what is started here when the machine shuts down: it knows the order."""

    def __init__(self, paths: Paths, clock: Clock, daemon_unit: str = "", run: RunCommand = run_command) -> None:
        self._directory = paths.runtime / "units"
        self._instance = _instance(paths)
        self._clock = clock
        self._daemon_unit = daemon_unit
        self._run = run

    def unit(self, name: str) -> str:
        """``edgelink-easytier.service`` and so on; a node with a state directory of its own has its own names."""
        return f"edgelink-{name}{self._instance}.service"

    async def launch(self, spec: ProcessSpec) -> Identity:
        unit = self.unit(spec.name)
        os.close(open_log(spec))
        await self._free(unit)
        environment_file = private_directory(self._directory) / f"{unit}.env"
        write_atomic(environment_file, environment_text(spec.env))
        try:
            unset, realtime = await self._to_unset(spec.env), resource.getrlimit(resource.RLIMIT_RTPRIO)
            settings = properties(spec, environment_file, unset, self._daemon_unit, realtime)
            command = ["systemd-run", "--quiet", "--no-ask-password", f"--unit={unit}"]
            command += [*(["--no-block"] if spec.forks else []), *(f"--property={setting}" for setting in settings)]
            # systemd would replace $NAME in the arguments, whoever gives them.
            argv = [spec.argv[0], *(argument.replace("$", "$$") for argument in spec.argv[1:])]
            status, answer = await self._run(*command, "--", *argv, timeout_s=_START_TIMEOUT_S)
            if status == NOT_IN_TIME:
                raise _late(spec, unit)
            if status != 0:
                raise await self._failure(spec, unit, answer)
            return identify(await self._started(spec, unit), spec.config_hash)
        except ProcessLookupError:
            raise _ended_at_once(spec, unit) from None
        except (asyncio.CancelledError, _LateError):
            await self._run("systemctl", "stop", unit, timeout_s=_STOP_TIMEOUT_S + 5)  # nobody will remember it
            raise
        finally:
            environment_file.unlink(missing_ok=True)

    async def _started(self, spec: ProcessSpec, unit: str) -> int:
        """The pid of the program, once systemd has executed it."""
        deadline_s = self._clock.monotonic_s() + _START_TIMEOUT_S
        while self._clock.monotonic_s() < deadline_s:
            state = await self._state(unit)
            pid = int(state.get("ControlPID" if spec.forks else "MainPID", "0"))
            if pid:
                return pid
            # On a board that has much to do, systemctl may not answer in time: that says nothing.
            if not state.get("Job") and state.get("ActiveState", "activating") != "activating":
                raise _ended_at_once(spec, unit)
            await self._clock.sleep(_LOOK_S)
        raise _late(spec, unit)

    async def _free(self, unit: str) -> None:
        """End what a predecessor with a lost state directory left in our unit; forget how it ended."""
        begun_s = self._clock.monotonic_s()
        while (state := await self._active_state(unit)) not in ("inactive", "failed"):
            waited_s = self._clock.monotonic_s() - begun_s
            left = procfs.cgroup_members(unit) if waited_s > _NOTICE_S else []
            if left or waited_s > _LONGEST_NOTICE_S:
                why = "these are no processes that this node remembers"
                _log.warning("systemd.leftover_ended", unit=unit, pids=left, why=why)
                await self._run("systemctl", "stop", unit, timeout_s=_STOP_TIMEOUT_S + 5)
                state = await self._active_state(unit)
                break
            await self._clock.sleep(_LOOK_S)
        if state == "failed":
            await self._run("systemctl", "reset-failed", unit)

    async def _active_state(self, unit: str) -> str:
        return (await self._state(unit)).get("ActiveState", "inactive")

    async def _state(self, unit: str) -> dict[str, str]:
        _, answer = await self._run("systemctl", "show", unit, f"--property={','.join(_STATE)}")
        return {name: value for name, separator, value in (s.partition("=") for s in answer.splitlines()) if separator}

    async def _to_unset(self, wanted: Iterable[str]) -> list[str]:
        """Names that would come in besides ``wanted``: systemd's own, and those set for all services."""
        status, answer = await self._run("systemctl", "show-environment")
        names = re.findall(r"^([A-Za-z_][A-Za-z0-9_]*)=", answer, re.MULTILINE) if status == 0 else []
        return sorted((_ADDED | set(names)) - set(wanted))

    async def _failure(self, spec: ProcessSpec, unit: str, answer: str) -> ProcessStartError:
        state = await self._state(unit)
        status = state.get("ExecMainStatus", "0")
        words = " ".join(answer.split())
        if status == _EXIT_NAMESPACE and spec.private_files:
            return PrivateFilesError(
                f"{spec.name}: systemd could not give it files of its own: {words}",
                hint=f"see `journalctl -u {unit}`",
            )
        why = f" ({state['Result']}, status {status})" if state.get("Result", "success") != "success" else ""
        return ProcessStartError(
            f"{spec.name}: {spec.argv[0]}: systemd could not start {unit}{why}: {words}",
            hint=f"`journalctl -u {unit}` says why; `process.launcher: session` does without systemd",
        )


def choose_launcher(wanted: str, manager: ServiceManager | None, paths: Paths, clock: Clock) -> Launcher:
    """The launcher that ``process.launcher`` names; ``auto`` takes systemd's where systemd runs this daemon.

    Raises ConfigError, as :func:`require_launcher`.
    """
    require_launcher(wanted, manager)
    unit = manager.unit if manager is not None else ""
    if wanted == "systemd" or (wanted == "auto" and unit and _can_use_systemd()):
        _log.info("systemd.launcher", unit=unit or None)
        return SystemdLauncher(paths, clock, unit)
    return SessionLauncher()


def require_launcher(wanted: str, manager: ServiceManager | None) -> None:
    """Whether there can be the launcher that ``process.launcher`` names.

    Raises:
        ConfigError: systemd's is asked for where there is no systemd, or the plain one in a unit that has a sandbox.
    """
    unit = manager.unit if manager is not None else ""
    if wanted == "systemd" and not _can_use_systemd():
        raise ConfigError(
            "process.launcher: systemd: this machine is not run by systemd, systemd-run is missing, or we are not root",
            hint="use `auto` or `session`",
        )
    if wanted == "session" and unit and is_confined():
        raise ConfigError(
            f"process.launcher: session: EasyTier and Ray would be in {unit}'s sandbox, which is the daemon's alone",
            hint="`edgelink service install` writes a unit without one, then `systemctl restart` it; or remove the key",
        )


def _can_use_systemd() -> bool:
    return is_systemd_running() and os.geteuid() == 0 and shutil.which("systemd-run") is not None


def properties(
    spec: ProcessSpec, environment_file: Path, unset: Iterable[str], daemon_unit: str, realtime: tuple[int, int]
) -> list[str]:
    """Properties of the transient unit; pure. ``realtime``: the limits of SCHED_FIFO's priority that it is to have."""
    settings = [
        *(["Type=forking", "GuessMainPID=no"] if spec.forks else ["Type=exec"]),
        f"Description=EdgeLink: {spec.name}",
        f"EnvironmentFile={environment_file}",
        f"UnsetEnvironment={' '.join(unset)}",
        f"WorkingDirectory={spec.cwd}",
        f"UMask={spec.umask:04o}",
        "StandardInput=null",
        f"StandardOutput=append:{spec.log_path}",
        f"StandardError=append:{spec.log_path}",
        # As for any program that a person starts; systemd's defaults suit a small service.
        "IgnoreSIGPIPE=no",
        "LimitNOFILE=65536:524288",
        "LimitMEMLOCK=infinity",
        # What the daemon was given for the robots of this machine, which no unit has by default.
        f"LimitRTPRIO={':'.join('infinity' if limit < 0 else str(limit) for limit in realtime)}",
        "LimitCORE=0:infinity",
        "TasksMax=infinity",
        # The kernel may kill one of Ray's workers; the node goes on.
        "OOMPolicy=continue",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={_STOP_TIMEOUT_S:g}s",
    ]
    if spec.uid is not None:
        settings += [f"User={spec.uid}", f"Group={spec.gid if spec.gid is not None else spec.uid}"]
        if spec.groups:
            settings.append(f"SupplementaryGroups={' '.join(map(str, spec.groups))}")
    settings += sandbox(spec)
    settings += [f"BindReadOnlyPaths={file.source}:{file.target}" for file in spec.private_files]
    if daemon_unit:
        settings.append(f"Before={daemon_unit}")
    return settings


def environment_text(env: Mapping[str, str]) -> str:
    """``env`` as an EnvironmentFile= of systemd.exec(5); pure."""
    lines = [f'{name}="{_escaped(value)}"' for name, value in env.items() if name != "NOTIFY_SOCKET"]
    return "\n".join([*lines, ""])


def _escaped(value: str) -> str:
    return re.sub(r"""(["\\`$])""", r"\\\1", value)


def _instance(paths: Paths) -> str:
    """Empty for the machine's one node."""
    return "" if paths.state == Paths.state else f"-{hashlib.sha256(str(paths.state).encode()).hexdigest()[:8]}"


def _late(spec: ProcessSpec, unit: str) -> _LateError:
    return _LateError(f"{spec.name}: systemd has not started {unit} within {_START_TIMEOUT_S:g} s")


def _ended_at_once(spec: ProcessSpec, unit: str) -> ProcessStartError:
    return ProcessStartError(
        f"{spec.name}: ended at once; its last words: {tail(spec.log_path, 5) or 'none'}",
        hint=f"`systemctl status {unit}` shows with what status",
    )
