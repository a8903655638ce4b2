"""What an outage costs this node: adjusts the host's TCP, and says as the condition ``RideThrough`` what holds."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.informing import RIDE_THROUGH
from edgelink.conditions import ConditionSet, Status
from edgelink.config import Config, Paths
from edgelink.duration import in_words
from edgelink.errors import ConfigError, NotRecordedError
from edgelink.facts.board import Board, Fact
from edgelink.process import host_tcp
from edgelink.process.host_tcp import Adjustment, TcpValues
from edgelink.ray_cluster.ride_through import check_agreement, patience_s
from edgelink.reconcile import Wakeup

_LOOK_S = 60.0  # `sysctl --system` by somebody else undoes it


HOST_PATIENCE_S: Final[Fact[int | None]] = Fact("host_patience_s")


@dataclass(frozen=True)
class Inputs:
    """How long an outage may be."""

    ride_through_s: int


class RideThroughReconciler:
    """Keeps the host's TCP as patient as the network's ``ride_through`` asks for."""

    name: ClassVar[str] = "ride-through"
    condition: ClassVar[str] = RIDE_THROUGH.name

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        conditions: ConditionSet,
        clock: Clock,
        is_heads: bool = False,
        board: Board[Any],
        proc_sys: Path = host_tcp.PROC_SYS,
    ) -> None:
        self.wakeup = Wakeup()
        self._adjusted_for = board.claim(HOST_PATIENCE_S, self.name)
        self._board = board
        board.read(Inputs, self.name, self.wakeup)
        self._config = config
        self._record = paths.host_tcp
        self._conditions = conditions
        self._is_heads = is_heads  # its own value may differ from what holds until a run has ended
        self._proc_sys = proc_sys

    async def reconcile(self) -> float:
        self._adjust()
        return _LOOK_S

    def apply(self) -> None:
        """Adjust now; called before EasyTier and Ray make their sockets, which keep what they were made with."""
        try:
            self._adjust()
        except NotRecordedError as error:  # the loop tries again
            self._conditions.set_error(self.condition, error)
            self.wakeup.set()

    def _adjust(self) -> None:
        """Raises NotRecordedError: what is there cannot be kept, so it is not changed."""
        ride_through_s = self._board.select(Inputs).ride_through_s
        try:
            self._adjust_for(ride_through_s)
        finally:  # what cannot be done holds up nobody
            self._adjusted_for(ride_through_s)

    def _adjust_for(self, ride_through_s: int) -> None:
        try:
            check_agreement(None if self._is_heads else self._config.ride_through, ride_through_s)
        except ConfigError as error:
            self._conditions.set_error(self.condition, error)
            return
        if self._config.host.tcp == "leave":
            host_tcp.restore(self._record, proc_sys=self._proc_sys)
            found = host_tcp.observe(self._proc_sys)
            done = Adjustment(found, host_tcp.wanted(found, patience_s(ride_through_s)), found)
        else:
            congestion = "bbr" if self._config.host.tcp_congestion == "bbr" else None
            done = host_tcp.adjust(
                self._record, patience_s(ride_through_s), congestion=congestion, proc_sys=self._proc_sys
            )
        status, reason = verdict(done, declined=self._config.host.tcp == "leave")
        self._conditions.set(self.condition, status, reason, what_holds(done, ride_through_s, reason))


def verdict(done: Adjustment, *, declined: bool) -> tuple[Status, str]:
    """Whether the promise is kept in full, and if not why; pure."""
    if done.now.patience != done.wanted.patience:
        return Status.FALSE, "Declined" if declined else "SysctlReadOnly"
    if done.now.rto_max_ms is None:
        return Status.FALSE, "KernelLacksRtoCap"
    return Status.TRUE, "Full"


def what_holds(done: Adjustment, ride_through_s: int, reason: str) -> str:
    """In words, with the figures that follow from the kernel's settings."""
    words = f"outages of up to {in_words(ride_through_s)} cost a pause, no node and no state; {gap(done.now)}"
    if done.now.gives_up_after_s < ride_through_s:
        words += f"; connections do not outlive one of more than {done.now.gives_up_after_s:.0f} s"
    causes = {
        "Declined": "`host.tcp: leave` in the configuration",
        "SysctlReadOnly": f"{done.error or 'the settings do not stay as they are set'}",
        "KernelLacksRtoCap": f"Linux {platform.release()} has no net.ipv4.tcp_rto_max_ms (6.15 and later have)",
    }
    if reason in causes:
        return f"{words} ({causes[reason]})"
    return f"{words}; not set: {done.error}" if done.error else words


def gap(values: TcpValues) -> str:
    """How late connections resume once the path is back."""
    if values.longest_pause_s <= 30:
        return f"connections resume within {values.longest_pause_s:g} s of its end"
    return f"connections resume up to the outage's own length after its end, {values.longest_pause_s:g} s at most"
