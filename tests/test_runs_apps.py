"""Apps kept together: order, restarts, the end of all, and what is stuck, with programs that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from telling import Words, refuses

from edgelink.errors import ExitCode
from edgelink.launch.app_connections_asked import ConnectionsQuestion, Ends
from edgelink.launch.apps_file import AppsFile, Where
from edgelink.launch.remote_channel import OUTPUT
from edgelink.launch.remote_program import ConnectionLostError, Program, RemoteProgramError
from edgelink.runs.apps import AppsRun
from edgelink.testing import FakeClock

NODES = {
    "cloud": Where("cloud", "10.10.0.2", is_here=True),
    "edge-1": Where("edge-1", "10.10.0.3", is_here=False),
    "edge-2": Where("edge-2", "10.10.0.4", is_here=False),
}


class Played:
    """A program that a test plays: it says what it is given, and ends when it is told to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.status: int | None = None
        self.signals: list[int] = []
        self.connection: Ends | None = None
        self._said: asyncio.Queue[bytes | int | Exception] = asyncio.Queue()

    def says(self, text: bytes) -> None:
        self._said.put_nowait(text)

    def ends(self, how: int | Exception) -> None:
        self._said.put_nowait(how)

    def give_up(self) -> None:
        self.ends(ConnectionLostError("the connection broke"))

    async def output(self) -> AsyncIterator[tuple[bytes, bytes]]:
        while isinstance(item := await self._said.get(), bytes):
            yield OUTPUT, item
        if isinstance(item, Exception):
            raise item
        self.status = item

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.ends(-number)

    async def send_input(self, data: bytes) -> None:
        raise NotImplementedError


class World:
    """Nodes on which programs are played. ``answers``: what `ss` prints, by node."""

    def __init__(self, **apps: dict[str, Any]) -> None:
        self.clock = FakeClock()
        settings = apps.pop("settings", {})
        self.file = AppsFile.model_validate({"apps": apps, **settings})
        self.started: dict[str, list[Played]] = {name: [] for name in apps}
        self.listening: set[tuple[str, int]] = set()
        self.silent: dict[str, str] = {}
        self.unheard: set[str] = set()  # of short programs; the daemon may not know yet
        self.connected: dict[str, dict[Ends, int]] = {}
        self.restarts: list[tuple[str, int, str]] = []
        self.closed: list[tuple[str, Ends]] = []
        self.refuses: Exception | None = None
        self.said: list[str] = []
        self.log = b""
        self.run = AppsRun(
            self.file,
            NODES,
            dict.fromkeys(NODES, "/srv"),
            self,
            self,
            say=self.said.append,
            write=self._write,
            clock=self.clock,
        )

    async def _write(self, text: bytes, is_error: bool) -> None:
        self.log += text

    async def silent_nodes(self) -> Mapping[str, str]:
        return dict(self.silent)

    async def knock(self, address: str, port: int) -> bool:
        return (address, port) in self.listening

    async def note_restart(self, where: Where, status: int, what: str) -> None:
        self.restarts.append((where.hostname, status, what))

    async def connections(self, where: Where, question: ConnectionsQuestion) -> Mapping[Ends, int]:
        node = where.hostname
        if node in self.unheard:
            raise RemoteProgramError("silent", reason="NodeSilent")
        self.closed += [(node, ends) for ends in question.closes]
        return {
            (own, other): count
            for (own, other), count in self.connected.get(node, {}).items()
            if question.peer in (None, other.partition(":")[0])
            and not {int(end.partition(":")[2]) for end in (own, other)}.isdisjoint(question.ports)
        }

    @asynccontextmanager
    async def start(self, where: Where, program: Program) -> AsyncIterator[Played]:
        if self.refuses is not None:
            raise self.refuses
        played = Played(program)
        if not where.is_here:
            played.connection = (f"{where.overlay_ip}:9750", f"10.10.0.2:{42000 + len(self.started[program.argv[0]])}")
            self.connected.setdefault(where.hostname, {})[played.connection] = 1
        self.started[program.argv[0]].append(played)
        yield played

    def now(self, name: str) -> Played:
        return self.started[name][-1]

    async def has_started(self, name: str, times: int = 1) -> Played:
        await _until(self, lambda: len(self.started[name]) >= times)
        return self.now(name)


