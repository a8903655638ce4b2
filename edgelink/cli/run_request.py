"""The open request of a run, on its caller's side: followed while the driver runs, taken up again with a new daemon."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgelink.api.client import SILENCE_S, DaemonNotRunningError, EventStream, call
from edgelink.backoff import Backoff
from edgelink.cli.patience import saying
from edgelink.clock import Clock
from edgelink.duration import brief
from edgelink.errors import EdgelinkError
from edgelink.ray_cluster.pause import pause_in_words
from edgelink.training.driver import DriverControl
from edgelink.training.run_record import RunRecord
from edgelink.training.supervision import NodeWatch, Supervision
from edgelink.wording import node_name

_TICK_S = 0.5
_LOOK_EVERY = 10  # ticks
# What asking again does not mend: the lock is another's, or not for us; Ray was stopped by a command; the wait is over.
_LASTING = ("RunInProgress", "PermissionDenied", "Usage", "RayStopped", "PlacementInvalid", "NodesMissing")


def may_pass(error: EdgelinkError) -> bool:
    """Whether a run that was granted once asks again: the daemon is away, say, or a new one's interpreter is slow."""
    return error.condition_reason not in _LASTING


def back_off() -> Backoff:
    """The delays between requests to a daemon that is away, or in trouble."""
    return Backoff(first_s=0.5, cap_s=5.0)


