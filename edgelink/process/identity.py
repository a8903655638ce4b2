"""Who a process is, so that a restarted daemon adopts its own child and never a stranger with a recycled pid."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgelink.process import procfs
from edgelink.process.script import Script, script_of


@dataclass(frozen=True)
class Identity:
    """A process for all time: the pid alone is reused, pid plus start time plus boot is not.

    The path of a program is no part of it: the kernel tells the file's present name, and whoever upgrades what runs
    renames the file under it. ``script``: what the process runs where its program is an interpreter.
    """

    pid: int
    start_ticks: int
    boot_id: str
    config_hash: str
    script: Script | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it is recorded."""
        values = asdict(self)
        if self.script is None:
            del values["script"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Identity:
        """Raises KeyError, TypeError or ValueError when ``values`` is no identity."""
        pid, script = int(values["pid"]), values.get("script")
        return cls(
            pid=pid,
            start_ticks=int(values["start_ticks"]),
            boot_id=str(values["boot_id"]),
            config_hash=str(values["config_hash"]),
            script=Script(str(script["path"]), str(script["sha256"])) if script is not None else None,
        )


@dataclass(frozen=True)
class ProcessUsage:
    """What a process has used so far (cpu) and holds now (memory)."""

    cpu_s: float
    rss_bytes: int


def identify(pid: int, config_hash: str, script: Script | None = None) -> Identity:
    """The identity of a running process; ProcessLookupError when it is gone."""
    stat = procfs.read_stat(pid)
    if stat.is_zombie:
        raise ProcessLookupError(pid)
    return Identity(pid, stat.start_ticks, procfs.boot_id(), config_hash, script)


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs: same pid, start time and boot, and no zombie."""
    try:
        return identify(identity.pid, identity.config_hash, identity.script) == identity
    except ProcessLookupError:
        return False


def runs_its_script(identity: Identity) -> bool:
    """Whether the process runs the script of ``identity``, and the file still has that content.

    Asked of a record on disk only. A process that was seen alive with its start time cannot become another one.
    """
    return identity.script is None or script_of(procfs.arguments_of(identity.pid)) == identity.script


def usage(pid: int) -> ProcessUsage:
    """CPU time and resident memory; ProcessLookupError when the process is gone."""
    stat = procfs.read_stat(pid)
    return ProcessUsage(
        cpu_s=stat.cpu_ticks / procfs.ticks_per_second(),
        rss_bytes=stat.rss_pages * procfs.page_size(),
    )


def marked_pids(marker: str) -> list[int]:
    """All processes that were started with the environment entry ``marker`` (exactly ``NAME=value``).

    The mark is inherited, so it finds the descendants that left their parent's session, and the children
    of a daemon that died before it could write down their pid.
    """
    entry = os.fsencode(marker)
    return sorted(pid for pid in procfs.all_pids() if procfs.has_mark(pid, entry))


def marked_pids_of(marker: str, directory: Path, uids: Collection[int] | None = None) -> list[int]:
    """Those of :func:`marked_pids` that find our ``directory`` under its path, and run as one of ``uids`` (None: any).

    Anybody on the machine can put a mark into an environment of their own; only these users' processes are believed.

    So a mark that names the directory tells our processes from those of another node of this machine that has the
    same paths (a lab node, a container), and still does when the directory was lost and made anew.
    """
    return [
        pid
        for pid in marked_pids(marker)
        if procfs.sees(pid, directory) and (uids is None or procfs.user_of(pid) in uids)
    ]
