"""How a daemon lives and ends: named tasks under one owner, stopped in order by a signal or a request.

Ctrl+C, a request to stop and a container's SIGTERM end this node's children with the daemon. Under systemd it is the
job that decides: `systemctl stop` and shutdown end them; `systemctl restart`, and a SIGTERM that systemd knows nothing
of, leave them to the next daemon, which adopts them. So they are after a crash: a defect of ours is no reason to end
what works. SIGHUP has a daemon without a terminal read its configuration again, in the same way: it executes itself
anew, if the configuration can be used, and adopts its children.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.config import Config, load_config
from edgelink.errors import ConfigError, EdgelinkError, SignalledError, first_failure
from edgelink.log import get_logger
from edgelink.process.service_manager import ServiceManager

log = get_logger("daemon")


class ReloadRequested(Exception):  # noqa: N818 - no failure
    """The daemon has ended so that its program is executed anew in the same process, with the configuration of now."""


class StopRequest:
    """Whether, and how, the daemon was asked to end."""

    def __init__(
        self,
        manager: ServiceManager | None,
        *,
        require_usable: Callable[[Config], None],
        before_end: Callable[[], None],
    ) -> None:
        """``before_end`` is called however the end was asked for, also when the daemon crashed.

        ``require_usable`` raises ConfigError of a configuration that no daemon could use here.
        """
        self._event = asyncio.Event()
        self._manager = manager
        self._require_usable = require_usable
        self._ask_manager = False
        self._is_reload = False
        self.keep_children = False
        self.before_end = before_end

    def request(self, *, keep_children: bool = False) -> None:
        """To end; in place of a reload that was asked for a moment ago."""
        self._is_reload = False
        self.keep_children = keep_children
        self.before_end()
        self._event.set()

    def route(self) -> Route:
        """Return ``POST /stop``."""

        async def stop(caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
            caller.require()
            self.request()
            return {}

        return route("POST", "/stop", stop)

    @property
    def is_requested(self) -> bool:
        """Whether somebody asked. A daemon also ends because of an error."""
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    def listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.request)
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        if not has_terminal():  # there a SIGHUP means that it was closed
            loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _terminated(self) -> None:
        self._ask_manager = self._manager is not None and bool(self._manager.unit)
        self.request()

    def _reload(self) -> None:
        if self._event.is_set():
            return  # it ends, or is about to read it
        try:
            self._require_usable(load_config())
        except ConfigError as error:
            log.warning("daemon.reload_refused", error=str(error), why="the daemon goes on with what it has")
            return
        log.info("daemon.reloading")
        if self._manager is not None:
            self._manager.notify(RELOADING="1", STATUS="Reading its configuration again", WATCHDOG="1")
        self.request(keep_children=True)
        self._is_reload = True

    async def settle(self) -> None:
        """Tell systemd that we end, and find out what its SIGTERM means for the children.

        Raises:
            SignalledError: it did not send one. The children are kept.
            ReloadRequested: it was no SIGTERM. The children are kept.
        """
        if self._is_reload and not self._ask_manager:
            raise ReloadRequested
        if self._manager is None:
            return
        self._manager.notify(STOPPING="1", STATUS="Stopping")
        if not self._ask_manager:
            return
        job = await self._manager.queued_job()
        self.keep_children = job != "stop"
        if job is None:
            unit = self._manager.unit
            raise SignalledError(
                f"SIGTERM, but systemd neither stops nor restarts {unit}; this node's EasyTier and Ray go on",
                hint=f"`systemctl stop {unit}` ends them too",
            )

    async def say_offline(self) -> None:
        """What needs this node is told that it goes, before it goes."""
        if self._manager is not None:
            await self._manager.say_offline()


def has_terminal() -> bool:
    """Whether somebody's terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def run_until_stopped(
    stop: StopRequest,
    life: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]],
    stop_children: Callable[[], Awaitable[None]],
) -> None:
    """Run ``life(task_group)`` and all tasks it spawns until ``stop``; then end the children in order.

    The tasks are cancelled before the children are stopped, so that no reconciler brings back what is being ended.

    Raises:
        EdgelinkError: why the node cannot live. Its children are ended, nothing half-started is left behind.
        ReloadRequested: whoever runs the daemon is to execute its program anew. Its children go on.
        Exception: a defect in ``life`` or one of its tasks. The children are left to the next daemon.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_cancel_when_stopped(stop, tasks.create_task(_live(life), name="life")), name="stop")
    except* _Stopped:
        pass
    except* Exception as group:
        failure = first_failure(group)
    crashed = failure is not None and not isinstance(failure, EdgelinkError)
    if failure is not None:
        stop.before_end()
    try:
        await stop.settle()
    except (SignalledError, ReloadRequested) as error:
        failure = failure or error
    if stop.keep_children or crashed:
        why = "this daemon crashed" if crashed else "this daemon is restarted"
        log.info("daemon.leaving_children", why=f"{why}; the next one adopts them")
    else:
        log.info("daemon.stopping")
        await stop.say_offline()
        await _stop_after(failure, stop_children)
    if failure is not None:
        raise failure


async def end_all(*ends: Callable[[], Awaitable[None]]) -> None:
    """End one part after the other, also when one of them does not end.

    Raises:
        EdgelinkError: the first that did not.
        Exception: the same, where it was not expected, such as a disk that has become read-only.
    """
    first: Exception | None = None
    for end in ends:
        try:
            await end()
        except EdgelinkError as error:
            log.warning("daemon.stop_failed", reason=error.condition_reason, error=str(error))
            first = first or error
        except Exception as error:  # of this part; the others are ended all the same
            log.exception("daemon.stop_crashed")
            first = first or error
    if first is not None:
        raise first


async def _stop_after(failure: Exception | None, stop_children: Callable[[], Awaitable[None]]) -> None:
    try:
        await stop_children()
    except EdgelinkError:
        if failure is None:
            raise  # else the failure is what people have to read; end_all has logged this one


class _Stopped(Exception):  # noqa: N818 - ends a task group, is not an error
    pass


async def _live(life: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        await life(tasks)
        await asyncio.Event().wait()  # tasks that end on their own do not end the daemon


async def _cancel_when_stopped(stop: StopRequest, life: asyncio.Task[None]) -> None:
    await stop.wait()
    life.cancel()
    raise _Stopped
