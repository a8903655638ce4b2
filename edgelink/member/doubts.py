"""Whether a node that answers and proves nothing is somebody else: the registry is asked what that node says of itself.

A missing proof is no wrong one: the responder may have ended, and its daemon may be down. But where somebody has
answered for a minute without a proof, while the node tells the registry that its echo is up, it is not that node that
answers (ADR 0041).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.errors import RegistryError
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.protocol.payloads import Directory
from edgelink.protocol.requests import Answer, EchoUp, EchoWord, Question

PATIENCE_S = 60.0  # the broker misses a node that is cut off within 23 s
_ASK_AGAIN_S = 30.0

DISOWNED: Final[Fact[Mapping[str, float]]] = Fact("disowned")


@dataclass(frozen=True)
class AskRegistry(Action):
    """Ask the registry about the node that has not proven itself since ``since_s``, on the monotonic clock."""

    hostname: str
    node_id: str
    since_s: float


@dataclass(frozen=True)
class Asked:
    """When the registry was asked last about a node, and in which of its silences; on the monotonic clock."""

    since_s: float
    at_s: float


@dataclass(frozen=True)
class Inputs:
    """What decides which node the registry is asked about. ``own``: when it was asked last, by hostname."""

    unproven: Mapping[str, float]
    directory: Directory | None
    own: Mapping[str, Asked]


class Channel(Protocol):
    """What of :class:`edgelink.member.node_channel.NodeChannel` is needed here."""

    async def ask(self, ask: Question) -> Answer:
        """The registry's answer. Raises RegistryError when there is none."""


class Doubts(Part[Inputs, AskRegistry]):
    """Writes ``disowned``. Without the registry's word nobody is."""

    name: ClassVar[str] = "doubts"
    condition: ClassVar[str] = PEERS_REACHABLE.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], channel: Channel, clock: Clock) -> None:
        super().__init__(board, own={})
        self.own: Mapping[str, Asked]
        self._board = board
        self._put_disowned = board.claim(DISOWNED, self.name)
        self._channel = channel
        self._clock = clock

    def plan(self, now: Inputs, at_s: float) -> Decision[AskRegistry]:
        again_s = LOOK_S
        for entry in now.directory.entries if now.directory is not None else ():
            since_s = now.unproven.get(entry.hostname)
            if since_s is None:
                continue
            asked, due_s = now.own.get(entry.hostname), since_s + PATIENCE_S
            if asked is not None and asked.since_s == since_s:
                due_s = asked.at_s + _ASK_AGAIN_S
            if at_s >= due_s:
                return Decision(does=AskRegistry(entry.hostname, entry.node_id, since_s))
            again_s = min(again_s, due_s - at_s)
        return Decision(again_s=again_s)

    async def act(self, action: AskRegistry) -> None:
        try:
            word = await self._channel.ask(EchoUp(of=action.node_id))
        except RegistryError:  # not reached: nothing is known
            word = EchoWord(is_up=False)
        self.own = {**self.own, action.hostname: Asked(action.since_s, self._clock.monotonic_s())}
        if isinstance(word, EchoWord) and word.is_up:
            self._put_disowned({**self._board.facts.disowned, action.hostname: action.since_s})
