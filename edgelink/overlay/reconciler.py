"""Keep this node's overlay as its lease says: EasyTier runs for it, and the kernel confirms its device.

::

    no lease ──▶ not ours (another daemon owns EasyTier): watch only
       │
       ▼
    adopt ──▶ other configuration? replace ──▶ not running? preflight, start ──▶ device confirmed ──▶ OverlayUp
                                                    ▲                                  │
                                                    └── ended / device lost: restart ◀─┘

An overlay that works is left alone: nothing here acts on a running EasyTier whose device is as it should be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import ClassVar

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import OverlayConfig, Paths
from edgelink.errors import (
    EasyTierNotFoundError,
    InterfaceNotReadyError,
    MissingDependencyError,
    PrivateFilesError,
    ProcessExitedError,
)
from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger, hide
from edgelink.overlay import config_file, preflight, stun
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.capabilities import Capabilities
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor, LinkState
from edgelink.overlay.load import LoadReconciler
from edgelink.overlay.nft import Table
from edgelink.overlay.ownership import Ownership
from edgelink.process import ProcessSpec, SupervisedProcess, inotify, output
from edgelink.reconcile import Wakeup

__all__ = ["LoadReconciler", "OverlayReconciler", "device_problem"]

_LOOK_S = 30.0  # events tell of changes; this look only bounds the log and makes up for a lost event
_TAKE_OVER_LOOK_S = 2.0
_START_TIMEOUT_S = 10.0  # EasyTier 2.0.3 needs 30 ms for its device
_ADOPTED_GRACE_S = 2.0  # a core adopted in the middle of its start
_FAULT_SETTLES_S = 0.2  # somebody may be taking the address away to put it back
_HEALTHY_LIFE_S = 60.0
_LOG_MAX_BYTES = 4 << 20
_MIN_MTU = 576
_log = get_logger("overlay")


class OverlayReconciler:
    """Sets ``OverlayUp``; the only one that starts and stops EasyTier."""

    name: ClassVar[str] = "overlay"
    condition: ClassVar[str] = "OverlayUp"

    def __init__(
        self,
        *,
        spec: Callable[[], OverlaySpec | None],
        binary: Callable[[], EasyTierBinary],
        config: OverlayConfig,
        paths: Paths,
        process: SupervisedProcess,
        links: LinkMonitor,
        conditions: ConditionSet,
        clock: Clock,
        owner_lock: Path,
        preflight: Callable[[OverlaySpec, Capabilities, LinkMonitor], Awaitable[None]] = preflight.check,
        private_hosts: stun.PrivateHosts | None = None,
        guard: Table | None = None,
    ) -> None:
        self.wakeup = Wakeup()
        self._spec = spec
        self._binary = binary
        self._config = config
        self._paths = paths
        self._process = process
        self._links = links
        self._conditions = conditions
        self._clock = clock
        self._ownership = Ownership(owner_lock)
        self._private_hosts = private_hosts or stun.PrivateHosts(paths.state)
        self._caveat = ""  # what the condition says besides, while the overlay is up
        self._preflight = preflight
        self._guard = guard  # around EasyTier's RPC, for as long as EasyTier runs
        self._restarts = Backoff(first_s=0.5, cap_s=30.0)
        self._child_started = asyncio.Event()
        self._has_adopted = False
        self._is_adopted = False  # the process that runs now was started by a predecessor
        self._was_confirmed = False  # the device of the process that runs now
        self._started_s = 0.0
        self._not_before_s = 0.0
        self._last_restart_s = -_HEALTHY_LIFE_S
        self._fault_since_s: float | None = None
        self._failure = ""
        links.watch(config.device, self.wakeup)

    @property
    def _log_path(self) -> Path:
        return self._paths.logs / "easytier.log"

    async def run(self) -> None:
        """Wake the reconciler when EasyTier ends, or a file that it has its own copy of changes; until cancelled."""
        with inotify.watching(self._private_hosts.watched, self.wakeup.set):
            while True:
                await self._child_started.wait()
                self._child_started.clear()
                await self._process.wait()
                self.wakeup.set()

    async def reconcile(self) -> float:
        spec = self._spec()
        if spec is None:
            self._down("NoLease", "this node has no lease yet, so it has no overlay address")
            return _LOOK_S
        if self._config.kind == "existing":
            return self._report(device_problem(await self._links.observe(spec.device), spec, is_ours=False), spec)
        hide(spec.network_secret)
        if not self._ownership.acquire():
            self._report(device_problem(await self._links.observe(spec.device), spec), spec)
            return _TAKE_OVER_LOOK_S
        self._adopt()
        await self._replace_if_outdated(spec)
        await self._note_end(spec)
        if not self._process.is_running:
            return await self._start(spec)
        if self._was_confirmed or self._is_adopted:  # a start that is under way has just seen to it
            await self._protect()
        return await self._confirm(spec)

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
            if self._guard is not None:
                with suppress(MissingDependencyError):
                    await self._guard.remove()
        self._ownership.release()
        self._down("Stopped", "the overlay was stopped")

    async def _protect(self) -> None:
        """EasyTier's RPC is closed before it opens, and stays so whoever took the table away."""
        if self._guard is not None:
            await self._guard.apply()

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
        if self._process.is_running and self._process.config_hash != spec.config_hash:
            _log.info("overlay.replaced", reason="the configuration changed")
            self._down("Replacing", "EasyTier is restarted with its new configuration")
            await self._process.stop()
            self._restarts.reset()

    async def _note_end(self, spec: OverlaySpec) -> None:
        """An EasyTier that ended unasked: forget it, and plan the next start."""
        identity = self._process.identity
        if identity is None or self._process.is_running:
            return
        status = await self._process.wait()  # until its device and ports are free, too
        self._hide_secret_in_output(spec)
        words = self._process.last_words(6)
        self._process.adopt()  # forgets the record of the one that ended
        message = f"easytier-core (pid {identity.pid}) ended" + (f" with status {status}" if status is not None else "")
        self._plan_restart()
        if self._was_confirmed:
            _log.warning("overlay.process_ended", pid=identity.pid, status=status)
            self._down("ProcessExited", f"{message}; it is being restarted")
            return
        self._failure = message
        self._down(ProcessExitedError.reason, message)
        raise ProcessExitedError(
            f"{message} before {spec.device} was up; its last words: {words or 'none'}",
            hint=f"its whole output is in {self._log_path}",
        )

    def _plan_restart(self) -> None:
        """At once after a healthy life, with growing pauses otherwise."""
        now_s = self._clock.monotonic_s()
        if self._was_confirmed and now_s - self._last_restart_s >= _HEALTHY_LIFE_S:
            self._restarts.reset()
            self._not_before_s = now_s
        else:
            self._not_before_s = now_s + self._restarts.next_s()
        self._last_restart_s = now_s

    async def _start(self, spec: OverlaySpec) -> float:
        wait_s = self._not_before_s - self._clock.monotonic_s()
        if wait_s > 0:
            return wait_s
        binary = self._binary()
        capabilities = Capabilities.for_version(binary.version)
        await self._preflight(spec, capabilities, self._links)
        await self._protect()
        private_directory(self._paths.state)
        private_directory(self._paths.logs)
        write_atomic(self._paths.easytier_config, config_file.render(spec, capabilities))
        output.bound(self._log_path, _LOG_MAX_BYTES)
        if not self._failure:  # a failure stays visible while it is retried
            self._down("Starting", f"EasyTier is starting; waiting for {spec.device}")
        await self._launch(
            ProcessSpec(
                name="easytier-core",
                argv=config_file.argv(binary.core, self._paths.easytier_config, spec, capabilities),
                env=config_file.environment(capabilities),
                cwd=self._paths.logs,  # where it would leave easytier-panic.log
                log_path=self._log_path,
                config_hash=spec.config_hash,
                umask=0o077,
            ),
            capabilities,
        )
        self._started_s = self._clock.monotonic_s()
        self._is_adopted = self._was_confirmed = False
        self._fault_since_s = None
        self._child_started.set()
        return _START_TIMEOUT_S

    async def _launch(self, process: ProcessSpec, capabilities: Capabilities) -> None:
        """With the hosts file that keeps it from public STUN servers; where the machine does not let us, without."""
        self._caveat = ""
        try:
            files = self._private_hosts.prepare() if stun.is_asked_by(capabilities) else ()
            await self._process.start(replace(process, private_files=files))
        except PrivateFilesError as error:
            self._note_stun(str(error))
            await self._process.start(process)
        if capabilities.stun_txt_record and not capabilities.stun_switch:
            self._note_stun("this version takes them from a DNS record; 2.0.3 and 2.4.5 or later do not")

    def _keep_from_stun(self) -> None:
        """Renew the hosts file of a running EasyTier: the machine's own may have changed, or replaced it."""
        identity = self._process.identity
        if identity is None or not self._asks_stun():
            return
        try:
            self._private_hosts.renew(identity)
        except PrivateFilesError as error:
            if not self._caveat:
                self._note_stun(str(error))
        except ProcessLookupError:
            pass  # its end is noticed elsewhere

    def _asks_stun(self) -> bool:
        try:
            return stun.is_asked_by(Capabilities.for_version(self._binary().version))
        except EasyTierNotFoundError:
            return True  # an adopted one, of whatever version

    def _note_stun(self, why: str) -> None:
        self._caveat = f"EasyTier may ask public STUN servers: {why}"
        _log.warning("overlay.stun_not_prevented", why=why, names=stun.NAMES)

    async def _confirm(self, spec: OverlaySpec) -> float:
        state = await self._links.observe(spec.device)
        if state.exists and not self._was_confirmed:
            self._hide_secret_in_output(spec)  # the banner is out before the device is made
        problem = device_problem(state, spec)
        if problem is None:
            self._note_confirmed(spec)
            self._keep_from_stun()
            output.bound(self._log_path, _LOG_MAX_BYTES)
            return self._report(None, spec)
        now_s = self._clock.monotonic_s()
        if not self._was_confirmed:
            left_s = self._started_s + _START_TIMEOUT_S - now_s
            if left_s > 0:
                return left_s
            self._failure = problem[1]
        else:
            self._report(problem, spec)
            self._fault_since_s = now_s if self._fault_since_s is None else self._fault_since_s
            left_s = self._fault_since_s + _FAULT_SETTLES_S - now_s
            if left_s > 0:
                return left_s
        return await self._restart_for(problem, spec)

    async def _restart_for(self, problem: tuple[str, str], spec: OverlaySpec) -> float:
        """EasyTier notices nothing of it and would go on without a device for ever."""
        reason, message = problem
        _log.warning("overlay.device_fault", reason=reason, problem=message)
        was_confirmed = self._was_confirmed
        self._plan_restart()
        await self._process.stop()
        self._hide_secret_in_output(spec)
        if not was_confirmed:
            raise InterfaceNotReadyError(
                f"EasyTier ran for {_START_TIMEOUT_S:g} s, but {message}; its last words: "
                f"{output.tail(self._log_path, 6) or 'none'}",
                hint=f"its whole output is in {self._log_path}",
            )
        return await self._start(spec)

    def _note_confirmed(self, spec: OverlaySpec) -> None:
        self._fault_since_s = None
        self._failure = ""
        if not self._was_confirmed:
            self._was_confirmed = True
            took_s = None if self._is_adopted else round(self._clock.monotonic_s() - self._started_s, 3)
            _log.info("overlay.up", device=spec.device, address=str(spec.overlay_ip), after_s=took_s)

    def _hide_secret_in_output(self, spec: OverlaySpec) -> None:
        """EasyTier's banner shows the secret, before 2.6.0 without a switch; so may its crash report."""
        for path in (self._log_path, self._paths.logs / "easytier-panic.log"):
            output.scrub(path, {spec.network_secret, config_file.toml_string(spec.network_secret)[1:-1]})

    def _report(self, problem: tuple[str, str] | None, spec: OverlaySpec) -> float:
        if problem is not None:
            self._down(*problem)
        else:
            message = f"{spec.device} is up with {spec.overlay_ip}" + (f"; {self._caveat}" if self._caveat else "")
            self._conditions.set_true(self.condition, "DeviceConfirmed", message)
        return _LOOK_S

    def _down(self, reason: str, message: str) -> None:
        self._conditions.set_false(self.condition, reason, message)


def device_problem(state: LinkState, spec: OverlaySpec, *, is_ours: bool = True) -> tuple[str, str] | None:
    """Reason and sentence for what is wrong with the device; None when it is as it should be. Pure.

    A device that something else made (``is_ours`` False) may have more addresses than ours, and any MTU.
    """
    device = spec.device
    if not state.exists:
        return "DeviceMissing", f"the device {device} does not exist"
    if not state.is_up:
        return "DeviceDown", f"the device {device} is down"
    has = ", ".join(map(str, state.addresses)) or "no address"
    if not is_ours:
        if spec.overlay_ip.ip in (address.ip for address in state.addresses):
            return None
        return "AddressMissing", f"the device {device} has {has}, not this node's {spec.overlay_ip.ip}"
    if state.addresses != (IPv4Interface(spec.overlay_ip),):
        return "AddressWrong", f"the device {device} has {has} instead of {spec.overlay_ip}"
    if not _MIN_MTU <= state.mtu <= spec.mtu:
        return "MtuWrong", f"the device {device} has an MTU of {state.mtu} instead of {spec.device_mtu}"
    return None
