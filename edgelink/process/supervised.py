"""One foreign process that outlives us: start it, remember it, find it again, wait for its end, stop it.

Restart policy is not here: the reconciler that owns the process decides whether and when to start it again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from edgelink.clock import Clock
from edgelink.errors import ProcessError, ProcessStopError
from edgelink.files import AT_ONCE, Files, private_directory
from edgelink.log import get_logger
from edgelink.process import output, procfs
from edgelink.process.identity import Identity, identify, is_alive, marked_pids_of, runs_its_script
from edgelink.process.launcher import Launcher, ProcessSpec
from edgelink.process.pidfd import signal_and_wait, wait_for_end
from edgelink.process.script import script_of

_MARKER = "EDGELINK_CHILD"  # not a section of the configuration
_HASH = "EDGELINK_CONFIG_HASH"
_log = get_logger("process")


class SupervisedProcess:
    """A child whose identity is kept in ``record_path`` (JSON, 0600), so that the next daemon can adopt it.

    The child carries a mark in its environment as well: neither a daemon killed between starting it and writing the
    record nor a lost state directory leaves an orphan that nobody knows. ``config_hash`` says with which
    configuration the running process was started. ``uids``: whom it may run as; default: as we do.
    """

    def __init__(
        self,
        name: str,
        record_path: Path,
        launcher: Launcher,
        clock: Clock,
        uids: Collection[int] | None = None,
        files: Files = AT_ONCE,
    ) -> None:
        self.name = name
        self.identity: Identity | None = None
        self._record_path = record_path
        self._files = files
        self._launcher = launcher
        self._clock = clock
        self._uids = {os.geteuid()} if uids is None else set(uids)
        self._log_path: Path | None = None
        self._exit_status: int | None = None
        self.starts = 0  # by this daemon

    @property
    def is_running(self) -> bool:
        return self.identity is not None and is_alive(self.identity)

    @property
    def config_hash(self) -> str | None:
        return self.identity.config_hash if self.identity else None

    @property
    def exit_status(self) -> int | None:
        """How the last child of our own ended; None when unknown or still running."""
        return self._exit_status

    def adopt(self) -> Identity | None:
        """Find the process that a predecessor started, whatever its configuration; None when there is none.

        A record that fits no running process is forgotten. A child whose script was replaced on disk is known by its
        mark and goes on, as one whose program was replaced. Idempotent.
        """
        recorded, log_path = self._read_record()
        if recorded is not None and is_alive(recorded) and runs_its_script(recorded):
            self.identity, self._log_path = recorded, log_path
            return recorded
        self._forget()
        if orphan := self._find_orphan():
            self._remember(orphan)
            _log.info("process.orphan_found", name=self.name, pid=orphan.pid)
        return orphan

    async def start(self, spec: ProcessSpec) -> Identity:
        """Start ``spec``; its identity is on disk when this returns, or, where that has no room, known by its mark.

        Raises:
            ProcessError: it is running already.
            ProcessStartError: it cannot be executed, or ended at once.
        """
        if self.is_running:
            raise ProcessError(f"{self.name}: is already running with pid {self.identity and self.identity.pid}")
        private_directory(self._record_path.parent)
        private_directory(spec.log_path.parent)
        self._log_path = spec.log_path
        self._exit_status = None
        marks = {_MARKER: self._mark(), _HASH: spec.config_hash}
        script = script_of(spec.argv)
        identity = await self._launcher.launch(dataclasses.replace(spec, env={**spec.env, **marks}))
        identity = dataclasses.replace(identity, script=script)
        self._remember(identity)
        self.starts += 1
        _log.info("process.started", name=self.name, pid=identity.pid)
        return identity

    async def wait(self) -> int | None:
        """Wait for the end of the process, through its pidfd; its exit status if it was our child.

        Cancel-safe, and any number of callers may wait. Returns at once when nothing runs.
        """
        identity = self.identity
        if identity is None:
            return self._exit_status
        await wait_for_end(identity)
        return self._reap(identity)

    async def stop(self, *, term_timeout_s: float = 5, kill_timeout_s: float = 5) -> None:
        """End the process and all of its session: SIGTERM, then SIGKILL. Idempotent.

        Raises:
            ProcessStopError: something of it is still there after both.
        """
        identity = self.identity
        if identity is None:
            return
        for signal_number, timeout_s in ((signal.SIGTERM, term_timeout_s), (signal.SIGKILL, kill_timeout_s)):
            if await self._end_session(identity, signal_number, timeout_s):
                self._reap(identity)
                self._forget()
                _log.info("process.stopped", name=self.name, pid=identity.pid, signal=signal_number.name)
                return
        left = ", ".join(f"{pid} ({procfs.command_of(pid)})" for pid in _session_of(identity))
        raise ProcessStopError(
            f"{self.name}: still running {kill_timeout_s:g} s after SIGKILL: {left}",
            hint="a process that SIGKILL does not end waits in the kernel (disk, driver); see `ps -o pid,stat,wchan`",
        )

    def last_words(self, lines: int = 20) -> str:
        """The end of the child's output, redacted."""
        return output.tail(self._log_path, lines) if self._log_path else ""

    async def _end_session(self, identity: Identity, signal_number: signal.Signals, timeout_s: float) -> bool:
        """Signal every member of the session and wait for all of them, those that they start meanwhile included."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while members := _session_of(identity):
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            await signal_and_wait(members, signal_number, left_s)
        return True

    def _reap(self, identity: Identity) -> int | None:
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, identity.pid, os.WEXITED | os.WNOHANG)
            if ended is not None:
                killed = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                self._exit_status = -ended.si_status if killed else ended.si_status
        return self._exit_status

    def _mark(self) -> str:
        return f"{self.name}@{self._record_path.parent.resolve()}"

    def _find_orphan(self) -> Identity | None:
        directory = private_directory(self._record_path.parent)
        for pid in marked_pids_of(f"{_MARKER}={self._mark()}", directory, self._uids):
            with suppress(ProcessLookupError):
                if procfs.read_stat(pid).session == pid:  # the leader; its children carry the mark as well
                    script = script_of(procfs.arguments_of(pid))
                    return identify(pid, procfs.environment_of(pid).get(_HASH, ""), script)
        return None

    def _read_record(self) -> tuple[Identity | None, Path | None]:
        try:
            values = json.loads(self._record_path.read_text())
            return Identity.from_dict(values), Path(values["log_path"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None, None

    def _remember(self, identity: Identity) -> None:
        record = identity.to_dict() | {"log_path": str(self._log_path or os.devnull)}
        self.identity = identity
        self._files.keep(self._record_path, json.dumps(record))

    def _forget(self) -> None:
        self.identity = None
        self._files.keep(self._record_path, None)


def _session_of(identity: Identity) -> list[int]:
    """Our process, and what is left of the session it leads; empty when its pid has gone to a stranger."""
    if identity.boot_id != procfs.boot_id():
        return []
    with suppress(ProcessLookupError):
        stat = procfs.read_stat(identity.pid)
        if stat.start_ticks != identity.start_ticks:
            return []
    return procfs.session_members(identity.pid)
