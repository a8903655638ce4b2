"""What a process does to be on time: a scheduling class, memory that stays, and waiting for absolute deadlines."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import sys
import time
from pathlib import Path

NS = 1_000_000_000
_CLOCK_MONOTONIC, _TIMER_ABSTIME = 1, 1
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_PR_SET_TIMERSLACK = 29
_SWITCH_INTERVAL_S = 0.0005  # how long the watchdog's thread may have to wait for Python


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


def sleep_until(deadline_ns: int) -> None:
    """Until CLOCK_MONOTONIC shows ``deadline_ns``; an absolute deadline, so that no error adds up."""
    until = _Timespec(deadline_ns // NS, deadline_ns % NS)
    while _libc.clock_nanosleep(_CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(until), None) == errno.EINTR:
        pass


def outlive_workers(path: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Not the first to be killed when memory runs out, as Ray has its workers be, and what they start.

    Where that is not allowed, it goes on as it is.
    """
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) > 0:
            path.write_text("0")


def be_on_time(priority: int, cpu: int | None) -> list[str]:
    """Make this thread and its process as punctual as the system lets them; what it does not let is named.

    Args:
        priority: of SCHED_FIFO, 1 to 99; 0: stay in the ordinary class.
        cpu: the only one to run on; None: any.

    Returns:
        Notes for people, one about scheduling first.
    """
    notes = [schedule(priority)]
    if cpu is not None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            notes.append(f"not bound to CPU {cpu}: {error.strerror}")
    # Only pages that were touched: what is mapped as a reserve must not become real memory.
    if _libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        notes.append(f"memory is not locked: {os.strerror(ctypes.get_errno())}; raise the user's memlock limit")
    # The allocator keeps what it once had: no page faults for buffers that come and go.
    _libc.mallopt(_M_TRIM_THRESHOLD, -1)
    _libc.mallopt(_M_MMAP_MAX, 0)
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.disable()
    return notes


def schedule(priority: int) -> str:
    """SCHED_FIFO for the calling thread; says what became of it."""
    if priority == 0:
        return "SCHED_OTHER, as asked for"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError as error:
        with contextlib.suppress(OSError):
            os.nice(-10)
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        after_others = f" at niceness {niceness}, after all others" if niceness > 0 else ""  # as Ray's workers have
        return (
            f"SCHED_OTHER{after_others}: SCHED_FIFO is not allowed ({error.strerror}); give the user an rtprio of "
            f"{priority} or more in /etc/security/limits.d, or the unit LimitRTPRIO="
        )
    return f"SCHED_FIFO {priority}"


def leave_cpu() -> None:
    """Of a thread whose process is bound to one processor: to the others, where there are any.

    What computes there without end in the same class, SCHED_FIFO, is never interrupted for it.
    """
    bound_to = os.sched_getaffinity(0)
    others = set(range(os.cpu_count() or 1)) - bound_to
    if len(bound_to) == 1 and others:
        with contextlib.suppress(OSError):  # they are not for this process, as in a container
            os.sched_setaffinity(0, others)


def now_ns() -> int:
    return time.monotonic_ns()


def suspended_ns() -> int:
    """How long the machine has slept since it was started: CLOCK_MONOTONIC stands still meanwhile."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now_ns()


def next_instant(after_ns: int, period_ns: int, phase_ns: int = 0) -> int:
    """The next multiple of the period: processes that go by it keep their distance from each other."""
    return (after_ns - phase_ns) // period_ns * period_ns + period_ns + phase_ns
