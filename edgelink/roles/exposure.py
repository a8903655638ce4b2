"""Nothing of this node answers strangers: keeps our nftables tables in place, and says in ``Shielded`` what holds."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, ClassVar, Protocol

from edgelink.condition_table.informing import SHIELDED
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.facts.board import Board
from edgelink.facts.part import Action, Decision, Part
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.nft_watch import NftWatch
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.ray_cluster.firewall import listed
from edgelink.ray_cluster.rendezvous import open_ranges
from edgelink.reconcile import Wakeup
from edgelink.roles.overlay_parts import OverlayParts

_LOOK_S = 2.0  # at what the keepers know; nft itself is asked every 30 s, and when the kernel tells of a change


@dataclass(frozen=True)
class Inputs:
    """What ``Shielded`` depends on, besides the tables."""

    revoked_ips: frozenset[IPv4Address]


class GuardedRay(Protocol):
    """What is needed of this machine's Ray."""

    @property
    def guard(self) -> TableKeeper:
        """Keeps the table around its ports."""

    @property
    def token_auth(self) -> bool | None:
        """Whether it asks for a token. None: its version is not known."""


class ExposureReconciler:
    """Sets ``Shielded``. Apart from Ray's and EasyTier's reconcilers: those wait for minutes at times."""

    name: ClassVar[str] = "exposure"
    condition: ClassVar[str] = SHIELDED.name

    def __init__(self, board: Board[Any], config: Config, conditions: ConditionSet, tables: NftWatch) -> None:
        self.wakeup = Wakeup()
        self._board = board
        self._ray: GuardedRay | None = None
        self._config = config
        self._conditions = conditions
        self._tables = tables
        self._keepers: list[TableKeeper] = []
        board.read(Inputs, self.name, self.wakeup)

    def add_ray(self, table: str, ray: GuardedRay) -> None:
        """Keep the table of this machine's Ray too, and say what stands between Ray and others."""
        self._ray = ray
        self.add(table, ray.guard)

    def add(self, table: str, keeper: TableKeeper) -> None:
        """Keep this table too, once somebody wants it."""
        self._keepers.append(keeper)
        self._tables.watch(table, keeper.doubts, self.wakeup)

    @property
    def ray_auth(self) -> str | None:
        """What stands between Ray and whoever reaches this machine, for ``status``; None while that is not known."""
        asks = None if self._ray is None else self._ray.token_auth
        if asks is None:
            return None
        if asks:
            return "token"
        return "firewall only" if self._config.firewall.enabled else "none"

    @property
    def _open(self) -> str:
        return "Ray and the training answer on every network of this machine; " if self._ray is not None else ""

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
        if self._ray is not None and self._config.firewall.rendezvous_ports == ():
            lacks.append(
                (
                    "RendezvousOpen",
                    "`firewall.rendezvous_ports: []` in the configuration: Ray's own ports are closed, those where the "
                    "processes of a training meet answer on every network of this machine",
                )
            )
        elif self._ray is not None and (beyond := listed(open_ranges(self._config))):
            lacks.append(
                (
                    "RendezvousOpen",
                    f"this kernel's ip_local_port_range is wider than 32768-60999: of a training, tcp {beyond} may "
                    "answer on every network of this machine; set the sysctl back, or name what to close in "
                    "`firewall.rendezvous_ports`",
                )
            )
        if self._ray is not None and self._ray.token_auth is False:
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
            closed = (
                "Ray, the training and EasyTier's RPC answer" if self._ray is not None else "EasyTier's RPC answers"
            )
            where = "loopback and the overlay" if self._ray is not None else "loopback and to root"
            revoked = self._board.select(Inputs).revoked_ips
            belt = f"; {len(revoked)} address(es) of revoked nodes are dropped" if revoked else ""
            self._conditions.set_true(self.condition, "RulesInPlace", f"{closed} on {where} only{belt}")


@dataclass(frozen=True)
class Revoked:
    """What is dropped in the overlay."""

    revoked_ips: frozenset[IPv4Address]
    overlay_spec: OverlaySpec | None
    own: frozenset[IPv4Address]


@dataclass(frozen=True)
class Drop(Action):
    """Let nothing come from or go to these overlay addresses."""

    addresses: frozenset[IPv4Address]


class RevokedAddresses(Part[Revoked, Drop]):
    """Has the addresses of revoked nodes dropped, at once and until the registry says otherwise."""

    name = "revoked addresses"
    condition = ExposureReconciler.condition
    inputs = Revoked

    def __init__(self, board: Board[Any], parts: OverlayParts, exposure: ExposureReconciler) -> None:
        super().__init__(board, own=frozenset())
        self._board = board
        self._parts = parts
        self._exposure = exposure

    def begin(self) -> None:
        """Have them dropped before EasyTier is started."""
        self._drop(_others_revoked(self._board.select(Revoked, self.own)))

    def plan(self, now: Revoked, at_s: float) -> Decision[Drop]:
        wanted = _others_revoked(now)
        return Decision(does=None if wanted == now.own else Drop(wanted))

    async def act(self, action: Drop) -> None:
        self._drop(action.addresses)

    def _drop(self, addresses: frozenset[IPv4Address]) -> None:
        self._parts.drop(addresses)
        self._exposure.wakeup.set()
        self.own = addresses


def _others_revoked(now: Revoked) -> frozenset[IPv4Address]:
    """The addresses to drop, which never include our own."""
    return now.revoked_ips - (set() if now.overlay_spec is None else {now.overlay_spec.overlay_ip.ip})
