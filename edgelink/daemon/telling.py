"""Tells how a daemon is: on its board, in its log, in its flight recorder, and to the service manager."""

from __future__ import annotations

import asyncio
from typing import Final

from edgelink.clock import Clock
from edgelink.condition_table import NODES, Place, types_on
from edgelink.conditions import Condition, Conditions, ConditionSet, Phase, Status
from edgelink.config import Config
from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.process.service_manager import ServiceManager
from edgelink.telemetry.recorder import Recorder

CONDITIONS: Final[Fact[Conditions]] = Fact("conditions")
IS_STOPPING: Final[Fact[bool]] = Fact("is_stopping")

log = get_logger("node")


class Telling:
    """Tells of each change of a condition.

    Attributes:
        conditions: those of a daemon of this kind.
        was_ready: set once all required conditions have been True.
    """

    def __init__(
        self,
        place: Place,
        config: Config,
        board: Board[Facts],
        recorder: Recorder,
        manager: ServiceManager | None,
        clock: Clock,
    ) -> None:
        self._required, shown = types_on(
            place,
            runs_easytier=config.overlay.kind == "easytier",
            answers_stun=bool(config.relay.stun_ports),
            has_ray=config.ray.enabled or place not in NODES,
        )
        self.conditions = ConditionSet(clock, self._required, shown, on_change=self._changed)
        self.was_ready = asyncio.Event()
        self._board = board
        self._recorder = recorder
        self._manager = manager
        self._clock = clock
        self._put_conditions = board.claim(CONDITIONS, "conditions")
        self._put_conditions(self.conditions.now)
        self._put_is_stopping = board.claim(IS_STOPPING, "lifecycle")
        self._outages: dict[str, Outage] = {}  # of each condition that is not True
        self._told: dict[str, str | None] = {}  # the reason of each that is True
        self._logged_phase = Phase.STARTING

    def say_stopping(self) -> None:
        """Put on the board that this daemon ends, and what it runs with it."""
        self._put_is_stopping(True)

    def _changed(self, condition: Condition) -> None:
        """Tell of a condition that has another status, reason or message. Log only what is new in its outage."""
        self._put_conditions(self.conditions.now)
        outage = self._outages.setdefault(condition.type, Outage(self._clock))
        is_true = condition.status is Status.TRUE
        lasted_s = outage.over() if is_true else None
        is_news = self._told.get(condition.type) != condition.reason if is_true else outage.is_news(condition.reason)
        self._told[condition.type] = condition.reason if is_true else None
        if is_news:
            lasted = {} if lasted_s is None or condition.type not in self._required else {"lasted_s": lasted_s}
            log.info(
                "node.condition",
                condition=condition.type,
                status=condition.status.value,
                reason=condition.reason,
                message=condition.message,
                **lasted,
            )
            self._recorder.note("condition", **condition.to_dict(), **lasted)
        phase = self._board.facts.phase
        if phase is not self._logged_phase:
            self._logged_phase = phase
            log.info("node.phase", phase=phase.value)
        if self._manager is not None:
            self._manager.notify(STATUS=self._status_line())
        if self.conditions.is_ready:
            self.was_ready.set()

    def _status_line(self) -> str:
        return status_line(self._board.facts.phase, self.conditions.unmet)

    async def run(self) -> None:
        """Say that the local API serves, then show at every third of the watchdog's time that this loop turns.

        Ready is a daemon that can be asked, not a node that has reached its network: nothing at boot waits for that,
        but for what asks for edgelink-online.target, which is reached with the first Ready of the node.
        """
        if self._manager is None:
            return
        self._manager.notify(READY="1", STATUS=self._status_line())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._say_online(self._manager), name="online")
            tasks.create_task(self._show_life(self._manager), name="watchdog")

    async def _say_online(self, manager: ServiceManager) -> None:
        await self.was_ready.wait()
        await manager.say_online()

    async def _show_life(self, manager: ServiceManager) -> None:
        while manager.watchdog_s is not None:
            manager.notify(WATCHDOG="1")
            await self._clock.sleep(manager.watchdog_s / 3)


def status_line(phase: Phase, unmet: list[Condition]) -> str:
    """Return what ``systemctl status`` shows: the phase, and what the node waits for; pure."""
    if not unmet:
        return phase.value
    first = next((condition for condition in unmet if condition.status is Status.FALSE), unmet[0])
    return f"{phase.value}: {first.type} {first.reason}: {first.message}"
