"""Lets other nodes run programs here. See ADR 0044.

Who may ask is this node's own configuration (``exec.accept``). The program runs as Ray's user, in a process that the
daemon hands the connection to, so that a restart of the daemon ends no program.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from nacl.public import PrivateKey
from pydantic import ValidationError

from edgelink.api.server import Caller, Route, route, user_name
from edgelink.api.sites import Place, listening_socket
from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, EdgelinkError, RayClusterError, UntrustedError, UsageError
from edgelink.facts.board import Board
from edgelink.files import private_directory
from edgelink.launch import remote_channel as channel
from edgelink.launch.app_connections_asked import Ends, answer_with
from edgelink.launch.remote_channel import PORT, Frames, Seal, agreed_key, framed
from edgelink.launch.remote_request import (
    REQUEST_WITHIN_S,
    AboutConnections,
    ExecHello,
    ExecRequest,
    accepts,
    open_request,
    ssh_host_keys,
)
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.process import import_hook
from edgelink.process.identity import marked_pids_of
from edgelink.process.launcher import Launcher, ProcessSpec
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import DirectoryEntry, Envelope
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser, named_asker
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler
from edgelink.reconcile import Wakeup
from edgelink.runs.app_connections import connections
from edgelink.runs.exec_asking import ExecAsking, network_id_of
from edgelink.runs.ray_commands import require_ray_user
from edgelink.timeouts import timeout

_LOOK_S = 1.0
_MOST_AT_ONCE = 64  # connections that are not a program yet
_TAKEN_WITHIN_S = 15.0  # until the process that is to run the program has the connection
_MARK = "EDGELINK_EXEC"
_log = get_logger("exec")


@dataclass(frozen=True)
class Inputs:
    """What says where the door is."""

    running: Membership | None
    overlay_is_up: bool
    easytier_ends: int  # its device is another one then


class ExecDoor:
    """One node's part: it runs what other nodes ask of it. What its users ask of others is :class:`ExecAsking`."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        key: NodeKey,
        board: Board[Any],
        clock: Clock,
        launcher: Launcher,
        local_ray: LocalRay,
        ray: RayEdgeReconciler | RayHeadReconciler,
    ) -> None:
        self._config = config
        self._paths = paths
        self._key = key
        self._board = board
        self._launcher = launcher
        self._local_ray = local_ray
        self._ray = ray
        self._asking = ExecAsking(key, board, clock, ray)
        self._outage = Outage(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._at: Place | None = None
        self._changed = Wakeup()
        board.read(Inputs, "exec", self._changed)

    def routes(self) -> Iterator[Route]:
        """The local API: for root and Ray's user of this machine."""
        yield from self._asking.routes()
        yield route("POST", "/exec/connections", self._connections_here)

    async def run(self) -> None:
        """Take connections while the overlay is up; ends by cancellation only."""
        try:
            while True:
                if (wanted := self._place()) != self._at:
                    self._close()
                    self._listen(wanted)
                # An address that is not there yet is no fact: it is tried again.
                await self._changed.wait(_LOOK_S if self._listener is None and self._is_on else None)
        finally:
            self._close()
            for task in self._tasks:
                task.cancel()

    def _close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._listener = self._at = None

    def end_programs(self) -> None:
        """Have the programs that other nodes run here end."""
        for pid in marked_pids_of(self._mark, self._paths.state, {os.geteuid()}):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    @property
    def _mark(self) -> str:
        return f"{_MARK}={self._paths.state}"

    @property
    def _is_on(self) -> bool:
        return self._config.exec.accept != "off" and self._config.overlay.kind == "easytier"

    def _place(self) -> Place | None:
        facts = self._board.facts
        if not self._is_on or not facts.overlay_is_up or facts.running is None:
            return None
        device = self._config.overlay.device
        try:
            return Place(facts.running.lease.overlay_ip, device, socket.if_nametoindex(device))
        except OSError:
            return None

    def _listen(self, place: Place | None) -> None:
        if place is None:
            return
        try:
            self._listener = listening_socket(place, PORT)
        except OSError as error:
            if self._outage.is_news(str(error.errno)):
                _log.warning("exec.not_listening", address=f"{place.address}:{PORT}", error=str(error))
            return
        self._outage.over()
        self._at = place
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, (address, _) = listener.accept()
        except BlockingIOError:  # it is gone already
            return
        except OSError as error:  # no descriptor is left, say: whoever waits here is let go
            _log.warning("exec.not_taken", error=str(error))
            self._close()
            self._changed.set()
            return
        self._take(connection, IPv4Address(address))

    def _take(self, connection: socket.socket, address: IPv4Address) -> None:
        asker = self._asker(address)
        if asker is None or len(self._tasks) >= _MOST_AT_ONCE:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection, asker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _asker(self, address: IPv4Address) -> DirectoryEntry | None:
        directory = self._board.facts.directory
        entries = directory.entries if directory else ()
        entry = next((each for each in entries if each.overlay_ip == address), None)
        return entry if entry is not None and accepts(self._config.exec, entry) else None

    async def _serve(self, connection: socket.socket, asker: DirectoryEntry) -> None:
        """Say hello, take the request, and hand the connection over."""
        loop, seal = asyncio.get_running_loop(), None
        connection.setblocking(False)
        with connection:
            try:
                async with timeout(REQUEST_WITHIN_S):
                    own = PrivateKey.generate()
                    hello = ExecHello(
                        network_id=network_id_of(self._board.facts),
                        node_id=self._key.node_id,
                        challenge=secrets.token_hex(32),
                        key=b64encode(bytes(own.public_key)).decode(),
                        ssh_keys=ssh_host_keys(),
                    )
                    signed = self._key.sign(Kind.EXEC_HELLO, hello)
                    await loop.sock_sendall(connection, framed(signed.model_dump_json().encode()))
                    frames = Frames()
                    asker_key = await _next_frame(connection, frames)
                    sealed = Seal(agreed_key(own, asker_key), is_asker=False)
                    kind, text = sealed.open(await _next_frame(connection, frames))
                if kind != channel.REQUEST:
                    raise UntrustedError("a request was expected")
                request = open_request(Envelope.model_validate_json(text), asker, hello, b64encode(asker_key).decode())
                seal = sealed
                if request.connections is not None:
                    who, uid = self._who(request, asker), (await self._user()).uid
                    answer = answer_with(await self._connections(request.connections, uid, who))
                    async with timeout(REQUEST_WITHIN_S):
                        sealed_answer = seal.seal(channel.CONNECTIONS, json.dumps(answer).encode())
                        await loop.sock_sendall(connection, sealed_answer)
                    return
                await self._run(connection, request, asker, seal, frames.rest)
            except (UntrustedError, ValidationError, ValueError) as error:
                _log.warning("exec.refused", asked_by=asker.hostname, why=str(error).splitlines()[0])
            except (OSError, TimeoutError):
                return
            except EdgelinkError as error:
                _log.warning("exec.refused", asked_by=asker.hostname, why=error.message)
                if seal is not None:
                    told = {"error": error.message, "hint": error.hint, "reason": error.condition_reason}
                    with suppress(OSError, TimeoutError):
                        async with timeout(REQUEST_WITHIN_S):
                            await loop.sock_sendall(connection, seal.seal(channel.FAILED, json.dumps(told).encode()))

    async def _run(
        self, connection: socket.socket, request: ExecRequest, asker: DirectoryEntry, seal: Seal, rest: bytes
    ) -> None:
        """Start the process that runs the program, and give it the connection. Raises EdgelinkError."""
        user = await self._user()
        if rest:
            raise UntrustedError("input came before the program runs")
        order = {
            "key": seal.key.hex(),
            "sent": seal.sent,
            "opened": seal.opened,
            "argv": list(request.argv),
            "env": import_hook.kept_in_front({**self._environment(user), **request.env}),
            "cwd": request.cwd or (str(user.home) if user.home.is_dir() else "/"),
            "has_input": request.has_input,
            "uid": user.uid,
            "gid": user.gid,
            "groups": list(user.groups),
            "user": user.name,
            "ride_through_s": self._board.facts.ride_through_s,
        }
        _log.info(
            "exec.started",
            asked_by=self._who(request, asker),
            user=user.name,
            program=request.argv[0],
            arguments=len(request.argv) - 1,
        )
        name = f"exec-{secrets.token_hex(4)}"
        private_directory(self._paths.processes)
        private_directory(self._paths.logs)
        meeting = self._paths.processes / f"{name}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.bind(str(meeting))
            try:
                door.listen(1)
                door.setblocking(False)
                await self._launcher.launch(
                    ProcessSpec(
                        name=name,
                        argv=(sys.executable, "-I", "-m", "edgelink.launch.remote_runner", str(meeting)),
                        env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", _MARK: str(self._paths.state)},
                        cwd=self._paths.processes,
                        log_path=self._paths.logs / "exec.log",
                        config_hash="",
                    )
                )
                async with timeout(_TAKEN_WITHIN_S):
                    runner, _ = await asyncio.get_running_loop().sock_accept(door)
                with runner:
                    runner.setblocking(True)
                    text = json.dumps(order).encode()
                    await asyncio.to_thread(_hand_over, runner, text, connection)
            finally:
                meeting.unlink(missing_ok=True)

    @staticmethod
    def _who(request: ExecRequest, asker: DirectoryEntry) -> str:
        return f"{request.asked_by or 'somebody'} on {asker.hostname}"

    async def _connections(self, about: AboutConnections, uid: int | None, asked_by: str) -> dict[Ends, int]:
        """Return the connections that are asked for; those of the user ``uid`` may be closed. Raises EdgelinkError."""
        running = self._board.facts.running
        if running is None:
            return {}
        if about.closes:
            closed = [" - ".join(ends) for ends in about.closes]
            _log.info("exec.connections_closed", asked_by=asked_by, connections=closed)
        return await asyncio.to_thread(connections, about.question, running.lease.overlay_ip, uid)

    async def _user(self) -> RayUser:
        """Return as whom programs run here.

        Raises:
            ConfigError, MissingDependencyError: nobody is named, or only root is left.
        """
        user = named_asker(self._config.ray)
        if user is None and not self._ray.is_enabled:
            raise ConfigError(
                "nobody is named as whom programs of other nodes run on a node without Ray",
                hint="set ray.user on that node to the user whose programs these are",
                reason="ExecAsRoot",
            )
        user = user or (await self._local_ray.prepare()).user
        if user.uid == 0 and not self._config.exec.allow_root:
            raise ConfigError(
                "programs of other nodes would run as root here",
                hint="set ray.user on that node to the user whose training this is, or exec.allow_root: true there",
                reason="ExecAsRoot",
            )
        return user

    def _environment(self, user: RayUser) -> dict[str, str]:
        """Return what a program finds: the account's, the import hook, and where Ray is joined its variables."""
        own = {"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name, "LANG": "C.UTF-8", "PATH": SYSTEM_PATH}
        own |= self._ray.program_environment(user.uid)
        with suppress(RayClusterError):
            own |= self._ray.command_environment(user.uid)
        return own

    async def _connections_here(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /exec/connections``: what another node is asked by a request, of this one. Raises UsageError."""
        await require_ray_user(caller, self._ray)
        try:
            about = AboutConnections.model_validate(body)
        except ValidationError as error:
            raise UsageError(f"the question has {error.error_count()} unusable fields") from error
        return answer_with(await self._connections(about, caller.uid or None, user_name(caller.uid)))


def _hand_over(runner: socket.socket, text: bytes, connection: socket.socket) -> None:
    runner.settimeout(_TAKEN_WITHIN_S)
    sent = socket.send_fds(runner, [text], [connection.fileno()])
    runner.sendall(text[sent:])


async def _next_frame(connection: socket.socket, frames: Frames) -> bytes:
    """Return the next frame. Raises OSError when the connection ends, UntrustedError for nonsense."""
    data = b""
    while True:
        for frame in frames.feed(data):
            return frame
        data = await asyncio.get_running_loop().sock_recv(connection, channel.MAX_DATA_BYTES)
        if not data:
            raise ConnectionError("closed")
