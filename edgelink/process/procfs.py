"""What ``/proc`` says about processes: the few fields that identity, usage and the stop ladder need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
CAP_NET_ADMIN, CAP_NET_RAW = 12, 13  # capabilities(7)
_DELETED = " (deleted)"  # what the kernel appends when the file was replaced, as a package upgrade does


@dataclass(frozen=True)
class ProcStat:
    """Fields of ``/proc/PID/stat`` (proc_pid_stat(5)); times are in clock ticks."""

    state: str
    parent: int
    session: int
    cpu_ticks: int
    start_ticks: int
    rss_pages: int

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def read_stat(pid: int) -> ProcStat:
    """Raises ProcessLookupError when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode(errors="replace")  # names are any bytes
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(pid) from error
    # The command name may hold spaces and parentheses: the fields proper begin after the last one.
    fields = text.rpartition(")")[2].split()
    return ProcStat(
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def executable_of(pid: int) -> str:
    """The path of the program; empty when we may not see it. ProcessLookupError when the process is gone."""
    try:
        return str((_PROC / str(pid) / "exe").readlink()).removesuffix(_DELETED)
    except PermissionError:
        return ""
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(pid) from error


def arguments_of(pid: int) -> tuple[str, ...]:
    """The command line; empty when the process is gone, a zombie, or was executed a moment ago."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(map(os.fsdecode, words.removesuffix(b"\0").split(b"\0"))) if words else ()


def directory_of(pid: int) -> Path:
    """The working directory; the root directory when the process is gone or not ours to see."""
    try:
        return (_PROC / str(pid) / "cwd").readlink()
    except OSError:
        return Path("/")


def network_namespace_of(pid: int) -> str:
    """Which network namespace a process lives in; empty when it is gone or not ours to see."""
    try:
        return str((_PROC / str(pid) / "ns/net").readlink())
    except OSError:
        return ""


def environment_of(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty when it is gone or not ours to read."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in _environ_of(pid).split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def has_mark(pid: int, marker: bytes) -> bool:
    """Whether the process was started with the environment entry ``marker``; False when it is gone or not ours to read.

    Asked of every process of the machine, so nothing else of an environment is taken apart.
    """
    return b"\0%b\0" % marker in b"\0%b\0" % _environ_of(pid)


def _environ_of(pid: int) -> bytes:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 (for each of all processes)
            return file.readall()
    except OSError:
        return b""


def user_of(pid: int) -> int | None:
    """The effective user id of a process; None when it is gone."""
    try:
        lines = (_PROC / str(pid) / "status").read_bytes().splitlines()
    except OSError:
        return None
    return next((int(line.split()[2]) for line in lines if line.startswith(b"Uid:")), None)


def has_capability(number: int, status: Path = _PROC / "self/status") -> bool:
    """Whether a process has a capability in effect, by its ``status`` file; False when it is gone."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) >> number & 1 for line in lines)


def sees(pid: int, path: Path) -> bool:
    """Whether a process finds at ``path`` what we find there; it may live in another mount namespace."""
    try:
        # An absolute link would be followed from our root, not from the process's: hence the resolving.
        return (_PROC / str(pid) / f"root{path.resolve()}").samefile(path)
    except OSError:
        return False


def command_of(pid: int) -> str:
    """The short command name, for messages; ``?`` when the process is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return "?"


def all_pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir(_PROC) if entry.isdigit())  # noqa: PTH208 (names are all we need)


def session_members(session: int) -> list[int]:
    """Every process, zombies aside, of the session that ``session`` leads or once led."""
    return _members(session, os.getsid)


def group_members(group: int) -> list[int]:
    """Every process, zombies aside, of the process group that ``group`` leads or once led."""
    return _members(group, os.getpgid)


def _members(number: int, number_of: Callable[[int], int]) -> list[int]:
    members = []
    for pid in all_pids():
        try:
            if number_of(pid) == number and not read_stat(pid).is_zombie:
                members.append(pid)
        except ProcessLookupError:
            continue
    return members


def cgroup_members(name: str) -> list[int]:
    """Every process, zombies aside, in a control group of this name or below it; systemd's is called as its unit."""
    component = f"/{name}/"
    members = []
    for pid in all_pids():
        try:
            paths = (line.partition(":")[2] for line in (_PROC / str(pid) / "cgroup").read_text().splitlines())
            if any(component in f"{path}/" for path in paths) and not read_stat(pid).is_zombie:
                members.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return members


@cache
def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


@cache
def ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


@cache
def page_size() -> int:
    return os.sysconf("SC_PAGE_SIZE")
