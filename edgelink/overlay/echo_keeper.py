"""Keep the echo responder running: one a machine, adopted by the next daemon, ended with the overlay.

Relay and head on one machine share one overlay address, and so one responder: whoever holds the lock keeps it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import ECHO_ANSWERED
from edgelink.conditions import is_so, is_unknown
from edgelink.config import Paths
from edgelink.errors import OverlayError
from edgelink.facts.board import Board
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.files import private_directory
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo_proof import PROOF_VERSION
from edgelink.overlay.echo_wire import NOBODY, PORT, VERSION
from edgelink.overlay.ownership import Ownership
from edgelink.process import ProcessSpec, SupervisedProcess, output
from edgelink.process.ports import port_holder
from edgelink.process.restart_policy import RestartPolicy

_TAKE_OVER_LOOK_S = 2.0
_RESPONDER = Path(__file__).with_name("echo_responder.py")  # by its path, which the kernel shows
_LOG_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Seen:
    """What the part itself has seen.

    Attributes:
        at_s: when that was, on the monotonic clock. Long ago: it has not looked, or the responder has ended since.
        is_ours: no other daemon of this machine keeps the responder.
        runs: which responder runs. None: none does.
        start_s: when the next one may be started.
        changes: how often a responder has ended.
    """

    at_s: float = float("-inf")
    is_ours: bool = False
    runs: str | None = None
    start_s: float = 0.0
    changes: int = 0


@dataclass(frozen=True)
class Inputs:
    """What the echo responder depends on."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool
    own: Seen


@dataclass(frozen=True)
class Look(Action):
    """See whether the responder is ours, and adopt a predecessor's."""


@dataclass(frozen=True)
class Stop(Action):
    """End the responder, which is another than the one that is wanted."""


@dataclass(frozen=True)
class Start(Action):
    """Start the responder for this overlay. Where another one has ended unasked, see to that first."""

    spec: OverlaySpec


Do = Look | Stop | Start


class EchoKeeper(Part[Inputs, Do]):
    """Sets ``EchoAnswered``; the only one that starts and stops the responder."""

    name: ClassVar[str] = "echo"
    condition: ClassVar[str] = ECHO_ANSWERED.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], paths: Paths, process: SupervisedProcess, clock: Clock) -> None:
        super().__init__(board, own=Seen())
        self.own: Seen
        self.process = process
        self._log_path: Path = paths.logs / "echo.log"
        self._logs = paths.logs
        self._key: Path = paths.node_key
        self._ownership = Ownership(paths.runtime / "echo.lock")
        self._clock = clock
        self._restarts = RestartPolicy(clock, first_s=0.5, cap_s=30.0)
        self._started = asyncio.Event()
        self._has_adopted = False

    async def run(self) -> None:
        """Have the part look again each time the responder ends. Return by cancellation only."""
        while True:
            await self._started.wait()
            self._started.clear()
            await self.process.wait()
            self.own = replace(self.own, at_s=float("-inf"))
            self.look_again()

    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        spec, own = now.overlay_spec, now.own
        if spec is None:
            return Decision((is_unknown(self.condition, "NoLease", "this node has no overlay address yet"),))
        again_s = own.at_s + (LOOK_S if own.is_ours else _TAKE_OVER_LOOK_S) - at_s
        if again_s <= 0:
            return Decision(does=Look())
        if not own.is_ours:
            told = is_so(self.condition, "AnotherDaemons", "another daemon of this machine answers echoes")
            return Decision((told,), again_s=again_s)
        if own.runs not in (None, responder_of(spec)):
            return Decision(does=Stop())
        if own.runs is None and not now.overlay_is_up:
            told = is_unknown(self.condition, "OverlayDown", "the overlay device is not up")
            return Decision((told,), again_s=again_s)
        if own.runs is None:
            return Decision(does=Start(spec)) if at_s >= own.start_s else Decision(again_s=own.start_s - at_s)
        where = f"{spec.overlay_ip.ip}, udp port {PORT}"
        return Decision((is_so(self.condition, "Answering", f"echoes are answered at {where}"),), again_s=again_s)

    async def act(self, action: Do) -> None:
        """See :class:`Part`.

        Raises:
            OverlayError: the responder does not stay, with its last words.
            ProcessStartError: it cannot be executed. ProcessStopError: it does not end.
        """
        try:
            match action:
                case Look():
                    if self._ownership.acquire():
                        self._adopt()
                case Stop():
                    await self.process.stop()
                case Start(spec):
                    if self.process.identity is not None:
                        self._note_end(spec)
                    if self._restarts.wait_s <= 0:
                        await self._start(spec)
        finally:
            runs = self.process.config_hash if self.process.is_running else None
            at_s = self._clock.monotonic_s()
            self.own = Seen(at_s, self._ownership.is_owner, runs, at_s + self._restarts.wait_s, self.own.changes)

    async def stop(self) -> None:
        """End the responder, unless another daemon of this machine needs it. Idempotent.

        Raises:
            ProcessStopError: it does not end.
        """
        if self._ownership.acquire() and not self._ownership.is_needed_by_others():
            self._adopt()
            await self.process.stop()
        self._ownership.release()

    def _adopt(self) -> None:
        if not self._has_adopted:
            self._has_adopted = True
            if self.process.adopt() is not None:
                self._started.set()

    def _note_end(self, spec: OverlaySpec) -> None:
        """Forget a responder that ended unasked. Raises OverlayError where it does not stay."""
        words = self.process.last_words(2)
        self.process.adopt()
        self._restarts.note_end(served=not words)
        if words:
            raise OverlayError(
                f"the echo responder ended: {words}",
                hint=f"other nodes see this one as silent; udp port {PORT} of {spec.overlay_ip.ip} is held by "
                f"{port_holder('udp', PORT, spec.overlay_ip.ip)}",
                reason="EchoNotServed",
            )

    async def _start(self, spec: OverlaySpec) -> None:
        private_directory(self._logs)
        output.bound(self._log_path, 0)  # the last words are to be this one's
        words = (spec.overlay_ip.ip, spec.device, spec.overlay_ip.network, self._key, spec.instance_id)
        await self.process.start(
            ProcessSpec(
                name="echo",
                argv=(sys.executable, "-I", str(_RESPONDER), *map(str, words)),
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd=self._logs,
                log_path=self._log_path,
                config_hash=responder_of(spec),
                umask=0o077,
                sandbox="program",
            )
        )
        self._started.set()


def echo_users() -> set[int]:
    """Return the users that the responder may run as.

    One that lost its record is known by its mark, and it is nobody by then. Another process of nobody's that bore our
    mark could keep this node silent, and nothing else.
    """
    return {os.geteuid(), NOBODY}


def responder_of(spec: OverlaySpec) -> str:
    """Name a responder by whom it stands for, its network, its device, and the versions of what it speaks."""
    text = f"{spec.overlay_ip} {spec.device} {VERSION} {spec.instance_id} {PROOF_VERSION}"
    return hashlib.sha256(text.encode()).hexdigest()
