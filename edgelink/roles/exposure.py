"""Nothing of this node answers strangers: keeps our nftables tables in place, and says in ``Shielded`` what holds."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import ClassVar

from edgelink.condition_table.informing import SHIELDED
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.overlay.nft_watch import NftWatch
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.reconcile import Wakeup

_LOOK_S = 2.0  # at what the keepers know; nft itself is asked every 30 s, and when the kernel tells of a change


class ExposureReconciler:
    """Sets ``Shielded``. Apart from Ray's and EasyTier's reconcilers: those wait for minutes at times."""

    name: ClassVar[str] = "exposure"
    condition: ClassVar[str] = SHIELDED.name

    def __init__(self, config: Config, conditions: ConditionSet, tables: NftWatch) -> None:
        self.wakeup = Wakeup()
        self.token_auth: Callable[[], bool | None] = lambda: None  # whether Ray asks for a token; None: no Ray known
        self.left_open: Callable[[], str] = lambda: ""  # ports of a training that are not closed by default
        self.revoked: frozenset[IPv4Address] = frozenset()  # addresses that are dropped on the overlay
        self._config = config
        self._conditions = conditions
        self._tables = tables
        self._keepers: list[TableKeeper] = []
        self._has_ray = False

    def add(self, table: str, keeper: TableKeeper, *, is_rays: bool = False) -> None:
        """Keep this table too, once somebody wants it."""
        self._keepers.append(keeper)
        self._has_ray = self._has_ray or is_rays

        def changed() -> None:
            keeper.doubt()
            self.wakeup.set()

        self._tables.watch(table, changed)

    @property
    def ray_auth(self) -> str | None:
        """What stands between Ray and whoever reaches this machine, for ``status``; None while that is not known."""
        asks = self.token_auth()
        if asks is None:
            return None
        if asks:
            return "token"
        return "firewall only" if self._config.firewall.enabled else "none"

    @property
    def _open(self) -> str:
        return "Ray and the training answer on every network of this machine; " if self._has_ray else ""

    async def reconcile(self) -> float:
        if not self._config.firewall.enabled:
            self._conditions.set_false(
                self.condition,
                "SwitchedOff",
                f"`firewall: off` in the configuration: {self._open}EasyTier tells the network secret to every user; "
                "what comes from the addresses of revoked nodes is not dropped",
            )
            return _LOOK_S
        wanted = [keeper for keeper in self._keepers if keeper.is_wanted]
        for keeper in wanted:
            await keeper.keep()
        if failed := [keeper for keeper in wanted if keeper.failure is not None]:
            assert failed[0].failure is not None
            what = "; ".join(keeper.caveat for keeper in failed)
            self._conditions.set_false(self.condition, failed[0].failure.condition_reason, what)
        elif wanted:
            self._judge()
        return _LOOK_S

    def _judge(self) -> None:
        """The tables are in place; is that all that is wanted?"""
        lacks: list[tuple[str, str]] = []
        if self._has_ray and self._config.firewall.rendezvous_ports == ():
            lacks.append(
                (
                    "RendezvousOpen",
                    "`firewall.rendezvous_ports: []` in the configuration: Ray's own ports are closed, those where the "
                    "processes of a training meet answer on every network of this machine",
                )
            )
        elif self._has_ray and (beyond := self.left_open()):
            lacks.append(
                (
                    "RendezvousOpen",
                    f"this kernel's ip_local_port_range is wider than 32768-60999: of a training, tcp {beyond} may "
                    "answer on every network of this machine; set the sysctl back, or name what to close in "
                    "`firewall.rendezvous_ports`",
                )
            )
        if self.token_auth() is False:
            lacks.append(
                (
                    "TokenlessRay",
                    "firewall only: Ray before 2.52 asks nobody for a token, so whoever gets into the overlay can run "
                    "code as Ray's user; ray 2.52 and later on every node closes that",
                )
            )
        if lacks:
            self._conditions.set_false(self.condition, lacks[0][0], "; ".join(message for _, message in lacks))
        else:
            closed = "Ray, the training and EasyTier's RPC answer" if self._has_ray else "EasyTier's RPC answers"
            where = "loopback and the overlay" if self._has_ray else "loopback and to root"
            belt = f"; {len(self.revoked)} address(es) of revoked nodes are dropped" if self.revoked else ""
            self._conditions.set_true(self.condition, "RulesInPlace", f"{closed} on {where} only{belt}")
