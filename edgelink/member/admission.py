"""A node asks the registry whether it may be the node: on a copied disk it learns here that it is not (ADR 0023).

Asked in each session with the registry. The first answer is awaited before EasyTier is started, and a moment only: the
network works without a registry. An EasyTier that runs is never waited for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.conditions import Said, Status, failed, is_not_so, is_so
from edgelink.errors import ExitCode, RegistryError
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.files import Files
from edgelink.log import get_logger
from edgelink.member.registry_client import Session
from edgelink.outage import Outage
from edgelink.protocol.life import Admission, Life
from edgelink.protocol.requests import Answer, Claim, Question, Verdict
from edgelink.protocol.statuses import LEASED

PATIENCE_S = 3.0  # with the registry's answer, before EasyTier is started without
ASK_AGAIN_S = 30.0  # a registry that did not answer in this session
_SPREAD_S = 2.0  # a thousand nodes come back at once

log = get_logger("node")


class ClonedNodeError(RegistryError):
    """Another machine is this node: here is a copy of its disk, or there."""

    reason = "ClonedNode"
    exit_code = ExitCode.CONFIG  # trying again changes nothing


ADMISSION: Final[Fact[Admission]] = Fact("admission")
CLAIM_WORD: Final[Fact[Said | None]] = Fact("claim_word")

_REFUSED_BEFORE = is_not_so(
    LEASED,
    ClonedNodeError.reason,
    "it was refused as a copy of another machine, and waits until the registry says otherwise",
)


@dataclass(frozen=True)
class Claimed:
    """What has come of the claims so far.

    Attributes:
        admission: what this machine may do.
        answer: the registry's answer to the last claim, or why there is none. None: no claim was made yet.
        session: number of the session in which that answer came, or did not in time.
        at_s: when that was, on the monotonic clock.
        was_refused: the registry has said, to this daemon or an earlier one, that this machine is a copy.
        word: what ``Leased`` has to say of it. None: nothing but the lease.
    """

    admission: Admission = field(default_factory=Admission)
    answer: Answer | RegistryError | None = None
    session: int = 0
    at_s: float = 0.0
    was_refused: bool = False
    word: Said | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the registry may still answer in this session."""
        return isinstance(self.answer, RegistryError) and self.answer.retryable

    @property
    def goes_on(self) -> bool:
        """Whether this machine goes on as the node, by the last answer or for want of one."""
        if isinstance(self.answer, Verdict):
            return self.answer.outcome == "accepted"
        return not (self.is_unanswered and self.was_refused and not self.admission.is_accepted)

    def after(self, answer: Answer | RegistryError, session: int, at_s: float) -> Claimed:
        """Return what holds once this answer has come."""
        heard = replace(self, answer=answer, session=session, at_s=at_s)
        heard = replace(heard, word=word_of(heard))
        if isinstance(answer, Verdict) and answer.outcome == "refused":
            return replace(heard, was_refused=True)
        if isinstance(answer, Verdict) and answer.outcome == "wait":
            return replace(heard, admission=replace(self.admission, is_doubted=True))
        if not heard.goes_on:
            return heard
        is_accepted = isinstance(answer, Verdict)
        admission = Admission(may_start=True, is_accepted=is_accepted or self.admission.is_accepted, settled_in=session)
        return replace(heard, admission=admission, was_refused=self.was_refused and not is_accepted)


def word_of(heard: Claimed) -> Said | None:
    """What ``Leased`` has to say once this answer has come; ``heard.word`` is what it had to say before."""
    answer, before = heard.answer, heard.word
    if isinstance(answer, Verdict) and answer.outcome == "refused":
        return failed(LEASED, refusal(answer))
    if isinstance(answer, Verdict) and answer.outcome == "wait":
        return is_not_so(LEASED, answer.reason or "OtherMachine", answer.message)
    if not heard.goes_on:
        return _REFUSED_BEFORE
    if isinstance(answer, Verdict) and answer.reason:
        return is_so(LEASED, answer.reason, answer.message)
    return before if before is not None and before.status is Status.TRUE else None


