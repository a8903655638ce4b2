"""Serve a daemon's local API on a unix socket.

The socket may be connected to by every local user; who asks is known by SO_PEERCRED, and each route says whom it
serves. Answers are JSON; a route that waits streams one JSON object a line. Errors of the tree become
``{"error": …, "reason": …, "hint": …, "exit_code": …}``, which the client raises again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import pwd
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from edgelink.api.client import DEFECT
from edgelink.api.connection_limit import few_of_each_user, ids_of
from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, NotRecordedError, UsageError
from edgelink.files import private_directory
from edgelink.log import get_logger

_MAX_REQUEST_BYTES = 4 * 1024 * 1024  # a whole RLinf configuration is some 100 kB
_MOST_OF_A_USER = 64
_LOOK_S = 5.0
_LAST_ANSWER_S = 1.0  # for a plain request that is being answered when the daemon ends


@dataclass(frozen=True)
class Caller:
    """Who asks, as the kernel knows it."""

    pid: int
    uid: int
    gid: int

    def require(self, *uids: int) -> None:
        """Refuse everyone but root, ``uids``, and whom this daemon runs as, whose files its keys are anyway."""
        own = os.geteuid()
        if self.uid not in (0, own, *uids):
            who_may = ["root (sudo)", *(user_name(uid) for uid in sorted({own, *uids}) if uid != 0)]
            raise UsageError(
                f"the user {user_name(self.uid)} may not do this",
                hint=f"run the command as {' or '.join(who_may)}",
                reason="PermissionDenied",
            )


def user_name(uid: int) -> str:
    """The account's name; its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


Handler = Callable[[Caller, dict[str, Any]], Awaitable[Any]]
StreamHandler = Callable[[Caller, dict[str, Any]], AsyncIterator[dict[str, Any]]]


_log = get_logger("api")


Route = web.RouteDef
_STREAMS: web.AppKey[set[asyncio.Task[Any]]] = web.AppKey("streams", set)  # the tasks that answer with a stream


def route(method: str, path: str, handler: Handler) -> Route:
    """Answer ``method path`` with the JSON of what ``handler(caller, body)`` returns."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response(await handler(_caller(request), await _body(request)))
        except EdgelinkError as error:
            return web.json_response(error_to_dict(error), status=422)

    return web.route(method, path, answer)


def stream_route(method: str, path: str, handler: StreamHandler) -> Route:
    """Answer with one JSON line for each item. The handler is closed when the client goes away."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        with _stream_of(request), contextlib.suppress(ConnectionResetError):  # who asked went away: aclosing ends it
            try:
                async with contextlib.aclosing(handler(_caller(request), await _body(request))) as items:  # type: ignore[type-var]
                    async for item in items:
                        await response.write(json.dumps(item).encode() + b"\n")
            except EdgelinkError as error:
                await response.write(json.dumps(error_to_dict(error)).encode() + b"\n")
            except ConnectionResetError:
                raise
            except Exception as error:  # else the client takes what came for all there is
                _log.exception("api.stream_failed", path=path)
                defect = EdgelinkError(
                    f"unexpected {type(error).__name__} in {path}", hint="a defect: see the log", reason=DEFECT
                )
                await response.write(json.dumps(error_to_dict(defect)).encode() + b"\n")
        return response

    return web.route(method, path, answer)


@contextlib.contextmanager
def _stream_of(request: web.Request) -> Iterator[None]:
    """The task that answers with a stream ends with the daemon."""
    task = asyncio.current_task()
    assert task is not None
    request.app[_STREAMS].add(task)
    try:
        yield
    finally:
        request.app[_STREAMS].discard(task)


