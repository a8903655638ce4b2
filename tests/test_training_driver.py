"""The driver's promises, with real children: output untouched, status passed on, signals delivered exactly once."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgelink.errors import ExitCode, UsageError
from edgelink.process.procfs import read_stat
from edgelink.training.driver import END_WITH_US, DriverControl, run_driver

pytestmark = pytest.mark.processes

ENVIRONMENT = {"PATH": os.environ["PATH"], "ONLY": "this"}
ROOT = Path(__file__).resolve().parents[1]

CALLER = f"""
import sys, os
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from edgelink.training.driver import run_driver
sys.exit(run_driver([sys.executable, "-c", sys.argv[1]], dict(os.environ), Path.cwd(), kill_grace_s=float(sys.argv[2])))
"""

COUNTS_SIGNALS = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
print("seen", [int(number) for number in seen], flush=True)
sys.exit(7)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def start_caller(code: str, *, grace_s: float = 20) -> subprocess.Popen[str]:
    """A command line that runs ``code`` as its driver; returns once the driver has said "ready"."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, code, str(grace_s)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "ready\n"
    return caller


@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("raise SystemExit(75)", 75)])
def test_the_exit_status_is_passed_on(tmp_path: Path, code: str, status: int) -> None:
    """Scripts around ``edgelink run`` see what the driver said."""
    assert run_driver(python(code), ENVIRONMENT, tmp_path) == status


def test_a_death_by_signal_is_128_plus_its_number(tmp_path: Path) -> None:
    """As in a shell."""
    assert run_driver(python("import os; os.kill(os.getpid(), 9)"), ENVIRONMENT, tmp_path) == 137


def test_environment_and_directory_are_exactly_what_was_asked_for(tmp_path: Path) -> None:
    """Nothing of the caller's environment leaks in."""
    code = "import os, json; json.dump([os.getcwd(), os.environ.get('ONLY'), os.environ.get('HOME')], open('o', 'w'))"

    assert run_driver(python(code), ENVIRONMENT, tmp_path) == 0
    assert (tmp_path / "o").read_text() == f'["{tmp_path}", "this", null]'


def test_output_is_the_drivers_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Byte for byte, on the stream it was written to."""
    code = r"import sys; sys.stdout.write('a\r\nb'); sys.stderr.write('c')"

    run_driver(python(code), ENVIRONMENT, tmp_path)

    assert capfd.readouterr() == ("a\r\nb", "c")


@pytest.mark.parametrize(
    ("command", "directory", "reason"),
    [(["no-such-program"], ".", "No such file"), ([sys.executable], "none", "No such file"), (["."], ".", "denied")],
)
def test_what_cannot_be_started_is_a_usage_error(
    tmp_path: Path, command: list[str], directory: str, reason: str
) -> None:
    """With the command, the directory and the reason, not a traceback."""
    with pytest.raises(UsageError, match=reason) as caught:
        run_driver(command, ENVIRONMENT, tmp_path / directory)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint


def test_the_drivers_path_need_not_have_what_starts_it(tmp_path: Path) -> None:
    """Only the caller's has it on some systems (conda, NixOS). The same for what else ends with us."""
    environment = {"PATH": str(tmp_path)}

    assert run_driver(python("raise SystemExit(3)"), environment, tmp_path) == 3
    assert subprocess.call([*END_WITH_US, *python("raise SystemExit(3)")], env=environment) == 3


def test_scripts_are_run_as_by_a_shell(tmp_path: Path) -> None:
    """Without a first line that names its interpreter by sh; with one that names none that is there, it is refused."""
    script = tmp_path / "train.sh"
    script.write_text("exit $1\n")
    script.chmod(0o755)
    assert run_driver([str(script), "3"], ENVIRONMENT, tmp_path) == 3
    script.write_text("#!/no/such/python\n")
    with pytest.raises(UsageError, match="No such file") as caught:
        run_driver([str(script)], ENVIRONMENT, tmp_path)
    assert "first line" in str(caught.value.hint)


def test_a_variable_that_is_too_long_is_named(tmp_path: Path) -> None:
    """The kernel says only that something is too long."""
    with pytest.raises(UsageError, match="list too long") as caught:
        run_driver(["true"], {**ENVIRONMENT, "HF_NOTES": "x" * (128 << 10)}, tmp_path)
    assert "HF_NOTES" in str(caught.value.hint)


