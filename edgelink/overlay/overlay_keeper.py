"""Keep this node's overlay as its lease says: EasyTier runs for it, and the kernel confirms its device.

::

    no lease ──▶ not ours (another daemon owns EasyTier): watch only
       │
       ▼
    adopt ──▶ other configuration? replace ──▶ not running? preflight, start ──▶ device confirmed ──▶ OverlayUp
                                                    ▲                                  │
                                                    └ ended, device or uplink lost: anew ┘

An overlay that works is left alone: nothing here acts on a running EasyTier whose device is as it should be.

Whenever somebody tells of a change, the part looks at process, device and uplink. What it does follows from that.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.required import OVERLAY_UP
from edgelink.conditions import ConditionSet, Said, is_not_so, is_so
from edgelink.config import OverlayConfig
from edgelink.errors import InterfaceNotReadyError, OverlayAddressError, ProcessExitedError
from edgelink.facts.board import Board, Fact, Wish
from edgelink.facts.part import Decision, Part
from edgelink.log import get_logger, hide
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.device import NOT_EASYTIERS, device_problem
from edgelink.overlay.easytier_core import Core
from edgelink.overlay.link import LinkMonitor, LinkState, check_collision
from edgelink.overlay.overlay_steps import (
    FAULT_SETTLES_S,
    Do,
    EasyTier,
    GiveUp,
    Inputs,
    Look,
    Looked,
    NoteEnd,
    Occasion,
    Redial,
    Repair,
    Replace,
    Start,
    due_s,
    why_outdated,
)
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.ownership import Ownership
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.overlay.uplink import Finding, Uplink
from edgelink.process import inotify
from edgelink.process.ports import Connection
from edgelink.process.restart_policy import RestartPolicy
from edgelink.reconcile import Nudge

_LOOK_S = 30.0  # events tell of changes; this look only makes up for a lost event
_TAKE_OVER_LOOK_S = 2.0
_LOG_LOOK_S = 2.0  # one stat(); an EasyTier that nobody lets in writes 1 kB a second, a broken one as much as it can
_START_TIMEOUT_S = 10.0  # EasyTier 2.6.4 needs 10 ms for its device
_ADOPTED_GRACE_S = 2.0  # a core adopted in the middle of its start
_log = get_logger("overlay")


EASYTIER_ENDS: Final[Fact[int]] = Fact("easytier_ends")
CONFIRMED_CONFIG: Final[Fact[str | None]] = Fact("confirmed_config")


class Around(NamedTuple):
    """What stands around EasyTier for as long as it runs: firewall, routes, congestion control."""

    guard: TableKeeper
    routes: OwnRoutes
    congestion: TunnelCongestion


class Machine(Protocol):
    """What of :class:`edgelink.daemon.this_machine.ThisMachine` is needed here."""

    async def preflight(self, spec: OverlaySpec, links: LinkMonitor) -> None:
        """Raise what speaks against a start of EasyTier."""

    async def mend(self, name: str, spec: OverlaySpec, mtu: int) -> None:
        """Put a device right that EasyTier holds open. Raises OSError."""

    def held_tun(self, pid: int) -> str:
        """Name the device that a process holds open. Empty: it holds none."""

    def connections(self, pid: int) -> list[Connection]:
        """Return the TCP connections of a process."""


class OverlayKeeper(Part[Inputs, Do]):
    """Sets ``OverlayUp``. Nobody else starts and stops EasyTier."""

    name: ClassVar[str] = "overlay"
    condition: ClassVar[str] = OVERLAY_UP.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        conditions: ConditionSet,
        clock: Clock,
        config: OverlayConfig,
        core: Core,
        links: LinkMonitor,
        around: Around,
        machine: Machine,
    ) -> None:
        super().__init__(board, own=Looked())
        self.own: Looked
        self.guard, self._routes, self._congestion = around
        self._board = board
        self._put_ends = board.claim(EASYTIER_ENDS, self.name)
        self._put_confirmed = board.claim(CONFIRMED_CONFIG, self.name)
        # Of EasyTier on this machine. None: the overlay is somebody else's, and is watched only.
        self._ownership = None if config.kind == "existing" else Ownership(core.paths.runtime / "overlay.lock")
        self._core = core
        self._process = core.process
        self._links = links
        self._conditions = conditions
        self._clock = clock
        self._machine = machine
        self._uplink = Uplink(board, links, clock, machine.connections)
        self._restarts = RestartPolicy(clock, first_s=0.5, cap_s=30.0)
        self._mends = RestartPolicy(clock, first_s=0.05, cap_s=5.0)  # somebody may undo them again and again
        self._child_started = asyncio.Event()
        self._has_adopted = False
        changed = Nudge(self.look_again)
        links.watch(config.device, self.guard.doubts, changed)
        links.watch_uplinks(config.device, changed)

    async def run(self) -> None:
        """Look again when EasyTier ends, or a file that it has its own copy of changes; until cancelled."""
        with inotify.watching(self._core.private_hosts.watched, self.look_again):
            while True:
                await self._child_started.wait()
                self._child_started.clear()
                await self._process.wait()
                self._put_ends(self._board.facts.easytier_ends + 1)  # however it ended
                self.look_again()

    async def bound_log(self) -> None:
        """Look at EasyTier's output every two seconds, whatever state the overlay is in; until cancelled."""
        while True:
            await self._clock.sleep(_LOG_LOOK_S)
            self._core.bound_log()

    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        spec, own, easytier = now.overlay_spec, now.own, now.own.easytier
        if spec is None:
            why = "this node has no lease yet, so it has no overlay address"
            return Decision((is_not_so(self.condition, "NoLease", why),))
        occasion = now.occasion(spec)
        if own.occasion != occasion or at_s >= own.look_at_s:
            return Decision(does=Look(occasion))
        if not own.is_ours:
            problem = device_problem(own.device, spec, is_ours=self._ownership is not None)
            return Decision((self._verdict(problem, spec, now),), again_s=own.look_at_s - at_s)
        if easytier is None:
            if at_s < own.start_at_s:
                return Decision(again_s=own.start_at_s - at_s)
            if not now.easytier_may_start:
                why = "waiting (at most 3 s) for the registry to confirm that no other machine uses this node's key"
                return Decision((is_not_so(self.condition, "AsksRegistry", why),))
            return Decision(does=Start(occasion))
        if not easytier.is_running:
            return Decision(does=NoteEnd(spec, easytier))
        if why := why_outdated(easytier, occasion):
            return Decision(does=Replace(spec, replace(easytier, wishes=occasion.wishes), why))
        problem = device_problem(own.device, spec, was=easytier.confirmed)
        is_awaited = problem is not None and easytier.confirmed is None
        says = () if is_awaited else (self._verdict(problem, spec, now),)
        if (acts_s := due_s(own, easytier, problem)) > at_s:
            return Decision(says, again_s=min(own.look_at_s, acts_s) - at_s)
        if own.at_s < acts_s:
            return Decision(says, Look(occasion))
        if problem is None:
            return Decision(does=Redial(spec, easytier, own.redial))
        reason, message = problem
        return Decision(says, (Repair if own.held else GiveUp)(spec, easytier, message, reason))

    def _verdict(self, problem: tuple[str, str] | None, spec: OverlaySpec, now: Inputs) -> Said:
        if problem is not None:
            return is_not_so(self.condition, *problem)
        if now.ways.elsewhere:
            return is_not_so(self.condition, "RouteElsewhere", now.ways.in_words)
        told = (f"{spec.device} is up with {spec.overlay_ip}", *now.own.caveats, now.ways.caveat)
        return is_so(self.condition, "DeviceConfirmed", "; ".join(filter(None, told)))

    async def act(self, action: Do) -> None:
        try:
            match action:
                case Look(occasion):
                    await self._look(occasion)
                case Start(occasion):
                    await self._start(occasion)
                case NoteEnd(spec, easytier):
                    await self._note_end(spec, easytier)
                case Replace():
                    await self._replace(action)
                case Redial(spec, _, why):
                    await self._core.prepare(spec)  # what cannot be started anew is not stopped
                    _log.warning("overlay.uplink_changed", why=why)
                    self._mends.note_end(served=True)
                    self._down("UplinkChanged", f"{why}; EasyTier is started anew, Ray goes on meanwhile")
                    await self._process.stop()
                    self._restarts.forgive()
                case Repair(spec, easytier, message, reason):
                    await self._repair(spec, easytier, reason, message)
                case GiveUp(spec, easytier, message, reason):
                    await self._give_up(spec, easytier, reason, message)
        finally:
            self.own = replace(
                self.own,
                easytier=None if self._process.identity is None else self.own.easytier,
                start_at_s=self._restarts.due_s,
                mend_at_s=max(self._mends.due_s, self.own.mend_at_s),
            )
            self._put_confirmed(self._confirmed_config)

    async def _look(self, occasion: Occasion) -> None:
        spec, before = occasion.spec, self.own
        hide(*spec.secrets)
        if occasion.standstills != (0 if before.occasion is None else before.occasion.standstills):
            self._uplink.stood_still()
        is_ours = self._ownership is not None and self._ownership.acquire()
        easytier = self._present(before.easytier, occasion.wishes) if is_ours else None
        is_current = easytier is not None and easytier.is_running and not why_outdated(easytier, occasion)
        device, at_s = await self._links.observe(spec.device), self._clock.monotonic_s()
        fault_since_s, held, uplink, collision = math.inf, "", Finding(), ""
        if easytier is not None and is_current:
            if device.exists and not easytier.confirmed:
                self._core.hide_secret(spec)
            problem = device_problem(device, spec, was=easytier.confirmed)
            if problem is None or easytier.confirmed or easytier.is_adopted:
                await self._routes.keep(spec)  # before anybody is told that the overlay is up
            if problem is None:
                if not easytier.confirmed:
                    easytier = replace(easytier, confirmed=device)
                    took_s = at_s - (easytier.confirm_until_s - _START_TIMEOUT_S)
                    after_s = None if easytier.is_adopted else round(took_s, 3)
                    _log.info("overlay.up", device=spec.device, address=str(spec.overlay_ip), after_s=after_s)
                await self._core.upkeep()
                uplink = await self._uplink.look(easytier.identity.pid, spec)
                collision = await self._collision(spec)
            elif easytier.confirmed:
                fault_since_s, held = min(before.fault_since_s, at_s), self._machine.held_tun(easytier.identity.pid)
        look_s = _LOOK_S if is_ours or self._ownership is None else _TAKE_OVER_LOOK_S
        ours = (self._core.caveat, self._core.version_note, self.guard.caveat, self._routes.caveat)
        self.own = replace(
            self.own,
            occasion=occasion,
            at_s=at_s,
            look_at_s=at_s + (uplink.look_again_s or look_s),
            is_ours=is_ours,
            easytier=easytier,
            has_failed=before.has_failed and not (easytier and easytier.confirmed),
            device=device,
            fault_since_s=fault_since_s,
            held=held,
            redial=uplink.redial,
            caveats=(*ours, self._congestion.caveat, uplink.caveat, collision),
        )
        if easytier is not None and is_current and (easytier.confirmed or easytier.is_adopted):
            self._put_confirmed(self._confirmed_config)
            self.wakeup.set()  # the plan says at once what was seen
            guard_s = await self.guard.keep()
            await self._congestion.keep(spec)
            self.own = replace(self.own, look_at_s=min(self.own.look_at_s, self._clock.monotonic_s() + guard_s))

    def _present(self, known: EasyTier | None, wishes: tuple[Wish, ...]) -> EasyTier | None:
        """Return the EasyTier of this machine. One that is not known was started by another daemon."""
        self._adopt()
        identity = self._process.identity
        if identity is None:
            return None
        if known is None or known.identity != identity:
            known = EasyTier(identity, wishes, self._clock.monotonic_s() + _ADOPTED_GRACE_S, is_adopted=True)
        return replace(known, is_running=self._process.is_running)

    def _adopt(self) -> None:
        if self._has_adopted:
            return
        self._has_adopted = True
        if identity := self._process.adopt():
            _log.info("overlay.adopted", pid=identity.pid)
            self._child_started.set()

    async def _collision(self, spec: OverlaySpec) -> str:
        """Name a network of this machine that has the overlay's addresses. What works is not cut for it."""
        try:
            check_collision(spec.overlay_ip.network, await self._links.local_networks(spec.device))
        except OverlayAddressError as error:
            return f"{error.message}: addresses that both have are reached by the overlay only"
        return ""

    async def _start(self, occasion: Occasion) -> None:
        spec = occasion.spec
        self._core.capabilities()  # without an EasyTier that can be used, nothing is begun
        await self._machine.preflight(spec, self._links)
        await self.guard.apply()
        await self._routes.keep(spec)
        await self._congestion.keep(spec)
        if not self.own.has_failed:
            self._down("Starting", f"EasyTier is starting; waiting for {spec.device}")
        await self._uplink.starting(spec)
        identity = await self._core.start(spec)
        at_s = self._clock.monotonic_s()
        easytier = EasyTier(identity, occasion.wishes, at_s + _START_TIMEOUT_S, is_adopted=False)
        self.own = replace(self.own, easytier=easytier, at_s=at_s, look_at_s=at_s + _LOOK_S, device=LinkState())
        self._child_started.set()

    async def _replace(self, action: Replace) -> None:
        try:
            await self._core.prepare(action.spec)  # what can fail or take its time, while the former one still serves
            _log.info("overlay.replaced", reason=action.why)
            self._down("Replacing", "EasyTier is restarted with its new configuration")
            await self._process.stop()
            self._restarts.forgive()
        except Exception:
            self.own = replace(self.own, easytier=action.easytier)  # a wish is not tried again
            raise

    async def _note_end(self, spec: OverlaySpec, easytier: EasyTier) -> None:
        """Say how EasyTier ended and set the moment of the next start."""
        pid, was_confirmed = easytier.identity.pid, easytier.confirmed is not None
        status = await self._process.wait()  # until its device and ports are free, too
        self._core.hide_secret(spec)
        words = self._process.last_words(6)
        if self._process.adopt() is not None:  # forgets the record of the one that ended
            self.look_again()
        message = f"easytier-core (pid {pid}) ended" + ("" if status is None else f" with status {status}")
        self._restarts.note_end(served=was_confirmed)
        self.own = replace(self.own, easytier=None, has_failed=not was_confirmed)
        reason = "CrashLoop" if self._restarts.is_crash_loop else ProcessExitedError.reason
        if was_confirmed:
            _log.warning("overlay.process_ended", pid=pid, status=status)
            last_words = f"; its last words: {words or 'none'}" if self._restarts.is_crash_loop else ""
            self._down(reason, f"{message}; it is being restarted{last_words}")
            return
        self._down(reason, message)
        raise ProcessExitedError(
            f"{message} before {spec.device} was up; its last words: {words or 'none'}",
            hint=f"its whole output is in {self._core.log_path}",
            reason=reason,
        )

    async def _repair(self, spec: OverlaySpec, easytier: EasyTier, reason: str, problem: str) -> None:
        assert easytier.confirmed is not None
        self._mends.note_end(served=True)
        try:
            await self._machine.mend(self.own.held, spec, easytier.confirmed.mtu)
        except OSError as error:
            _log.warning("overlay.mend_failed", reason=reason, error=str(error))
        left = device_problem(await self._links.observe(spec.device), spec, was=easytier.confirmed)
        if left is not None and left[0] not in NOT_EASYTIERS:
            await self._give_up(spec, easytier, *left)
            return
        if left is None:
            _log.warning("overlay.mended", reason=reason, problem=problem)
        mend_at_s = self._clock.monotonic_s() + (0.0 if left is None else FAULT_SETTLES_S)
        self.own = replace(self.own, mend_at_s=mend_at_s, changes=self.own.changes + 1)

    async def _give_up(self, spec: OverlaySpec, easytier: EasyTier, reason: str, problem: str) -> None:
        was_confirmed = easytier.confirmed is not None
        if was_confirmed:
            await self._core.prepare(spec)  # what cannot be started anew is not stopped
        _log.warning("overlay.device_fault", reason=reason, problem=problem)
        self._restarts.note_end(served=was_confirmed)
        await self._process.stop()
        self._core.hide_secret(spec)
        self.own = replace(self.own, has_failed=not was_confirmed)
        if not was_confirmed:
            raise InterfaceNotReadyError(
                f"EasyTier ran for {_START_TIMEOUT_S:g} s, but {problem}; its last words: {self._core.last_words()}",
                hint=f"its whole output is in {self._core.log_path}",
            )

    async def stop(self) -> None:
        """End EasyTier, unless another daemon of this machine needs it. Idempotent.

        Raises:
            ProcessStopError: it does not end.
        """
        if self._ownership is None:
            return
        if self._ownership.acquire() and not self._ownership.is_needed_by_others():
            self._adopt()
            await self._process.stop()
            await self.guard.remove()
            await self._congestion.remove()
            await self._routes.remove()
        self._ownership.release()
        self._down("Stopped", "the overlay was stopped")

    def _down(self, reason: str, message: str) -> None:
        """Say that the overlay is down. The fact comes first: who hears of the condition looks at it."""
        self._put_confirmed(self._confirmed_config)
        self._conditions.set_false(self.condition, reason, message)

    @property
    def _confirmed_config(self) -> str | None:
        own = self.own
        if own.occasion is not None and not own.is_ours and self._ownership is not None:
            return None
        if own.easytier is None or own.easytier.confirmed is None or not self._process.is_running:
            return ""
        return own.easytier.identity.config_hash
