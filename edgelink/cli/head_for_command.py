"""``edgelink head -- CMD``: a head daemon for the length of one command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.cli.daemon import require_network_administrator
from edgelink.cli.driver_run import read_cluster_file, run_driver_here, verbs
from edgelink.cli.layout import say
from edgelink.cli.options import RunWishes
from edgelink.cli.patience import waiting_for
from edgelink.cli.run_directory import present_directory
from edgelink.cli.status import who
from edgelink.cli.step_down import require_root_may_drive
from edgelink.clock import Clock, SystemClock
from edgelink.config import Paths, load_config
from edgelink.errors import EdgelinkError, ExitCode, NoRayError, UsageError
from edgelink.files import private_directory
from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
from edgelink.training.command_check import check_command
from edgelink.training.driver import END_WITH_US, is_nohup

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0  # of one that does not answer any more
_PATHS = {"EDGELINK_CONFIG", "EDGELINK_TOKEN_FILE", "EDGELINK_STATE_DIR", "EDGELINK_RUNTIME_DIR"}


def run_head_for_command(
    argv: tuple[str, ...],
    wishes: RunWishes,
    *,
    config_path: Path | None,
    token_file: str | None,
    hostname: str | None,
) -> int:
    """Start the daemon, run the command as ``edgelink run`` does, stop the daemon; the command's exit status.

    The daemon writes its log to a file, so that the terminal is the command's. It gets its own session: Ctrl+C
    reaches the command first, and the daemon is stopped afterwards, in order. It ends even if we are killed.
    """
    config = load_config(config_path)
    require_network_administrator(config)
    if not config.ray.enabled:
        raise NoRayError(
            f"this head has {NO_RAY_IN_WORDS}: CMD would have no Ray",
            hint="`edgelink head` without CMD runs the daemon; CMD needs no EdgeLink to start it then",
        )
    require_root_may_drive(config)
    check_command(argv, present_directory(), verbs())
    cluster = read_cluster_file(wishes.cluster_file, argv, config.ray.python)
    paths = Paths.from_environment()
    _refuse_second_daemon(paths)
    log = private_directory(private_directory(paths.state) / "logs") / "head.log"
    # The daemon does not start where we are.
    config_file = None if config_path is None else config_path.absolute()
    token = token_file if token_file in (None, "-") else Path(token_file).absolute()
    options = [("--config", config_file), ("--token-file", token), ("--hostname", hostname)]
    flags = [str(part) for flag, value in options if value is not None for part in (flag, value)]
    with _ended_in_order(), log.open("ab") as output:
        log.chmod(0o600)
        said = _Said(log, output.tell())
        daemon = subprocess.Popen(
            [*END_WITH_US, sys.executable, "-m", "edgelink.cli.main", "head", *flags],
            stdin=None if token_file == "-" else subprocess.DEVNULL,  # noqa: S105 - a dash, not a password
            stdout=output,
            stderr=output,
            # Not under the service manager that we may be under: it has to take its children with it.
            env={
                name: str(Path(value).absolute()) if name in _PATHS and value not in ("", "-") else value
                for name, value in os.environ.items()
                if name != "NOTIFY_SOCKET"
            },
            start_new_session=True,
            cwd="/",
        )
        try:
            with waiting_for("starting the head's daemon"):
                _wait_until_answering(daemon, paths, said, SystemClock())
            try:
                # Nobody could take back a former `stop --all`: there is a daemon for the length of this command only.
                call(paths.node_socket, "POST", "/want-ray")
                return run_driver_here(paths, cluster, argv, wishes)
            except DaemonNotRunningError as error:
                # It answers before it knows whether it can do its work.
                _raise_if_ended(daemon, said, error)
                raise
            except UsageError as error:
                if isinstance(error.__cause__, DaemonNotRunningError):
                    _raise_if_ended(daemon, said, error)
                raise
        finally:
            _stop(daemon)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and a closed terminal end us as Ctrl+C does: not before the daemon is stopped."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {
        number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP) if not is_nohup(number)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_second_daemon(paths: Paths) -> None:
    try:
        status = call(paths.node_socket, "GET", "/status")
    except DaemonNotRunningError:
        return
    raise UsageError(
        f"a daemon already runs on this machine: {who(status)}, pid {status['pid']}",
        hint="use `edgelink run -- CMD`" if status["role"] == "head" else "training is launched on the head only",
        reason="AlreadyRunning",
    )


@dataclass(frozen=True)
class _Said:
    """What a daemon has written to its log, which those before it have written to, too."""

    log: Path
    begins_at: int

    def lines(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self.begins_at)
            return file.read().decode(errors="replace").splitlines()


def _wait_until_answering(daemon: subprocess.Popen[bytes], paths: Paths, said: _Said, clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + _START_TIMEOUT_S
    while clock.monotonic_s() < deadline_s:
        if daemon.poll() is not None:
            _raise_as_the_daemon_did(daemon.returncode, said)
        with contextlib.suppress(DaemonNotRunningError):
            # Another that was started at the same moment may answer: then ours ends, and says why.
            if call(paths.node_socket, "GET", "/status")["pid"] == daemon.pid:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(0.05)
    raise EdgelinkError(f"the head daemon did not answer within {_START_TIMEOUT_S:g} s", hint=f"see {said.log}")


def _raise_if_ended(daemon: subprocess.Popen[bytes], said: _Said, error: EdgelinkError) -> None:
    """Raises EdgelinkError in the daemon's own words, with its exit status, where it has ended by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if status := daemon.wait(_END_TIMEOUT_S):
            _raise_as_the_daemon_did(status, said, error)


def _raise_as_the_daemon_did(status: int, said: _Said, cause: EdgelinkError | None = None) -> NoReturn:
    lines = said.lines()[-6:]
    lines = [line for line in lines if not line.startswith("{")] or lines  # its own words, without the log before them
    error = EdgelinkError(
        "the head daemon ended at once:\n  " + "\n  ".join(lines), hint=f"its whole log is {said.log}"
    )
    error.exit_code = ExitCode(status) if status in set(ExitCode) else ExitCode.FAILED
    raise error from cause


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is not None:
        return
    os.kill(daemon.pid, signal.SIGTERM)
    try:
        with waiting_for("stopping the head's daemon, its EasyTier and its Ray"):
            daemon.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        say(f"the head daemon (pid {daemon.pid}) is still stopping")
