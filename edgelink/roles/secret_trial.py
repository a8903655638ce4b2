"""A node that was prepared for the next secret, and then hears nothing, tries that secret (ADR 0020).

Its only way to the broker may lead through the overlay: who changes before it takes that way along, and with it the
word that the secret has changed. So while nobody is heard, with the broker or in the overlay, EasyTier runs on the
present and on the next secret by turns. Which of the two counts is still the registry's to say: on disk nothing
changes before it has, and what was left behind is never tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board, Fact
from edgelink.log import get_logger
from edgelink.reconcile import Wakeup
from edgelink.registry.client import Session
from edgelink.registry.membership import Membership
from edgelink.registry.rotation import HeldSecret

TRIES_NEXT_SECRET: Final[Fact[bool]] = Fact("tries_next_secret")

PATIENCE_S = 20.0  # with the present secret: every node is told within seconds, and EasyTier dials every second
TRY_S = 20.0  # with the next one
LONGEST_PATIENCE_S = 640.0
_LOOK_S = 2.0
_IDLE_S = 30.0

log = get_logger("node")


class Turns:
    """Which of two secrets it is the turn of; pure, driven by :meth:`look`.

    Whoever is heard on one stays on it for as long as that lasts. Each turn on the next secret in which nobody is
    heard doubles the patience with the present one.
    """

    def __init__(self) -> None:
        self.is_next = False
        self._patience_s = PATIENCE_S
        self._silent_since_s: float | None = None

    def look(self, now_s: float, *, is_heard: bool, has_next: bool) -> None:
        """``is_heard``: somebody answers now; ``has_next``: there is another secret to try."""
        if not has_next:
            self.is_next = False
        if is_heard or not has_next:
            self._patience_s, self._silent_since_s = PATIENCE_S, None
        elif self._silent_since_s is None:
            self._silent_since_s = now_s
        elif now_s - self._silent_since_s >= (TRY_S if self.is_next else self._patience_s):
            if self.is_next:
                self._patience_s = min(LONGEST_PATIENCE_S, 2 * self._patience_s)
            self.is_next, self._silent_since_s = not self.is_next, now_s


@dataclass(frozen=True)
class Inputs:
    """What the trial depends on."""

    running: Membership | None
    session: Session


class SecretTrial:
    """Says on which of two secrets EasyTier is to run, for one node."""

    name = "secret trial"

    def __init__(
        self,
        *,
        board: Board[Any],
        hears_anybody: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        """``hears_anybody``: whether EasyTier lists another node. Raises EdgelinkError when it cannot be asked."""
        self.wakeup = Wakeup()
        self._board = board
        self._hears_anybody = hears_anybody
        self._clock = clock
        self._turns = Turns()
        self._is_trying = False
        self._try = board.claim(TRIES_NEXT_SECRET, self.name)
        board.read(Inputs, self.name, self.wakeup)

    async def run(self) -> None:
        """Take turns while nobody is heard; ends by cancellation only."""
        while True:
            has_next = await self.look()
            await self.wakeup.wait(_LOOK_S if has_next else _IDLE_S)

    async def look(self) -> bool:
        """Whether there is a next secret at all."""
        now = self._board.select(Inputs)
        has_next = _next_of(now.running) is not None
        # The broker tells nothing of a secret that is only tried: the others may all be on the present one.
        is_heard = has_next and ((not self._is_trying and now.session.is_connected) or await self._is_answered())
        membership = self._board.select(Inputs).running
        has_next = _next_of(membership) is not None
        self._turns.look(self._clock.monotonic_s(), is_heard=is_heard, has_next=has_next)
        is_trying = self._turns.is_next and has_next
        if membership is not None and has_next and is_trying != self._is_trying:
            log.info("node.secret_tried", epoch=membership.next_epoch if is_trying else membership.held.epoch)
        self._is_trying = is_trying
        self._try(is_trying)
        return has_next

    async def _is_answered(self) -> bool:
        try:
            return await self._hears_anybody()
        except EdgelinkError:
            return False  # EasyTier is being started, say


def _next_of(membership: Membership | None) -> HeldSecret | None:
    """The secret that may be tried. A relay tries none: others may hang on it whom it does not know of."""
    return None if membership is None or membership.lease.is_relay else membership.held.upcoming
