"""``edgelink run --apps FILE``: check the file, the nodes and the programs, then run all of them together."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import signal
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelink.api.client import call
from edgelink.cli.driver_run import refuse_elsewhere
from edgelink.cli.layout import say
from edgelink.cli.patience import waiting_for
from edgelink.cli.run_request import RunRequest
from edgelink.clock import SystemClock
from edgelink.config.paths import Paths
from edgelink.duration import brief
from edgelink.errors import ConfigError, EdgelinkError, ExitCode
from edgelink.launch.app_connections_asked import ConnectionsQuestion, Ends, bytes_in
from edgelink.launch.apps_file import AppsFile, Where, check_nodes, filled, read_apps_file
from edgelink.launch.node_programs import NodePrograms, Starter, answer_of
from edgelink.launch.program_output import to_terminal
from edgelink.launch.remote_program import REFUSED, remote_connections
from edgelink.launch.run_account import RunAccount
from edgelink.process import import_hook
from edgelink.runs.apps import MAY_PASS, REFUSES_S, AppsRun
from edgelink.timeouts import timeout
from edgelink.training.run_record import RunRecord

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_KNOCK_S = 2.0
_AGAIN_S = 1.0
_MOST_FILES_BYTES = 64 * 1024 * 1024
_SHIP = 'umask 077; d="$HOME/.cache/edgelink/apps/$1"; mkdir -p "$d" && tar -xf - -C "$d" && cd "$d" && pwd'
_CLEAR = 'rm -rf -- "$HOME/.cache/edgelink/apps/$1"'
_LOOK = 'cd -- "$1" && command -v -- "$2" >/dev/null'


def run_apps(file_path: Path, timeout_s: float) -> int:
    """Return the exit status of the run. Nodes that are away are waited for, ``timeout_s`` at most.

    Raises:
        UsageError: this is not the head.
        DaemonError: another run is in progress.
        ConfigError: the file cannot come true; names all mistakes, and nothing was started.
        EdgelinkError: a node takes no programs from this one.
    """
    paths = Paths.from_environment()
    file = read_apps_file(file_path)
    refuse_elsewhere(paths)
    rows = call(paths.node_socket, "GET", "/nodes")["nodes"]
    nodes = {
        str(row["hostname"]): Where(str(row["hostname"]), str(row["overlay_ip"]), row["path"] == "self")
        for row in rows
        if row["hostname"] and row["overlay_ip"]
    }
    check_nodes(file_path, file, nodes)
    record = RunRecord(run_id=secrets.token_hex(8), command=f"--apps {file_path.name}", retries=file.retries)
    account = RunAccount(record, SystemClock())
    request = RunRequest(paths.node_socket, {}, lambda: account.record, SystemClock(), say, path="/run/apps")
    try:
        granted = request.wait_until_granted(lambda _: None)
        request.keep()
        environ = _environ(granted["environment"])
        session = _Session(file_path, file, nodes, paths.node_socket, timeout_s, environ, account, request)
        return asyncio.run(session.run())
    finally:
        request.close()


def _environ(granted: Mapping[str, str]) -> dict[str, str]:
    """Return what an app on this machine gets: the caller's own environment, and what the daemon grants."""
    own_path = os.environ.get("PYTHONPATH")
    return import_hook.kept_in_front({**os.environ, **granted, **({"PYTHONPATH": own_path} if own_path else {})})


