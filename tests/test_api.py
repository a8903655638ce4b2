"""The local API: requests, streams, errors across the socket, and who may ask."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from telling import refuses

from edgelink.api import connection_limit, server
from edgelink.api.client import DaemonError, DaemonNotRunningError, EventStream, call, how_to_start
from edgelink.api.server import Caller, LocalApi, route, stream_route, user_name
from edgelink.cli.status import daemons_here
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths
from edgelink.daemon.leftovers import end_leftovers
from edgelink.errors import ConfigError, DeadlineError, EdgelinkError, ExitCode, UsageError
from edgelink.testing import FakeClock, eventually


async def ask(path: Path, *arguments: Any) -> Any:
    return await asyncio.to_thread(call, path, *arguments)


async def test_an_answer_and_the_caller_are_what_they_are(tmp_path: Path) -> None:
    """The kernel says who asks; the body and the path's variables arrive as one mapping."""
    api = LocalApi(tmp_path / "s")
    seen: list[Caller] = []

    async def handler(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        seen.append(caller)
        return {"got": body}

    async with api.serving([route("POST", "/things/{name}", handler)]):
        assert await ask(tmp_path / "s", "POST", "/things/a", {"x": 1}) == {"got": {"x": 1, "name": "a"}}
    assert (seen[0].pid, seen[0].uid) == (os.getpid(), os.getuid())


async def test_a_user_keeps_no_other_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every local user may connect, and could take all of the daemon's descriptors. What is open stays open."""
    callers = [1000]
    monkeypatch.setattr(connection_limit, "_user", lambda _transport: callers[-1])
    monkeypatch.setattr(server, "_MOST_OF_A_USER", 2)
    api = LocalApi(tmp_path / "s")

    async def handler(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"is": "answered"}

    async with api.serving([route("GET", "/x", handler)]), asyncio.timeout(20):
        held = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(3)]
        assert await held[2][0].read() == b"", "one more than it may have"
        with pytest.raises(DaemonNotRunningError):
            await ask(tmp_path / "s", "GET", "/x")
        held[0][1].write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await held[0][0].readline()
        callers.append(0)
        assert await ask(tmp_path / "s", "GET", "/x") == {"is": "answered"}
        callers.append(1000)
        for _, writer in held:
            writer.close()
        while True:
            try:
                assert await ask(tmp_path / "s", "GET", "/x") == {"is": "answered"}
                return
            except DaemonNotRunningError:  # it has not seen yet that they are gone
                await asyncio.sleep(0)


async def test_an_error_keeps_message_hint_and_exit_code(tmp_path: Path) -> None:
    """What the daemon refuses is told by the command as if it had found out itself."""
    api = LocalApi(tmp_path / "s")

    async def refuse(_caller: Caller, _body: dict[str, Any]) -> None:
        raise ConfigError("no such thing", hint="name another")

    async with api.serving([route("GET", "/x", refuse)]):
        with pytest.raises(DaemonError) as raised:
            await ask(tmp_path / "s", "GET", "/x")
    assert (raised.value.message, raised.value.hint) == ("no such thing", "name another")
    assert raised.value.exit_code is ExitCode.CONFIG


async def test_a_stream_delivers_items_and_ends_with_its_error(tmp_path: Path) -> None:
    """A long wait is told as it goes; its failure comes as an error, after the items."""
    api = LocalApi(tmp_path / "s")

    async def items(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"n": 1}
        yield {"n": 2}
        raise DeadlineError("too late")

    def read() -> list[int]:
        seen = []
        with pytest.raises(DaemonError) as raised:
            for item in EventStream(tmp_path / "s", "POST", "/x", {}):
                seen.append(item["n"])
        assert raised.value.exit_code is ExitCode.TRY_AGAIN
        return seen

    async with api.serving([stream_route("POST", "/x", items)]):
        assert await asyncio.to_thread(read) == [1, 2]


async def test_a_daemon_that_is_silent_for_too_long_is_given_up(tmp_path: Path) -> None:
    """One that hangs keeps its socket; who relies on a long silence says so."""
    api = LocalApi(tmp_path / "s")

    async def items(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"n": 1}
        await asyncio.sleep(1.0)  # the silence
        yield {"n": 2}

    def read_patiently() -> list[int]:
        stream = EventStream(tmp_path / "s", "POST", "/x", {}, timeout_s=20)
        seen = [next(stream)["n"]]
        stream._socket.settimeout(0.5)  # not before the first item, which may take longer on a busy machine
        stream.allow_silence()
        return seen + [item["n"] for item in stream]

    def read_impatiently() -> list[int]:
        return [item["n"] for item in EventStream(tmp_path / "s", "POST", "/x", {}, timeout_s=0.5)]

    async with api.serving([stream_route("POST", "/x", items)]):
        assert await asyncio.to_thread(read_patiently) == [1, 2]
        with pytest.raises(DaemonNotRunningError, match="did not answer"):
            await asyncio.to_thread(read_impatiently)


