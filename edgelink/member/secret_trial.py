"""A node that hears nothing when the network changes its secret changes to the next one by its own clock (ADR 0050).

Its only way to the broker may lead through the overlay: who changes before it takes that way along, and with it the
word that the secret has changed. So when the hour has come, and no word, and EasyTier lists nobody on the present
secret, it runs on the next one. Where nobody is heard there, either, it runs on both by turns: the relay may have died
before the hour. Which of the two counts is still the registry's to say: on disk nothing changes before it has, and
what was left behind is never tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.informing import SECRET_CURRENT
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.member.registry_client import Session
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.membership import Membership

TRIES_NEXT_SECRET: Final[Fact[bool]] = Fact("tries_next_secret")

WORD_S = 2.0  # for the registry's word to come after the hour, where there is a session
FIRST_S = 2.0  # of silence on the present secret after the hour
TRY_S = 20.0  # on the next one: EasyTier dials every second
PATIENCE_S = 20.0  # with the present one after a first turn on the next one
LONGEST_PATIENCE_S = 640.0
_LOOK_S = 2.0

log = get_logger("node")


@dataclass(frozen=True)
class Turns:
    """Which of two secrets it is the turn of.

    Whoever is heard on one stays on it for as long as that lasts. Each turn on the next secret in which nobody is
    heard doubles the patience with the present one.
    """

    is_next: bool = False
    patience_s: float = FIRST_S
    silent_since_s: float | None = None

    def after(self, at_s: float, *, is_heard: bool) -> Turns:
        """Return the turns after a look at ``at_s``. ``is_heard``: somebody answered then."""
        if is_heard:
            return Turns(self.is_next)
        if self.silent_since_s is None:
            return replace(self, silent_since_s=at_s)
        if at_s - self.silent_since_s < (TRY_S if self.is_next else self.patience_s):
            return self
        longer_s = min(LONGEST_PATIENCE_S, max(PATIENCE_S, 2 * self.patience_s))
        patience_s = longer_s if self.is_next else self.patience_s
        return Turns(not self.is_next, patience_s, at_s)


@dataclass(frozen=True)
class Seen:
    """What the trial itself knows.

    Attributes:
        turns: whose turn it is.
        lists_others: EasyTier listed another node when it was asked last.
        asked_s: when that was, on the monotonic clock. Long ago: it was not asked.
    """

    turns: Turns = Turns()
    lists_others: bool = False
    asked_s: float = float("-inf")


@dataclass(frozen=True)
class Inputs:
    """What the trial depends on."""

    running: Membership | None
    network: NetworkTold
    session: Session
    own: Seen


@dataclass(frozen=True)
class Listen(Action):
    """Ask EasyTier whether it lists another node."""


@dataclass(frozen=True)
class Turn(Action):
    """Go by these turns. ``epoch``: of the secret whose turn it is; None: there is only one secret."""

    turns: Turns
    epoch: int | None


class Overlay(Protocol):
    """What of :class:`edgelink.daemon.overlay_parts.OverlayParts` is needed here."""

    async def lists_others(self) -> bool:
        """Whether EasyTier lists another node. Raises EdgelinkError when it cannot be asked."""


class SecretTrial(Part[Inputs, Listen | Turn]):
    """Says on which of two secrets EasyTier is to run, for one node."""

    name = "secret trial"
    condition: ClassVar[str] = SECRET_CURRENT.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], overlay: Overlay, clock: Clock) -> None:
        super().__init__(board, own=Seen())
        self.own: Seen
        self._overlay = overlay
        self._clock = clock
        self._try = board.claim(TRIES_NEXT_SECRET, self.name)

    def plan(self, now: Inputs, at_s: float) -> Decision[Listen | Turn]:
        own, upcoming = now.own, _next_of(now.running)
        if now.running is None or upcoming is None:
            return Decision(does=None if own.turns == Turns() else Turn(Turns(), None))
        # A daemon that does not know the hour waits for none.
        late_s = at_s - now.network.hours.get(upcoming.epoch, at_s)
        if late_s < 0:
            return Decision(again_s=-late_s)
        # The broker tells nothing of a secret that is only tried: the others may all be on the present one.
        is_told = now.session.is_connected and not own.turns.is_next and late_s < WORD_S
        listen_in_s = own.asked_s + _LOOK_S - at_s
        if not is_told and listen_in_s <= 0:
            return Decision(does=Listen(), again_s=_LOOK_S)
        turns = own.turns.after(own.asked_s, is_heard=is_told or own.lists_others)
        if turns != own.turns:
            return Decision(does=Turn(turns, upcoming.epoch if turns.is_next else now.running.held.epoch))
        return Decision(again_s=WORD_S - late_s if is_told else listen_in_s)

    async def act(self, action: Listen | Turn) -> None:
        match action:
            case Listen():
                try:
                    lists_others = await self._overlay.lists_others()
                except EdgelinkError:
                    lists_others = False  # EasyTier is being started, say
                self.own = replace(self.own, lists_others=lists_others, asked_s=self._clock.monotonic_s())
            case Turn(turns, epoch):
                if epoch is not None and turns.is_next != self.own.turns.is_next:
                    log.info("node.secret_tried", epoch=epoch)
                self.own = replace(self.own, turns=turns)
                self._try(turns.is_next)


def _next_of(membership: Membership | None) -> HeldSecret | None:
    """The secret that may be tried. A relay tries none: others may hang on it whom it does not know of."""
    return None if membership is None or membership.lease.is_relay else membership.held.upcoming
