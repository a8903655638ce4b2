"""A table of ours stays in place for as long as what it protects runs, whoever flushes it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import suppress

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, MissingDependencyError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.nft import FirewallError, Table
from edgelink.overlay.overlay_drops import Drops
from edgelink.reconcile import Wakeup

_LOOK_S = 30.0  # events tell of changes; this look makes up for a lost one
_RETRY_S = 5.0
_QUIET_S = 60.0  # without a change by others: it was a single one
_FOUGHT_OVER = 3  # changes by others without such a pause; a reload of nftables.service makes one or two
_log = get_logger("firewall")


class TableFoughtOverError(EdgelinkError):
    """Somebody takes the table away, or makes another of its name, each time it is put in place."""

    reason = "TableFoughtOver"
    retryable = True


class TableKeeper:
    """Puts a table in place before what it protects runs, and has it stay; does nothing without a table.

    ``doubts`` is set by whoever hears that something may have happened to the table. :meth:`keep` looks at once then,
    or after a rest where it happens again and again.
    """

    def __init__(self, table: Table | None, clock: Clock, *, open_without: str, enabled: bool = True) -> None:
        """``open_without``: what may be open where the table is not in place. Not ``enabled``: it goes."""
        self.failure: EdgelinkError | None = None  # why the table is not in place
        self.is_wanted = False  # between :meth:`apply` or :meth:`keep`, and :meth:`remove`
        self.drops = Drops()  # what the table has dropped of the overlay's packets
        self.doubts = Wakeup()
        self.doubts.set()
        self._table = table
        self._clock = clock
        self._enabled = enabled
        self._open_without = open_without
        self._look_at_s = 0.0
        self._made_at_s: float | None = None  # by us, the last time
        self._undone = 0  # how often others changed it since, each time soon after it was made
        self._rest_until_s = 0.0  # no look before: two who undo each other's table would do so without pause
        self._outage = Outage(clock)
        self._busy = asyncio.Lock()

    @property
    def caveat(self) -> str:
        """What is wrong; empty when nothing is."""
        return "" if self.failure is None else f"{self._open_without}: {self.failure}"

    @property
    def table(self) -> Table | None:
        """What is to be in place."""
        return self._table

    def want(self, table: Table | None) -> None:
        """Another table of the same name; in place with the next :meth:`apply` or :meth:`keep`."""
        if table != self._table:
            self._table = table
            self._made_at_s, self._undone, self._rest_until_s = None, 0, 0.0
            self.doubts.set()

    @property
    def is_in_doubt(self) -> bool:
        """Whether something may have happened to the table, and nobody has looked since."""
        return self.doubts.is_set

    async def apply(self) -> None:
        """Before what it protects opens its ports. Raises as :meth:`edgelink.overlay.nft.Table.apply`."""
        async with self._busy:
            self.is_wanted = True
            await self._apply()

    async def keep(self) -> float:
        """Around what runs: a failure is a caveat, and no reason to neglect what works.

        Returns:
            Seconds until the next look; 0 when the caveat is another now.
        """
        async with self._busy:
            self.is_wanted = True
            before = self.caveat
            if self._next_look_at_s <= self._clock.monotonic_s():
                with suppress(EdgelinkError):
                    await self._apply()
            return 0.0 if self.caveat != before else max(self._next_look_at_s - self._clock.monotonic_s(), 0.0)

    async def hold(self, of_set: str, elements: Iterable[str]) -> None:
        """Have a set of the table, which has to be in place, hold exactly these.

        Never while the table is put back: the new one takes what the sets held a moment before.

        Raises as :meth:`edgelink.overlay.nft.Table.replace_elements`.
        """
        async with self._busy:
            if self._table is not None:
                await self._table.replace_elements(of_set, elements)

    async def remove(self) -> None:
        """Once what it protects has ended; nothing is lost where it fails."""
        async with self._busy:
            self.is_wanted = False
            self._made_at_s = None
            if self._table is not None:
                with suppress(MissingDependencyError, FirewallError):
                    await self._table.remove()

    @property
    def _next_look_at_s(self) -> float:
        return min(self._look_at_s, self._rest_until_s) if self.is_in_doubt else self._look_at_s

    async def _apply(self) -> None:
        self._look_at_s = self._clock.monotonic_s() + _LOOK_S
        self.doubts.clear()
        if self._table is None:
            return
        if not self._enabled:
            self._look_at_s = math.inf  # a predecessor's, once
            with suppress(MissingDependencyError, FirewallError):
                await self._table.remove()
            return
        try:
            applied = await self._table.apply()
            self.drops.note(applied.listing, is_made_anew=applied.is_made)
            self._count(is_made=applied.is_made)
        except EdgelinkError as error:
            self._look_at_s = self._clock.monotonic_s() + _RETRY_S
            self.failure = error
            if self._outage.is_news(error.condition_reason):
                _log.warning("firewall.open", what=self._open_without, reason=error.condition_reason, error=str(error))
            raise
        if self._undone >= _FOUGHT_OVER:
            self.failure = TableFoughtOverError(
                f"nftables table inet {self._table.name} is changed or taken away each time, soon after it is made",
                hint="a second EdgeLink daemon in this network namespace, or a program that flushes what it did not "
                "make? `nft monitor` as root shows it at work",
            )
            if self._outage.is_news(self.failure.condition_reason):
                _log.warning("firewall.fought_over", what=self._open_without, error=str(self.failure))
            return
        self.failure = None
        if (lasted_s := self._outage.over()) is not None:
            _log.info("firewall.closed_again", what=self._open_without, lasted_s=lasted_s)

    def _count(self, *, is_made: bool) -> None:
        """How often others undid it lately, and how long to rest for that: 0, 1, 2, 4 … 30 s."""
        now_s = self._clock.monotonic_s()
        is_soon = self._made_at_s is not None and now_s - self._made_at_s < _QUIET_S
        if not is_soon:
            self._undone = 0
        elif is_made:
            self._undone += 1
        self._rest_until_s = now_s + min(2.0 ** (self._undone - 1), _LOOK_S) if self._undone else 0.0
        if is_made:
            self._made_at_s = now_s
