"""An event loop whose time goes on only when nothing is left to do, and whose programs are functions.

A daemon waits by its clock and by ``asyncio.timeout``. On this loop both are virtual: when every task waits, the loop
jumps to the moment at which the next one is due. An hour takes as long as what happens in it.

Tasks that are ready at one moment run in an order that is drawn by a seed. asyncio promises none between tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_FIRST_PID = 1 << 23  # more than any kernel gives
_MOST_TURNS = 50_000  # at one moment, before two tasks are said to wake each other for ever


class LoopClock:
    """The clock of a daemon that runs on a :class:`VirtualLoop`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def boottime_s(self) -> float:
        return self.monotonic_s()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic_s())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Program:
    """What one pretended program sees of itself."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], transport: _ProgramTransport
    ) -> None:
        self.arguments = arguments
        self.environment = environment
        self._transport = transport

    async def read(self) -> str:
        """Return all of its standard input, once that has ended."""
        await self._transport.input_ended.wait()
        return self._transport.input.decode()

    async def read_line(self) -> str:
        """Return the first line of its standard input. Empty: that has ended."""
        while b"\n" not in self._transport.input and not self._transport.input_ended.is_set():
            await self._transport.came.wait()
            self._transport.came.clear()
        return self._transport.input.partition(b"\n")[0].decode()

    def hang_up(self) -> None:
        """Its standard input ends, as when the one who started it is gone."""
        self._transport.hang_up()

    def print(self, text: str) -> None:
        self._transport.say(1, text)

    def complain(self, text: str) -> None:
        self._transport.say(2, text)


Run = Callable[[Program], Awaitable[int]]  # the exit status


class Outside(Protocol):
    """What is around the tasks of a loop.

    Attributes:
        programs: what programs do, by their file's name. Any other one is not found.
    """

    programs: Mapping[str, Run]

    def listens(self, host: str, port: int, source: str) -> bool:
        """Whether somebody listens at this address and port for who connects from ``source``."""

    def stands_still(self, context: Context) -> bool:
        """Whether what runs in this context is stopped, as by SIGSTOP."""


class Nobody:
    """No programs, and nobody who listens."""

    programs: Mapping[str, Run] = MappingProxyType({})

    def listens(self, host: str, port: int, source: str) -> bool:
        return False

    def stands_still(self, context: Context) -> bool:
        return False


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. ``seed`` draws the order of tasks."""

    def __init__(self, seed: int, outside: Outside) -> None:
        self._now_s = 0.0
        self._turns = 0
        self._dice = random.Random(seed)  # noqa: S311 - an order, no secret
        self._outside = outside
        self._pids = itertools.count(_FIRST_PID)
        self._held: list[Any] = []  # what stands still
        self.signals: dict[int, Callable[..., object]] = {}
        super().__init__(_Jumping(self))
        self.set_default_executor(_Inline(max_workers=1))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        """Nobody has anything to do for so long."""
        self._now_s += seconds
        self._turns = 0

    def _run_once(self) -> None:
        self._turns += 1
        self._clock_resolution = math.ulp(self._now_s)  # whoever has the least of time left waits for it
        if self._turns > _MOST_TURNS:
            self._turns = 0
            raise AssertionError(f"tasks wake each other for ever at {self._now_s:g} s")
        ready: Any = self._ready  # type: ignore[attr-defined]
        everything, self._held = [*self._held, *ready], []
        ready.clear()
        for handle in everything:
            (self._held if self._outside.stands_still(handle._context) else ready).append(handle)
        places = [place for place, handle in enumerate(ready) if _is_task(handle)]
        if len(places) > 1:
            drawn = [ready[place] for place in places]
            self._dice.shuffle(drawn)
            for place, handle in zip(places, drawn, strict=True):
                ready[place] = handle
        super()._run_once()  # type: ignore[misc]

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Several daemons share this process, whose signals are not theirs."""
        self.signals[sig] = callback

    async def subprocess_exec(
        self, protocol_factory: Callable[[], Any], program: Any, *args: Any, **options: Any
    ) -> tuple[Any, Any]:
        run = self._outside.programs.get(Path(program).name)
        if run is None:
            raise FileNotFoundError(2, "No such file or directory", str(program))
        protocol = protocol_factory()
        piped = [stream for stream, name in enumerate(("stdin", "stdout", "stderr")) if _is_pipe(options.get(name))]
        transport = _ProgramTransport(self, protocol, next(self._pids), piped)
        protocol.connection_made(transport)
        transport.start(run, tuple(map(str, args)), options.get("env") or {})
        return transport, protocol

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        source = (options.get("local_addr") or ("", 0))[0]
        if not self._outside.listens(str(host), int(port), str(source)):
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = protocol_factory()
        transport = _Connection(self, protocol)
        protocol.connection_made(transport)
        return transport, protocol


def run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on ``loop`` and close that."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing real: what comes by a real socket comes from this very process, and is there already."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is None:
            raise AssertionError("every task waits, and nobody will wake one")
        self._loop.jump(timeout)
        return found


class _Inline(ThreadPoolExecutor):
    """A thread would take real time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # as a thread would
            done.set_exception(error)
        return done


class _ProgramTransport(asyncio.SubprocessTransport):
    """A program that runs as a task of the loop."""

    def __init__(self, loop: VirtualLoop, protocol: Any, pid: int, piped: list[int]) -> None:
        super().__init__()
        self.input = bytearray()
        self.came, self.input_ended = asyncio.Event(), asyncio.Event()
        self._loop, self._protocol, self._pid = loop, protocol, pid
        self._pipes: dict[int, Any] = {stream: _Pipe(self) if stream == 0 else _Pipe(None) for stream in piped}
        self._status: int | None = None
        self._ended = asyncio.Event()
        self._is_closing = False

    def start(self, run: Run, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        async def live() -> int:
            return await run(Program(arguments, environment, self))

        self._task = self._loop.create_task(live(), name=f"program {arguments[:1]}")
        self._task.add_done_callback(self._end)

    def hang_up(self) -> None:
        self.input_ended.set()
        self.came.set()

    def say(self, stream: int, text: str) -> None:
        if stream in self._pipes:
            self._protocol.pipe_data_received(stream, text.encode())

    def _end(self, task: asyncio.Task[int]) -> None:
        self._status = -9 if task.cancelled() else task.result()
        self._ended.set()
        for stream in list(self._pipes):
            self._protocol.pipe_connection_lost(stream, None)
        self._protocol.process_exited()
        self._is_closing = True

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._status

    def get_pipe_transport(self, fd: int) -> Any:
        return self._pipes.get(fd)

    def kill(self) -> None:
        if self._status is not None:
            raise ProcessLookupError
        self._task.cancel()

    terminate = kill

    def close(self) -> None:
        self._is_closing = True
        if self._status is None:
            self._task.cancel()

    def is_closing(self) -> bool:
        return self._is_closing

    async def _wait(self) -> int | None:
        await self._ended.wait()
        return self._status


class _Pipe(asyncio.WriteTransport):
    """One end of a program's standard input; of the others only that they are there counts."""

    def __init__(self, of: _ProgramTransport | None) -> None:
        super().__init__()
        self._of = of
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert self._of is not None
        self._of.input += data
        self._of.came.set()

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        if self._of is not None:
            self._of.hang_up()


class _Connection(asyncio.Transport):
    """A connection on which nobody says anything."""

    def __init__(self, loop: VirtualLoop, protocol: Any) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)


def _is_task(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _is_pipe(option: Any) -> bool:
    return bool(option == asyncio.subprocess.PIPE)