@dataclass
class _Surroundings:
    """What the head's daemon knows of the nodes, what answers on their ports, and the record that it keeps."""

    socket_path: Path
    account: RunAccount
    request: RunRequest
    silent: Mapping[str, str] = field(default_factory=dict)

    async def silent_nodes(self) -> Mapping[str, str]:
        with suppress(EdgelinkError):  # the daemon is away: what it said last holds
            rows: list[dict[str, Any]] = (await asyncio.to_thread(call, self.socket_path, "GET", "/nodes"))["nodes"]
            self.silent = {
                str(row["hostname"]): "it was switched off" if row["state"] == "off" else "no answer"
                for row in rows
                if row["path"] != "self" and row["state"] in ("paused", "silent", "off")
            }
        return self.silent

    async def connections(self, where: Where, question: ConnectionsQuestion) -> Mapping[Ends, int]:
        if not where.is_here:
            return await remote_connections(self.socket_path, where.hostname, question)
        answer: Any = await asyncio.to_thread(call, self.socket_path, "POST", "/exec/connections", question.to_dict())
        return bytes_in(answer)

    async def note_restart(self, where: Where, status: int, what: str) -> None:
        self.account.end(status, what, lost=(where.hostname,) if status == ExitCode.NODE_LOST else ())
        self.account.begin()
        await asyncio.to_thread(self.request.tell_record)

    async def knock(self, address: str, port: int) -> bool:
        try:
            async with timeout(_KNOCK_S):
                _, writer = await asyncio.open_connection(address, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True


@dataclass
class _Session:
    """One run of one file."""

    file_path: Path
    file: AppsFile
    nodes: Mapping[str, Where]
    socket_path: Path
    timeout_s: float
    environ: Mapping[str, str]
    account: RunAccount
    request: RunRequest

    def __post_init__(self) -> None:
        self._starter: Starter = NodePrograms(self.socket_path, self.environ)
        self._clock = SystemClock()
        self._begun_s = self._clock.monotonic_s()
        self._id = secrets.token_hex(8)
        self._signalled = 0
        self._used = sorted({app.node for app in self.file.apps.values()})

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(), name="apps")
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._pass_on, number, task)
        status, what = int(ExitCode.FAILED), ""
        try:
            status = await task
        except asyncio.CancelledError:
            status, what = 128 + self._signalled, f"ended by {signal.Signals(self._signalled).name}"
        except EdgelinkError as error:
            what = str(error)
            raise
        finally:
            self.account.end(status, what)
            await asyncio.to_thread(self.request.tell_record)
        return status

    def _pass_on(self, number: int, task: asyncio.Task[int]) -> None:
        if not self._signalled:
            say(f"ended by {signal.Signals(number).name}: ending all apps")
            self._signalled = number
            task.cancel()

    async def _run(self) -> int:
        folders = await self._ship()
        try:
            with waiting_for("looking for the programs on their nodes"):
                await self._require_programs(folders)
            run = AppsRun(
                self.file,
                self.nodes,
                folders,
                self._starter,
                _Surroundings(self.socket_path, self.account, self.request),
                say=say,
                write=to_terminal,
                clock=self._clock,
            )
            self.account.begin()
            await asyncio.to_thread(self.request.tell_record)
            return await run.run()
        finally:
            await self._clear()

    async def _answer_of(self, node: str, argv: Sequence[str], *, text: bytes | None = None) -> tuple[int, str]:
        """Ask a node, and wait for one that is away. One that has just started refuses for some seconds."""
        said = ""
        while True:
            try:
                return await answer_of(self._starter, self.nodes[node], argv, text=text)
            except EdgelinkError as error:
                refused = error.condition_reason == REFUSED
                patience_s = min(self.timeout_s, REFUSES_S) if refused else self.timeout_s
                may_pass = refused or error.retryable or error.condition_reason in MAY_PASS
                if not may_pass or self._clock.monotonic_s() - self._begun_s >= patience_s:
                    raise
                if error.message != said and not refused:
                    said = error.message
                    say(f"waiting for {node}, at most {brief(self.timeout_s)}: {error.message}")
            await self._clock.sleep(_AGAIN_S)

    async def _ship(self) -> dict[str, str]:
        """Give each node the files of the run, and return where they lie there. Raises EdgelinkError."""
        here = str(self.file_path.parent.resolve())
        folders = {name: here if self.nodes[name].is_here else "" for name in self._used}
        packed = _packed(self.file_path, self.file.files) if self.file.files else b""
        for name in folders:
            if not folders[name] and packed:
                with waiting_for(f"sending {len(packed) // 1024} KiB of files to {name}"):
                    argv = ["sh", "-c", _SHIP, "sh", self._id]
                    status, told = await self._answer_of(name, argv, text=packed)
                if status:
                    raise ConfigError(
                        f"{name} cannot keep the files of the run: {told.strip() or f'status {status}'}",
                        hint="they lie below ~/.cache/edgelink/apps of the user that runs programs there",
                    )
                folders[name] = told.strip()
        return folders

    async def _clear(self) -> None:
        for name in self._used:
            if self.file.files and not self.nodes[name].is_here:
                with suppress(EdgelinkError, TimeoutError):
                    async with timeout(_KNOCK_S):
                        await answer_of(self._starter, self.nodes[name], ["sh", "-c", _CLEAR, "sh", self._id])

    async def _require_programs(self, folders: Mapping[str, str]) -> None:
        """Raises ConfigError, which names each program, interpreter or directory that is not there."""
        missing = []
        for name, app in self.file.apps.items():
            folder = folders[app.node]
            directory = filled(app.cwd or folder or ".", self.file, self.nodes, folder)
            program = filled(app.argv[0], self.file, self.nodes, folder)
            argv = ["sh", "-c", _LOOK, "sh", directory, program]
            status, _ = await self._answer_of(app.node, argv)
            if status:
                missing.append(f"apps.{name}: {app.node} has no program {program}, or no directory {directory}")
        if missing:
            hint = "name programs by their whole path there; `edgelink exec NODE -- ls -l PATH` shows them"
            raise ConfigError(f"{self.file_path}: {'; '.join(missing)}", hint=hint)


def _packed(file_path: Path, names: Sequence[str]) -> bytes:
    """Return the files as a tar archive. Raises ConfigError."""
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in names:
                archive.add(file_path.parent / name, arcname=name)
                if packed.tell() > _MOST_FILES_BYTES:
                    raise ConfigError(
                        f"{file_path}: files: more than {_MOST_FILES_BYTES // 1024**2} MiB",
                        hint="put large files on the nodes beforehand, and name them by their path there",
                    )
    except OSError as error:
        raise ConfigError(f"{file_path}: files: {error.filename}: {error.strerror}", hint="correct `files`") from error
    return packed.getvalue()
