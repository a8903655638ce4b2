"""Keep the rule and the table of our own in place, and ask the kernel at each change whether they have the last word.

Each change of a route, a rule, an address or a device wakes the part: first it puts back what was taken away, then it
asks (:mod:`edgelink.overlay.ways`). So what is put back is never told as a fault.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any, ClassVar, Final

from pyroute2.netlink.exceptions import NetlinkError

from edgelink.clock import Clock
from edgelink.condition_table.required import OVERLAY_UP
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.ways import Ways
from edgelink.process.restart_policy import HEALTHY_LIFE_S, RestartPolicy
from edgelink.reconcile import Nudge

WAYS: Final[Fact[Ways]] = Fact("ways")

AskKernel = Callable[
    [str, IPv4Address, IPv4Network, Mapping[IPv4Address, str], Collection[int]],
    Awaitable[Ways],
]
_log = get_logger("ways")


@dataclass(frozen=True)
class Seen:
    """What the part itself knows.

    Attributes:
        changes: how often the kernel has told of a change.
        rests_until_s: no look before, because somebody undoes again and again what we put in place.
    """

    changes: int = 0
    rests_until_s: float = 0.0


@dataclass(frozen=True)
class Inputs:
    """What the ways to the other nodes depend on. Routes and rules are the kernel's; ``own`` counts their changes."""

    overlay_spec: OverlaySpec | None
    holders: Mapping[IPv4Address, str]
    own: Seen


@dataclass(frozen=True)
class LookAround(Action):
    """Put back what was taken away, then ask the kernel about these nodes."""

    spec: OverlaySpec
    holders: Mapping[IPv4Address, str]
    changes: int


class WayWatch(Part[Inputs, LookAround]):
    """Writes the fact ``ways``. The overlay's own part says it in ``OverlayUp``."""

    name: ClassVar[str] = "ways"
    condition: ClassVar[str] = OVERLAY_UP.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        routes: OwnRoutes,
        links: LinkMonitor,
        device: str,
        look: AskKernel,
        ray_uid: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        super().__init__(board, own=Seen())
        self.own: Seen
        self._put = board.claim(WAYS, self.name)
        self._routes = routes
        self._look = look
        self._ray_uid = ray_uid
        self._clock = clock
        self._repairs = RestartPolicy(clock, first_s=0.05, cap_s=1.0)
        self._outage = Outage(clock)
        self._undone_s = -math.inf
        self._told = ""
        changed = Nudge(self.look_again)
        links.watch(device, changed)
        links.watch_uplinks(device, changed)

    def plan(self, now: Inputs, at_s: float) -> Decision[LookAround]:
        if now.overlay_spec is None:
            return Decision()
        if (rest_s := now.own.rests_until_s - at_s) > 0:
            return Decision(again_s=rest_s)
        return Decision(does=LookAround(now.overlay_spec, now.holders, now.own.changes), again_s=LOOK_S)

    async def act(self, action: LookAround) -> None:
        undone = self._routes.undone
        ways = await self._asked(action)
        if ways is not None and ways.elsewhere:  # or what is ours was taken away between the two
            ways = await self._asked(action)
        now_s = self._clock.monotonic_s()
        if self._routes.undone != undone:
            self._repairs.note_end(served=True)
            self._undone_s = now_s
            self.own = replace(self.own, rests_until_s=now_s + self._repairs.wait_s)
        elif now_s >= self._undone_s + HEALTHY_LIFE_S:
            self._repairs.forgive()
        if ways is None:
            return
        if self._repairs.is_crash_loop:
            fought = "another program takes EdgeLink's rule or routes away again and again; `ip monitor` shows them"
            ways = replace(ways, caveat="; ".join(filter(None, (ways.caveat, fought))))
        if ways.elsewhere and ways.elsewhere != self._told:
            _log.warning("ways.elsewhere", what=ways.in_words)
        self._told = ways.elsewhere
        self._put(ways)

    async def _asked(self, action: LookAround) -> Ways | None:
        """Put back what was taken away, then ask. None: the kernel does not answer."""
        spec, uids = action.spec, sorted({0, self._ray_uid() or 0})
        await self._routes.follow()
        try:
            ways = await self._look(spec.device, spec.overlay_ip.ip, spec.overlay_ip.network, action.holders, uids)
        except (NetlinkError, OSError) as error:
            if self._outage.is_news("failed"):
                _log.warning("ways.not_asked", error=str(error))
            return None
        self._outage.over()
        return ways
