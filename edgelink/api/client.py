"""Ask a daemon on this machine through its unix socket.

Standard library only: every ``edgelink`` command goes through here, and imports are most of what a short command
costs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError, ExitCode, UsageError

_RELAYS = "bootstrap.sock"
# The daemons' sockets, by name (edgelink.config.paths); whose each is, and where that daemon runs.
_KINDS = {
    _RELAYS: ("the relay's", "on the relay"),
    "node.sock": ("the head's or edge's", "on the head or an edge"),
}
DEFECT = "Defect"  # reason of an error that nobody has meant
SILENCE_S = 30.0  # a daemon that waits for nodes speaks every 5 s: one that is silent for longer hangs


class DaemonError(EdgelinkError):
    """An error that the daemon answered with; keeps its exit code."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer["error"], hint=answer.get("hint", ""), reason=answer.get("reason"))
        self.exit_code = ExitCode(answer.get("exit_code", ExitCode.FAILED))


class DaemonNotRunningError(UsageError):
    """Nobody listens on the socket."""

    reason = "DaemonNotRunning"
    exit_code = ExitCode.FAILED


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._socket_path))
        except OSError as error:
            self.sock.close()
            raise _nobody_answers(self._socket_path) from error


def daemon_without_socket(socket_path: Path) -> int | None:
    """Return the pid of the daemon that runs although its socket is gone: it holds its lock.

    None: none does, or only root may look. The kernel's list is read, because who tries the lock may keep a daemon
    from its start.
    """
    paths = Paths.from_environment()
    lock = paths.lock_of(socket_path.stem)
    with contextlib.suppress(OSError):
        if socket_path.parent != paths.runtime or socket_path.exists():
            return None
        inode = lock.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, mode, pid, where, *_ = line.split()
            if (kind, mode, where.rpartition(":")[2]) != ("FLOCK", "WRITE", str(inode)):
                continue
            if any(_is_same(file, lock) for file in Path("/proc", pid, "fd").iterdir()):
                return int(pid)
    return None


def _is_same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except OSError:
        return False


def without_socket(socket_path: Path, pid: int) -> DaemonNotRunningError:
    return DaemonNotRunningError(
        f"an EdgeLink daemon runs on this machine (pid {pid}), but its socket {socket_path} is gone",
        hint="it makes the socket again within seconds: try again; Ray and EasyTier go on meanwhile",
    )


def how_to_start() -> str:
    """Return what starts this machine's daemon: the one of its role, if this user may read which that is."""
    try:
        role = json.loads(Paths.from_environment().membership.read_bytes())["lease"]["role"]
        verbs = f"`edgelink {role}`"
    except (OSError, ValueError, LookupError, TypeError):
        verbs = "`edgelink relay`, `edgelink head` or `edgelink edge`"
    return f"`sudo edgelink up` starts it; without systemd {verbs}"


def _nobody_answers(silent: Path) -> DaemonNotRunningError:
    """Where nobody answers on ``silent``; the machine may run the other kind of daemon."""
    if pid := daemon_without_socket(silent):
        return without_socket(silent, pid)
    asked, where = _KINDS.get(silent.name, ("another", "where that runs"))
    for name, (is_here, _) in _KINDS.items():
        other = silent.with_name(name)
        if other == silent:
            continue
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            if probe.connect_ex(str(other)) == 0:
                return DaemonNotRunningError(
                    f"this command asks {asked} daemon, and only {is_here} daemon runs on this machine",
                    hint=f"run it {where}; if this machine is that, too, `sudo edgelink up` starts its daemon",
                )
    if silent.name == _RELAYS:
        return DaemonNotRunningError(
            f"no EdgeLink daemon answers on {silent}",
            hint="run it on the relay; if this is it, `sudo edgelink up` or `edgelink relay` starts its daemon",
        )
    return DaemonNotRunningError(
        f"no EdgeLink daemon answers on {silent}",
        hint=how_to_start(),
    )


def call(
    socket_path: Path, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30.0
) -> Any:
    """The daemon's answer to one request.

    Raises:
        DaemonNotRunningError: nobody listens.
        DaemonError: the daemon refused or failed.
    """
    connection = _UnixConnection(socket_path, timeout_s)
    try:
        response = _request(connection, method, path, body)
        return _checked(_parse(_read(response.read)))
    finally:
        connection.close()


def call_here(method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
    """The answer of this machine's head or edge, else of its relay. Raises as :func:`call`."""
    paths = Paths.from_environment()
    try:
        return call(paths.node_socket, method, path, body, timeout_s=timeout_s)
    except DaemonNotRunningError as node_error:
        try:
            return call(paths.bootstrap_socket, method, path, body, timeout_s=timeout_s)
        except DaemonNotRunningError:
            raise node_error from None  # most machines are no relay


class EventStream(Iterator[dict[str, Any]]):
    """The daemon's answers to one request, as they come. ``close`` tells the daemon that we are gone.

    Args:
        timeout_s: how long the daemon may be silent; None: without end.

    Raises:
        DaemonNotRunningError: nobody listens, or the daemon ended, or was silent for too long.
        DaemonError: the daemon refused or failed.
    """

    def __init__(
        self,
        socket_path: Path,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._connection = _UnixConnection(socket_path, timeout_s)
        self._connection.connect()
        self._socket = self._connection.sock
        try:
            self._response = _request(self._connection, method, path, body)
        except BaseException:
            self._connection.close()
            raise

    def __next__(self) -> dict[str, Any]:
        try:
            line = _read(self._response.readline)
            if line:
                answer: dict[str, Any] = _checked(_parse(line))
                return answer
        except BaseException:
            self._connection.close()
            raise
        self._connection.close()
        raise StopIteration

    def allow_silence(self) -> None:
        """From now on the daemon speaks only when there is something to say."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """End the request; safe from any thread: one that waits for an answer sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _request(
    connection: _UnixConnection, method: str, path: str, body: dict[str, Any] | None
) -> http.client.HTTPResponse:
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _gone(error) from error


def _read(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (OSError, http.client.HTTPException) as error:
        raise _gone(error) from error


def _gone(error: Exception) -> DaemonNotRunningError:
    return DaemonNotRunningError(f"the EdgeLink daemon ended or did not answer: {error!r}", hint="its log says why")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # bytes that are no text are one, too
        raise EdgelinkError(
            f"the EdgeLink daemon did not understand the request: {text[:80].decode(errors='replace')!r}",
            hint="it is of another version than this command: restart it",
            reason="OtherVersion",
        ) from error


def _checked(answer: Any) -> Any:
    if isinstance(answer, dict) and "error" in answer and "exit_code" in answer:
        raise DaemonError(answer)
    return answer
