"""Find, pin and end processes by what they are, never by their name.

A process is pinned by pid and start time, so that a pid that was given to somebody else is not mistaken for it; a
namespace by device and inode of its handle, as long as something keeps it: the kernel gives the inode number of one
that is gone to the next one that anybody makes. Used only by the lab, which may kill whatever lives in namespaces it
made.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgelink.clock import SystemClock
from edgelink.errors import LabError
from edgelink.process import procfs

NamespaceId = tuple[int, int]


@dataclass(frozen=True)
class PinnedProcess:
    """An :class:`edgelink.process.identity.Identity` without a configuration; both outlive exec, as of nsenter."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> PinnedProcess:
        """Pin a running process. Raises ProcessLookupError when it is gone or a zombie."""
        stat = procfs.read_stat(pid)
        if stat.is_zombie:
            raise ProcessLookupError(pid)
        return cls(pid, stat.start_ticks, procfs.boot_id())

    @property
    def is_alive(self) -> bool:
        try:
            return PinnedProcess.of(self.pid) == self
        except ProcessLookupError:
            return False


def namespace_id(path: Path | str) -> NamespaceId | None:
    """Identity of a namespace handle, None when it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def pids_in(namespaces: Iterable[NamespaceId], kinds: tuple[str, ...] = ("net", "mnt")) -> set[int]:
    """All processes, this one excepted, that live in one of the namespaces."""
    wanted = set(namespaces)
    return {
        pid
        for pid in procfs.all_pids()
        if pid != os.getpid() and any(namespace_id(f"/proc/{pid}/ns/{kind}") in wanted for kind in kinds)
    }


def kill_all(find: Callable[[], set[int]], *, timeout_s: float = 10) -> None:
    """SIGKILL what ``find`` names, again and again until it names nothing: a fork may be under way."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    while pids := find():
        remaining_s = deadline_s - clock.monotonic_s()
        if remaining_s <= 0:
            named = "; ".join(f"{pid} {procfs.command_of(pid)}" for pid in sorted(pids)[:5])
            raise LabError(f"processes of the lab survived SIGKILL for {timeout_s:g} s: {named}")
        _kill_and_wait(pids, remaining_s)


def kill_all_in(networks: Iterable[Path], others: Callable[[], set[int]] = set) -> None:
    """:func:`kill_all` of what lives in these network namespaces, or in the mount namespaces of those who do."""
    foreign = {namespace_id("/proc/self/ns/mnt"), namespace_id("/proc/1/ns/mnt")}
    with contextlib.ExitStack() as stack:
        # Each is held open until the end: a mount namespace dies with the last process that is killed in it, and by the
        # next look its number may be somebody else's, who has nothing to do with the lab.
        network_ids = {_held(path, stack) for path in networks}
        mount_ids = {_held(Path(f"/proc/{pid}/ns/mnt"), stack) for pid in pids_in(_known(network_ids), ("net",))}
        own_ids = _known(network_ids | (mount_ids - foreign))
        kill_all(lambda: pids_in(own_ids) | others())


def _held(path: Path, stack: contextlib.ExitStack) -> NamespaceId | None:
    """:func:`namespace_id` of a namespace that lives on until ``stack`` is left, whoever dies in it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    stack.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    return (status.st_dev, status.st_ino)


def _known(identities: Iterable[NamespaceId | None]) -> set[NamespaceId]:
    return {identity for identity in identities if identity}


def _kill_and_wait(pids: set[int], timeout_s: float) -> None:
    with contextlib.ExitStack() as stack:
        waiting = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                waiting.append(descriptor)
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + timeout_s
        for descriptor in waiting:
            _readable(descriptor, max(0.0, deadline_s - clock.monotonic_s()))


def wait_gone(process: PinnedProcess, timeout_s: float) -> bool:
    """Whether the process has ended (reaped or not) within ``timeout_s``."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_alive:
            return True
        return _readable(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
