"""Keep this node's overlay as its lease says: EasyTier runs for it, and the kernel confirms its device.

::

    no lease ──▶ not ours (another daemon owns EasyTier): watch only
       │
       ▼
    adopt ──▶ other configuration? replace ──▶ not running? preflight, start ──▶ device confirmed ──▶ OverlayUp
                                                    ▲                                  │
                                                    └ ended, device or uplink lost: anew ┘

An overlay that works is left alone: nothing here acts on a running EasyTier whose device is as it should be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.required import OVERLAY_UP
from edgelink.conditions import ConditionSet
from edgelink.config import OverlayConfig, Paths
from edgelink.errors import InterfaceNotReadyError, OverlayAddressError, ProcessExitedError
from edgelink.facts.board import Board, Fact, Wish
from edgelink.log import get_logger, hide
from edgelink.overlay import preflight, stun
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.core import Core
from edgelink.overlay.device import NOT_EASYTIERS, device_problem
from edgelink.overlay.fence import Fence
from edgelink.overlay.link import LinkMonitor, LinkState, check_collision
from edgelink.overlay.load import LoadReconciler
from edgelink.overlay.mend import HeldTun, Mend, held_tun, mend_device
from edgelink.overlay.nft import Table
from edgelink.overlay.ownership import Ownership
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.overlay.uplink import Connections, Uplink
from edgelink.process import SupervisedProcess, inotify
from edgelink.process.ports import connections_of
from edgelink.process.restart_policy import RestartPolicy
from edgelink.reconcile import Wakeup

__all__ = ["LoadReconciler", "OverlayReconciler"]

_LOOK_S = 30.0  # events tell of changes; this look only makes up for a lost event
_TAKE_OVER_LOOK_S = 2.0
_LOG_LOOK_S = 2.0  # one stat(); an EasyTier that nobody lets in writes 1 kB a second, a broken one as much as it can
_START_TIMEOUT_S = 10.0  # EasyTier 2.6.4 needs 10 ms for its device
_ADOPTED_GRACE_S = 2.0  # a core adopted in the middle of its start
_FAULT_SETTLES_S = 0.2  # somebody may be taking the address away to put it back
_log = get_logger("overlay")


EASYTIER_ENDS: Final[Fact[int]] = Fact("easytier_ends")
CONFIRMED_CONFIG: Final[Fact[str | None]] = Fact("confirmed_config")


@dataclass(frozen=True)
class Inputs:
    """What this node's EasyTier depends on. One that runs needs no permission any more."""

    overlay_spec: OverlaySpec | None
    easytier_may_start: bool
    restart_for_relays: Wish
    restart_for_pair: Wish
    standstills: int

    @property
    def wishes(self) -> tuple[Wish, ...]:
        """Everybody's wishes to have EasyTier started anew although its configuration is the same."""
        return (self.restart_for_relays, self.restart_for_pair)


