"""When the registry is asked about a node that is heard and does not prove who it is, and what its word does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edgelink.conditions import ConditionSet
from edgelink.errors import RegistryError, RegistryUnavailableError
from edgelink.member.doubts import Asked, AskRegistry, Doubts, Inputs
from edgelink.protocol.payloads import Directory
from edgelink.protocol.requests import Answer, Done, EchoUp, EchoWord, Question
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle
from edgelink.testing.payloads import entry

CLOUD = entry("cloud", "10.10.0.2", 0)
DIRECTORY = Directory(network_id="n", epoch=1, entries=(CLOUD,))


class Registry:
    """Answers, or not."""

    def __init__(self, answer: Answer | RegistryError) -> None:
        self.answer = answer
        self.asked: list[Question] = []

    async def ask(self, ask: Question) -> Answer:
        self.asked.append(ask)
        if isinstance(self.answer, RegistryError):
            raise self.answer
        return self.answer


ASK = AskRegistry("cloud", CLOUD.node_id, 100.0)


@pytest.mark.parametrize(
    ("unproven", "directory", "own", "does", "again_s"),
    [
        ({}, DIRECTORY, {}, None, 30.0),
        ({"cloud": 100.0}, DIRECTORY, {}, ASK, None),
        ({"cloud": 150.0}, DIRECTORY, {}, None, 10.0),
        ({"cloud": 100.0}, None, {}, None, 30.0),
        ({"cloud": 100.0}, DIRECTORY, {"cloud": Asked(100.0, 190.0)}, None, 20.0),
        ({"cloud": 100.0}, DIRECTORY, {"cloud": Asked(100.0, 170.0)}, ASK, None),
        ({"cloud": 100.0}, DIRECTORY, {"cloud": Asked(20.0, 199.0)}, ASK, None),
    ],
    ids=[
        "all prove themselves",
        "a minute without a proof",
        "half a minute",
        "nobody knows who is who",
        "asked a moment ago",
        "asked half a minute ago",
        "asked about another time",
    ],
)
def test_when_the_registry_is_asked(
    unproven: Mapping[str, float],
    directory: Directory | None,
    own: Mapping[str, Asked],
    does: AskRegistry | None,
    again_s: float | None,
) -> None:
    doubts = Doubts(board=board_with(), channel=Registry(Done()), clock=FakeClock())
    decision = doubts.plan(Inputs(unproven, directory, own), 200.0)
    assert decision.does == does
    assert again_s is None or decision.again_s == again_s


@pytest.mark.parametrize(
    ("answer", "is_disowned"),
    [
        (EchoWord(is_up=True), True),
        (EchoWord(is_up=False), False),
        (Done(), False),
        (RegistryError("not this one", reason="NodeUnknown"), False),
        (RegistryUnavailableError("no answer"), False),
    ],
    ids=["its echo is up", "it is away", "no word", "a refusal", "no answer"],
)
async def test_only_the_registrys_word_is_against_anybody(answer: Answer | RegistryError, *, is_disowned: bool) -> None:
    clock = FakeClock()
    board, registry = board_with(), Registry(answer)
    doubts = Doubts(board=board, channel=registry, clock=clock)
    board.given(unproven={"cloud": clock.monotonic_s() - 60}, directory=DIRECTORY)
    await settle(doubts, board, ConditionSet(clock, [], []), clock)
    assert registry.asked == [EchoUp(of=CLOUD.node_id)]
    assert board.facts.disowned == ({"cloud": clock.monotonic_s() - 60} if is_disowned else {})
