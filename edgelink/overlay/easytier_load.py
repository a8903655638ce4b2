"""Notice an EasyTier that burns a core without moving anything, as where hole punching fails at once (0017)."""

from __future__ import annotations

from typing import ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import OVERLAY_CPU_NORMAL
from edgelink.conditions import ConditionSet, Status
from edgelink.overlay.link import LinkMonitor
from edgelink.process import SupervisedProcess, usage
from edgelink.reconcile import Wakeup

_SAMPLE_S = 10.0
_START_LOOK_S = 1.0
_BUSY_CORES = 0.2
_BUSY_FOR_S = 30.0
_IDLE_BYTES_PER_S = 1_000_000.0


class LoadReconciler:
    """Sets ``OverlayCpuNormal`` from the process's CPU time and the device's byte counters."""

    name: ClassVar[str] = "load"
    condition: ClassVar[str] = OVERLAY_CPU_NORMAL.name

    def __init__(
        self,
        *,
        process: SupervisedProcess,
        links: LinkMonitor,
        device: str,
        conditions: ConditionSet,
        clock: Clock,
    ) -> None:
        self.wakeup = Wakeup()
        self._process = process
        self._links = links
        self._device = device
        self._conditions = conditions
        self._clock = clock
        self._last: tuple[int, float, float, int] | None = None  # pid, when, cpu_s, bytes
        self._spinning_s = 0.0

    async def reconcile(self) -> float:
        identity = self._process.identity
        if identity is None or not self._process.is_running:
            self._last, self._spinning_s = None, 0.0
            self._conditions.set(self.condition, Status.UNKNOWN, "NotRunning", "no EasyTier of this daemon runs")
            return _START_LOOK_S
        state = await self._links.observe(self._device)
        try:
            cpu_s = usage(identity.pid).cpu_s
        except ProcessLookupError:
            return _SAMPLE_S
        last = self._last
        now_s, moved_bytes = self._clock.monotonic_s(), state.rx_bytes + state.tx_bytes
        self._last = (identity.pid, now_s, cpu_s, moved_bytes)
        if last is not None and last[0] == identity.pid and now_s > last[1]:
            elapsed_s = now_s - last[1]
            self._judge(elapsed_s, (cpu_s - last[2]) / elapsed_s, (moved_bytes - last[3]) / elapsed_s)
        return _SAMPLE_S

    def _judge(self, elapsed_s: float, cores: float, bytes_per_s: float) -> None:
        is_spinning = cores > _BUSY_CORES and bytes_per_s < _IDLE_BYTES_PER_S
        self._spinning_s = self._spinning_s + elapsed_s if is_spinning else 0.0
        if self._spinning_s >= _BUSY_FOR_S:
            self._conditions.set_false(
                self.condition,
                "EasyTierSpinning",
                f"easytier-core uses {cores:.0%} of a core while {self._device} moves only "
                f"{bytes_per_s / 1e6:.2f} MB/s; `overlay.p2p: false` ends it if it is hole punching that "
                "fails; stopping this daemon (Ctrl+C) and starting it again ends the rest",
            )
        elif not is_spinning:
            # Without the figure, which would be news every ten seconds.
            self._conditions.set_true(self.condition, "Normal", "easytier-core works only when there is work")
