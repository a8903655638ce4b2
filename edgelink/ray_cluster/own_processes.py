"""Which processes of this machine are this node's Ray, read from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edgelink.process import identify, is_alive, procfs
from edgelink.ray_cluster.last_words import output_files
from edgelink.ray_cluster.record import GcsStart, RayLaunch, RayRecord

WORKER = "ray::"
GCS = "gcs_server"


def find_record(session: int, launch: RayLaunch) -> RayRecord | None:
    """The processes that `ray start` left behind in its session."""
    found = {}
    for pid in procfs.session_members(session):
        with suppress(ProcessLookupError):
            found[program_of(pid)] = identify(pid, launch.config_hash)
    raylet, gcs = found.get("raylet"), found.get(GCS)
    pids = [part.pid for part in (raylet, gcs) if part is not None]
    if raylet is None or (launch.is_head and gcs is None):
        return None
    return RayRecord(
        session=session,
        raylet=raylet,
        gcs=gcs,
        head=launch.head,
        node_rank=launch.node_rank,
        incarnation=launch.incarnation,
        config_hash=launch.config_hash,
        outputs=tuple(path for pid in pids for path in output_files(pid)),
        restarts=launch.restarts,
        gcs_start=_gcs_start(gcs.pid) if gcs is not None and launch.gcs_store is not None else None,
    )


def _gcs_start(pid: int) -> GcsStart | None:
    """What starts this GCS again. None: it is gone already, or not ours to read."""
    argv, env = procfs.arguments_of(pid), procfs.environment_of(pid)
    return GcsStart(argv, env, stamp_of(argv[0])) if argv and env else None


def stamp_of(program: str) -> str:
    """Tell a program's file from one that has taken its place."""
    try:
        found = Path(program).stat()
    except OSError:
        return "gone"
    return f"{found.st_dev} {found.st_ino} {found.st_mtime_ns}"


def program_of(pid: int) -> str:
    """The name of the file that a process runs; empty when the process is gone."""
    try:
        return Path(procfs.executable_of(pid)).name
    except ProcessLookupError:
        return ""


def recorded_session(record: RayRecord) -> set[int]:
    """The recorded session, where it cannot be a stranger's that got its number."""
    if any(is_alive(identity) for identity in record.identities):
        return {record.session}
    survivors = procfs.session_members(record.session)
    return {record.session} if survivors and all(is_ray_worker(pid) for pid in survivors) else set()


def is_ours(session: int, marked: Iterable[int]) -> bool:
    """A session led by somebody without our mark is a terminal or a service from which somebody looks around."""
    if session == os.getsid(0):
        return False
    return session in set(marked) or not is_running_pid(session)


def started_at(pids: Iterable[int]) -> dict[int, int]:
    """The start times of those that are alive: with them a pid stands for one process only."""
    found = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            if not (stat := procfs.read_stat(pid)).is_zombie:
                found[pid] = stat.start_ticks
    return found


def is_ray_worker(pid: int) -> bool:
    return title_of(pid).startswith(WORKER)


def title_of(pid: int) -> str:
    """What a process calls itself, as far as its first argument goes."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def session_of(pid: int) -> int | None:
    try:
        return procfs.read_stat(pid).session
    except ProcessLookupError:
        return None


def is_running_pid(pid: int) -> bool:
    try:
        return not procfs.read_stat(pid).is_zombie
    except ProcessLookupError:
        return False


def reap(pid: int) -> str:
    """How our child has failed; empty where it has not, or is none of ours."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ""
    if ended is None or ended.si_status == 0:
        return ""
    if ended.si_code == os.CLD_EXITED:
        return f"ended with status {ended.si_status}"
    why = ": by the kernel, where memory was short?" if ended.si_status == signal.SIGKILL else ""
    return f"was ended by signal {ended.si_status} ({signal.strsignal(ended.si_status)}){why}"
