"""EasyTier's RPC port hands the network secret to whoever asks: to root on loopback only, by a table of our own.

Apart from the table around Ray's ports, because the relay has an EasyTier and no Ray, and because where relay and
head share a machine each daemon may come and go without taking the other's rules along.
"""

from __future__ import annotations

from contextlib import suppress

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, MissingDependencyError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.nft import MARK, FirewallError, Table

_LOOK_S = 30.0
OPENING = "tcp flags & (fin|syn|rst|ack) == syn"  # the first packet of a connection: replies get through
_log = get_logger("overlay")


def rpc_guard(rpc_port: int) -> Table:
    """Closed from outside, the overlay included, and on loopback to all but root."""
    return Table(
        "edgelink_easytier",
        f"""  chain input {{
    type filter hook input priority filter; policy accept;
    iifname != "lo" tcp dport {rpc_port} {OPENING} drop comment "{MARK}"
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "lo" tcp dport {rpc_port} meta skuid != 0 reject with tcp reset
  }}
""",
    )


class GuardKeeper:
    """Puts a table in place before EasyTier runs, and has it stay; does nothing without a table."""

    def __init__(self, table: Table | None, clock: Clock) -> None:
        self.caveat = ""  # what is wrong with the table around an EasyTier that runs
        self._table = table
        self._clock = clock
        self._look_at_s = 0.0
        self._outage = Outage(clock)

    def doubt(self) -> None:
        """Something happened: have :meth:`keep` look at once."""
        self._look_at_s = 0.0

    async def apply(self) -> None:
        """Before EasyTier opens its RPC. Raises as :meth:`edgelink.overlay.nft.Table.apply`."""
        self._look_at_s = self._clock.monotonic_s() + _LOOK_S
        if self._table is not None:
            await self._table.apply()
        self.caveat = ""
        if (lasted_s := self._outage.over()) is not None:
            _log.info("overlay.guarded_again", lasted_s=lasted_s)

    async def keep(self) -> float:
        """Around an EasyTier that runs, every 30 s: a failure is a caveat, and no reason to neglect what works.

        Returns:
            Seconds until the next look; 0 when the caveat is another now.
        """
        if (left_s := self._look_at_s - self._clock.monotonic_s()) > 0:
            return left_s
        before = self.caveat
        try:
            await self.apply()
        except EdgelinkError as error:
            self.caveat = f"EasyTier's RPC may be open to every user of this machine: {error}"
            if self._outage.is_news(error.condition_reason):
                _log.warning("overlay.not_guarded", reason=error.condition_reason, error=str(error))
        return 0.0 if self.caveat != before else max(self._look_at_s - self._clock.monotonic_s(), 0.0)

    async def remove(self) -> None:
        """Once EasyTier has ended; nothing is lost where it fails."""
        if self._table is not None:
            with suppress(MissingDependencyError, FirewallError):
                await self._table.remove()
