"""Nothing of this node answers strangers: keeps our nftables tables in place, and says in ``Shielded`` what holds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.informing import SHIELDED
from edgelink.conditions import Said, is_not_so, is_so
from edgelink.config import Config
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.nft_watch import NftWatch
from edgelink.overlay.openings import Opening, refuses_early, told
from edgelink.overlay.overlay_drops import in_words as dropped_in_words
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.rpc_guard import RPC_TABLE
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process.port_ranges import listed
from edgelink.process.ports import Accepted
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory
from edgelink.ray_cluster.firewall import RAY_TABLE
from edgelink.ray_cluster.rendezvous import beyond_default, open_ranges
from edgelink.reconcile import Nudge
from edgelink.shield.inside import (
    LeftOpen,
    LeftOpenPorts,
    PortInUse,
    SeenPorts,
    in_words,
    is_closed_by,
    is_open,
    own_openings,
)
from edgelink.wording import few

FOLLOWS_SPEC: Final[Fact[int | None]] = Fact("follows_spec")

_LOOK_AT_PORTS_S = 30.0  # sshd may be moved
_MOST_TOLD = 8
_LOOK_S = 2.0  # at what the keepers know; nft itself is asked every 30 s, and when the kernel tells of a change


@dataclass(frozen=True)
class SetRules(Action):
    """Have EasyTier's table do this with the overlay's packets."""

    rules: OverlayRules


@dataclass(frozen=True)
class Seen:
    """What the part itself has done and seen.

    Attributes:
        changes: how often the kernel has told of a change to a table.
        rules: what is done with the overlay's packets. None: nothing has been said of them.
        looked_for: the changes at the last look. None: it has not looked since the rules changed.
        at_s: when that was, on the monotonic clock.
        is_wanted: there is something to protect.
        failure: why a table is not in place.
        token_auth: Ray asks for a token. None: there is no Ray, or its version is not known.
        left_open: ports where a training may listen and that no table closes.
        ports: what was seen of this machine's ports. None: it has not looked.
        ports_at_s: when it looked, on the monotonic clock.
        in_use: the ports that stay open on the overlay for now.
        dropped: what the tables have dropped lately and nobody expects, in words.
        follows_spec: the epoch of the cluster spec that was said to be followed.
    """

    changes: int = 0
    rules: OverlayRules | None = None
    looked_for: int | None = None
    at_s: float = 0.0
    is_wanted: bool = False
    failure: Said | None = None
    token_auth: bool | None = None
    left_open: str = ""
    ports: SeenPorts | None = None
    ports_at_s: float = 0.0
    in_use: LeftOpen = field(default_factory=LeftOpen)
    dropped: str = ""
    follows_spec: int | None = None


@dataclass(frozen=True)
class LookAtPorts(Action):
    """See where this machine listens, and which ports of it stay open on the overlay for now."""


@dataclass(frozen=True)
class SayFollowed(Action):
    """Say that the cluster spec with this epoch is followed, as far as it says who reaches an edge. None: none is."""

    epoch: int | None


@dataclass(frozen=True)
class Inputs:
    """What ``Shielded`` depends on."""

    revoked_ips: frozenset[IPv4Address]
    usable_ips: frozenset[IPv4Address] | None
    impostors: frozenset[IPv4Address]
    running: Membership | None
    directory: Directory | None
    cluster_spec: ClusterSpec | None
    openings: frozenset[Opening]
    overlay_spec: OverlaySpec | None
    own: Seen

    @property
    def rules(self) -> OverlayRules:
        """What is to be done with the overlay's packets. Our own address is never dropped as a revoked one."""
        own = None if self.overlay_spec is None else self.overlay_spec.overlay_ip
        revoked = self.revoked_ips - (set() if own is None else {own.ip})
        return OverlayRules(own, revoked, self.usable_ips, self.impostors)


@dataclass(frozen=True)
class Keep(Action):
    """Put the tables in place that somebody wants. ``changes``: the changes that it makes up for."""

    changes: int


class GuardedRay(Protocol):
    """What is needed of this machine's Ray."""

    @property
    def guard(self) -> TableKeeper:
        """Keeps the table around its ports."""

    @property
    def token_auth(self) -> bool | None:
        """Whether it asks for a token. None: its version is not known."""

    async def close_run_ports(self) -> None:
        """Have the table close what a run's processes listen on by now."""


class MachinesPorts(Protocol):
    """What is needed of this machine's sockets."""

    def ports(self) -> SeenPorts:
        """Return where it listens."""

    def accepted(self, local: IPv4Address) -> Iterable[Accepted]:
        """Return the TCP connections that others have made to one of its addresses."""


