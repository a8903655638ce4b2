"""When a pair of nodes is dead although both reach a relay, and which of the two does what about it. Pure.

EasyTier from 2.5.0 on forgets a node that is out of reach at the wrong moment: once a minute each node drops whom it
does not reach and has not heard anew, and a relay that did not drop it sends it never again (EasyTier issue 2597). Then
one side lists the other, the relay lists both, and the other side does not list the one: no packet gets through, for
ever. Closing the connection of the side that does not list to that relay makes the relay tell it everything anew. Where
that side has no TCP connection to a relay, it restarts its EasyTier instead.

Nothing is done on suspicion. A pair counts as dead when the other node says itself, while we miss it, that a relay
answers it, when a relay answers us, and when both have been so for :data:`PROOF_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PROOF_S = 5.0  # for so long a relay answers both, and they miss each other
MORE_S = 5.0  # then the first remedy has had its time
FRESH_S = 6.0  # an older word says nothing of now: it may be in an outage again
RESTART_EVERY_S = 600.0  # at most one restart of EasyTier a node for this
_EVERY_S = 2.0  # between two words, while somebody is there to hear them
_KEENLY_S = 30.0
_RARELY_S = 30.0
_GIVE_UP_S = 600.0
_UNHEARD_AT_S = (0.0, 4.0, 10.0)  # to who is not listed and may be switched off


class Remedy(StrEnum):
    """What this node is to do now."""

    NONE = "nothing"
    CLOSE = "close our connection to the relay"
    RESTART = "restart our EasyTier"


@dataclass(frozen=True)
class Word:
    """The last word of the other node on this pair. ``at_s``: when it came, on our monotonic clock.

    The two durations are as of when it was said.
    """

    at_s: float
    silent_for_s: float
    relay_answers_for_s: float
    lists_us: bool


@dataclass(frozen=True)
class Pair:
    """One silent node, as this one sees it at one moment; times on the monotonic clock.

    Attributes:
        silent_since_s: the first echo of it that was missed.
        relay_since_s: since when a relay answers us without a silence. None: none does.
        is_listed: whether our EasyTier lists it.
        word: what it said last. None: nothing.
        closed: whether we have closed our connection for this silence already, or tried to.
        found_none: whether there was no connection to close, as where the relay is reached by UDP only.
        restarted: whether we have restarted EasyTier for this silence already.
        may_restart: whether EasyTier may be restarted: not twice in ten minutes, and not while a robot moves.
        breaks_tie: whether it is this node that restarts where both sides list each other, or neither does.
    """

    silent_since_s: float
    relay_since_s: float | None
    is_listed: bool
    word: Word | None
    closed: bool = False
    found_none: bool = False
    restarted: bool = False
    may_restart: bool = True
    breaks_tie: bool = True

    def dead_for_s(self, now_s: float) -> float:
        """For how long it is proven that the pair is dead while a relay answers both; 0 without a proof."""
        word, relay_since_s = self.word, self.relay_since_s
        if word is None or relay_since_s is None or now_s - word.at_s > FRESH_S or word.at_s < self.silent_since_s:
            return 0.0
        age_s = now_s - word.at_s
        silent_for_s = max(word.silent_for_s + age_s, now_s - self.silent_since_s)  # who noticed first
        return max(0.0, min(silent_for_s, word.relay_answers_for_s + age_s, now_s - relay_since_s))

    def remedy(self, now_s: float) -> Remedy:
        """What this node is to do about it now."""
        dead_for_s = self.dead_for_s(now_s)
        if dead_for_s < PROOF_S:
            return Remedy.NONE
        if not (self.is_listed or self.closed):
            return Remedy.CLOSE
        if self.restarted or not self.may_restart:
            return Remedy.NONE
        assert self.word is not None
        breaks_tie = self.breaks_tie and self.is_listed == self.word.lists_us
        if self.found_none and not self.is_listed:  # closing is not worth a wait
            return Remedy.RESTART if breaks_tie or self.word.lists_us else Remedy.NONE
        is_ours = breaks_tie or (self.is_listed and not self.word.lists_us)
        return Remedy.RESTART if dead_for_s >= PROOF_S + MORE_S and is_ours else Remedy.NONE

    def says_again_at_s(self, first_said_s: float | None, last_said_s: float | None) -> float | None:
        """When this node is to say that it misses the other one; None: not any more.

        Args:
            first_said_s: when it said so first in this silence, None: not yet.
            last_said_s: when it said so last.
        """
        if self.relay_since_s is None:
            return None
        if first_said_s is None or last_said_s is None:
            return max(self.silent_since_s, self.relay_since_s)
        begun_s = max(first_said_s, self.word.at_s) if self.word is not None else first_said_s
        if not self.is_listed and self.word is None:
            return next((first_said_s + at_s for at_s in _UNHEARD_AT_S if first_said_s + at_s > last_said_s), None)
        if last_said_s - begun_s > _GIVE_UP_S:
            return None
        return last_said_s + (_EVERY_S if last_said_s - begun_s < _KEENLY_S else _RARELY_S)
