"""Run the driver: the training program, as a child of the calling command line, in the caller's terminal.

Not for daemons' children (:mod:`edgelink.process`): the driver lives and dies with the command that started it. Its
input and output are the caller's own, untouched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from edgelink.clock import Clock, SystemClock
from edgelink.errors import UsageError
from edgelink.process.becoming import shell_status
from edgelink.process.procfs import group_members

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)  # ask for no end: a batch system's "save now", say
# Should we be killed, a child so started gets SIGTERM from the kernel; what it has started does not. setpriv
# (util-linux) becomes the child; there is no other way to ask for this between fork and exec. Its whole path: a child
# is looked for on its own PATH, which may lack it.
_SETPRIV = shutil.which("setpriv")
END_WITH_US = (_SETPRIV, "--pdeathsig", "TERM", "--") if _SETPRIV else ()
_CAT = shutil.which("cat") or "/bin/cat"
_GUARD = Path(__file__).with_name("driver_guard.py")
_END = 0  # no signal's number: we ourselves want the driver to end
KILL_GRACE_S = 30.0  # a training script may want to save a checkpoint
_GROUP_LOOK_S = 0.1


def run_driver(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    *,
    kill_grace_s: float = KILL_GRACE_S,
    clock: Clock | None = None,
    control: DriverControl | None = None,
) -> int:
    """Run ``command`` to its end and return its exit status, 128 + n if signal n ended it.

    The driver gets a process group of its own, and the terminal if we have it: so Ctrl+C reaches it exactly once, and
    Ctrl+Z and ``fg`` work. A signal sent to us is forwarded once, and all of the group is waited for;
    ``kill_grace_s`` later it is killed. What a driver that failed left running in its group is ended in the same way:
    the next attempt must not find it at work. What one that succeeded left there is left alone. Should we be killed,
    a guard ends the group in the same way. SIGUSR1 and SIGUSR2 are the driver's own, and end nothing by themselves.
    Must be called from the main thread.

    Args:
        environment: the driver's whole environment.
        control: lets another thread end the driver, and tells afterwards whether the user did.

    Raises:
        UsageError: the command cannot be started.
    """
    clock = clock or SystemClock()
    control = control or DriverControl()
    with (
        _signals(control) as signals,
        _terminal() as terminal,
        _guard(kill_grace_s) as guard,
        _led_group(terminal, control) as group,
    ):
        _tell(guard, group)  # before there is a driver, which could outlive a guard that knows of none
        child = _start(command, environment, directory, group)
        if early := _ended_by(group):  # Ctrl+C while the driver was not in the group yet
            signals.put(early)
        try:
            with control.attached(signals):
                return _watch(child, group, signals, terminal, kill_grace_s, clock, control)
        except BaseException:
            _kill_group(group)
            child.wait()
            raise


class DriverControl:
    """Another thread's hand on a driver."""

    def __init__(self) -> None:
        self.ended_by_user = False  # Ctrl+C, or a signal sent to us
        self.ended_by_us = False
        self._signals: _SignalPipe | None = None
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        return self._signals is not None

    def end(self) -> None:
        """End the driver as a signal to us would: SIGTERM, and SIGKILL after the grace. Safe from any thread."""
        with self._lock:
            self.ended_by_us = True
            if self._signals is not None:
                self._signals.put(_END)

    @contextlib.contextmanager
    def attached(self, signals: _SignalPipe) -> Iterator[None]:
        """While the driver runs."""
        with self._lock:
            self._signals = signals
            if self.ended_by_us:
                signals.put(_END)
        try:
            yield
        finally:
            with self._lock:
                self._signals = None