def refusal(answer: Verdict) -> ClonedNodeError:
    """The error that ends the daemon of a machine that was refused."""
    return ClonedNodeError(answer.message, hint=answer.hint)


@dataclass(frozen=True)
class Inputs:
    """What a claim depends on."""

    session: Session
    own: Claimed


@dataclass(frozen=True)
class MakeClaim(Action):
    """Claim to be the node. ``rests``: a moment of chance first, because all nodes may be back at once."""

    rests: bool = False


class Channel(Protocol):
    """What of :class:`edgelink.member.node_channel.NodeChannel` is needed here."""

    async def ask(self, ask: Question, *, within_s: float = 10.0) -> Answer:
        """The registry's answer. Raises RegistryError when there is none."""


class EasyTier(Protocol):
    """What of the supervised process is needed here."""

    @property
    def is_running(self) -> bool:
        """Whether this machine's EasyTier has the node's address already."""


class Claimant(Part[Inputs, MakeClaim]):
    """Claims to be the node: at once, and in each further session.

    ``refusal`` is the file that tells `edgelink leave` of a refusal: a copy's lease is not to be freed.
    """

    name = "claimant"
    condition: ClassVar[str] = LEASED
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        channel: Channel,
        life: Life,
        refusal: Path,
        files: Files,
        clock: Clock,
        easytier: EasyTier,
        spread: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(board, own=Claimed(was_refused=refusal.exists()))
        self.own: Claimed
        self._board = board
        self._channel = channel
        self._life = life
        self._refusal = refusal
        self._files = files
        self._clock = clock
        self._easytier = easytier
        self._spread = spread
        self._outage = Outage(clock)  # of the registry's answers
        self._admit = board.claim(ADMISSION, self.name)
        self._say = board.claim(CLAIM_WORD, self.name)

    def plan(self, now: Inputs, at_s: float) -> Decision[MakeClaim]:
        own, answer = now.own, now.own.answer
        if answer is None:
            return Decision(does=MakeClaim())
        if isinstance(answer, Verdict) and answer.outcome == "refused":
            cloned = refusal(answer)
            return Decision((failed(LEASED, cloned),), ends=cloned)
        if isinstance(answer, Verdict) and answer.outcome == "wait":
            return _claim_in(own.at_s + answer.again_s - at_s)
        if own.session != now.session.number:
            return Decision(does=MakeClaim(rests=own.admission.is_accepted and not own.is_unanswered))
        if not own.is_unanswered:
            return Decision()
        return _claim_in(own.at_s + ASK_AGAIN_S - at_s)

    async def act(self, action: MakeClaim) -> None:
        if action.rests:
            await self._clock.sleep(_SPREAD_S * self._spread())
        self._take(await self._ask())

    async def _ask(self) -> Answer | RegistryError:
        life = self._life
        claim = Claim(instance=life.instance, machine=life.machine, runs_overlay=self._easytier.is_running)
        try:
            answer = await self._channel.ask(claim, within_s=PATIENCE_S)
        except RegistryError as error:
            if self._outage.is_news(error.condition_reason):
                log.info("node.claim_unanswered", reason=error.condition_reason, error=str(error))
            return error
        self._outage.over()
        return answer

    def _take(self, answer: Answer | RegistryError) -> None:
        now, before = self._board.select(Inputs, self.own), self.own
        self.own = before.after(answer, now.session.number, self._clock.monotonic_s())
        if isinstance(answer, Verdict) and answer.outcome == "refused":
            self._files.keep(self._refusal, answer.message)
        elif before.was_refused and not self.own.was_refused:
            self._files.keep(self._refusal, None)
        self._admit(self.own.admission)
        self._say(self.own.word)
        if self.own.goes_on and isinstance(answer, Verdict) and answer.reason:
            log.warning("node.accepted", reason=answer.reason, message=answer.message)


def _claim_in(left_s: float) -> Decision[MakeClaim]:
    """Claim again after so many seconds."""
    return Decision(does=MakeClaim()) if left_s <= 0 else Decision(again_s=left_s)
