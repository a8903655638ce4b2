"""A node follows the network's secret (ADR 0050): keeps the next one, changes to it, catches up, and stands aside when
the registry has put it out.

::

    told of a next secret and its hour ──▶ on disk, the hook is asked ──▶ told that it counts ──▶ EasyTier on it
    told of a present secret that is newer than ours (we were away) ───────────────────────────▶ EasyTier on it

What is told is state, not commands; a secret that was left behind is never gone back to. What a node does that cannot
be told when the hour has come is in :mod:`edgelink.member.secret_trial`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.informing import SECRET_CURRENT
from edgelink.conditions import ConditionSet, Said, failed, is_not_so, is_so, is_unknown
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.log import get_logger, hide
from edgelink.member.membership_store import MembershipStore
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Rotation
from edgelink.protocol.refusals import NodeRevokedError
from edgelink.protocol.statuses import LEASED

KEPT_SECRET: Final[Fact[HeldSecret | None]] = Fact("kept_secret")
SECRET_CHANGED_S: Final[Fact[float | None]] = Fact("secret_changed_s")
HOOK_ANSWERED: Final[Fact[int | None]] = Fact("hook_answered")
_AFTER_RELAYS_S = 0.3  # a relay that is started anew listens within a tenth of a second
_SPREAD_S = 0.2  # all within the same half second, so that both ends of a direct path are new
_FULL_DISK_S = 5.0

log = get_logger("node")


class Hook(Protocol):
    """See :class:`edgelink.member.hold.HoldHook`."""

    @property
    def is_set(self) -> bool:
        """Whether there is anybody to ask."""

    async def wait(self, reason: str, patience_s: float) -> str:
        """Return when the overlay may be restarted."""


class Registry(Protocol):
    """What of :class:`edgelink.member.registry_client.RegistryClient` is needed here."""

    def settle_network(self) -> None:
        """Write the newest state of the network down."""


@dataclass(frozen=True)
class HoldInputs:
    """What asking the robot's hook depends on."""

    running: Membership | None
    network: NetworkTold
    hook_answered: int | None


@dataclass(frozen=True)
class AskHook(Action):
    """Ask the hook when EasyTier may be restarted for this change.

    ``until_s``: the hour of the change, on the monotonic clock. It comes whatever the hook says.
    """

    epoch: int
    until_s: float


class RobotHold(Part[HoldInputs, AskHook]):
    """Asks the robot's hook once for each change of the secret, as soon as the next secret is on disk."""

    name = "robot hold"
    condition: ClassVar[str] = SECRET_CURRENT.name
    inputs = HoldInputs

    def __init__(self, *, board: Board[Any], hook: Hook, clock: Clock) -> None:
        super().__init__(board)
        self._hook = hook
        self._clock = clock
        self._put_answered = board.claim(HOOK_ANSWERED, self.name)

    def plan(self, now: HoldInputs, at_s: float) -> Decision[AskHook]:
        change = unanswered(now) if self._hook.is_set else None
        if change is None:
            return Decision()
        return Decision(does=AskHook(change.to_epoch, now.network.hours.get(change.to_epoch, at_s)))

    async def act(self, action: AskHook) -> None:
        left_s = max(0.0, action.until_s - self._clock.monotonic_s())
        await self._hook.wait(f"the network changes to secret {action.epoch}", left_s)
        self._put_answered(action.epoch)


@dataclass(frozen=True)
class Inputs:
    """What a node that follows the network's secret depends on."""

    running: Membership | None
    network: NetworkTold
    tries_next_secret: bool
    easytier_as_wanted: bool | None
    hook_answered: int | None


@dataclass(frozen=True)
class TakeUp(Action):
    """Have these secrets on disk, and run on the present one."""

    held: HeldSecret


@dataclass(frozen=True)
class Record(Action):
    """Write down the newest state of the network, for which there was no room on the disk."""


