"""A node asks the registry whether it may be the node: on a copied disk it learns here that it is not (ADR 0023).

Asked in each session with the registry. The first answer is awaited before EasyTier is started, and a moment only: the
network works without a registry. An EasyTier that runs is never waited for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.errors import ExitCode, RegistryError
from edgelink.facts.board import Board, Fact
from edgelink.files import Files
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.reconcile import Wakeup
from edgelink.registry.claims import Admission, Life
from edgelink.registry.client import Session
from edgelink.registry.membership import Membership
from edgelink.registry.requests import Answer, Ask, Claim, Verdict
from edgelink.roles.lease_follower import lease_in_words
from edgelink.timeouts import timeout

PATIENCE_S = 3.0  # with the registry's answer, before EasyTier is started without
_ASK_AGAIN_S = 30.0  # a registry that did not answer in this session
_SPREAD_S = 2.0  # a thousand nodes come back at once

log = get_logger("node")


class ClonedNodeError(RegistryError):
    """Another machine is this node: here is a copy of its disk, or there."""

    reason = "ClonedNode"
    exit_code = ExitCode.CONFIG  # trying again changes nothing


ADMISSION: Final[Fact[Admission]] = Fact("admission")


@dataclass(frozen=True)
class Inputs:
    """What a claim depends on."""

    running: Membership | None
    session: Session


class Channel(Protocol):
    """What of :class:`edgelink.registry.node_channel.NodeChannel` is needed here."""

    async def ask(self, ask: Ask, *, within_s: float = 10.0) -> Answer:
        """The registry's answer. Raises RegistryError when there is none, or it is too old to be asked."""


class Claimant:
    """Claims to be the node. Writes ``Leased`` once the registry has answered.

    ``refusal`` is the file that tells `edgelink leave` of a refusal: a copy's lease is not to be freed.
    """

    name = "claimant"

    def __init__(
        self,
        *,
        board: Board[Any],
        channel: Channel,
        life: Life,
        refusal: Path,
        files: Files,
        conditions: ConditionSet,
        clock: Clock,
        runs_overlay: Callable[[], bool],
        spread: Callable[[], float] = random.random,
        retry_s: float = _ASK_AGAIN_S,
    ) -> None:
        self._board = board
        self._channel = channel
        self._life = life
        self._refusal = refusal
        self._files = files
        self._conditions = conditions
        self._clock = clock
        self._runs_overlay = runs_overlay
        self._spread = spread
        self._retry_s = retry_s
        self._outage = Outage(clock)  # of the registry's answers
        self._begun = Wakeup()
        self._admission = Admission()
        self._admit = board.claim(ADMISSION, self.name)
        board.read(Inputs, self.name, self._begun)

    async def run(self) -> NoReturn:
        """Claim to be the node: at once, and in each further session.

        Raises:
            ClonedNodeError: another machine is; final.
        """
        while True:
            is_answered = await self._claim()
            answered_in = self._session
            with suppress(TimeoutError):
                async with timeout(None if is_answered else self._retry_s):
                    while self._session == answered_in:
                        await self._begun.wait(None)
            if is_answered and self._admission.is_accepted:
                await self._clock.sleep(_SPREAD_S * self._spread())

    @property
    def _session(self) -> int:
        return self._board.select(Inputs).session.number

    async def _claim(self) -> bool:
        """Until the registry has decided; False when it does not answer."""
        while True:
            claim = Claim(instance=self._life.instance, machine=self._life.machine, runs_overlay=self._runs_overlay())
            try:
                verdict = await self._channel.ask(claim, within_s=PATIENCE_S)
            except RegistryError as error:
                if self._outage.is_news(error.condition_reason):
                    log.info("node.claim_unanswered", reason=error.condition_reason, error=str(error))
                if error.retryable and not self._admission.is_accepted and self._refusal.exists():
                    self._conditions.set_false(
                        "Leased",
                        ClonedNodeError.reason,
                        "it was refused as a copy of another machine, and waits until the registry says otherwise",
                    )
                    return False
                self._go_on()
                return not error.retryable  # an older registry never will
            self._outage.over()
            if not isinstance(verdict, Verdict):
                self._go_on()
                return True
            if verdict.outcome == "accepted":
                self._accepted(verdict)
                return True
            if verdict.outcome == "refused":
                cloned = ClonedNodeError(verdict.message, hint=verdict.hint)
                self._conditions.set_error("Leased", cloned)
                self._files.keep(self._refusal, verdict.message)
                raise cloned
            self._conditions.set_false("Leased", verdict.reason or "OtherMachine", verdict.message)
            self._admission = replace(self._admission, is_doubted=True)
            self._admit(self._admission)
            await self._clock.sleep(verdict.again_s)

    def _accepted(self, verdict: Verdict) -> None:
        self._admission = replace(self._admission, is_accepted=True)
        if self._refusal.exists():
            self._files.keep(self._refusal, None)
        if verdict.reason:
            log.warning("node.accepted", reason=verdict.reason, message=verdict.message)
            self._conditions.set_true("Leased", verdict.reason, f"{self._lease_in_words()}; {verdict.message}")
        self._go_on()

    def _go_on(self) -> None:
        if not self._conditions.is_true("Leased"):  # it had to wait
            self._conditions.set_true("Leased", "Leased", self._lease_in_words())
        self._admission = replace(self._admission, may_start=True, is_doubted=False, settled_in=self._session)
        self._admit(self._admission)

    def _lease_in_words(self) -> str:
        membership = self._board.select(Inputs).running
        assert membership is not None  # whoever claims is a member
        return lease_in_words(membership.lease)