class LateSignal(DriverControl):
    """A signal that comes after the driver has ended, while ours are still collected."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    @contextlib.contextmanager
    def attached(self, signals: Any) -> Iterator[None]:
        with super().attached(signals):
            yield
        signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "by_user"), [(signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGCHLD, False)]
)
def test_a_signal_in_the_last_moment_counts(tmp_path: Path, number: signal.Signals, *, by_user: bool) -> None:
    """Else a driver that failed in that moment would be started again under a user who has just pressed Ctrl+C."""
    control = LateSignal(number)

    assert run_driver(python("raise SystemExit(3)"), ENVIRONMENT, tmp_path, control=control) == 3
    assert control.ended_by_user is by_user


def test_handlers_are_as_before_afterwards(tmp_path: Path) -> None:
    """The caller's own signal handling is only borrowed."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]

    run_driver(python("pass"), ENVIRONMENT, tmp_path)

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_reaches_the_driver_exactly_once(number: int, whole_group: bool) -> None:
    """Also when it was sent to the caller's whole process group, as terminals and service managers do."""
    caller = start_caller(COUNTS_SIGNALS)
    if whole_group:
        os.killpg(caller.pid, number)
    else:
        caller.send_signal(number)

    output, _ = caller.communicate(timeout=40)

    assert output == f"seen [{int(number)}]\n"
    assert caller.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_of_the_drivers_own_ends_nothing(number: int) -> None:
    """With it a batch system says that the time is nearly over; the driver goes on as long as it likes."""
    driver = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
print("ready", flush=True)
signal.sigwait([{int(number)}])
print("saved", flush=True)
raise SystemExit(input() == "more")
"""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, driver, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "ready\n"
    caller.send_signal(number)
    assert caller.stdout.readline() == "saved\n"
    caller.communicate("no more\n", timeout=40)
    assert caller.returncode == 0


def test_a_driver_that_is_stopped_can_save_its_work() -> None:
    """One that wanted to read from a terminal that it does not have, say: SIGKILL would be all it hears of the end."""
    driver = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
print("ready", os.getpid(), sep="\\n", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
    caller = start_caller(driver)
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    deadline_s = time.monotonic() + 40
    while read_stat(pid).state != "T":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    caller.send_signal(signal.SIGTERM)
    caller.communicate(timeout=40)
    assert caller.returncode == 5


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 40
    with contextlib.suppress(ProcessLookupError):
        while not read_stat(pid).is_zombie:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_a_driver_that_does_not_stop_is_killed_with_its_children() -> None:
    """After the grace, the whole process group."""
    stubborn = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        print("ready", flush=True)
        print(child, flush=True)
    time.sleep(60)
    """
    caller = start_caller(textwrap.dedent(stubborn), grace_s=0.2)
    assert caller.stdout is not None
    grandchild = int(caller.stdout.readline())
    caller.terminate()

    assert caller.wait(timeout=40) == 137
    wait_until_gone(grandchild)


# The driver that was started, a shell say, ends at once or by itself; the program that it had started does not.
SHELL_LIKE = """
import os, pathlib, signal, sys, time
reader, writer = os.pipe()
if child := os.fork():
    os.read(reader, 1)
    print("ready", flush=True)
    print(child, flush=True)
    {end}
{program}
"""
SLEEP = "time.sleep(60)"
# Its checkpoint: how often it was asked to end. That takes a while.
SAVES_WHEN_ASKED = """
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
os.write(writer, b"1")
while not asked:
    time.sleep(0.01)
time.sleep(0.5)
pathlib.Path({saved!r}).write_text(str(len(asked)))
"""


def test_a_training_program_is_given_its_time_when_the_shell_around_it_has_ended(tmp_path: Path) -> None:
    """Who returns before it has saved its checkpoint would release the run lock under it."""
    saved = tmp_path / "checkpoint"
    program = SAVES_WHEN_ASKED.format(saved=str(saved))
    caller = start_caller(SHELL_LIKE.format(end=SLEEP, program=program))
    caller.terminate()
    assert caller.wait(timeout=40) == 143
    assert saved.read_text() == "1"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_training_program_that_does_not_stop_is_killed_after_its_shell(number: signal.Signals, status: int) -> None:
    """After the grace, also where the command line was killed."""
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(writer, b"1")
time.sleep(60)
"""
    caller = start_caller(SHELL_LIKE.format(end=SLEEP, program=program), grace_s=0.5)
    assert caller.stdout is not None
    grandchild = int(caller.stdout.readline())
    caller.send_signal(number)
    assert caller.wait(timeout=40) == status
    wait_until_gone(grandchild)


def test_what_a_script_runs_in_its_background_ends_after_ctrl_c() -> None:
    """A shell has it ignore SIGINT; it must not keep us until the end of the grace."""
    program = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.write(writer, b"1")
time.sleep(60)
"""
    # A SIGINT between Python's last look for one and a long sleep would wait for the sleep's end.
    caller = start_caller(SHELL_LIKE.format(end="while True: time.sleep(0.05)", program=program), grace_s=60)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(timeout=20) in (1, 130)


