"""The caller's side of a run against a real socket: a daemon that goes and comes, and a node that is lost."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import pytest
from telling import Words

from edgelink.api.client import DaemonNotRunningError
from edgelink.api.server import Caller, LocalApi, stream_route
from edgelink.backoff import Backoff
from edgelink.cli import run_request
from edgelink.cli.layout import say
from edgelink.cli.run_request import RunRequest
from edgelink.clock import SystemClock
from edgelink.errors import ConfigError, EdgelinkError, MissingDependencyError, UsageError
from edgelink.runs.run_lock import RunInProgressError
from edgelink.runs.runs import RayStoppedError
from edgelink.testing import eventually
from edgelink.training.driver import DriverControl
from edgelink.training.run_record import Attempt, RunRecord
from edgelink.training.supervision import Supervision

RECORD = RunRecord(
    run_id="r", command="train", attempts=(Attempt(number=1, started_at=datetime(2026, 1, 1, tzinfo=UTC)),)
)


DEFECTIVE = {"event": "defect"}


def lost(line: str) -> str:
    """Who is said not to be alive."""
    return line.partition(": ")[2]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again at once, not after half a second and more."""
    monkeypatch.setattr(run_request, "back_off", lambda: Backoff(first_s=0.05, cap_s=0.05))


def node(ray_node_id: str | None) -> dict[str, Any]:
    return {
        "node_rank": 1,
        "hostname": "edge-1",
        "ready": ray_node_id is not None,
        "state": "ready" if ray_node_id else "missing",
        "ray_node_id": ray_node_id,
    }


class Daemon:
    """Grants at once, then says what ``tell`` says."""

    def __init__(self, socket: Path) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.open = 0
        self.hangs = False
        self.refusals: list[EdgelinkError] = []  # of the requests that come next
        self._socket = socket
        self._news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(self, *nodes: dict[str, Any]) -> None:
        self._news.put_nowait({"event": "nodes", "nodes": list(nodes)})

    async def _run(self, _caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.bodies.append(body)
        self.open += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
            if self.refusals:
                raise self.refusals.pop(0)
            yield {"event": "granted", "environment": {}, "placement": None, "nodes": [node("a")]}
            while True:
                if (news := await self._news.get()) == DEFECTIVE:
                    raise ZeroDivisionError
                yield news
        finally:
            self.open -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        api = LocalApi(self._socket)
        async with api.serving([stream_route("POST", "/run", self._run)]):
            yield


async def granted(socket: Path, said: list[str]) -> tuple[RunRequest, dict[str, Any]]:
    request = RunRequest(socket, {"cluster": None, "timeout_s": 1.0}, lambda: RECORD, SystemClock(), said.append)
    return request, await asyncio.to_thread(request.wait_until_granted, lambda _event: None)


async def test_a_run_does_not_wait_for_a_daemon_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Words
) -> None:
    """While nodes are waited for, a daemon speaks every few seconds; after the grant it may be silent."""
    monkeypatch.setattr(run_request, "SILENCE_S", 1.0)
    socket, said = tmp_path / "s", list[str]()
    daemon = Daemon(socket)
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
        daemon.hangs = True
        with pytest.raises(DaemonNotRunningError, match="did not answer"):
            await granted(socket, said)  # lasts as long as the first request may not be silent
        daemon.tell(node(None))
        await eventually(lambda: said)
        assert [lost(line) for line in said] == ["edge-1"]
        words(said[0])
        request.close()
        await eventually(lambda: daemon.open == 0)


async def test_a_run_says_when_a_node_is_paused_and_when_it_is_back(tmp_path: Path) -> None:
    """Once each, however often the daemon speaks meanwhile; one that Ray gives up is not alive."""
    socket, said = tmp_path / "s", list[str]()
    daemon = Daemon(socket)
    paused = {**node("a"), "ready": False, "state": "paused", "paused_s": 130.0, "gives_up_in_s": 320.0}
    paused["told_by"] = "echo"
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
        daemon.tell(paused)
        daemon.tell({**paused, "paused_s": 135.0, "told_by": "echo and registry"})
        daemon.tell({**node("a"), "state": "ready"})
        await eventually(lambda: len(said) == 2)
        assert "edge-1 is paused" in said[0]
        assert "2m10s" in said[0]
        assert said[1].startswith("edge-1 answers again after 2m1")
        daemon.tell(paused)
        daemon.tell({**node(None), "state": "silent"})
        await eventually(lambda: len(said) == 4)
        assert lost(said[3]) == "edge-1"
        assert not request.nodes.lost, "a pause is no loss"
        request.close()


async def test_a_run_takes_its_lock_up_again_with_the_next_daemon(tmp_path: Path) -> None:
    """The driver is not asked; what it says of itself is told to the new daemon; each thing is said once."""
    socket, said = tmp_path / "s", list[str]()
    daemon, control = Daemon(socket), DriverControl()
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), control, lambda: None)
        assert daemon.bodies[0]["running"] is False
    await eventually(lambda: said)
    async with daemon.serving():
        await eventually(lambda: len(daemon.bodies) == 2)
        assert daemon.bodies[1]["running"] is True
        assert daemon.bodies[1]["record"]["attempts"][0]["number"] == 1
        daemon.tell(node(None))
        await eventually(lambda: len(said) == 3)
        request.close()
        await eventually(lambda: daemon.open == 0)
    assert ["is away" in said[0], "is back" in said[1], lost(said[2]) == "edge-1"] == [True] * 3
    assert not control.ended_by_us


