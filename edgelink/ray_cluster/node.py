"""The processes of this node's Ray: start them, remember them, find them again, stop them and nobody else's.

`ray start` (without ``--block``) leaves a raylet, on the head a GCS server, and their helpers behind and exits, so one
pid says nothing. They are known by three things: the identities of raylet and GCS in a record on disk, the session that
`ray start` was given, and a mark in the environment. `ray stop` is never used: it kills every Ray on the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgelink.clock import Clock
from edgelink.config import Paths
from edgelink.errors import PortBusyError, ProcessError, ProcessStartError, ProcessStopError, RayClusterError
from edgelink.files import AT_ONCE, Files, private_directory
from edgelink.log import get_logger
from edgelink.process import Identity, Launcher, ProcessSpec, identify, is_alive, marked_pids_of, output, ports, procfs
from edgelink.process.pidfd import signal_and_wait, wait_for_end
from edgelink.ray_cluster.interpreter import RayUser
from edgelink.ray_cluster.own_processes import (
    GCS,
    WORKER,
    find_record,
    is_ours,
    is_running_pid,
    program_of,
    reap,
    recorded_session,
    session_of,
    stamp_of,
    started_at,
    title_of,
)
from edgelink.ray_cluster.ray_environment import MARKER_NAME
from edgelink.ray_cluster.record import RayLaunch, RayRecord
from edgelink.ray_cluster.slow_agent import PORT_KEY, AgentWatch, too_busy
from edgelink.ray_cluster.temp_dir import note_temp_dir, ray_log_directory, temp_dir_here, temp_dir_of
from edgelink.timeouts import timeout

START_TIMEOUT_S = 120.0  # 3 to 5 s as a rule; slow boards need more, and a worker whose head is gone waits for ever
_PATIENCE_S = 480.0  # the longest: it doubles with each start that did not end in time
_RAYLET_TERM_S = 8.0  # measured: 2.0 s to drain and end its workers
_TERM_S = 2.0
_KILL_S = 5.0
_LOG_BYTES = 1024 * 1024
_NOTE_BYTES = 256
_LAST_BYTES = 2048
_IMPATIENT = b"The current node timed out during startup"
_LEFT_NOTE = "already running at"  # `ray start --head` of 2.47 to 2.60
_RAYS_OWN = tuple(
    f"{WORKER}{name}" for name in ("IDLE", "SPILL_", "RESTORE_", "DELETE_", "DashboardAgent", "RuntimeEnvAgent")
)
_log = get_logger("ray")


class RayNode:
    """This node's Ray.

    ``marker`` (``NAME=value``) is in the environment of all its processes. It names the state directory, so that this
    node's Ray is found again also when that was lost, and with it the node's key and every record.
    """

    def __init__(
        self,
        paths: Paths,
        launcher: Launcher,
        clock: Clock,
        temp_dir: Path | None = None,
        files: Files = AT_ONCE,
    ) -> None:
        """``temp_dir``: as configured."""
        self.marker = f"{MARKER_NAME}={paths.state.resolve()}"
        self.record: RayRecord | None = None
        self.uids: frozenset[int] | None = None  # whom our Ray may run as; None while that is not known
        self.is_slow = False  # `ray start` did not wait for the raylet that runs now
        self.log_path = paths.logs / "ray.log"
        self._paths = paths
        self._record_path = paths.processes / "ray.json"
        self._launcher = launcher
        self._clock = clock
        self._configured = temp_dir
        self._files = files
        self._changed = asyncio.Event()
        self._patience_s = START_TIMEOUT_S
        self._starting: Identity | None = None  # `ray start` itself, while it runs

    @property
    def is_running(self) -> bool:
        """Raylet and, on the head, GCS are alive. A GCS that can be started again alone may be away for a moment."""
        return self._is_whole or (self.gcs_has_ended and self.record is not None and is_alive(self.record.raylet))

    @property
    def _is_whole(self) -> bool:
        return self.record is not None and all(is_alive(identity) for identity in self.record.identities)

    @property
    def gcs_has_ended(self) -> bool:
        """Whether the head's GCS has ended and can be started again alone."""
        record = self.record
        return (
            record is not None and record.gcs is not None and record.gcs_start is not None and not is_alive(record.gcs)
        )

    @property
    def ray_logs(self) -> Path:
        """The directory of Ray's own logs."""
        return ray_log_directory(self._paths, self._configured)

    def note_temp_dir(self, directory: Path) -> None:
        """The one that Ray uses from now on."""
        note_temp_dir(self._paths, self._files, directory)

    def adopt(self) -> RayRecord | None:
        """Find the Ray that a predecessor started; None when it is not whole any more. Idempotent."""
        try:
            record = RayRecord.from_json(self._record_path.read_text())
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            record = None
        self._set(record)  # also one that is not whole: its session tells what is to be swept up
        return record if self.is_running else None

    async def start(self, launch: RayLaunch, on_begin: Callable[[], None]) -> RayRecord:
        """Run `ray start`; what was started is on disk when this returns, if there is room for it.

        ``on_begin`` is called once nothing is in its way.

        Raises:
            PortBusyError: a port is taken; nothing was started.
            RayClusterError: `ray start` failed, or did not end in time; what it left behind is gone again. Its reason
                is ``TooBusyForRay`` when the raylet gave up on its agent. A raylet that lives on after `ray start` gave
                up on it is kept: see :attr:`is_slow`.
        """
        await self.stop()  # leftovers hold our ports
        check_ports(launch.ports)
        on_begin()
        self._forget_address(launch.head, launch.temp_dir)
        private_directory(self._record_path.parent)
        private_directory(self.log_path.parent)
        output.bound(self.log_path, _LOG_BYTES)
        started_s = self._clock.monotonic_s()
        try:
            spec = self._spec("ray", launch.argv, launch.env, launch.user, launch.config_hash)
            leader = self._starting = await self._launcher.launch(replace(spec, forks=True))
        except ProcessStartError as error:  # also one that ended before anybody could look at it
            raise RayClusterError(error.message, hint=error.hint, reason="RayStartFailed") from error
        agent = AgentWatch(leader.pid, launch.ports.get(PORT_KEY), launch.user, self._clock)
        try:
            async with timeout(self._patience_s), asyncio.TaskGroup() as group:
                watch = group.create_task(agent.run(), name="slow-agent")
                await wait_for_end(leader)
                watch.cancel()
        except TimeoutError:
            how, self._patience_s = f"did not end within {self._patience_s:g} s", min(2 * self._patience_s, _PATIENCE_S)
            await self._give_up(leader, launch, how, agent)
        how, record = reap(leader.pid), find_record(leader.pid, launch)
        self.is_slow = bool(how) and record is not None and _was_impatient(self.log_path)
        if how and not self.is_slow:
            await self._give_up(leader, launch, how, agent)
        if record is None:
            await self._give_up(leader, launch, "left no raylet behind", agent)
            raise AssertionError  # _give_up raises
        self._patience_s = START_TIMEOUT_S
        self._files.keep(self._record_path, record.to_json())
        self._set(record)
        if directory := temp_dir_of(record.outputs):
            self.note_temp_dir(directory)
        took_s = self._clock.monotonic_s() - started_s
        _log.info("ray.started", raylet=record.raylet.pid, node_rank=record.node_rank, seconds=round(took_s, 2))
        return record

    async def restart_gcs(self, user: RayUser) -> RayRecord:
        """Start the GCS again as the one that has ended was started, and return the changed record.

        One that a killed daemon has started before it could note that is taken up.

        Raises:
            ProcessStopError: threads of the former one are still there, and hold its store.
            ProcessStartError: it cannot be started, or its file is another one by now.
        """
        record = self.record
        assert record is not None
        assert record.gcs is not None
        assert record.gcs_start is not None
        try:
            async with timeout(_KILL_S):
                await wait_for_end(record.gcs)  # a dead leader is not enough: its threads keep RocksDB's lock
        except TimeoutError:
            raise ProcessStopError(
                f"Ray's GCS (pid {record.gcs.pid}) has ended, and threads of it are still there after {_KILL_S:g} s",
                hint="what SIGKILL does not end waits in the kernel (disk, driver); see `ps -o pid,stat,wchan`",
            ) from None
        reap(record.gcs.pid)
        start = record.gcs_start
        if left := [pid for pid in self.owned_pids() if program_of(pid) == GCS]:
            identity = identify(left[0], record.config_hash)
        else:
            if start.program != stamp_of(start.argv[0]):
                raise ProcessStartError(f"{start.argv[0]} is another file than the one that ran: another Ray's?")
            spec = self._spec("ray-gcs", start.argv, start.env, user, record.config_hash)
            identity = await self._launcher.launch(spec)
        record = replace(record, gcs=identity)
        self._files.keep(self._record_path, record.to_json())
        self._set(record)
        return record

    async def wait_for_end(self) -> None:
        """Wait until raylet or GCS has ended; returns at once when there is no Ray."""
        if self.record is None:
            return
        ended = asyncio.Event()

        async def watch(identity: Identity) -> None:
            await wait_for_end(identity)
            ended.set()

        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(watch(identity)) for identity in self.record.identities]
            await ended.wait()
            for task in watches:
                task.cancel()

    def note_joined(self, ray_node_id: str, cluster_id: str) -> RayRecord:
        """Ray lists what runs: remember as what, and in which cluster. A head's incarnation is its cluster."""
        assert self.record is not None
        record = replace(
            self.record,
            ray_node_id=ray_node_id,
            cluster_id=cluster_id,
            incarnation=self.record.incarnation or cluster_id,
        )
        self._files.keep(self._record_path, record.to_json())
        self._set(record)
        return record

    async def wait_for_change(self, record: RayRecord | None) -> None:
        """Wait until something else than ``record`` is remembered."""
        while self.record is record:
            await self._changed.wait()

    async def stop(self, *, farewell: bool = True) -> None:
        """End all of this node's Ray and nothing else: raylet first, so that it can say goodbye. Idempotent.

        ``farewell=False`` where its GCS is known to be gone: raylet would wait for it.

        Raises:
            ProcessStopError: something is still there after SIGKILL.
        """
        known = started_at(self.owned_pids())  # once raylet is gone, less of it can be told to be ours
        if farewell and self.record is not None and self._is_whole:
            await signal_and_wait([self.record.raylet.pid], signal.SIGTERM, _RAYLET_TERM_S)
        for signal_number, timeout_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            if left := self._left(known):
                await signal_and_wait(left, signal_number, timeout_s)
        if left := self._left(known):
            names = ", ".join(f"{pid} ({procfs.command_of(pid)})" for pid in left)
            raise ProcessStopError(
                f"Ray: still running {_KILL_S:g} s after SIGKILL: {names}",
                hint="what SIGKILL does not end waits in the kernel (disk, driver); see `ps -o pid,stat,wchan`",
            )
        if self.record is not None:
            self._forget_address(self.record.head)
            _log.info("ray.stopped", raylet=self.record.raylet.pid)
            if self.record.gcs is not None:
                reap(self.record.gcs.pid)  # one that was started again is our child
        if self._starting is not None:  # of a start that was given up
            reap(self._starting.pid)
            self._starting = None
        self._files.keep(self._record_path, None)
        self._set(None)

    def owned_pids(self) -> list[int]:
        """Every process of this node's Ray.

        The mark is not enough: setproctitle overwrites the environment of ``ray::`` workers as seen in /proc
        (measured). Those are still in the session that `ray start` led, which has no living leader any more.
        """
        marked = set(marked_pids_of(self.marker, self._paths.state, self.uids))
        sessions = {session for pid in marked if (session := session_of(pid)) and is_ours(session, marked)}
        if self.record is not None and self.record.raylet.boot_id == procfs.boot_id():
            sessions |= recorded_session(self.record)
        members = {pid for session in sessions for pid in procfs.session_members(session)}
        return sorted(pid for pid in (marked | members) - {os.getpid()} if is_running_pid(pid))

    def workers_in_use(self) -> list[str]:
        """The workers that a driver has tasks or actors on here, as Ray titles them, such as ``ray::RolloutWorker``."""
        titles = [title_of(pid) for pid in self.owned_pids()]
        return sorted(t for t in titles if t.startswith(WORKER) and not t.startswith(_RAYS_OWN))

    def _left(self, known: Mapping[int, int]) -> list[int]:
        """Of the processes that were known to be ours, and those that are found to be now, the ones still alive."""
        still = {pid for pid, start in started_at(known).items() if known[pid] == start}
        return sorted(still | set(self.owned_pids()))

    def _spec(
        self, name: str, argv: tuple[str, ...], env: Mapping[str, str], user: RayUser, config_hash: str
    ) -> ProcessSpec:
        is_root = os.geteuid() == 0
        return ProcessSpec(
            name=name,
            argv=argv,
            env=env,
            cwd=Path("/"),  # workers have it on sys.path; a directory with a types.py would break every one of them
            log_path=self.log_path,
            config_hash=config_hash,
            uid=user.uid if is_root else None,
            gid=user.gid if is_root else None,
            groups=user.groups,
        )

    def _forget_address(self, head: str, next_temp_dir: Path | None = None) -> None:
        """Remove Ray's own note of a cluster that is no more, as `ray stop` would.

        With it, `ray start --head` refuses while any process of this machine names the same address, and
        ray.init("auto") waits for the dead. It is removed from the last Ray's directory and from the next one's.
        """
        found = (temp_dir_here(self._paths, self._configured), next_temp_dir)
        for directory in dict.fromkeys(path for path in found if path is not None):
            note = directory / "ray_current_cluster"
            with suppress(OSError):  # a directory that others may write to: no links, no pipes
                descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as file:
                    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
                    if is_file and file.read(_NOTE_BYTES).strip() == head.encode():
                        note.unlink()

    async def _give_up(self, leader: Identity, launch: RayLaunch, how: str, agent: AgentWatch) -> None:
        """Sweep up and raise."""
        words = output.tail(self.log_path, 12)
        was_busy = agent.raylet_gave_up
        with suppress(ProcessError):
            await signal_and_wait(procfs.session_members(leader.pid), signal.SIGKILL, _KILL_S)
            await self.stop()
        reap(leader.pid)
        if was_busy:
            raise too_busy(self.ray_logs)
        if _LEFT_NOTE in words:
            self._forget_address(launch.head, launch.temp_dir)
            raise RayClusterError(
                f"`ray start` took a former Ray at {launch.head} for one that runs: its note ray_current_cluster was "
                "left, and a process of this machine still names that address",
                hint="the note is removed and Ray started again; if it stays, see `ps -ef` for --gcs-address",
                reason="RayStartFailed",
            )
        raise RayClusterError(
            f"`ray start` as {launch.user.name} {how}; its last words: {words or 'none'}",
            hint=f"all of them are in {self.log_path}; Ray's own logs in {self.ray_logs}",
            reason="RayStartFailed",
        )

    def _set(self, record: RayRecord | None) -> None:
        self.record = record
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def check_ports(wanted: Mapping[str, int]) -> None:
    """Raises PortBusyError naming every port that is taken, its holder, and the key that moves it."""
    busy = [
        f"{port} ({key}) by {ports.port_holder('tcp', port)}"
        for key, port in wanted.items()
        if not ports.is_port_free("tcp", "0.0.0.0", port)
    ]
    if busy:
        raise PortBusyError(
            f"Ray needs TCP ports that are taken: {', '.join(busy)}",
            hint="stop that process, or set the keys named in parentheses in the configuration",
        )


def _was_impatient(log: Path) -> bool:
    """Whether `ray start` failed only because its raylet was not registered within the 30 s that it waits."""
    return _IMPATIENT in output.read_end(log, max_bytes=_LAST_BYTES).rstrip().rpartition(b"\n")[2]