class LocalApi:
    """The local API of one daemon. Hold :meth:`serving` open for the daemon's life."""

    def __init__(self, socket_path: Path, lock_path: Path | None = None) -> None:
        """``lock_path`` (default: beside the socket) lets one daemon in; it may lie where nobody tidies up."""
        self._socket_path = socket_path
        self._lock_path = lock_path or Path(f"{socket_path}.lock")
        self._runner: web.AppRunner | None = None  # while it serves
        self._listener: asyncio.Server | None = None
        self._listens_on: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The socket's, without its suffix: which of this machine's daemons this is."""
        return self._socket_path.stem

    @contextlib.asynccontextmanager
    async def serving(self, routes: Iterable[Route] = ()) -> AsyncIterator[None]:
        """Let no other daemon of this kind in, and answer ``routes``, until the block ends. Raises as :meth:`alone`."""
        with self.alone():
            async with self.answering(routes):
                yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other daemon of this kind in until the block ends. Raises UsageError: one is already running."""
        self._make_directory()
        with only_one(self._lock_path):
            self._refuse_answering()
            yield

    @contextlib.asynccontextmanager
    async def answering(self, routes: Iterable[Route]) -> AsyncIterator[None]:
        """Answer ``routes`` until the block ends, then remove the socket. One that a dead daemon left is replaced."""
        self._socket_path.unlink(missing_ok=True)
        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.add_routes(routes)
        app[_STREAMS] = streams = set[asyncio.Task[Any]]()
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_LAST_ANSWER_S)
        await runner.setup()
        try:
            try:
                await self._listen(runner)
                self._runner = runner
                yield
            finally:
                self._runner = None
                self._stop_listening()
                for stream in streams:  # most have no end of their own: the daemon's end would wait for them
                    stream.cancel()
        finally:
            await runner.cleanup()
            self._socket_path.unlink(missing_ok=True)

    async def keep_listening(self, clock: Clock) -> None:
        """Make the socket again each time that somebody removes or replaces it. Return by cancellation only."""
        while True:
            await clock.sleep(_LOOK_S)
            if self._runner is None or (self._listens_on and self._socket_there() == self._listens_on):
                continue
            _log.warning("api.socket_lost", socket=str(self._socket_path))
            with contextlib.suppress(OSError, NotRecordedError):  # a full disk, say: tried again
                self._make_directory()
                await self._listen(self._runner)

    async def _listen(self, runner: web.AppRunner) -> None:
        assert runner.server is not None
        door = few_of_each_user(runner.server, _MOST_OF_A_USER)
        listener = await asyncio.get_running_loop().create_unix_server(door, self._socket_path)
        self._stop_listening()
        self._listener = listener
        self._socket_path.chmod(0o666)
        self._listens_on = self._socket_there()

    def _stop_listening(self) -> None:
        self._listens_on = None
        if self._listener is not None:
            self._listener.close()

    def _socket_there(self) -> tuple[int, int] | None:
        """Return which file is at the socket's path. None: there is none."""
        try:
            found = self._socket_path.lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _make_directory(self) -> None:
        """Whatever the umask, Ray's user has to look in there; one that was there already is somebody's own."""
        directory = self._socket_path.parent
        if not directory.is_dir():
            private_directory(directory, mode=0o755)
            return
        found = directory.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o055:
            _log.warning("api.directory_closed", directory=str(directory), hint="Ray's user cannot look in there")

    def _refuse_answering(self) -> None:
        """The lock may have been lost with its directory, under a daemon that goes on."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(self._socket_path)) == 0:
                raise _already_serving(f"it answers on {self._socket_path}")


@contextlib.contextmanager
def only_one(lock_path: Path) -> Iterator[None]:
    """Hold the lock, which the kernel frees when a daemon dies. Raises UsageError."""
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        if not lock_path.exists():  # nobody has ever held it
            yield
            return
        lock = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _already_serving(f"it holds {lock_path}") from error
        yield
    finally:
        os.close(lock)


def _already_serving(how_known: str) -> UsageError:
    return UsageError(
        f"another daemon is already serving here: {how_known}",
        hint="`edgelink status` shows it; stop it first",
        reason="AlreadyRunning",
    )


def error_to_dict(error: EdgelinkError) -> dict[str, Any]:
    return {
        "error": error.message,
        "hint": error.hint,
        "reason": error.condition_reason,
        "exit_code": int(error.exit_code),
    }


def _caller(request: web.Request) -> Caller:
    transport = request.transport
    if transport is None:
        raise UsageError("the caller is gone")
    peer = transport.get_extra_info("socket")
    return Caller(*ids_of(peer))


async def _body(request: web.Request) -> dict[str, Any]:
    """The request's JSON object, and the variable parts of its path."""
    if not request.can_read_body:
        return dict(request.match_info)
    try:
        body = await request.json()
    except json.JSONDecodeError as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the request must be a JSON object")
    return {**body, **request.match_info}
