"""The ports on which a run's processes listen beside Ray's own and those where they meet: a policy server, say.

Nobody knows their numbers before. So they are found by whom they belong to, once they listen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from edgelink.process import ports, procfs
from edgelink.process.port_ranges import merged
from edgelink.process.ports import ListeningSocket

_RUN_NAME = "EDGELINK_RUN_ID"  # in the environment of what `edgelink run` starts


def of_runs_alone(sockets: Sequence[ListeningSocket], runs: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Return the ports on which nobody but a run listens; pure.

    Args:
        sockets: all that listen.
        runs: the inodes of those that belong to a run.
    """
    theirs = {each.port for each in sockets if each.inode in runs}
    others = {each.port for each in sockets if each.inode not in runs}
    return merged((port, port) for port in theirs - others)


def is_of_run(pid: int, rays: Collection[int]) -> bool:
    """Whether a process, or one that it descends from, is one of ``rays`` or was started by `edgelink run`."""
    while pid:
        if pid in rays or _RUN_NAME in procfs.environment_of(pid):
            return True
        try:
            pid = procfs.read_stat(pid).parent
        except ProcessLookupError:
            return False
    return False


class RunListeners:
    """Knows of each listening socket whether it is a run's, and asks for processes only when there is a new one."""

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()  # the inodes of the last look
        self._runs: frozenset[int] = frozenset()  # those of them that are a run's

    def look(
        self, elsewhere: Collection[tuple[int, int]], rays: Callable[[], Collection[int]]
    ) -> tuple[tuple[int, int], ...]:
        """Return the ports of runs; blocks for some milliseconds where somebody new listens.

        A socket is a run's if all processes that hold it are. One of which no process can be told is nobody's.

        Args:
            elsewhere: the ports that are not looked at.
            rays: the processes of this machine's Ray.
        """
        sockets = [each for each in ports.listening() if not ports.is_within(each.port, elsewhere)]
        seen = frozenset(each.inode for each in sockets)
        self._runs &= seen
        if new := seen - self._known:
            held, own = ports.holders_of(new), frozenset(rays())
            self._runs |= {inode for inode, pids in held.items() if all(is_of_run(pid, own) for pid in pids)}
        self._known = seen
        return of_runs_alone(sockets, self._runs)
