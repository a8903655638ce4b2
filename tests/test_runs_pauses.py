"""Who is paused: what anybody knows of a member's silence, from when on it is told, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from head_world import CLOUD, EDGE_1, EDGE_2, member
from structlog.testing import capture_logs

from edgelink.conditions import ConditionSet
from edgelink.duration import brief
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.ways import Ways
from edgelink.protocol.payloads import Directory
from edgelink.ray_cluster.pause import Pause
from edgelink.runs.pauses import Inputs, Pauses, Seen, silent_members
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, settle

NOW_S = 100.0
DIRECTORY = Directory(network_id="n", epoch=1, entries=(CLOUD, EDGE_1, EDGE_2))
FINE: dict[str, Any] = {
    "directory": DIRECTORY,
    "ray_members": (member("10.10.0.2", 0), member("10.10.0.3", 1)),
    "overlay_is_up": True,
    "ways": Ways(),
    "answering": {"edge-1": 5.0},
}


def inputs(**other: Any) -> Inputs:
    unsaid: dict[str, Any] = {
        "unheard": {},
        "silent": {},
        "lost": frozenset(),
        "impostors": frozenset(),
        "stopped": frozenset(),
        "is_metered": False,
        "metered": frozenset(),
        "run": None,
        "own": Seen(),
    }
    return Inputs(**{**unsaid, **FINE, **other})


ONE = frozenset({EDGE_1.node_id})
ECHO = {"answering": {}, "unheard": {"edge-1": 91.0}, "silent": {"edge-1": 96.0}}
NO_WAY = Ways(unreached=frozenset({EDGE_1.overlay_ip}))
NO_OVERLAY = {"answering": {}, "overlay_is_up": False, "ways": NO_WAY}
BEFORE = Seen({EDGE_1.node_id: Pause(60.0, "overlay and route", asked_since_s=60.0)})


@pytest.mark.parametrize(
    ("other", "silence"),
    [
        ({}, None),
        (ECHO, Pause(91.0, "echo", asked_since_s=96.0)),
        ({**ECHO, "lost": ONE}, Pause(91.0, "echo and registry", asked_since_s=96.0)),
        ({**ECHO, "metered": ONE}, Pause(91.0, "echo", is_metered=True, asked_since_s=96.0)),
        ({**ECHO, "is_metered": True}, Pause(91.0, "echo", is_metered=True, asked_since_s=96.0)),
        # one word against an echo is not enough: its daemon alone is away
        ({"lost": ONE}, None),
        # nor is one where nobody asks: the broker had a hiccup, a daemon is new, a device has another MTU
        ({"answering": {}}, None),
        ({"answering": {}, "lost": ONE}, None),
        ({"answering": {}, "overlay_is_up": False}, None),
        ({"answering": {}, "ways": NO_WAY}, None),
        # two are, from when both are known on
        ({**NO_OVERLAY, "ways": Ways(), "lost": ONE}, Pause(NOW_S, "registry and overlay", False, NOW_S)),
        (NO_OVERLAY, Pause(NOW_S, "overlay and route", asked_since_s=NOW_S)),
        ({**NO_OVERLAY, "lost": ONE}, Pause(NOW_S, "registry and overlay and route", asked_since_s=NOW_S)),
        # to a daemon that never heard it, the first question that it did not answer is the beginning
        ({**ECHO, "unheard": {"edge-1": None}}, Pause(96.0, "echo", asked_since_s=96.0)),
        # a silence goes on until an answer ends it
        ({"answering": {}, "own": BEFORE}, Pause(60.0, "overlay and route", asked_since_s=60.0)),
        ({"answering": {}, "own": BEFORE, "lost": ONE}, Pause(60.0, "overlay and route", asked_since_s=60.0)),
        ({"answering": {}, "unheard": {"edge-1": None}, "own": BEFORE}, Pause(60.0, "echo", asked_since_s=60.0)),
        ({"own": BEFORE}, None),
        # while Ray does not list the head itself, nobody can say who is a member: who was silent is, until it answers
        ({**ECHO, "ray_members": (), "own": BEFORE}, Pause(91.0, "echo", asked_since_s=96.0)),
        ({**ECHO, "ray_members": ()}, None),
        ({"ray_members": (), "own": BEFORE}, None),
        ({**ECHO, "ray_members": (), "own": BEFORE, "stopped": ONE}, None),
        # somebody else at its address is not it
        ({"answering": {}, "impostors": frozenset({EDGE_1.overlay_ip})}, Pause(NOW_S, "echo", asked_since_s=NOW_S)),
        # whom Ray does not list is not paused, nor who was switched off
        ({**ECHO, "ray_members": (member("10.10.0.2", 0),)}, None),
        ({**ECHO, "stopped": ONE}, None),
    ],
)
def test_what_anybody_knows_of_a_members_silence_counts(other: Mapping[str, Any], silence: Pause | None) -> None:
    """The head itself is never silent to itself, and who is not in Ray is no member."""
    found = silent_members(inputs(**other), CLOUD.node_id, NOW_S)
    assert found == ({} if silence is None else {EDGE_1.node_id: silence})


class World:
    """The part on a board of its own, with what it logs."""

    def __init__(self) -> None:
        self.clock, self.board = FakeClock(), Board(Facts())
        self.told: list[Any] = []
        self.conditions = ConditionSet(self.clock, ())
        self.pauses = Pauses(board=self.board, node_id=CLOUD.node_id, clock=self.clock)
        give(self.board, **FINE)

    async def is_paused(self, **facts: Any) -> bool:
        give(self.board, **facts)
        with capture_logs() as told:
            self.again_s = await settle(self.pauses, self.board, self.conditions, self.clock)
        self.told += told
        return EDGE_1.node_id in self.board.facts.paused


@pytest.mark.parametrize(("metered", "after_s"), [(frozenset(), 8.0), (ONE, 180.0)])
async def test_a_pause_is_told_some_seconds_after_the_last_answer(metered: frozenset[str], after_s: float) -> None:
    """Within 10 s; where a question costs money, three of its periods. The part looks in time."""
    world, now_s = World(), 0.0
    heard_s = world.clock.monotonic_s()
    silent = {"answering": {}, "unheard": {"edge-1": heard_s}, "metered": metered}
    assert not await world.is_paused(**silent)
    while not (is_paused := await world.is_paused()) and now_s < 2 * after_s:
        await world.clock.advance(world.again_s)
        now_s += world.again_s
    assert is_paused
    assert now_s == after_s


async def test_three_echoes_that_are_lost_within_a_second_are_no_pause_yet() -> None:
    """Where nobody had to be asked for a while, the last answer is old at once."""
    world = World()
    heard_s = world.clock.monotonic_s()
    await world.clock.advance(9.0)
    silent = {"answering": {}, "unheard": {"edge-1": heard_s}, "silent": {"edge-1": heard_s + 8.0}}
    assert not await world.is_paused(**silent)
    assert world.again_s == 1.0
    await world.clock.advance(world.again_s)
    assert await world.is_paused()


async def test_a_pause_that_was_told_lasts_as_long_as_the_silence() -> None:
    """Also where its uplink turns out to cost money, as it says while its overlay is still down."""
    world = World()
    heard_s = world.clock.monotonic_s()
    await world.clock.advance(20.0)
    assert await world.is_paused(answering={}, unheard={"edge-1": heard_s})
    assert await world.is_paused(metered=ONE)
    assert not await world.is_paused(unheard={"edge-1": world.clock.monotonic_s()}), "it was heard on a connection"
    assert [told["event"] for told in world.told] == ["runs.node_paused", "runs.node_answers_again"]


@pytest.mark.parametrize(
    ("ends", "event"),
    [
        ({"answering": {"edge-1": 140.0}, "unheard": {}}, "answers_again"),
        ({"answering": {"edge-1": 140.0}, "unheard": {}, "ray_members": ()}, "answers_again"),
        ({"ray_members": (member("10.10.0.2", 0),)}, "given_up"),
        ({"stopped": ONE}, "stopped"),
        ({"directory": Directory(network_id="n", epoch=2, entries=(CLOUD,))}, "left"),
    ],
)
async def test_what_has_ended_a_pause_is_logged_with_its_length(ends: Mapping[str, Any], event: str) -> None:
    """Both ends of it are, once each."""
    world = World()
    heard_s = world.clock.monotonic_s()
    await world.clock.advance(130.0)
    assert await world.is_paused(answering={}, unheard={"edge-1": heard_s})
    assert await world.is_paused(lost=ONE), "who else says so is no news"
    assert not await world.is_paused(**ends)
    began, ended = world.told
    assert (began["event"], began["node"], began["told_by"]) == ("runs.node_paused", "edge-1", "echo")
    assert (ended["event"], ended["after"], ended["silent_s"]) == (f"runs.node_{event}", "2m10s", 130.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.9, "59s"), (60, "1m00s"), (130, "2m10s"), (11_100, "3h05m"), (187_200, "2d04h")],
)
def test_lengths_are_told_briefly(seconds: float, text: str) -> None:
    """Two units at most."""
    assert brief(seconds) == text