async def test_a_daemon_whose_lock_was_lost_is_not_driven_off_its_socket(tmp_path: Path) -> None:
    """Who deletes the state directory under a daemon deletes its lock; the daemon still answers."""
    (tmp_path / "state").mkdir()
    async with LocalApi(tmp_path / "s", tmp_path / "state/lock").serving():
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "state").mkdir()
        with pytest.raises(UsageError, match="it answers on"):
            async with LocalApi(tmp_path / "s", tmp_path / "state/lock").serving():
                pass
        assert (tmp_path / "s").exists()


async def test_a_stream_whose_reader_goes_away_is_closed(tmp_path: Path) -> None:
    """A caller that dies cannot leave a lock behind (ADR 0009)."""
    api = LocalApi(tmp_path / "s")
    closed = asyncio.Event()

    async def hold(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"held": True}
            await asyncio.Event().wait()
        finally:
            closed.set()

    def take_one_and_leave() -> None:
        events = EventStream(tmp_path / "s", "POST", "/x", {})
        next(events)
        events.close()

    async with api.serving([stream_route("POST", "/x", hold)]):
        await asyncio.to_thread(take_one_and_leave)
        await eventually(closed.is_set)


async def test_a_daemon_ends_though_it_has_more_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run follows its nodes for as long as it lasts; who reads sees the end of it."""
    monkeypatch.setattr(server, "_LAST_ANSWER_S", 600.0)
    api = LocalApi(tmp_path / "s")
    closed = asyncio.Event()

    async def items(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"n": 1}
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with asyncio.timeout(20):
        async with api.serving([stream_route("POST", "/x", items)]):
            stream = await asyncio.to_thread(EventStream, tmp_path / "s", "POST", "/x", {})
            assert await asyncio.to_thread(next, stream) == {"n": 1}
        assert closed.is_set()
        assert await asyncio.to_thread(list, stream) == []


async def test_a_second_daemon_is_refused_and_a_stale_socket_is_not(tmp_path: Path) -> None:
    """One daemon a socket; what a killed one left behind is in nobody's way."""
    first = LocalApi(tmp_path / "s")
    async with first.serving():
        with pytest.raises(UsageError, match="already serving"):
            async with LocalApi(tmp_path / "s").serving():
                pass
        shared = LocalApi(tmp_path / "u", tmp_path / "lock")
        async with shared.serving():
            (tmp_path / "u").unlink()  # as whoever tidies /run up
            with pytest.raises(UsageError, match="already serving"):
                async with LocalApi(tmp_path / "u", tmp_path / "lock").serving():
                    pass
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "t"))
    async with LocalApi(tmp_path / "t").serving():
        pass
    assert not (tmp_path / "t").exists()


async def test_a_socket_that_was_removed_comes_back(tmp_path: Path) -> None:
    """Tidying /run up does not cut people and scripts off a daemon that runs; nor does another file in its place."""

    async def answer(_caller: Caller, _body: dict[str, Any]) -> str:
        return "here"

    path = tmp_path / "run" / "node.sock"
    api, clock = LocalApi(path, tmp_path / "lock"), FakeClock()
    async with api.serving([route("GET", "/x", answer)]), asyncio.TaskGroup() as tasks:
        keeper = tasks.create_task(api.keep_listening(clock))
        for remove in (path.unlink, lambda: shutil.rmtree(path.parent), lambda: put_another(path)):
            remove()
            with pytest.raises(DaemonNotRunningError):
                await ask(path, "GET", "/x")
            await clock.advance(5)
            assert await ask(path, "GET", "/x") == "here"
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
        keeper.cancel()
    assert not path.exists()


