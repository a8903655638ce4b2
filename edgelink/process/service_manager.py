"""The systemd that runs this daemon: what it is told (sd_notify(3)), and what it is asked.

The protocol is one datagram; see ADR 0015 for why there is no library in between.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgelink.log import get_logger, redact
from edgelink.process.answer import end
from edgelink.timeouts import timeout

_BOOTED = Path("/run/systemd/system")
_CGROUPS = Path("/proc/self/cgroup")
# For units of others that need this node Ready (edgelink.service installs both).
ONLINE, WAITS_FOR_ONLINE = "edgelink-online.target", "edgelink-wait-online.service"
_QUERY_TIMEOUT_S = 5.0
NOT_IN_TIME = 124  # the status of a command that takes too long
_log = get_logger("systemd")


@dataclass(frozen=True)
class ServiceManager:
    """Whoever started this daemon and listens to it. ``unit`` is empty where that is not systemd."""

    socket: str
    unit: str
    watchdog_s: float | None = None

    @classmethod
    def of_this_process(
        cls, environ: Mapping[str, str] | None = None, *, booted: Path = _BOOTED, cgroups: Path = _CGROUPS
    ) -> ServiceManager | None:
        """None where nobody listens to us: on a terminal, in most containers, below a service's main process."""
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET")
        if not address or not _is_ours(environ.get("SYSTEMD_EXEC_PID")):
            return None
        unit = unit_of(cgroups.read_text()) if booted.exists() and cgroups.exists() else ""
        return cls(address, unit, _watchdog_s(environ))

    def notify(self, **state: str) -> None:
        """Send ``state`` (READY, STATUS, WATCHDOG, STOPPING); a manager that does not listen is no failure."""
        lines = "\n".join(f"{name}={' '.join(redact(value).split())}" for name, value in state.items())
        address = f"\0{self.socket[1:]}" if self.socket.startswith("@") else self.socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(lines.encode(), address)
            except OSError as error:
                _log.debug("systemd.not_told", error=str(error), state=lines)

    async def queued_job(self) -> str | None:
        """What systemd is doing with our unit: ``stop``, ``restart``, …; None when nothing, or nobody knows."""
        if not self.unit:
            return None
        status, answer = await run_command("systemctl", "list-jobs", "--no-legend", "--plain", self.unit)
        if status != 0:
            _log.warning("systemd.no_answer", unit=self.unit, answer=answer.strip())
            return None
        return job_type(answer, self.unit)

    async def say_online(self) -> None:
        """Have systemd reach edgelink-online.target, and start what waits for it."""
        await self._ask("start", ONLINE)

    async def say_offline(self) -> None:
        """Have the target left, and what requires it be stopped."""
        await self._ask("stop", WAITS_FOR_ONLINE)

    async def _ask(self, verb: str, unit: str) -> None:
        """Without waiting for it; where the unit is not installed there is nothing to do."""
        if self.unit:
            status, answer = await run_command("systemctl", "--no-block", "--quiet", verb, unit)
            _log.debug("systemd.asked", verb=verb, unit=unit, status=status, answer=answer.strip())


def is_systemd_running() -> bool:
    """Whether systemd runs this machine (sd_booted(3))."""
    return _BOOTED.is_dir()


def is_confined(proc: Path = Path("/proc")) -> bool:
    """Whether this process may get fewer capabilities than the machine's first one: its unit has a sandbox."""
    own, first = (_capability_bounds(proc / pid / "status") for pid in ("self", "1"))
    return own != first


def in_a_sandbox_of_systemds() -> bool:
    """Whether this process is a daemon in a unit that has a sandbox."""
    manager = ServiceManager.of_this_process()
    return manager is not None and bool(manager.unit) and is_confined()


def _capability_bounds(status: Path) -> str:
    return next((line for line in status.read_text().splitlines() if line.startswith("CapBnd:")), "")


def unit_of(cgroups: str) -> str:
    """The service a process belongs to, from its ``/proc/PID/cgroup``; empty when it is none. Pure."""
    for line in cgroups.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        is_systemds = hierarchy == "0" or controllers == "name=systemd"
        name = path.rpartition("/")[2]
        if is_systemds and name.endswith(".service"):
            return name
    return ""


def job_type(listing: str, unit: str) -> str | None:
    """The type of a unit's job in the output of ``systemctl list-jobs``; pure."""
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[1] == unit:
            return fields[2]
    return None


async def run_command(*argv: str, timeout_s: float = _QUERY_TIMEOUT_S) -> tuple[int, str]:
    """Exit status and output (both streams) of a short command; 127 when there is none,
    :data:`NOT_IN_TIME` when it takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    try:
        async with timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        return NOT_IN_TIME, f"{argv[0]}: no answer within {timeout_s:g} s"
    finally:
        await end(process)
    return process.returncode or 0, output.decode(errors="replace")


def _is_ours(pid: str | None) -> bool:
    """Whether a variable was meant for this process and not for one that passed it on."""
    return pid is None or pid == str(os.getpid())


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """How long systemd waits for a sign of life (sd_watchdog_enabled(3))."""
    if not _is_ours(environ.get("WATCHDOG_PID")):
        return None
    try:
        return int(environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