class OverlayReconciler:
    """Sets ``OverlayUp``; the only one that starts and stops EasyTier."""

    name: ClassVar[str] = "overlay"
    condition: ClassVar[str] = OVERLAY_UP.name

    def __init__(
        self,
        *,
        board: Board[Any],
        binary: Callable[[], EasyTierBinary],
        config: OverlayConfig,
        paths: Paths,
        process: SupervisedProcess,
        links: LinkMonitor,
        conditions: ConditionSet,
        clock: Clock,
        owner_lock: Path,
        preflight: Callable[[OverlaySpec, LinkMonitor], Awaitable[None]] = preflight.check,
        private_hosts: stun.PrivateHosts | None = None,
        guard: Table | None = None,
        is_guarded: bool = True,
        fence: Fence | None = None,
        congestion: TunnelCongestion | None = None,
        mend: Mend = mend_device,
        held_tun: HeldTun = held_tun,
        connections: Connections = connections_of,
    ) -> None:
        self.wakeup = Wakeup()
        self._board = board
        self._put_ends = board.claim(EASYTIER_ENDS, self.name)
        self._put_confirmed = board.claim(CONFIRMED_CONFIG, self.name)
        board.read(Inputs, self.name, self.wakeup)
        self._config = config
        self._process = process
        self._links = links
        self._conditions = conditions
        self._clock = clock
        self._ownership = Ownership(owner_lock)
        self._core = Core(process, binary, paths, private_hosts or stun.PrivateHosts(paths.state))
        self._preflight = preflight
        self._uplink = Uplink(board, links, clock, connections)
        self._mend_device = mend
        self._held_tun = held_tun
        # Around EasyTier's RPC, for as long as EasyTier runs.
        self.guard = TableKeeper(
            guard,
            clock,
            open_without="EasyTier's RPC may be open to every user of this machine",
            enabled=is_guarded,
        )
        self._fence = fence or Fence(clock)  # as long
        self._congestion = congestion or TunnelCongestion(links, clock, config.device)  # as long
        self._restarts = RestartPolicy(clock, first_s=0.5, cap_s=30.0)
        self._mends = RestartPolicy(clock, first_s=0.05, cap_s=5.0)  # somebody may undo them again and again
        self._child_started = asyncio.Event()
        self._has_adopted = False
        self._is_others = False
        self._is_adopted = False  # the process that runs now was started by a predecessor
        self._confirmed: LinkState | None = None  # the device of the process that runs now
        self._started_s = 0.0
        self._fault_since_s: float | None = None
        self._failure = ""
        self._served = tuple(wish.count for wish in self._now.wishes)
        self._standstills = self._now.standstills  # that were seen to
        links.watch(config.device, self.guard.doubts, self.wakeup)
        links.watch_uplinks(config.device, self.wakeup)

    async def run(self) -> None:
        """Wake the reconciler when EasyTier ends, or a file that it has its own copy of changes; until cancelled."""
        with inotify.watching(self._core.private_hosts.watched, self.wakeup.set):
            while True:
                await self._child_started.wait()
                self._child_started.clear()
                await self._process.wait()
                self._put_ends(self._board.facts.easytier_ends + 1)  # however it ended
                self.wakeup.set()

    async def bound_log(self) -> None:
        """Look at EasyTier's output every two seconds, whatever state the overlay is in; until cancelled."""
        while True:
            await self._clock.sleep(_LOG_LOOK_S)
            self._core.bound_log()

    async def reconcile(self) -> float:
        spec = self._now.overlay_spec
        if (standstills := self._now.standstills) != self._standstills:
            self._standstills = standstills
            self._uplink.stood_still()
        if spec is None:
            self._down("NoLease", "this node has no lease yet, so it has no overlay address")
            return _LOOK_S
        if self._config.kind == "existing":
            return self._report(device_problem(await self._links.observe(spec.device), spec, is_ours=False), spec)
        hide(*spec.secrets)
        self._is_others = not self._ownership.acquire()
        if self._is_others:
            self._wished()  # and not served: it would be another EasyTier by the time that it is ours
            self._report(device_problem(await self._links.observe(spec.device), spec), spec)
            return _TAKE_OVER_LOOK_S
        self._adopt()
        await self._replace_if_outdated(spec)
        await self._note_end(spec)
        if not self._process.is_running:
            return await self._start(spec)
        look_s = await self._confirm(spec)
        if self._confirmed or self._is_adopted:  # a start that is under way has just seen to it
            look_s = min(look_s, await self.guard.keep())
            await self._fence.keep(spec.overlay_ip.network)
            await self._congestion.keep(spec)
        return look_s

    async def stop(self) -> None:
        """End EasyTier, unless another daemon of this machine needs it. Idempotent.

        Raises:
            ProcessStopError: it does not end.
        """
        if self._config.kind == "existing":
            return
        if self._ownership.acquire() and not self._ownership.is_needed_by_others():
            self._adopt()
            await self._process.stop()
            await self.guard.remove()
            await self._congestion.remove()
            await self._fence.remove()
        self._ownership.release()
        self._down("Stopped", "the overlay was stopped")

    def _adopt(self) -> None:
        if self._has_adopted:
            return
        self._has_adopted = True
        if identity := self._process.adopt():
            _log.info("overlay.adopted", pid=identity.pid)
            self._is_adopted = True
            self._started_s = self._clock.monotonic_s() - _START_TIMEOUT_S + _ADOPTED_GRACE_S
            self._child_started.set()

    async def _replace_if_outdated(self, spec: OverlaySpec) -> None:
        why = self._wished()
        if self._process.is_running and self._process.config_hash != spec.config_hash:
            why = "the configuration changed"
        if self._process.is_running and why:
            await self._core.prepare(spec)  # what can fail or take its time, while the former one still serves
            _log.info("overlay.replaced", reason=why)
            self._down("Replacing", "EasyTier is restarted with its new configuration")
            await self._process.stop()
            self._restarts.forgive()

    def _wished(self) -> str:
        """Why EasyTier is to be started anew. Each wish is taken once, also while none runs."""
        wishes, served = self._now.wishes, self._served
        self._served = tuple(wish.count for wish in wishes)
        return "; ".join(wish.why for wish, count in zip(wishes, served, strict=True) if wish.count != count)

    @property
    def _now(self) -> Inputs:
        return self._board.select(Inputs)

    async def _note_end(self, spec: OverlaySpec) -> None:
        """An EasyTier that ended unasked: forget it, and plan the next start."""
        identity = self._process.identity
        if identity is None or self._process.is_running:
            return
        status = await self._process.wait()  # until its device and ports are free, too
        self._core.hide_secret(spec)
        words = self._process.last_words(6)
        self._process.adopt()  # forgets the record of the one that ended
        message = f"easytier-core (pid {identity.pid}) ended" + ("" if status is None else f" with status {status}")
        self._restarts.note_end(served=self._confirmed is not None)
        reason = "CrashLoop" if self._restarts.is_crash_loop else ProcessExitedError.reason
        if self._confirmed:
            _log.warning("overlay.process_ended", pid=identity.pid, status=status)
            last_words = f"; its last words: {words or 'none'}" if self._restarts.is_crash_loop else ""
            self._down(reason, f"{message}; it is being restarted{last_words}")
            return
        self._failure = message
        self._down(reason, message)
        raise ProcessExitedError(
            f"{message} before {spec.device} was up; its last words: {words or 'none'}",
            hint=f"its whole output is in {self._core.log_path}",
            reason=reason,
        )

    async def _start(self, spec: OverlaySpec) -> float:
        self._put_confirmed(self._confirmed_config)  # none runs, also while the start is waited for or refused
        if (wait_s := self._restarts.wait_s) > 0:
            return wait_s
        if not self._now.easytier_may_start:
            self._down("AsksRegistry", "waits, for seconds, for the registry's word that no other machine is this node")
            return _LOOK_S
        self._core.capabilities()  # without an EasyTier that can be used, nothing is begun
        await self._preflight(spec, self._links)
        await self.guard.apply()
        await self._fence.keep(spec.overlay_ip.network)
        await self._congestion.keep(spec)
        if not self._failure:  # a failure stays visible while it is retried
            self._down("Starting", f"EasyTier is starting; waiting for {spec.device}")
        await self._uplink.starting(spec)
        await self._core.start(spec)
        self._started_s = self._clock.monotonic_s()
        self._is_adopted, self._confirmed = False, None
        self._fault_since_s = None
        self._child_started.set()
        return _START_TIMEOUT_S

    async def _confirm(self, spec: OverlaySpec) -> float:
        state = await self._links.observe(spec.device)
        if state.exists and not self._confirmed:
            self._core.hide_secret(spec)
        problem = device_problem(state, spec, was=self._confirmed)
        if problem is None:
            self._note_confirmed(state, spec)
            await self._core.upkeep()
            return await self._follow_uplink(spec)
        now_s = self._clock.monotonic_s()
        if not self._confirmed:
            left_s = self._started_s + _START_TIMEOUT_S - now_s
            if left_s > 0:
                return left_s
            self._failure = problem[1]
            return await self._restart_for(problem, spec)
        self._report(problem, spec)
        self._fault_since_s = now_s if self._fault_since_s is None else self._fault_since_s
        left_s = self._fault_since_s + _FAULT_SETTLES_S - now_s
        return left_s if left_s > 0 else await self._mend(problem, spec)

    async def _mend(self, problem: tuple[str, str], spec: OverlaySpec) -> float:
        """In place while our EasyTier holds its device, whatever it is called now; else by a new EasyTier."""
        assert self._process.identity is not None
        assert self._confirmed is not None
        name = self._held_tun(self._process.identity.pid)
        if not name:
            return await self._restart_for(problem, spec)
        if (wait_s := self._mends.wait_s) > 0:
            return wait_s
        self._mends.note_end(served=True)
        try:
            await self._mend_device(name, spec, self._confirmed.mtu)
        except OSError as error:
            _log.warning("overlay.mend_failed", reason=problem[0], error=str(error))
        state = await self._links.observe(spec.device)
        if left := device_problem(state, spec, was=self._confirmed):
            if left[0] in NOT_EASYTIERS:
                return max(self._mends.wait_s, _FAULT_SETTLES_S)
            return await self._restart_for(left, spec)
        _log.warning("overlay.mended", reason=problem[0], problem=problem[1])
        return await self._confirm(spec)

    async def _follow_uplink(self, spec: OverlaySpec) -> float:
        """The device is fine; is the uplink that EasyTier uses still this machine's?"""
        assert self._process.identity is not None
        finding = await self._uplink.look(self._process.identity.pid, spec)
        if finding.redial and self._mends.wait_s <= 0:
            await self._core.prepare(spec)  # what cannot be started anew is not stopped
            _log.warning("overlay.uplink_changed", why=finding.redial)
            self._mends.note_end(served=True)
            self._down("UplinkChanged", f"{finding.redial}; EasyTier is started anew, Ray goes on meanwhile")
            await self._process.stop()
            self._restarts.forgive()
            return await self._start(spec)
        look_s = self._report(None, spec, finding.caveat, await self._collision(spec))
        return min(look_s, finding.look_again_s or look_s, self._mends.wait_s if finding.redial else look_s)

    async def _collision(self, spec: OverlaySpec) -> str:
        """A network that this machine came into while the overlay runs; what works is not cut for it."""
        try:
            check_collision(spec.overlay_ip.network, await self._links.local_networks(spec.device))
        except OverlayAddressError as error:
            return f"{error.message}: addresses that both have lead to one of them only"
        return ""

    async def _restart_for(self, problem: tuple[str, str], spec: OverlaySpec) -> float:
        """EasyTier notices nothing of it and would go on without a device for ever."""
        reason, message = problem
        was_confirmed = self._confirmed is not None
        if was_confirmed:
            await self._core.prepare(spec)  # what cannot be started anew is not stopped
        _log.warning("overlay.device_fault", reason=reason, problem=message)
        self._restarts.note_end(served=was_confirmed)
        await self._process.stop()
        self._core.hide_secret(spec)
        if not was_confirmed:
            raise InterfaceNotReadyError(
                f"EasyTier ran for {_START_TIMEOUT_S:g} s, but {message}; its last words: {self._core.last_words()}",
                hint=f"its whole output is in {self._core.log_path}",
            )
        return await self._start(spec)

    def _note_confirmed(self, state: LinkState, spec: OverlaySpec) -> None:
        self._fault_since_s = None
        self._failure = ""
        if not self._confirmed:
            self._confirmed = state
            took_s = None if self._is_adopted else round(self._clock.monotonic_s() - self._started_s, 3)
            _log.info("overlay.up", device=spec.device, address=str(spec.overlay_ip), after_s=took_s)

    def _report(self, problem: tuple[str, str] | None, spec: OverlaySpec, *caveats: str) -> float:
        if problem is not None:
            self._down(*problem)
        else:
            ours = (self.guard.caveat, self._fence.caveat, self._congestion.caveat)
            parts = (self._core.caveat, self._core.version_note, *ours, *caveats)
            message = "; ".join([f"{spec.device} is up with {spec.overlay_ip}", *filter(None, parts)])
            self._put_confirmed(spec.config_hash if self._config.kind == "existing" else self._confirmed_config)
            self._conditions.set_true(self.condition, "DeviceConfirmed", message)
        return _LOOK_S

    @property
    def _confirmed_config(self) -> str | None:
        """See the fact. It is on the board before the condition changes, whose readers look at it."""
        if self._is_others:
            return None
        return self._process.config_hash if self._confirmed is not None and self._process.is_running else ""

    def _down(self, reason: str, message: str) -> None:
        self._put_confirmed(self._confirmed_config)
        self._conditions.set_false(self.condition, reason, message)