@pytest.mark.parametrize("exit_status", [0, 3])
def test_what_a_driver_that_failed_left_running_is_ended(tmp_path: Path, exit_status: int) -> None:
    """Another attempt may follow, and must not find the last one at work. What a success leaves is wanted."""
    saved = tmp_path / "checkpoint"
    program = SAVES_WHEN_ASKED.format(saved=str(saved))
    caller = start_caller(SHELL_LIKE.format(end=f"os._exit({exit_status})", program=program))
    assert caller.stdout is not None
    left = int(caller.stdout.readline())
    assert caller.wait(timeout=40) == exit_status
    if exit_status:
        assert saved.read_text() == "1"
    else:
        assert not read_stat(left).is_zombie
        os.kill(left, signal.SIGTERM)
    wait_until_gone(left)


def test_ctrl_c_on_a_terminal_reaches_the_driver_exactly_once() -> None:
    """The driver has the terminal, reads from it, and gets one SIGINT; the caller passes its status on."""
    reader = COUNTS_SIGNALS.replace('print("ready", flush=True)', "print('read', input(), flush=True)")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", CALLER, reader, "20"])
    os.write(terminal, b"hello\n")
    output = _read_until(terminal, b"read hello")
    os.write(terminal, b"\x03")
    output = _read_until(terminal, b"seen ")
    output += _read_rest(terminal)
    _, status = os.waitpid(pid, 0)

    assert b"[2]" in output
    assert os.waitstatus_to_exitcode(status) == 7


@contextlib.contextmanager
def interactive_shell(directory: Path, driver: str) -> Iterator[int]:
    """On a terminal, whose other side it gives; COMMAND_LINE, typed there, runs ``driver``."""
    (directory / "caller.py").write_text(CALLER)
    (directory / "driver.py").write_text(driver)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], ENVIRONMENT)
    try:
        yield terminal
    finally:
        os.close(terminal)  # it hangs up, on stopped jobs, too
        os.waitpid(pid, 0)


COMMAND_LINE = f"{sys.executable} caller.py 'import driver' 20".encode()


def test_ctrl_z_stops_all_of_the_job_and_fg_continues_it(tmp_path: Path) -> None:
    """The driver alone has the terminal, but the shell has no prompt before `tee` has stopped, too."""
    with interactive_shell(tmp_path, "print('ready', flush=True); print('read', input(), flush=True)") as terminal:
        os.write(terminal, COMMAND_LINE + b" | tee log\n")
        _read_until(terminal, b"ready")
        os.write(terminal, b"\x1a")
        _read_until(terminal, b"Stopped")
        os.write(terminal, b"fg\nhello\n")
        _read_until(terminal, b"read hello")


def test_ctrl_z_without_a_shell_stops_nothing() -> None:
    """As with `docker run -it` and `ssh -t`: nobody could go on with what was stopped."""
    # A signal between Python's last look for one and a read that blocks would wait for the read's end: none blocks. And
    # it may come while something is printed, within which nothing can be.
    driver = (
        "import os, select, signal\nsignal.signal(signal.SIGCONT, lambda *_: os.write(1, b'continued\\n'))\n"
        "print('ready', flush=True)\nwhile not select.select([0], [], [], 0.05)[0]: pass\n"
        "print('read', input(), flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", CALLER, driver, "20"])
    _read_until(terminal, b"ready")
    os.write(terminal, b"\x1a")
    _read_until(terminal, b"continued")
    os.write(terminal, b"hello\n")
    _read_until(terminal, b"read hello")
    _read_rest(terminal)
    os.waitpid(pid, 0)


def test_a_run_in_the_background_leaves_the_shell_its_terminal(tmp_path: Path) -> None:
    """Put there by Ctrl+Z and `bg`: a shell that cannot read from its own terminal would end with the run."""
    driver = "import os, pathlib, time; print(os.getppid(), 'ready', flush=True)\n"
    driver += "while not pathlib.Path('go').exists(): time.sleep(0.02)"
    with interactive_shell(tmp_path, driver) as terminal:
        os.write(terminal, COMMAND_LINE + b"\n")
        caller = int(_read_until(terminal, b" ready").split()[-2])
        os.write(terminal, b"\x1a")
        _read_until(terminal, b"Stopped")
        os.write(terminal, b"bg; echo going $((1+1))\n")
        _read_until(terminal, b"going 2")
        (tmp_path / "go").touch()
        wait_until_gone(caller)
        os.write(terminal, b"echo still $((1+2))\n")
        _read_until(terminal, b"still 3")


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        output += os.read(descriptor, 1024)
    return output


