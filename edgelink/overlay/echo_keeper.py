"""Keep the echo responder running: one a machine, adopted by the next daemon, ended with the overlay.

Relay and head on one machine share one overlay address, and so one responder: whoever holds the lock keeps it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import ECHO_ANSWERED
from edgelink.conditions import ConditionSet, Status
from edgelink.config import Paths
from edgelink.errors import OverlayError
from edgelink.facts.board import Board
from edgelink.files import private_directory
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo_wire import NOBODY, PORT, VERSION
from edgelink.overlay.ownership import Ownership
from edgelink.process import ProcessSpec, SupervisedProcess, output
from edgelink.process.ports import port_holder
from edgelink.process.restart_policy import RestartPolicy
from edgelink.reconcile import Wakeup

_LOOK_S = 30.0
_TAKE_OVER_LOOK_S = 2.0
_RESPONDER = Path(__file__).with_name("echo_responder.py")  # by its path, which the kernel shows
_LOG_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Inputs:
    """What the echo responder depends on."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool


class EchoKeeper:
    """Sets ``EchoAnswered``; the only one that starts and stops the responder."""

    name: ClassVar[str] = "echo"
    condition: ClassVar[str] = ECHO_ANSWERED.name

    def __init__(
        self,
        *,
        board: Board[Any],
        paths: Paths,
        process: SupervisedProcess,
        conditions: ConditionSet,
        clock: Clock,
    ) -> None:
        self.wakeup = Wakeup()
        self.process = process
        self._board = board
        board.read(Inputs, self.name, self.wakeup)
        self._log_path: Path = paths.logs / "echo.log"
        self._logs = paths.logs
        self._ownership = Ownership(paths.runtime / "echo.lock")
        self._conditions = conditions
        self._restarts = RestartPolicy(clock, first_s=0.5, cap_s=30.0)
        self._started = asyncio.Event()
        self._has_adopted = False

    async def run(self) -> None:
        """Wake the reconciler when the responder ends; until cancelled."""
        while True:
            await self._started.wait()
            self._started.clear()
            await self.process.wait()
            self.wakeup.set()

    async def reconcile(self) -> float:
        """Adopt, replace or start the responder.

        Raises:
            OverlayError: it does not stay, with its last words.
            ProcessStartError: it cannot be executed.
        """
        spec = self._board.select(Inputs).overlay_spec
        if spec is None:
            self._conditions.set(self.condition, Status.UNKNOWN, "NoLease", "this node has no overlay address yet")
            return _LOOK_S
        if not self._ownership.acquire():
            self._conditions.set_true(self.condition, "AnotherDaemons", "another daemon of this machine answers echoes")
            return _TAKE_OVER_LOOK_S
        self._adopt()
        wanted = _config_hash(spec)
        if self.process.is_running and self.process.config_hash != wanted:
            await self.process.stop()
        if not self.process.is_running and not self._board.select(Inputs).overlay_is_up:
            self._conditions.set(self.condition, Status.UNKNOWN, "OverlayDown", "the overlay device is not up")
            return _LOOK_S
        if not self.process.is_running:
            if self.process.identity is not None:
                self._note_end(spec)
            if (wait_s := self._restarts.wait_s) > 0:
                return wait_s
            await self._start(spec, wanted)
        where = f"{spec.overlay_ip.ip}, udp port {PORT}"
        self._conditions.set_true(self.condition, "Answering", f"echoes are answered at {where}")
        return _LOOK_S

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

    async def _start(self, spec: OverlaySpec, config_hash: str) -> None:
        private_directory(self._logs)
        output.bound(self._log_path, 0)  # the last words are to be this one's
        network = str(spec.overlay_ip.network)
        await self.process.start(
            ProcessSpec(
                name="echo",
                argv=(sys.executable, "-I", str(_RESPONDER), str(spec.overlay_ip.ip), spec.device, network),
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd=self._logs,
                log_path=self._log_path,
                config_hash=config_hash,
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


def _config_hash(spec: OverlaySpec) -> str:
    """Which responder a running one is: address, network, device, and the version of the packets that it speaks."""
    return hashlib.sha256(f"{spec.overlay_ip} {spec.device} {VERSION}".encode()).hexdigest()