async def test_a_defect_of_the_daemon_costs_no_lock(tmp_path: Path) -> None:
    """It is taken up again, as after a death: another run would start beside this one, else."""
    socket, said = tmp_path / "s", list[str]()
    daemon = Daemon(socket)
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
        daemon._news.put_nowait(DEFECTIVE)
        await eventually(lambda: len(daemon.bodies) == 2)
        assert daemon.bodies[1]["running"] is True
        daemon.tell(node(None))
        await eventually(lambda: [lost(line) for line in said[-1:]] == ["edge-1"])
        request.close()
        await eventually(lambda: daemon.open == 0)


async def test_trouble_of_a_new_daemon_costs_no_lock(tmp_path: Path) -> None:
    """An interpreter that is slow or being installed into: each is said once, and the nodes are watched again then."""
    socket, said = tmp_path / "s", list[str]()
    daemon = Daemon(socket)
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
    slow, without_ray = ConfigError("slow"), MissingDependencyError("has no Ray")
    daemon.refusals = [slow, slow, without_ray, slow]
    async with daemon.serving():
        await eventually(lambda: len(daemon.bodies) == 6)
        daemon.tell(node("b"))
        await eventually(lambda: request.nodes.lost)
        request.close()
        await eventually(lambda: daemon.open == 0)
    assert all(body["running"] for body in daemon.bodies[1:])
    assert ["is away" in said[0], str(slow) in said[1], str(without_ray) in said[2], "is back" in said[3]] == [True] * 4


@pytest.mark.parametrize(
    "refusal",
    [
        RunInProgressError("busy"),
        UsageError("not alice", reason="PermissionDenied"),
        UsageError("no account"),
        RayStoppedError(),
    ],
)
async def test_a_lock_that_does_not_come_back_is_given_up(tmp_path: Path, refusal: EdgelinkError, words: Words) -> None:
    """It is said, and nobody is asked again."""
    socket, said = tmp_path / "s", list[str]()
    daemon = Daemon(socket)
    async with daemon.serving():
        request, grant = await granted(socket, said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
    daemon.refusals = [refusal]
    async with daemon.serving():
        await eventually(lambda: not any(thread.name == "nodes" for thread in threading.enumerate()))
        assert len(daemon.bodies) == 2
        assert len(said) == 2
        assert str(refusal) in said[1]
        words(said[1])
        request.close()


@contextmanager
def full_disk() -> Iterator[TextIO]:
    """A file there; what it could not write is forgotten at its end."""
    with Path("/dev/full").open("w") as full:
        yield full
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, full.fileno())
        os.close(nowhere)


async def test_a_run_whose_log_is_full_keeps_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot say costs the line, not the thread that was to take the lock up again."""
    socket, daemon = tmp_path / "s", Daemon(tmp_path / "s")
    with full_disk() as full:
        monkeypatch.setattr(sys, "stderr", full)
        request = RunRequest(socket, {"cluster": None, "timeout_s": 1.0}, lambda: RECORD, SystemClock(), say)
        async with daemon.serving():
            grant = await asyncio.to_thread(request.wait_until_granted, lambda _event: None)
            request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
        async with daemon.serving():
            await eventually(lambda: len(daemon.bodies) == 2)
            request.close()
            await eventually(lambda: daemon.open == 0)


async def test_a_list_that_nobody_has_is_not_told_as_deaths(tmp_path: Path) -> None:
    """Neither that all are gone, nor, a moment later, that all are back."""
    said: list[str] = []
    daemon = Daemon(tmp_path / "s")
    async with daemon.serving():
        request, grant = await granted(tmp_path / "s", said)
        request.follow(grant["nodes"], Supervision(), DriverControl(), lambda: None)
        daemon.tell({**node(None), "ray_known": False})
        daemon.tell(node("a"))
        daemon.tell({**node(None), "hostname": "renamed"})
        await eventually(lambda: said)
        request.close()
        await eventually(lambda: daemon.open == 0)
    assert [lost(line) for line in said] == ["renamed"]


async def test_a_lost_node_ends_the_driver_where_that_is_asked_for(tmp_path: Path, words: Words) -> None:
    """Another Ray under the same rank: with `stop`, at once."""
    said: list[str] = []
    daemon, control = Daemon(tmp_path / "s"), DriverControl()
    async with daemon.serving():
        request, grant = await granted(tmp_path / "s", said)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        class Signals:
            def put(self, _number: int) -> None:
                loop.call_soon_threadsafe(ended.set)

        with control.attached(Signals()):  # type: ignore[arg-type]
            request.follow(grant["nodes"], Supervision.of(None, "stop"), control, lambda: None)
            daemon.tell(node("b"))
            async with asyncio.timeout(20):
                await ended.wait()
        assert control.ended_by_us
        assert request.nodes.lost == ("edge-1",)
        request.close()
        await eventually(lambda: daemon.open == 0)
    assert "edge-1" in said[0]
    words(said[0])
