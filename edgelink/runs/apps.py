"""Programs on named nodes, kept together: started in order, started again where they fail, ended together (ADR 0048).

Each app has one task, which waits for the apps before it, runs the program, and decides by its end what follows. Two
more look at the nodes and at the ports. The run ends with the first app that cannot go on, or with the last one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.duration import brief
from edgelink.errors import EdgelinkError, ExitCode
from edgelink.launch.app_connections_asked import ConnectionsQuestion, Ends, without_other_end
from edgelink.launch.app_environment import app_environment
from edgelink.launch.apps_file import App, AppsFile, Where, filled
from edgelink.launch.node_programs import Running, Starter
from edgelink.launch.port_progress import PortProgress
from edgelink.launch.program_output import Write, in_lines
from edgelink.launch.remote_channel import PORT
from edgelink.launch.remote_program import REFUSED, Program
from edgelink.process.becoming import shell_status
from edgelink.timeouts import timeout

_LOOK_S = 1.0  # at the nodes
_ANSWERS_WITHIN_S = 2.0  # a port that is listened on
_KNOCK_S = 0.5
_TELL_S = 15.0  # again, what is waited for
_GRACE_S = 5.0  # between SIGTERM and the end of its connection, which ends it there
_LONGEST_LINE = 8 * 1024  # is cut into several
REFUSES_S = 30.0  # so long after its start a node may not take programs yet
MAY_PASS = ("NodeSilent", "NodePaused", "ConnectionLost", "DaemonNotRunning", "Stopped")
_LONG_LIFE_S = 600.0  # an app that lived so long has its tries again


class Surroundings(Protocol):
    """What an apps run looks at besides the programs."""

    async def silent_nodes(self) -> Mapping[str, str]:
        """Return why, by name, of each node that does not answer now."""

    async def knock(self, address: str, port: int) -> bool:
        """Return whether somebody listens there."""

    async def note_restart(self, where: Where, status: int, what: str) -> None:
        """Be told that an app on that node is started again, and why."""

    async def connections(self, where: Where, question: ConnectionsQuestion) -> Mapping[Ends, int]:
        """Return the bytes of each connection that a node is asked about. Raises EdgelinkError."""


@dataclass
class _Life:
    """One app, and what became of it so far."""

    name: str
    app: App
    failures: int = 0
    running: Running | None = None
    progress: PortProgress | None = None
    restart_why: str = ""


class AppsRun:
    """The apps of one file. :meth:`run` runs them once."""

    def __init__(
        self,
        file: AppsFile,
        nodes: Mapping[str, Where],
        folders: Mapping[str, str],
        starter: Starter,
        surroundings: Surroundings,
        *,
        say: Callable[[str], None],
        write: Write,
        clock: Clock,
    ) -> None:
        """Take what the run needs.

        Args:
            nodes: by name, all nodes that an app is to run on.
            folders: where the run's files lie, by node.
            say: gets what people are to know of the run.
            write: gets each line of an app with its prefix, and whether it is of the error stream.
        """
        self._file = file
        self._nodes = nodes
        self._folders = folders
        self._starter = starter
        self._surroundings = surroundings
        self._say = say
        self._write = write
        self._clock = clock
        self._lives = {name: _Life(name, app) for name, app in file.apps.items()}
        self._silent_since_s: dict[str, float] = {}
        self._doubted: set[str] = set()  # nodes that are back, and were not asked yet which connections they have
        self._is_ending = False
        self._width = max(map(len, file.apps))

    async def run(self) -> int:
        """Return the exit status of the run: of the app that ended it, else 0."""
        loop = asyncio.get_running_loop()
        apps = {loop.create_task(self._keep(life), name=life.name): life for life in self._lives.values()}
        looks = [loop.create_task(self._watch_nodes()), loop.create_task(self._watch_ports())]
        try:
            return await self._wait(apps)
        finally:
            self._is_ending = True
            for life in self._lives.values():
                if life.running is not None:
                    life.running.send_signal(signal.SIGTERM)
            left = [task for task in apps if not task.done()]
            if left:
                await asyncio.wait(left, timeout=_GRACE_S)
            for task in [*left, *looks]:
                task.cancel()
            await asyncio.gather(*apps, *looks, return_exceptions=True)

    async def _wait(self, apps: Mapping[asyncio.Task[int], _Life]) -> int:
        pending = set(apps)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                status, life = task.result(), apps[task]
                if status and pending:
                    self._say(f"{life.name} cannot go on (status {status}): ending {self._names(apps, pending)}")
                if status == 0 and life.app.ends_run and pending:
                    self._say(f"{life.name} has ended, and with it the run: ending {self._names(apps, pending)}")
                if status or life.app.ends_run:
                    return status
        return ExitCode.OK

    @staticmethod
    def _names(apps: Mapping[asyncio.Task[int], _Life], tasks: set[asyncio.Task[int]]) -> str:
        return ", ".join(sorted(apps[task].name for task in tasks))

    async def _keep(self, life: _Life) -> int:
        """Run one app until it has ended for good, and return its exit status."""
        backoff = Backoff(first_s=1.0, cap_s=30.0)
        said, refused_s = "", 0.0
        while True:
            await self._wait_for_others(life)
            begun_s = self._clock.monotonic_s()
            try:
                status = await self._once(life)
                said, refused_s = "", 0.0
            except EdgelinkError as error:
                if error.condition_reason == REFUSED and life.running is None:
                    refused_s = refused_s or begun_s
                may_pass = error.condition_reason == REFUSED and begun_s - refused_s < REFUSES_S
                if not (may_pass or error.retryable or error.condition_reason in MAY_PASS):
                    raise
                if life.running is None:  # it did not start: its node is away, and is waited for
                    if error.message != said:
                        said = error.message
                        self._say(f"{life.name} waits: {error}")
                    await self._clock.sleep(backoff.next_s())
                    continue
                self._say(f"{life.name}: {error}")
                status = ExitCode.NODE_LOST
            finally:
                life.running = None
            if self._is_ending or not self._goes_on(life, status):
                return status
            if self._clock.monotonic_s() - begun_s >= _LONG_LIFE_S:
                life.failures = 0
                backoff.reset()
            life.failures += 1
            why, life.restart_why = life.restart_why or f"it ended with status {status}", ""
            if life.failures > self._file.retries:
                self._say(f"{life.name}: {why}, and has no retry left (retries: {self._file.retries})")
                return status or ExitCode.FAILED
            what = f"{life.name} is started again ({life.failures} of {self._file.retries}): {why}"
            self._say(what)
            await self._surroundings.note_restart(self._nodes[life.app.node], status, what)
            await self._clock.sleep(backoff.next_s())

    @staticmethod
    def _goes_on(life: _Life, status: int) -> bool:
        if life.restart_why:
            return True
        return life.app.restart == "always" or (life.app.restart == "on-failure" and status != 0)

    async def _once(self, life: _Life) -> int:
        """Run the program once. Raises EdgelinkError when it does not start, or is not heard of any more."""
        app, where = life.app, self._nodes[life.app.node]
        folder = self._folders[app.node]

        def text(of: str) -> str:
            return filled(of, self._file, self._nodes, folder)

        own = {name: text(value) for name, value in app.env.items()}
        program = Program(
            [text(part) for part in app.argv],
            {**app_environment(life.name, self._file, self._nodes), **own},
            cwd=text(app.cwd or folder) or None,
        )
        async with self._starter.start(where, program) as running:
            life.running = running
            self._say(f"{life.name} runs on {app.node}")
            self._forget_progress(life)
            prefix = f"{life.name:<{self._width}} | ".encode()
            await in_lines(running.output(), prefix, self._write, longest=_LONGEST_LINE)
        assert running.status is not None
        return shell_status(running.status)

    async def _wait_for_others(self, life: _Life) -> None:
        """Return when the apps that this one starts after answer on all their ports. Says what it waits for."""
        told_s: float | None = None
        begun_s = self._clock.monotonic_s()
        while missing := await self._unanswered(life.app):
            now_s = self._clock.monotonic_s()
            if told_s is None or now_s - told_s >= _TELL_S:
                waited = "" if told_s is None else f", for {brief(now_s - begun_s)} now"
                self._say(f"{life.name} waits until {missing} answers{waited}")
                told_s = now_s
            await self._clock.sleep(_KNOCK_S)

    async def _unanswered(self, app: App) -> str:
        for other in app.after:
            before = self._file.apps[other]
            for port in before.listens:
                if not await self._surroundings.knock(self._nodes[before.node].overlay_ip, port):
                    return f"{other} (port {port} of {before.node})"
        return ""

    async def _watch_nodes(self) -> None:
        """Say which nodes of the run do not answer, and which do again."""
        used = {app.node for app in self._file.apps.values()}
        while True:
            silent, now_s = await self._surroundings.silent_nodes(), self._clock.monotonic_s()
            for node in used & silent.keys() - self._silent_since_s.keys():
                self._silent_since_s[node] = now_s
                names = ", ".join(sorted(name for name, app in self._file.apps.items() if app.node == node))
                self._say(f"{node} is paused, {silent[node]}: {names} may go on there, and what needs it waits")
            for node in tuple(self._silent_since_s.keys() - silent.keys()):
                self._say(f"{node} answers again after {brief(now_s - self._silent_since_s.pop(node))}")
                self._doubted.add(node)
            for node in tuple(self._doubted - silent.keys()):
                if await self._are_free(node):
                    self._doubted.discard(node)
            await self._clock.sleep(_LOOK_S)

    async def _watch_ports(self) -> None:
        """Start anew what is stuck: first who talks to the ports where nothing moves, then who listens there, too."""
        if self._file.stuck_after is None:
            return
        watched = [life for life in self._lives.values() if life.app.listens]
        for life in watched:
            life.progress = PortProgress(self._file.stuck_after)
        retried: set[str] = set()
        while True:
            await self._clock.sleep(self._file.stuck_after / 6)
            for life in watched:
                clients = [other for other in self._lives.values() if life.name in other.app.after]
                involved = [life, *clients]
                if any(each.running is None for each in involved) or life.progress is None:
                    continue
                if (seen := await self._connections(life.app.node, ConnectionsQuestion(life.app.listens))) is None:
                    continue
                now_s, nodes = self._clock.monotonic_s(), {each.app.node for each in involved}
                answer = self._silent_since_s.keys().isdisjoint(nodes)
                if not life.progress.is_stuck(seen, now_s, all_answer=answer):
                    continue
                if not await self._all_answer(nodes):  # the daemon needs some seconds to see that a node is silent
                    life.progress.is_stuck(seen, now_s, all_answer=False)
                    continue
                meant = clients if clients and life.name not in retried else involved
                retried ^= {life.name}
                ports = ", ".join(map(str, life.app.listens))
                why = f"not a byte moved on port {ports} of {life.app.node} for {brief(self._file.stuck_after)}"
                life.progress.forget()
                for each in meant:
                    await self._end_for(each, why)

    async def _all_answer(self, nodes: Iterable[str]) -> bool:
        """Ask each of them at this moment."""
        answers = [await self._connections(node, ConnectionsQuestion(())) for node in nodes]
        return None not in answers

    def _forget_progress(self, started: _Life) -> None:
        for life in self._lives.values():
            if life.progress is not None and (life is started or life.name in started.app.after):
                life.progress.forget()

    async def _end_for(self, life: _Life, why: str) -> None:
        """End the program that runs now, so that it is started again."""
        running, life.restart_why = life.running, why
        for number in (signal.SIGTERM, signal.SIGKILL):
            if running is None or life.running is not running:
                return
            running.send_signal(number)
            deadline_s = self._clock.monotonic_s() + _GRACE_S
            while life.running is running and self._clock.monotonic_s() < deadline_s:
                await self._clock.sleep(_KNOCK_S)

    async def _are_free(self, node: str) -> bool:
        """Close the connections of apps whose other end, on a node that is back, is gone: it may have started anew.

        Its kernel is asked for them. A connection that it still has is left alone, however long it was silent.

        Returns:
            Whether it, and each node that talks to it, has answered.
        """
        if not await self._give_up_ended(node):
            return False
        for life in self._lives.values():
            server = life.app.node
            clients = {each.app.node for each in self._lives.values() if life.name in each.app.after}
            others = clients if node == server else clients & {node}
            for other in others - {server} - self._silent_since_s.keys():
                here, there = (other, server) if node == server else (server, other)
                if not await self._close_without_other_end(life, here, there):
                    return False
        return True

    async def _give_up_ended(self, node: str) -> bool:
        """Give up the programs on a node whose connection to this command it no longer has: they ended with it."""
        running = [life.running for life in self._lives.values() if life.app.node == node and life.running is not None]
        if not any(each.connection for each in running):
            return True
        if (known := await self._connections(node, ConnectionsQuestion((PORT,)))) is None:
            return False
        for each in running:
            if each.connection is not None and each.connection not in known:
                each.give_up()
        return True

    async def _close_without_other_end(self, life: _Life, here: str, there: str) -> bool:
        """Close the connections of ``life`` between two nodes of which ``there`` has no end. Returns whether both say.

        ``here`` is asked first: what it has by then, and the other one has not a moment later, has ended there.
        """
        ports, ips = life.app.listens, (self._nodes[here].overlay_ip, self._nodes[there].overlay_ip)
        if not (seen := await self._connections(here, ConnectionsQuestion(ports, ips[1]))):
            return seen is not None
        known = await self._connections(there, ConnectionsQuestion(ports, ips[0]))
        if known is None:
            return False
        if gone := without_other_end(list(seen), list(known)):
            if await self._connections(here, ConnectionsQuestion(ports, ips[1], gone)) is None:
                return False
            told = "a connection" if len(gone) == 1 else f"{len(gone)} connections"
            self._say(f"{life.name}: {told} of {here} had no other end on {there} any more: closed")
        return True

    async def _connections(self, node: str, question: ConnectionsQuestion) -> Mapping[Ends, int] | None:
        """Return what a node answers. None: it does not."""
        try:
            async with timeout(_ANSWERS_WITHIN_S):
                return await self._surroundings.connections(self._nodes[node], question)
        except (EdgelinkError, TimeoutError):
            return None