async def _until(world: World, is_so: Any) -> None:
    for _ in range(200):
        if is_so():
            return
        await world.clock.advance(0.5)
    raise AssertionError(f"not so: {world.said}")


@asynccontextmanager
async def running(world: World) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.get_running_loop().create_task(world.run.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _status(world: World, task: asyncio.Task[int]) -> int:
    await _until(world, task.done)
    return task.result()


def pair(**settings: Any) -> World:
    return World(
        learner={"node": "cloud", "command": ["learner"], "listens": 50051},
        actor={"node": "edge-1", "command": ["actor", "{learner.host}:{learner.port}"], "after": "learner"},
        settings=settings,
    )


async def test_an_app_starts_once_the_one_before_it_answers() -> None:
    """And gets its address. What both say comes in one log, in whole lines with the name before each."""
    world = pair()
    async with running(world) as task:
        learner = await world.has_started("learner")
        await world.clock.advance(60)
        assert not world.started["actor"]
        assert "actor waits until learner (port 50051 of cloud) answers" in world.said
        world.listening.add(("10.10.0.2", 50051))
        actor = await world.has_started("actor")
        assert actor.program.argv == ["actor", "10.10.0.2:50051"]
        assert actor.program.env["EDGELINK_APP"] == "actor"
        learner.says(b"step 1\nst")
        actor.says(b"sent\n")
        await world.clock.advance(1)
        learner.says(b"ep 2\n")
        learner.ends(0)
        actor.ends(0)
        assert await _status(world, task) == 0
    assert sorted(world.log.splitlines()) == [b"actor   | sent", b"learner | step 1", b"learner | step 2"]


async def test_one_that_fails_too_often_ends_all_with_its_status(words: Words) -> None:
    world = pair(retries=1)
    world.listening.add(("10.10.0.2", 50051))
    async with running(world) as task:
        await world.has_started("learner")
        for times in (1, 2):
            (await world.has_started("actor", times)).ends(3)
        assert await _status(world, task) == 3
    assert len(world.started["actor"]) == 2
    assert world.now("learner").signals
    assert [(node, status) for node, status, _ in world.restarts] == [("edge-1", 3)]
    words("\n".join(world.said))


@pytest.mark.parametrize(
    ("rule", "status", "starts"), [("never", 0, 1), ("on-failure", 0, 1), ("always", 0, 2), ("on-failure", -9, 2)]
)
async def test_who_is_started_again_is_as_its_rule_says(rule: str, status: int, starts: int) -> None:
    world = World(one={"node": "cloud", "command": ["one"], "restart": rule})
    async with running(world):
        (await world.has_started("one")).ends(status)
        await world.clock.advance(60)
        assert len(world.started["one"]) == starts


async def test_the_end_of_an_app_that_ends_the_run_ends_the_others() -> None:
    world = World(
        learner={"node": "cloud", "command": ["learner"], "ends_run": True},
        actor={"node": "edge-1", "command": ["actor"]},
    )
    async with running(world) as task:
        await world.has_started("actor")
        (await world.has_started("learner")).ends(0)
        assert await _status(world, task) == 0
    assert world.now("actor").signals


async def test_a_node_that_is_away_at_the_start_is_waited_for_and_told_once() -> None:
    world = World(one={"node": "edge-1", "command": ["one"]}, settings={"retries": 0})
    world.refuses = RemoteProgramError("edge-1 does not answer", reason="NodeSilent")
    async with running(world) as task:
        await world.clock.advance(120)
        assert [line for line in world.said if "waits" in line] == ["one waits: edge-1 does not answer"]
        world.refuses = None
        (await world.has_started("one")).ends(0)
        assert await _status(world, task) == 0


async def test_a_program_that_a_node_refuses_ends_the_run() -> None:
    world = World(one={"node": "edge-1", "command": ["one"]})
    world.refuses = RemoteProgramError("it takes none", reason="ExecRefused")
    async with running(world) as task:
        await _until(world, task.done)
        with refuses(RemoteProgramError, reason="ExecRefused"):
            task.result()


async def test_an_app_whose_node_is_lost_is_started_again_and_counts() -> None:
    world = World(one={"node": "edge-1", "command": ["one"]}, settings={"retries": 1})
    async with running(world) as task:
        for times in (1, 2):
            (await world.has_started("one", times)).ends(ConnectionLostError("edge-1: the connection broke"))
        assert await _status(world, task) == ExitCode.NODE_LOST


async def test_a_paused_node_is_told_and_its_app_is_left_alone(words: Words) -> None:
    world = pair()
    world.listening.add(("10.10.0.2", 50051))
    async with running(world):
        await world.has_started("actor")
        world.silent = {"edge-1": "no answer", "edge-7": "no answer"}
        await world.clock.advance(62)
        world.silent = {}
        await world.clock.advance(4)
        words("\n".join(world.said))
        assert len(world.started["actor"]) == 1


LEARNERS, ACTORS = ("10.10.0.2:50051", "10.10.0.3:41000"), ("10.10.0.3:41000", "10.10.0.2:50051")


def moved(count: int) -> dict[Ends, int]:
    return {LEARNERS: count}


async def test_what_moves_nothing_is_started_again_the_client_first(words: Words) -> None:
    """The one that listens is left alone at first: it may hold what was learned. The next time it goes as well."""
    world = pair(stuck_after="30s")
    world.listening.add(("10.10.0.2", 50051))
    async with running(world):
        await world.has_started("actor")
        for count in range(1, 20):
            world.connected["cloud"] = moved(count)
            await world.clock.advance(10)
        assert len(world.started["actor"]) == 1
        await world.has_started("actor", 2)
        assert len(world.started["learner"]) == 1
        world.connected["cloud"] = moved(500)
        await world.clock.advance(10)
        await world.has_started("actor", 3)
        await world.has_started("learner", 2)
        words("\n".join(world.said))


async def test_nothing_is_stuck_while_a_node_does_not_answer_that_the_daemon_still_believes_in() -> None:
    """A link is cut for some seconds before the daemon says so. Once it answers, the time begins anew."""
    world = pair(stuck_after="6s")
    world.listening.add(("10.10.0.2", 50051))
    async with running(world):
        await world.has_started("actor")
        world.connected["cloud"] = moved(5)
        await world.clock.advance(3)
        world.unheard = {"edge-1"}
        await world.clock.advance(60)
        world.unheard = set()
        await world.clock.advance(4)
        assert len(world.started["actor"]) == 1
        await world.has_started("actor", 2)


async def test_a_node_that_has_just_started_may_refuse_for_a_moment() -> None:
    world = World(one={"node": "edge-1", "command": ["one"]})
    world.refuses = RemoteProgramError("it takes none", reason="ExecRefused")
    async with running(world) as task:
        await world.clock.advance(10)
        world.refuses = None
        (await world.has_started("one")).ends(0)
        assert await _status(world, task) == 0


@pytest.mark.parametrize(("learner", "back"), [("cloud", "edge-1"), ("edge-2", "edge-1"), ("edge-2", "edge-2")])
@pytest.mark.parametrize("has_it", [True, False])
async def test_a_connection_is_closed_only_when_its_other_end_is_gone(has_it: bool, learner: str, back: str) -> None:
    """The kernel of the node that is back is asked. What it still has was only silent."""
    world = World(
        learner={"node": learner, "command": ["learner"], "listens": 50051},
        actor={"node": "edge-1", "command": ["actor"], "after": "learner"},
    )
    address = NODES[learner].overlay_ip
    world.listening.add((address, 50051))
    theirs = (f"{address}:50051", "10.10.0.3:41000")
    both = {learner: theirs, "edge-1": (theirs[1], theirs[0])}
    async with running(world):
        await world.has_started("actor")
        world.silent = {back: "no answer"}
        await world.clock.advance(10)
        for node, ends in both.items():
            if has_it or node != back:
                world.connected.setdefault(node, {})[ends] = 7
        world.silent = {}
        await world.clock.advance(5)
        (here,) = both.keys() - {back}
        assert set(world.closed) == (set() if has_it else {(here, both[here])})


@pytest.mark.parametrize("has_it", [True, False])
async def test_an_app_that_ended_with_its_machine_is_started_again_when_the_node_is_back(has_it: bool) -> None:
    """The node is asked whether it has the connection of that program: TCP itself needs up to 15 s."""
    world = pair()
    world.listening.add(("10.10.0.2", 50051))
    async with running(world):
        await world.has_started("actor")
        world.silent = {"edge-1": "no answer"}
        await world.clock.advance(10)
        if not has_it:
            world.connected["edge-1"].clear()
        world.silent = {}
        await world.clock.advance(5)
        assert len(world.started["actor"]) == (1 if has_it else 2)