def put_another(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


async def test_a_daemon_without_its_socket_is_not_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock says that it runs; whoever is told to start another one would be refused."""
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(tmp_path / "run"))
    paths = Paths.from_environment()
    paths.state.mkdir()
    async with LocalApi(paths.node_socket, paths.lock_of("node")).serving():
        paths.node_socket.unlink()
        ended = end_leftovers(Config(), paths, SystemClock())
        for asked in (ask(paths.node_socket, "GET", "/x"), asyncio.to_thread(daemons_here, paths), ended):
            with pytest.raises(DaemonNotRunningError, match=rf"\(pid {os.getpid()}\)") as raised:
                await asked
            assert "try again" in raised.value.hint
    with pytest.raises(DaemonNotRunningError, match="no EdgeLink daemon"):
        call(paths.node_socket, "GET", "/status")


def test_no_daemon_is_said_with_what_to_do(tmp_path: Path) -> None:
    """The most common mistake has the plainest message."""
    with pytest.raises(DaemonNotRunningError) as raised:
        call(tmp_path / "nobody", "GET", "/status")
    assert "edgelink edge" in raised.value.hint


def test_who_asks_the_registry_elsewhere_is_sent_to_the_relay(tmp_path: Path) -> None:
    """`edgelink token create` on a cloud machine: no daemon that is started there would make a token."""
    with pytest.raises(DaemonNotRunningError) as raised:
        call(tmp_path / "bootstrap.sock", "POST", "/tokens")
    assert "on the relay" in raised.value.hint
    assert "edgelink head" not in raised.value.hint


@pytest.mark.parametrize(
    ("runs", "asked", "hint"),
    [
        ("bootstrap.sock", "node.sock", "an edge"),
        ("node.sock", "bootstrap.sock", "on the relay"),
        ("node.sock", "gone.sock/node.sock", "`edgelink relay`"),
    ],
)
async def test_a_machine_with_the_other_daemon_is_told_of(tmp_path: Path, runs: str, asked: str, hint: str) -> None:
    """`edgelink nodes` on the relay: nothing is broken there."""
    async with LocalApi(tmp_path / runs).serving():
        with refuses(DaemonNotRunningError, hint):
            await ask(tmp_path / asked, "GET", "/status")


def test_a_machine_that_is_enrolled_is_told_its_own_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(tmp_path))
    assert all(f"`edgelink {role}`" in how_to_start() for role in ("relay", "head", "edge"))
    Paths.from_environment().membership.write_text('{"lease": {"role": "head"}}')
    assert "`edgelink head`" in how_to_start()
    assert "`edgelink edge`" not in how_to_start()


def test_only_root_and_those_named_may() -> None:
    """A route that commands is not for every local user."""
    Caller(1, 0, 0).require()
    Caller(1, 1000, 1000).require(1000)
    with pytest.raises(UsageError, match="the user 1001"):
        Caller(1, 1001, 1001).require(1000)


def test_whom_the_daemon_runs_as_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch system nobody is root; the daemon's files are that user's anyway."""
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    Caller(1, 1001, 1001).require()
    with refuses(UsageError, reason="PermissionDenied") as refused:
        Caller(1, 1002, 1002).require()
    assert user_name(1001) in refused.value.hint


async def test_a_defect_in_a_stream_is_not_taken_for_its_end(tmp_path: Path) -> None:
    """Else what came would be taken for all there is."""
    api = LocalApi(tmp_path / "s")

    async def items(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"n": 1}
        raise ZeroDivisionError

    def read() -> None:
        with pytest.raises(DaemonError, match="unexpected ZeroDivisionError"):
            list(EventStream(tmp_path / "s", "POST", "/x", {}))

    async with api.serving([stream_route("POST", "/x", items)]):
        await asyncio.to_thread(read)


async def test_a_request_that_the_daemon_does_not_know_is_told_with_what_to_do(tmp_path: Path) -> None:
    """The command was upgraded, the daemon was not started anew yet."""
    async with LocalApi(tmp_path / "s").serving():
        with pytest.raises(EdgelinkError, match="404") as raised:
            await ask(tmp_path / "s", "GET", "/new")
    assert (raised.value.condition_reason, "restart it" in raised.value.hint) == ("OtherVersion", True)


async def test_everybody_may_look_into_the_directory_whatever_the_umask(tmp_path: Path) -> None:
    """Ray's user has to, and a hardened root's umask is 077."""
    before = os.umask(0o077)
    try:
        async with LocalApi(tmp_path / "run/s").serving():
            assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
    finally:
        os.umask(before)


async def test_a_directory_that_was_there_is_somebody_elses(tmp_path: Path) -> None:
    """`EDGELINK_RUNTIME_DIR` may name one that many use."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    async with LocalApi(tmp_path / "shared/s").serving():
        assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777


@pytest.mark.parametrize("is_held", [True, False])
def test_a_lock_on_a_read_only_disk_still_tells_who_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """What a killed daemon left there has to be ended all the same."""
    lock, real = tmp_path / "node.lock", os.open

    def refuse_writing(path: Path, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *mode)

    lock.touch()
    with server.only_one(lock) if is_held else contextlib.nullcontext():
        monkeypatch.setattr(os, "open", refuse_writing)
        with contextlib.ExitStack() as held:
            if is_held:
                with pytest.raises(UsageError, match="already serving"):
                    held.enter_context(server.only_one(lock))
            else:
                held.enter_context(server.only_one(lock))
        with server.only_one(tmp_path / "never-there.lock"):
            pass


async def test_a_refusal_of_a_stream_is_an_error_like_any_other(tmp_path: Path) -> None:
    """Also where it comes before the first item: a request that is none."""
    api = LocalApi(tmp_path / "s")

    async def items(_caller: Caller, _body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {}

    def read() -> None:
        with pytest.raises(DaemonError, match="must be a JSON object"):
            list(EventStream(tmp_path / "s", "POST", "/x", ["no object"]))  # type: ignore[arg-type]

    async with api.serving([stream_route("POST", "/x", items)]):
        await asyncio.to_thread(read)


async def test_a_daemon_that_dies_in_the_middle_of_its_answer_is_named(tmp_path: Path) -> None:
    """A command that waits for a killed daemon says so, instead of an exception of the HTTP library."""

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}")
        await writer.drain()
        writer.close()

    def read() -> None:
        with pytest.raises(DaemonNotRunningError, match="daemon ended"):
            call(tmp_path / "s", "GET", "/status")

    async with await asyncio.start_unix_server(die, tmp_path / "s"):
        await asyncio.to_thread(read)
