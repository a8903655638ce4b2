"""Keep the relays that a running EasyTier dials in step with those that are wanted, without restarting it.

What a core was started with stands in its configuration file. A relay that came later is added through EasyTier's
RPC; where that fails (no easytier-cli, one of another version), EasyTier learns of it at its next start. That
start is brought about only when nobody answers over the overlay any more: there is nothing to cut then, and the relay
that is missing may be the only one left.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from edgelink.condition_table.informing import RELAYS_DIALLED
from edgelink.conditions import ConditionSet, Status
from edgelink.errors import OverlayError
from edgelink.log import get_logger
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.status import change_connector, connectors, peers
from edgelink.process import Identity, SupervisedProcess
from edgelink.reconcile import Wakeup

_LOOK_S = 30.0
_CUT_OFF_LOOK_S = 1.0

log = get_logger("relays-dialled")


class DialledReconciler:
    """Sets ``RelaysDialled``, which only informs. ``start_anew`` has EasyTier restarted; ``is_cut_off`` says whether
    nobody answers over the overlay."""

    name: ClassVar[str] = "relays-dialled"
    condition: ClassVar[str] = RELAYS_DIALLED.name

    def __init__(
        self,
        *,
        spec: Callable[[], OverlaySpec | None],
        binary: Callable[[], EasyTierBinary],
        config_path: Path,
        process: SupervisedProcess,
        conditions: ConditionSet,
        is_cut_off: Callable[[], bool],
        start_anew: Callable[[str], None],
    ) -> None:
        self.wakeup = Wakeup()
        self._spec = spec
        self._binary = binary
        self._config_path = config_path
        self._process = process
        self._conditions = conditions
        self._is_cut_off = is_cut_off
        self._start_anew = start_anew
        self._done: tuple[Identity | None, tuple[str, ...]] | None = None
        self._missing: tuple[str, ...] = ()
        self._why = ""

    async def reconcile(self) -> float:
        spec = self._spec()
        if spec is None or not self._conditions.is_true("OverlayUp"):
            self._conditions.set(self.condition, Status.UNKNOWN, "OverlayDown", "the overlay device is not up")
            return _LOOK_S
        state = (self._process.identity, spec.peers)
        if state != self._done:
            missing = await self._bring_in_step(spec)
            if missing and missing != self._missing:
                log.warning("relays-dialled.not_yet", urls=missing, why=self._why)
            self._missing = missing
            self._done = None if missing else state
        if not self._missing:
            names = ", ".join(spec.peers) or "no other relay is known"
            self._conditions.set_true(self.condition, "AllDialled", f"dialled: {names}")
            return _LOOK_S
        self._conditions.set_false(
            self.condition,
            "NotDialledYet",
            f"EasyTier {self._binary().version} learns of {', '.join(self._missing)} at its next start only",
        )
        return await self._restart_when_cut_off(spec)

    async def _bring_in_step(self, spec: OverlaySpec) -> tuple[str, ...]:
        """Add and remove through the RPC; what could not be added."""
        wanted = set(spec.peers)
        if wanted == self._started_with():
            return ()
        try:
            dialled = set(await connectors(self._binary(), spec.rpc_port))
        except OverlayError as error:
            self._why = error.message
            return tuple(url for url in spec.peers if url not in self._started_with())
        missing = [url for url in spec.peers if url not in dialled and not await self._tell("add", url, spec.rpc_port)]
        for url in sorted(dialled - wanted):
            await self._tell("remove", url, spec.rpc_port)  # one too many costs nothing
        return tuple(missing)

    async def _tell(self, action: str, url: str, rpc_port: int) -> bool:
        try:
            await change_connector(self._binary(), rpc_port, action, url)
        except OverlayError as error:
            self._why = error.message
            return False
        log.info("relays-dialled.told", action=action, url=url)
        return True

    def _started_with(self) -> set[str]:
        try:
            file = tomllib.loads(self._config_path.read_text())
        except (OSError, ValueError):
            return set()
        return {str(peer.get("uri")) for peer in file.get("peer", ())}

    async def _restart_when_cut_off(self, spec: OverlaySpec) -> float:
        if not self._is_cut_off():
            return _LOOK_S
        try:
            others = [row for row in await peers(self._binary(), spec.rpc_port) if not row.is_self]
        except OverlayError:
            others = []  # without a CLI, the silence has to do
        if others:
            return _CUT_OFF_LOOK_S
        self._start_anew(f"nobody answers, and it does not dial {', '.join(self._missing)} yet")
        return _LOOK_S