class Exposure(Part[Inputs, SetRules | Keep | LookAtPorts | SayFollowed]):
    """Sets ``Shielded``. Apart from the parts of Ray and EasyTier: those wait for minutes at times."""

    name: ClassVar[str] = "exposure"
    condition: ClassVar[str] = SHIELDED.name
    inputs = Inputs

    def __init__(
        self,
        board: Board[Any],
        config: Config,
        set_rules: Callable[[OverlayRules], None],
        tables: NftWatch,
        machine: MachinesPorts,
        left_open: LeftOpenPorts,
        clock: Clock,
        *,
        easytier: TableKeeper,
        ray: GuardedRay | None,
    ) -> None:
        """Keep EasyTier's table and that of this machine's Ray, each once somebody wants it.

        Args:
            set_rules: does what :class:`SetRules` says.
            left_open: what stays open on the overlay for now.
            ray: None on a machine that takes no part in Ray.
        """
        super().__init__(board, own=Seen())
        self.own: Seen
        self._put_follows_spec = board.claim(FOLLOWS_SPEC, self.name)
        self._board = board
        self._config = config
        self._set_rules = set_rules
        self._machine = machine
        self._left_open = left_open
        self._refuses = refuses_early()
        self._clock = clock
        self._ray = ray
        guards = {RPC_TABLE: easytier} if ray is None else {RPC_TABLE: easytier, RAY_TABLE: ray.guard}
        for table, keeper in guards.items():
            tables.watch(table, keeper.doubts, Nudge(self.look_again))
        self._keepers = tuple(guards.values())

    def begin(self) -> None:
        """Have the rules ready before EasyTier is started."""
        if self._closes_ports:
            self._note_ports(self._machine.ports())
        self._set(self._rules(self._board.select(Inputs, self.own)))

    @property
    def ray_auth(self) -> str | None:
        """What stands between Ray and whoever reaches this machine, for ``status``; None while that is not known."""
        asks = None if self._ray is None else self._ray.token_auth
        if asks is None:
            return None
        if asks:
            return "token"
        return "firewall only" if self._config.firewall.enabled else "none"

    def plan(self, now: Inputs, at_s: float) -> Decision[SetRules | Keep | LookAtPorts | SayFollowed]:
        own, rules = now.own, self._rules(now)
        if own.rules != rules:
            return Decision(does=SetRules(rules))
        if not self._closes_ports and own.follows_spec != (epoch := _to_follow(now)):
            return Decision(does=SayFollowed(epoch))
        if not self._config.firewall.enabled:
            return Decision((self._switched_off(),))
        if self._closes_ports and at_s >= own.ports_at_s + _LOOK_AT_PORTS_S:
            return Decision(does=LookAtPorts())
        if own.looked_for != own.changes or at_s >= own.at_s + _LOOK_S:
            return Decision(does=Keep(own.changes))
        if own.is_wanted and own.failure is None and own.follows_spec != (epoch := _to_follow(now)):
            return Decision(does=SayFollowed(epoch))
        says = own.failure or self._judged(now)
        return Decision((says,) if own.is_wanted else (), again_s=own.at_s + _LOOK_S - at_s)

    async def act(self, action: SetRules | Keep | LookAtPorts | SayFollowed) -> None:
        match action:
            case SetRules(rules):
                self._set(rules)
            case LookAtPorts():
                self._note_ports(await asyncio.to_thread(self._machine.ports))
            case SayFollowed(epoch):
                self._put_follows_spec(epoch)
                self.own = replace(self.own, follows_spec=epoch)
            case Keep(changes):
                if self._ray is not None:
                    await self._ray.close_run_ports()
                wanted = [keeper for keeper in self._keepers if keeper.is_wanted]
                for keeper in wanted:
                    await keeper.keep()
                failed = [(keeper.failure, keeper.caveat) for keeper in wanted if keeper.failure is not None]
                why = "; ".join(caveat for _, caveat in failed)
                self.own = replace(
                    self.own,
                    looked_for=changes,
                    at_s=self._clock.monotonic_s(),
                    is_wanted=bool(wanted),
                    failure=is_not_so(self.condition, failed[0][0].condition_reason, why) if failed else None,
                    token_auth=None if self._ray is None else self._ray.token_auth,
                    left_open="" if self._ray is None else listed(open_ranges(self._config)),
                    dropped=dropped_in_words([each for keeper in wanted for each in keeper.drops.lately]),
                )

    def _set(self, rules: OverlayRules) -> None:
        self._set_rules(rules)
        self.own = replace(self.own, rules=rules, looked_for=None)

    @property
    def _closes_ports(self) -> bool:
        """Whether members reach only some ports here. A device that something else made is not ours to close."""
        return self._config.firewall.enabled and self._config.overlay.kind == "easytier"

    def _rules(self, now: Inputs) -> OverlayRules:
        return replace(now.rules, openings=self._openings(now))

    def _openings(self, now: Inputs) -> frozenset[Opening] | None:
        """Return what members reach here. None: what this machine listens on is not known, or not ours to close."""
        if now.running is None or now.own.ports is None:
            return None
        own = own_openings(self._config, now.running.lease, now.directory, now.cluster_spec, now.own.ports)
        return own | now.openings | {Opening("tcp", each.port, each.port) for each in self._unanswered(now)}

    def _unanswered(self, now: Inputs) -> list[PortInUse]:
        """Return the ports in use that the operator has said nothing of."""
        return [each for each in now.own.in_use.ports if not is_open(now.openings, each.port, each.peer)]

    def _note_ports(self, ports: SeenPorts) -> None:
        self.own = replace(self.own, ports=ports, ports_at_s=self._clock.monotonic_s())
        now = self._board.select(Inputs, self.own)
        if now.overlay_spec is None:
            return
        is_answered = self._config.firewall.overlay_allow is not None
        if is_answered and (not self._left_open.is_known or self._left_open.look().ports):
            self._left_open.set(())
        elif not self._left_open.is_known and (openings := self._openings(now)) is not None:
            accepted = self._machine.accepted(now.overlay_spec.overlay_ip.ip)
            self._left_open.set(each for each in accepted if not is_open(openings, each.port, each.remote))
        self.own = replace(self.own, in_use=self._left_open.look())

    def _switched_off(self) -> Said:
        ray = "" if self._ray is None else "Ray and the training answer on every network of this machine; "
        return is_not_so(
            self.condition,
            "SwitchedOff",
            f"`firewall: off` in the configuration: {ray}EasyTier tells the network secret to every user; packets from "
            "any address come in by the overlay, those of revoked nodes included, and from overlay addresses by other "
            "devices; members reach every port of this machine; the routing rule alone keeps packets for nodes on the "
            "overlay's device",
        )

    def _judged(self, now: Inputs) -> Said:
        """Judge what is open although the tables are in place."""
        own = now.own
        lacks: list[tuple[str, str]] = []
        if self._ray is not None and self._config.firewall.rendezvous_ports == ():
            lacks.append(
                (
                    "RendezvousOpen",
                    "`firewall.rendezvous_ports: []` in the configuration: Ray's own ports are closed, those where the "
                    "processes of a training meet answer on every network of this machine",
                )
            )
        elif own.left_open:
            lacks.append(
                (
                    "RendezvousOpen",
                    "this kernel's ip_local_port_range is wider than 32768-60999: of a training, tcp "
                    f"{own.left_open} may answer on every network of this machine; set the sysctl back, or name what "
                    "to close in `firewall.rendezvous_ports`",
                )
            )
        elif self._ray is not None and own.ports and (wide := listed(beyond_default(own.ports.ephemeral))):
            lacks.append(
                (
                    "RendezvousOpen",
                    "this kernel's ip_local_port_range is wider than 32768-60999, and a training may listen there: on "
                    f"the overlay tcp and udp {wide} answer every member; set the sysctl back",
                )
            )
        if own.token_auth is False:
            lacks.append(
                (
                    "TokenlessRay",
                    "firewall only: Ray before 2.52 asks nobody for a token, so whoever gets into the overlay can run "
                    "code as Ray's user; ray 2.52 and later on every node closes that",
                )
            )
        if left := self._unanswered(now):
            days = math.ceil(own.in_use.left_s / 86400)
            lacks.append(
                (
                    "LeftOpen",
                    f"{few([in_words(each, now.directory) for each in left])}: in use when this node began to close "
                    f"ports on the overlay, so open to all members (days left: {days}); say in "
                    "`firewall.overlay_allow` what is to stay open, `[]`: nothing",
                )
            )
        if lacks:
            return is_not_so(
                self.condition, lacks[0][0], "; ".join(filter(None, (*(m for _, m in lacks), own.dropped)))
            )
        closed = "Ray, the training and EasyTier's RPC answer" if self._ray is not None else "EasyTier's RPC answers"
        where = "loopback and the overlay" if self._ray is not None else "loopback and to root"
        revoked = len(now.revoked_ips)
        belt = f"; addresses of revoked nodes that are dropped: {revoked}" if revoked else ""
        opened = told(now.openings, _MOST_TOLD)
        also = f"; members reach {', '.join(opened)} here, too" if opened else ""
        late = "" if self._refuses else "; this kernel cannot refuse what is closed on the overlay, it only drops it"
        holds = f"{closed} on {where} only{belt}{also}{_edges_in_words(now)}{late}"
        if own.dropped:
            return is_so(self.condition, "PacketsDropped", f"{own.dropped}. {holds}")
        return is_so(self.condition, "RulesInPlace", holds)


def _to_follow(now: Inputs) -> int | None:
    """Return the epoch of the cluster spec that closes this edge to others. None: none does."""
    spec = now.cluster_spec
    if spec is None or now.running is None or not is_closed_by(spec, now.running.lease.role):
        return None
    return spec.epoch


def _edges_in_words(now: Inputs) -> str:
    spec = now.cluster_spec
    if spec is None or _to_follow(now) is None:
        return ""
    if spec.edges_open_to == "members":
        return "; of the edges only those of the run in progress reach Ray and the training here (`access: per-run`)"
    return "; no other edge reaches Ray and the training here before a run begins (`access: per-run`)"