class SecretEpochs(Part[Inputs, TakeUp | Record]):
    """Sets ``SecretCurrent``, which only informs. Ends the daemon when the registry has put this node out."""

    name = "secret-epochs"
    condition: ClassVar[str] = SECRET_CURRENT.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        store: MembershipStore,
        registry: Registry,
        hook: Hook,
        conditions: ConditionSet,
        clock: Clock,
        spread: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(board)
        self._board = board
        self._store = store
        self._registry = registry
        self._hook = hook
        self._conditions = conditions
        self._clock = clock
        self._after_s = _AFTER_RELAYS_S + _SPREAD_S * spread()
        self._keep = board.claim(KEPT_SECRET, self.name)
        self._put_changed_s = board.claim(SECRET_CHANGED_S, self.name)

    def refuse_revoked(self) -> None:
        """At the daemon's start: the registry has said before that this node was put out. Raises NodeRevokedError."""
        decision = self.plan(self._board.select(Inputs), self._clock.monotonic_s())
        if decision.ends is not None:
            self._conditions.set_error(LEASED, decision.ends)
            raise decision.ends

    def plan(self, now: Inputs, at_s: float) -> Decision[TakeUp | Record]:
        network = now.network
        if network.is_revoked:
            put_out = NodeRevokedError(
                "the operator has put this node out of the network",
                hint="if that was a mistake: `edgelink leave`, then `edgelink up` with a new token of the operator",
            )
            return Decision((failed(LEASED, put_out),), ends=put_out)
        if now.running is None:
            return Decision()
        held = followed(now.running.held, network)
        if held != now.running.held:
            return Decision(does=TakeUp(held))
        asks = unanswered(now) if self._hook.is_set else None
        if network.is_on_disk:
            return Decision((_said(now, held, asks),), again_s=LOOK_S)
        return Decision((_said(now, held, asks),), Record(), _FULL_DISK_S)

    async def act(self, action: TakeUp | Record) -> None:
        match action:
            case TakeUp(held):
                await self._take_up(held)
            case Record():
                self._registry.settle_network()

    async def _take_up(self, held: HeldSecret) -> None:
        """Write the secrets down before they are used. Relays come first: nobody could dial one that is behind."""
        hide(held.secret, held.next_secret or "")
        now = self._board.select(Inputs)
        membership = now.running
        assert membership is not None  # the plan has seen it, and nobody forgets it
        is_another = held.epoch != membership.held.epoch
        if is_another:
            self._keep(membership.held)
        try:
            self._store.change(lambda present: present.holding(held))
            if not is_another:
                log.info("node.secret_prepared", epoch=held.next_epoch)
                return
            log.info("node.secret_changed", epoch=held.epoch)
            now_s = self._clock.monotonic_s()
            left_s = now.network.hours.get(held.epoch, now_s) + self._after_s - now_s
            if left_s > 0 and not membership.lease.is_relay:
                await self._clock.sleep(left_s)
            self._put_changed_s(self._clock.monotonic_s())
        finally:
            self._keep(None)


def followed(held: HeldSecret, network: NetworkTold) -> HeldSecret:
    """Return the secrets of a node that has ``held`` and follows what the registry has told it."""
    if network.given is not None:
        held = held.given(network.given)
    return held if network.state is None else held.told(network.state)


def unanswered(now: HoldInputs | Inputs) -> Rotation | None:
    """Return the change to whose secret this node can follow, and that a robot's hook has not answered yet."""
    rotation = now.network.rotation
    if rotation is None or now.running is None or now.running.held.next_epoch != rotation.to_epoch:
        return None
    return None if now.hook_answered == rotation.to_epoch else rotation


def _said(now: Inputs, held: HeldSecret, asks: Rotation | None) -> Said:
    """What people are told of it."""
    state, change = now.network.behind or now.network.state, now.network.rotation
    if state is None:
        return is_unknown(_KIND, "NotToldYet", "the registry has not said which secret the network is on")
    if state.secret_epoch < held.epoch:
        return is_not_so(
            _KIND, "RegistryBehind", "the registry was restored from an older backup; it makes a fresh secret"
        )
    if state.secret_epoch > held.epoch:
        message = f"waits to be given secret {state.secret_epoch}; this node has {held.epoch}"
        return is_not_so(_KIND, "BehindNetwork", message)
    if now.tries_next_secret:
        return is_not_so(
            _KIND,
            "TryingNext",
            f"nobody is heard on secret {held.epoch}; EasyTier runs by turns on secret {held.next_epoch}, to which "
            "the network was about to change",
        )
    if now.easytier_as_wanted is False:
        return is_not_so(_KIND, "Changing", f"EasyTier is to run on secret {held.epoch}")
    if asks is not None:
        return is_not_so(_KIND, "Holding", f"secret {asks.to_epoch} waits for the robot: asking the robot's hook")
    if change is not None:
        return is_not_so(_KIND, "Preparing", f"the network is about to change to secret {change.to_epoch}")
    return is_so(_KIND, "Current", f"EasyTier runs on secret {held.epoch}")


_KIND = SECRET_CURRENT.name