def _read_rest(descriptor: int) -> bytes:
    output = b""
    try:
        while piece := os.read(descriptor, 1024):
            output += piece
    except OSError:  # how a pty says that nobody is left on its other side
        pass
    os.close(descriptor)
    return output


# The same as a driver of its own, without a shell around it.
SAVES_ALONE = "import os, pathlib, signal, sys, time" + SAVES_WHEN_ASKED.replace(
    'os.write(writer, b"1")', 'print("ready", os.getpid(), sep="\\n", flush=True)'
)


@pytest.mark.parametrize("driver", [SAVES_ALONE, SHELL_LIKE.format(end=SLEEP, program=SAVES_WHEN_ASKED)])
def test_a_driver_does_not_outlive_a_killed_command_line(tmp_path: Path, driver: str) -> None:
    """SIGKILL of the command line takes the run lock with it. Nothing of the driver may go on; it is asked once."""
    saved = tmp_path / "checkpoint"
    caller = start_caller(driver.format(saved=str(saved)))
    assert caller.stdout is not None
    program = int(caller.stdout.readline())
    caller.kill()
    assert caller.stdout.read() == "", "pipes of the driver's output end with it"
    caller.wait()
    wait_until_gone(program)
    assert saved.read_text() == "1"


def test_a_driver_on_a_terminal_does_not_outlive_a_killed_command_line(tmp_path: Path) -> None:
    """There the driver's group is not led by the driver."""
    saved = tmp_path / "checkpoint"
    program = SAVES_WHEN_ASKED.format(saved=str(saved))
    end = "print(os.getppid(), 'waits', flush=True); time.sleep(60)"
    with interactive_shell(tmp_path, SHELL_LIKE.format(end=end, program=program)) as terminal:
        os.write(terminal, COMMAND_LINE + b"\n")
        program_pid, caller_pid, _ = _read_until(terminal, b"waits").rpartition(b"ready")[2].split()
        os.kill(int(caller_pid), signal.SIGKILL)
        wait_until_gone(int(program_pid))
    assert saved.read_text() == "1"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_command_line_that_is_killed_at_the_start_leaves_no_driver(moment: str) -> None:
    """At the last moment before the driver is started, and the first one after."""
    caller = (
        "import os, signal, subprocess, sys\nstart = subprocess.Popen.__init__\n"
        "def start_and_die(self, command, *args, **kwargs):\n"
        " is_driver = command[0] == sys.executable and '-c' in command\n"
        f" if is_driver and {moment == 'before'}: os.kill(os.getpid(), signal.SIGKILL)\n"
        " start(self, command, *args, **kwargs)\n"
        " if is_driver: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"subprocess.Popen.__init__ = start_and_die\n{CALLER}"
    )
    command = [sys.executable, "-c", caller, "import time; time.sleep(600)", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.communicate(timeout=40) == (b"", None), "its output ends when nobody is left who could write there"
        assert run.returncode == -signal.SIGKILL


def guard_of(caller: int) -> int:
    """For a moment after exec the kernel shows no arguments; and another child may end while it is looked at."""
    deadline_s = time.monotonic() + 40
    while time.monotonic() < deadline_s:
        for pid in Path(f"/proc/{caller}/task/{caller}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"driver_guard" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        time.sleep(0.02)
    raise AssertionError(f"{caller} has no guard")


def test_the_guard_is_gone_before_its_command_line() -> None:
    """What a driver that succeeded left is left alone, also after that. No key reaches the guard before it."""
    code = "import sys; print('ready', flush=True); sys.stdin.read(); sys.exit(7)"
    command = [sys.executable, "-c", CALLER, code, "20"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        guard = guard_of(caller.pid)
        assert os.getpgid(guard) == guard
        caller.communicate("", timeout=40)
        assert caller.returncode == 7
        with pytest.raises(ProcessLookupError):
            read_stat(guard)


def test_the_guard_does_not_hold_the_drivers_output() -> None:
    """`| tee log` ends when the driver closes it, whatever the guard waits for."""
    code = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", os.getpid(), sep="\\n", flush=True)
    os.close(1)
    time.sleep(60)
    """
    caller = start_caller(textwrap.dedent(code))
    assert caller.stdout is not None
    driver = int(caller.stdout.readline())
    guard = guard_of(caller.pid)
    caller.kill()
    caller.communicate(timeout=40)
    assert not read_stat(guard).is_zombie
    os.kill(driver, signal.SIGKILL)
    wait_until_gone(guard)


def start_guard(group: int) -> subprocess.Popen[str]:
    """A guard whose command line ran a driver in ``group``, and was killed."""
    command = [sys.executable, "-I", "-S", str(ROOT / "edgelink/training/driver_guard.py"), "20"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, process_group=0)
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(str(group))
    return process


def test_a_driver_that_was_stopped_is_ended_by_the_guard() -> None:
    """It would hold its GPUs for ever."""
    driver = subprocess.Popen(["sleep", "60"], process_group=0)
    driver.send_signal(signal.SIGSTOP)
    guard = start_guard(driver.pid)
    assert driver.wait(timeout=40) == -signal.SIGTERM
    assert guard.wait(timeout=40) == -signal.SIGKILL, "with the group that it had joined"


def test_the_guard_ends_nobody_else() -> None:
    """Once the driver is gone, its number may be another's."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as another:
        assert start_guard(another.pid).wait(timeout=40) == 0
        assert another.poll() is None
    assert another.returncode == 0, "it has ended with its input, not by a signal"


def test_a_driver_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    """As by a signal to us, but not mistaken for one; asked for before the start, too."""
    control = DriverControl()
    ready = tmp_path / "ready"

    def end_when_ready() -> None:
        while not ready.exists():
            time.sleep(0.01)
        control.end()

    other = threading.Thread(target=end_when_ready)
    other.start()
    code = f"import signal; open({str(ready)!r}, 'w').close(); signal.pause()"
    assert run_driver(python(code), ENVIRONMENT, tmp_path, control=control) == 143
    other.join()
    assert (control.ended_by_us, control.ended_by_user) == (True, False)
    early = DriverControl()
    early.end()
    assert run_driver(python("import signal; signal.pause()"), ENVIRONMENT, tmp_path, control=early) == 143


def test_ctrl_c_before_the_driver_is_there_ends_it() -> None:
    """The terminal is the driver's already, and nobody but the group's leader hears it."""
    caller = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        "from edgelink.training import driver\nstart = driver._start\n"
        "def start_late(command, environment, directory, group):\n"
        " print('go', flush=True)\n os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT)\n"
        " return start(command, environment, directory, group)\n"
        "driver._start, control = start_late, driver.DriverControl()\n"
        "status = driver.run_driver(['sleep', '60'], dict(os.environ), Path.cwd(), control=control)\n"
        "print('by user', control.ended_by_user, status)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", caller])
    _read_until(terminal, b"go")
    os.write(terminal, b"\x03")
    assert b"by user True 130" in _read_rest(terminal)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(("keys", "told"), [(b"\x03", b"by user True"), (b"q\n", b"by user False")])
def test_ctrl_c_is_told_from_a_failure_whatever_the_status(keys: bytes, told: bytes) -> None:
    """The terminal sends it to the driver only, which may end with any status; it must not be run again."""
    # A signal between Python's last look for one and a read that blocks would wait for the read's end: none blocks.
    driver = (
        "import select, sys\ntry:\n print('go', flush=True)\n while not select.select([0], [], [], 0.05)[0]: pass\n"
        "except KeyboardInterrupt: pass\nsys.exit(7)"
    )
    caller = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        "from edgelink.training.driver import DriverControl, run_driver\ncontrol = DriverControl()\n"
        f"command = [sys.executable, '-c', {driver!r}]\n"
        "status = run_driver(command, dict(os.environ), Path.cwd(), control=control)\n"
        "print('by user', control.ended_by_user, status)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", caller])
    _read_until(terminal, b"go")
    os.write(terminal, keys)
    assert told + b" 7" in _read_rest(terminal)
    os.waitpid(pid, 0)


def test_nohup_is_respected() -> None:
    """A caller that ignores SIGHUP, and its driver, outlive the terminal."""
    caller = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{CALLER}"
    code = "import sys; print('ready', flush=True); sys.stdin.read(); sys.exit(7)"
    run = subprocess.Popen(
        [sys.executable, "-c", caller, code, "0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    os.killpg(run.pid, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.5)
    run.communicate("")
    assert run.returncode == 7