@contextlib.contextmanager
def _led_group(terminal: _Terminal | None, control: DriverControl) -> Iterator[int]:
    """A process group that is there, and has the terminal if we have it, before the driver joins it.

    Its leader is a child that does nothing and ends with us, as its input does. Should we be killed while the driver
    starts, the guard ends the group, and nobody can join one that has gone. Ctrl+C and its like go to this group only,
    and a driver may end with any status then, but must not be run again: how the leader ended tells.
    """
    with subprocess.Popen(
        [_CAT], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as leader:
        if terminal is not None:
            terminal.lend_to(leader.pid)
        try:
            yield leader.pid
        finally:
            leader.kill()
            if leader.wait() in (-signal.SIGINT, -signal.SIGQUIT, -signal.SIGHUP):
                control.ended_by_user = True


def _ended_by(leader: int) -> int:
    """The signal that has ended a group's leader, which is still to be waited for; 0: it lives."""
    ended = os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return 0 if ended is None or ended.si_code == os.CLD_EXITED else ended.si_status


@contextlib.contextmanager
def _guard(kill_grace_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the driver's whole group should we be killed: nothing of it may go on without the run lock that we held."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), str(kill_grace_s)],
        stdin=subprocess.PIPE,  # nobody else has our end of it: where it ends, so did we
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        process_group=0,  # what ends or stops our group, or the driver's, leaves it alone
    ) as guard:
        try:
            yield guard
        finally:
            guard.kill()  # before its input ends


def _tell(guard: subprocess.Popen[bytes], group: int) -> None:
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody has ended it; the run goes on
        guard.stdin.write(str(group).encode())


def _start(
    command: Sequence[str], environment: Mapping[str, str], directory: Path, group: int
) -> subprocess.Popen[bytes]:
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None:
        why = os.strerror(errno.EACCES if Path(command[0]).exists() else errno.ENOENT)
        raise _cannot_run(command[0], directory, why, "the command after --")

    def start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, env=dict(environment), cwd=directory, process_group=group)

    try:
        return start(command)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: run as every shell does
            return start(["/bin/sh", program, *command[1:]])
        check = "the first line of a script" if directory.is_dir() else "the directory"
        if error.errno == errno.E2BIG:
            longest = max(environment, key=lambda name: len(environment[name]), default="")
            check = f"its arguments and environment: one text may have 128 KiB; the longest variable is {longest}"
        raise _cannot_run(command[0], directory, error.strerror or str(error), check) from error


def _cannot_run(program: str, directory: Path, why: str, check: str) -> UsageError:
    return UsageError(f"cannot run {program!r} in {directory}: {why}", hint=f"check {check}")


def _watch(
    child: subprocess.Popen[bytes],
    group: int,
    signals: _SignalPipe,
    terminal: _Terminal | None,
    kill_grace_s: float,
    clock: Clock,
    control: DriverControl,
) -> int:
    """Forward signals until the child has ended; where its end was asked for or it failed, until its whole group has.

    A shell that started the training program ends at once of SIGTERM, while the program saves its checkpoint.
    """
    kill_at_s: float | None = None
    exit_status: int | None = None
    is_terminated = False
    while True:
        timeout_s = None if kill_at_s is None else max(0.0, kill_at_s - clock.monotonic_s())
        if exit_status is not None:
            timeout_s = min(timeout_s or 0.0, _GROUP_LOOK_S)  # of grandchildren nobody tells us
        for number in signals.take(timeout_s):
            if number in FORWARDED or number == _END:
                control.ended_by_user |= number != _END
                forwarded = signal.SIGTERM if number == _END else number
                _signal_group(group, forwarded)
                _signal_group(group, signal.SIGCONT)  # who was stopped could not end
                is_terminated |= forwarded == signal.SIGTERM
                if kill_at_s is None:
                    kill_at_s = clock.monotonic_s() + kill_grace_s
            elif number in _HANDED_ON:
                if exit_status is None:  # else its number may be another's
                    os.kill(child.pid, number)
            elif number == signal.SIGCONT and terminal is not None:
                terminal.lend_to(group)
                _signal_group(group, signal.SIGCONT)
        if exit_status is None:
            pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
            if pid and not os.WIFSTOPPED(status):
                child.returncode = os.waitstatus_to_exitcode(status)  # reaped here, Popen must not wait for it
                exit_status = shell_status(child.returncode)
                if exit_status and kill_at_s is None and _others_in(group):
                    kill_at_s = clock.monotonic_s() + kill_grace_s
                if kill_at_s is not None and not is_terminated:
                    _signal_group(group, signal.SIGTERM)  # what a script runs in its background does not mind SIGINT
            elif pid and terminal is not None:
                terminal.take_back()
                # Ctrl+Z stopped the driver only. The shell notices once all of its job has stopped: `| tee log`, too.
                # The kernel stops nobody where there is no shell to go on with it, as with `docker run -it`.
                os.kill(0, signal.SIGTSTP)
                terminal.lend_to(group)
                _signal_group(group, signal.SIGCONT)
        if exit_status is not None and (kill_at_s is None or not _others_in(group)):
            return exit_status
        if kill_at_s is not None and clock.monotonic_s() >= kill_at_s:
            _kill_group(group)
            kill_at_s = None
            if exit_status is not None:
                return exit_status


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _others_in(group: int) -> bool:
    """Whether somebody is left in it, its leader aside, which does nothing."""
    return any(pid != group for pid in group_members(group))


