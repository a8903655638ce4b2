"""Ends a driver whose command line was killed. A script, run by a bare ``python -IS``, that outlives the command line.

Its input tells the driver's process group and ends with the command line, however that ended; one that ends in order
ends this first. Argument: the grace in seconds from SIGTERM to SIGKILL. Imports nothing of EdgeLink and nothing outside
the standard library: it is started for every attempt.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_LOOK_S = 0.1


def main() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)  # it joins the group that it ends
    group = sys.stdin.read()
    if not group:  # no driver was started
        return
    try:
        # The kernel gives the number to no other group while we are in this one, nor lets us into another session's.
        os.setpgid(0, int(group))
    except OSError:  # nobody is left
        return
    os.killpg(0, signal.SIGTERM)
    os.killpg(0, signal.SIGCONT)  # who was stopped could not end
    deadline_s = time.monotonic() + float(sys.argv[1])  # noqa: TID251 - a script of its own has no clock to take
    while _others_in(int(group)) and time.monotonic() < deadline_s:  # noqa: TID251
        time.sleep(_LOOK_S)  # noqa: TID251
    os.killpg(0, signal.SIGKILL)  # of us, too


def _others_in(group: int) -> bool:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 (names are all we need)
    return any(pid != os.getpid() and _is_in(group, pid) for pid in pids)


def _is_in(group: int, pid: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


if __name__ == "__main__":
    main()
