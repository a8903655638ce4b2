"""EasyTier's search for direct paths ends after a while, and begins again when something changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from overlay_world import SPEC

from edgelink.conditions import ConditionSet
from edgelink.facts.part import Action
from edgelink.overlay.nft import FirewallError, Table
from edgelink.overlay.punching import Bound, Inputs, Look, Looked, PunchLimit, Search
from edgelink.overlay.rpc_guard import PUNCHING_OVER, STUN_OVER, rpc_guard
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process import Identity
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, pretend, settle
from edgelink.testing.overlay import FakeProcess

SERVERS = ("203.0.113.10:3478", "203.0.113.10:3479")
SEARCHING = replace(SPEC, stun_servers=SERVERS)
HOURLY = Search(after_change_s=180, again_every_s=3600, again_for_s=120)
QUIET = 200.0  # Unix time without a search by the wall clock
OPEN, OVER = Looked(found=7, is_over=False), Looked(found=7, is_over=True)
OPENS, ENDS = Bound(False, SERVERS), Bound(True, SERVERS)


class Sets(Table):
    """Remembers what its sets hold."""

    held: dict[str, list[str]]
    refuses: bool

    async def replace_elements(self, of_set: str, elements: Iterable[str]) -> None:
        if self.refuses:
            raise FirewallError("refused")
        self.held[of_set] = list(elements)


class World:
    """A limit in virtual time over a table that remembers."""

    def __init__(self) -> None:
        self.uplink = "192.0.2.1:4000"
        self.board = board_with()
        pretend(self.board, overlay_spec=SEARCHING, listing=frozenset({("2", False)}), online=frozenset({"edge-2"}))
        self.process = FakeProcess()
        self.process.identity = Identity(7, 1, "boot", "hash")
        guard = rpc_guard(15888)
        self.sets = Sets(guard.name, guard.chains)
        object.__setattr__(self.sets, "held", {})
        object.__setattr__(self.sets, "refuses", False)
        self.clock = FakeClock()
        self.conditions = ConditionSet(self.clock, [PunchLimit.condition])
        self.limit = PunchLimit(
            board=self.board,
            process=self.process,
            guard=TableKeeper(self.sets, self.clock, open_without=""),
            search=HOURLY,
            clock=self.clock,
            uplinks=lambda _pid, _spec: self.uplink,
        )

    @property
    def is_over(self) -> bool:
        return bool(self.sets.held.get(PUNCHING_OVER))

    async def passes(self, seconds: float) -> None:
        await settle(self.limit, self.board, self.conditions, self.clock)
        for _ in range(int(seconds // 5)):
            await self.clock.advance(5)
            await settle(self.limit, self.board, self.conditions, self.clock)


@pytest.mark.parametrize(
    ("own", "is_metered", "does"),
    [
        # A new daemon opens what its predecessor may have closed.
        (Looked(at_s=0, found=7, unix_s=QUIET), False, OPENS),
        (Looked(at_s=0, found=None, unix_s=QUIET), False, None),
        # After the last change it goes on for three minutes, on a metered uplink for one.
        (replace(OPEN, at_s=179, unix_s=QUIET), False, None),
        (replace(OPEN, at_s=180, unix_s=QUIET), False, ENDS),
        (replace(OPEN, at_s=59), True, None),
        (replace(OPEN, at_s=60), True, ENDS),
        (replace(OVER, at_s=1000, found_s=1000, unix_s=QUIET), False, OPENS),
        # Its end is renewed every five minutes, before it expires.
        (replace(OVER, at_s=999, set_s=700, unix_s=QUIET), False, None),
        (replace(OVER, at_s=1000, set_s=700, unix_s=QUIET), False, ENDS),
        # Both nodes search at the same time by the wall clock, or neither would meet the other's packets.
        (replace(OVER, at_s=999, set_s=700, unix_s=7199.0), False, None),
        (replace(OVER, at_s=999, set_s=700, unix_s=7200.0), False, OPENS),
        (replace(OPEN, at_s=999, set_s=700, unix_s=7319.0), False, None),
        (replace(OPEN, at_s=999, set_s=700, unix_s=7320.0), False, ENDS),
        (replace(OVER, at_s=999, set_s=700, unix_s=7200.0), True, None),
        # A firewall that refuses is tried again after the next look only.
        (replace(OPEN, at_s=180, set_s=180.1, unix_s=QUIET), False, None),
        (replace(OPEN, at_s=185, set_s=180.1, unix_s=QUIET), False, ENDS),
    ],
)
def test_when_the_search_ends_and_when_it_begins(own: Looked, is_metered: bool, does: Action | None) -> None:
    limit = World().limit
    inputs = Inputs(SEARCHING, is_metered, frozenset(), frozenset(), own)
    decision = limit.plan(inputs, own.at_s)
    assert (decision.does, decision.again_s) == (does, 5.0 if does is None else decision.again_s)
    assert limit.plan(inputs, own.at_s + 5).does == Look()


async def test_the_search_ends_and_its_end_is_renewed_before_it_expires() -> None:
    world = World()
    await world.passes(175)
    assert not world.is_over
    await world.passes(5)
    assert world.sets.held[PUNCHING_OVER] == ["udp timeout 1200s"]
    assert [element.partition(" timeout")[0] for element in world.sets.held[STUN_OVER]] == [
        "203.0.113.10 . 3478",
        "203.0.113.10 . 3479",
    ]
    world.sets.held.clear()  # somebody flushed them
    await world.passes(600)
    assert world.is_over


@pytest.mark.parametrize(
    "change",
    [
        "another EasyTier",
        {"listing": frozenset({("2", True)})},
        {"online": frozenset({"edge-2", "edge-3"})},
        "another uplink",
    ],
)
async def test_a_change_begins_another_search(change: dict[str, object] | str) -> None:
    world = World()
    await world.passes(200)
    assert world.is_over
    if isinstance(change, dict):
        pretend(world.board, **change)
    elif change == "another uplink":
        world.uplink = "192.0.2.1:4001"
    else:
        world.process.identity = Identity(8, 1, "boot", "hash")
    await world.passes(170)
    assert not world.is_over
    await world.passes(20)
    assert world.is_over


async def test_where_nothing_is_punched_nothing_is_closed() -> None:
    world = World()
    pretend(world.board, overlay_spec=replace(SEARCHING, stun_servers=()))
    await world.passes(600)
    assert not world.sets.held


async def test_a_refusing_firewall_is_tried_again_and_costs_no_more() -> None:
    world = World()
    object.__setattr__(world.sets, "refuses", True)
    await world.passes(400)
    object.__setattr__(world.sets, "refuses", False)
    await world.passes(310)
    assert world.is_over