def _kill_group(group: int) -> None:
    _signal_group(group, signal.SIGKILL)


class _SignalPipe:
    """Signals as bytes in a pipe, so that one ``select`` waits for all of them."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def put(self, number: int) -> None:
        """As if a signal of this number had come."""
        os.write(self._writer, bytes([number]))

    def take(self, timeout_s: float | None) -> list[int]:
        """The signals that have come; waits for one, at most ``timeout_s``."""
        readable, _, _ = select.select([self._reader], [], [], timeout_s)
        return list(os.read(self._reader, 512)) if readable else []


@contextlib.contextmanager
def _signals(control: DriverControl) -> Iterator[_SignalPipe]:
    """Collect the signals of interest instead of acting on them; everything is as before afterwards.

    One that comes when the driver has just ended reaches nobody any more, but the user has asked for the end.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old_descriptor = signal.set_wakeup_fd(writer)
    numbers = (*FORWARDED, *_HANDED_ON, signal.SIGCHLD, signal.SIGCONT)
    old_handlers = {number: signal.signal(number, _note_only) for number in numbers if not is_nohup(number)}
    signals = _SignalPipe(reader, writer)
    try:
        yield signals
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(old_descriptor)
        while left := signals.take(0):
            control.ended_by_user |= not set(FORWARDED).isdisjoint(left)
        os.close(reader)
        os.close(writer)


def is_nohup(number: int) -> bool:
    """Whether the caller said, as ``nohup`` does, that a closed terminal ends nothing."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _note_only(_number: int, _frame: FrameType | None) -> None:
    """The interpreter has already written the number to the pipe."""


class _Terminal:
    """The controlling terminal, while this process's group is its foreground."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own_group = os.getpgrp()
        self._lent_to = self._own_group

    def lend_to(self, group: int) -> None:
        """Give ``group`` the terminal if it is ours at this moment; after ``bg`` it is the shell's."""
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) == self._own_group:
                self._lent_to = group
                self._set(group)

    def take_back(self) -> None:
        """If it is still where we lent it; a shell that cannot read from its own terminal ends."""
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) == self._lent_to:
                self._set(self._own_group)

    def _set(self, group: int) -> None:
        # The child may be gone already (ProcessLookupError, PermissionError), the terminal too (OSError).
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)


@contextlib.contextmanager
def _terminal() -> Iterator[_Terminal | None]:
    """The terminal if it is ours to lend: standard input is one, and we are in its foreground."""
    try:
        descriptor = sys.stdin.fileno()
        is_ours = os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no usable standard input
        is_ours = False
    if not is_ours:
        yield None
        return
    # Taking the terminal back from the background stops us unless SIGTTOU is ignored; children get the default again.
    old_handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    terminal = _Terminal(descriptor)
    try:
        yield terminal
    finally:
        terminal.take_back()
        signal.signal(signal.SIGTTOU, old_handler if old_handler is not None else signal.SIG_DFL)