class RunRequest:
    """One ``POST /run`` or ``/run/apps``. The run lock is ours while it is open.

    Its end is noticed and mended from a thread.
    """

    def __init__(
        self,
        socket_path: Path,
        body: dict[str, Any],
        record: Callable[[], RunRecord],
        clock: Clock,
        say: Callable[[str], None],
        *,
        path: str = "/run",
    ) -> None:
        self._path = path
        self.nodes = NodeWatch([])
        self._socket_path = socket_path
        self._body = body
        self._record = record
        self._clock = clock
        self._say = say
        self._lock = threading.Lock()  # around nodes
        self._stream: EventStream | None = None
        self._closing = threading.Event()
        self._not_alive: tuple[str, ...] = ()
        self._paused_since_s: dict[str, float] = {}  # by name

    def wait_until_granted(self, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The grant; ``show`` gets who is waited for.

        Raises:
            DaemonError: refused, or the nodes were not there in time.
            DaemonNotRunningError: no daemon answers, or it ended or hung meanwhile.
        """
        stream = self._stream = self._open(running=False)
        try:
            for event in saying("waiting for the head's daemon to answer", lambda: stream):
                if event["event"] == "granted":
                    self._stream.allow_silence()
                    return event
                show(event)
        except BaseException:
            self._stream.close()
            raise
        raise DaemonNotRunningError(
            "the head daemon ended while the run was waiting", hint="`edgelink status` and its log say why"
        )

    def follow(
        self,
        nodes: list[dict[str, Any]],
        supervision: Supervision,
        control: DriverControl,
        look: Callable[[], None],
    ) -> None:
        """From now on watch the nodes, and end the driver through ``control`` when ``supervision`` says so.

        ``look`` is called every few seconds, from another thread.
        """
        self.nodes = NodeWatch(nodes)
        self.keep()
        threading.Thread(target=self._guard, args=(supervision, control, look), name="guard", daemon=True).start()

    def keep(self) -> None:
        """From now on take the request up again, and with it the lock, whenever the daemon was restarted."""
        threading.Thread(target=self._read, name="nodes", daemon=True).start()

    def tell_record(self) -> None:
        """Hand the account of the run to the daemon; one that is away gets it when the request is taken up again."""
        with contextlib.suppress(EdgelinkError):
            call(self._socket_path, "POST", "/run/record", {"record": self._record().model_dump(mode="json")})

    def tell_metrics(self, run_id: str, points: list[dict[str, Any]]) -> None:
        """Hand what the driver said of its steps to the daemon; one that is away goes without."""
        with contextlib.suppress(EdgelinkError):
            call(self._socket_path, "POST", "/run/metrics", {"run_id": run_id, "points": points})

    def close(self) -> None:
        """Let go of the lock."""
        self._closing.set()
        if self._stream is not None:
            self._stream.close()

    def _open(self, *, running: bool) -> EventStream:
        body = {**self._body, "running": running, "record": self._record().model_dump(mode="json")}
        return EventStream(self._socket_path, "POST", self._path, body, timeout_s=SILENCE_S)

    def _read(self) -> None:
        assert self._stream is not None
        backoff, said = back_off(), set[str]()
        while not self._closing.is_set():
            trouble = "the head daemon is away; what runs goes on"
            try:
                for event in (stream := self._stream):
                    if event["event"] == "granted":  # to one that was taken up again
                        stream.allow_silence()
                        self._say("the head daemon is back; this run keeps its lock")
                        backoff.reset()
                        said.clear()
                    self._update(event.get("nodes", []))
            except DaemonNotRunningError:
                pass
            except EdgelinkError as error:
                if not may_pass(error):
                    self._say(f"this run has lost its lock, and goes on: {error}")
                    return
                trouble = f"the head daemon cannot go on with this run yet; what runs goes on: {error}"
            if not self._closing.is_set():
                if trouble not in said:
                    said.add(trouble)
                    self._say(trouble)
                self._take_up_again(backoff)

    def _take_up_again(self, backoff: Backoff) -> None:
        """Ask the next daemon that answers; it has not granted anything yet."""
        while not self._closing.wait(backoff.next_s()):
            with contextlib.suppress(DaemonNotRunningError):
                stream = self._open(running=True)
                self._stream = stream
                if self._closing.is_set():
                    stream.close()
                return

    def _update(self, nodes: list[dict[str, Any]]) -> None:
        with self._lock:
            self.nodes.update(nodes, self._clock.monotonic_s())
        if not all(node.get("ray_known", True) for node in nodes):
            return  # until somebody can say who is alive, what was said last holds
        self._tell_pauses(nodes)
        not_alive = tuple(
            node_name(node) for node in nodes if not node["ready"] and node_name(node) not in self._paused_since_s
        )
        if not_alive != self._not_alive:
            self._not_alive = not_alive
            names = ", ".join(not_alive)
            self._say(f"not alive in Ray: {names}" if names else "all nodes are alive in Ray again")

    def _tell_pauses(self, nodes: list[dict[str, Any]]) -> None:
        """Say who does not answer any more, and who does again."""
        now_s, before = self._clock.monotonic_s(), self._paused_since_s
        paused = {node_name(node): node for node in nodes if node.get("state") == "paused"}
        self._paused_since_s = {name: before.get(name, now_s - node["paused_s"]) for name, node in paused.items()}
        for name in paused.keys() - before.keys():
            node = paused[name]
            why = pause_in_words(node["paused_s"], node["gives_up_in_s"], node["told_by"])
            self._say(f"{name} is paused, and what needs it waits: {why}")
        for name in [node_name(node) for node in nodes if node["ready"] and node_name(node) in before]:
            self._say(f"{name} answers again after {brief(now_s - before[name])}")

    def _guard(self, supervision: Supervision, control: DriverControl, look: Callable[[], None]) -> None:
        told: tuple[str, ...] = ()
        for tick in itertools.count():
            if self._closing.wait(_TICK_S):
                return
            if tick % _LOOK_EVERY == 0:
                look()
            now_s = self._clock.monotonic_s()
            with self._lock:
                self.nodes.tick(now_s)
                lost, is_enough = self.nodes.lost, supervision.ends_driver(self.nodes, now_s)
            if lost != told and control.is_running:
                told = lost
                self._say(f"Ray on {', '.join(lost)} died; its workers are gone")
            if is_enough and control.is_running:
                self._say("ending the driver, which is still there")
                control.end()
                return
