"""EasyTier's search for direct paths ends after a while, and begins again when something changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from overlay_world import SPEC

from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.nft import FirewallError, Table
from edgelink.overlay.punching import PunchLimit, Search
from edgelink.overlay.rpc_guard import PUNCHING_OVER, STUN_OVER, rpc_guard
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process import Identity
from edgelink.testing import FakeClock
from edgelink.testing.facts import give
from edgelink.testing.overlay import FakeProcess

SEARCHING = replace(SPEC, stun_servers=("203.0.113.10:3478", "203.0.113.10:3479"))
ONCE = Search(again_every_s=None)


class Sets(Table):
    """Remembers what its sets hold."""

    held: dict[str, list[str]]
    writes: int
    refuses: bool

    async def replace_elements(self, of_set: str, elements: Iterable[str]) -> None:
        if self.refuses:
            raise FirewallError("refused")
        self.held[of_set] = list(elements)
        object.__setattr__(self, "writes", self.writes + 1)


class World:
    """A limit in virtual time over a table that remembers."""

    def __init__(self, search: Search = ONCE) -> None:
        self.uplink = "192.0.2.1:4000"
        self.board = Board(Facts())
        give(self.board, overlay_spec=SEARCHING, listing=frozenset({("2", False)}), online=frozenset({"edge-2"}))
        self.process = FakeProcess()
        self.process.identity = Identity(7, 1, "boot", "hash")
        guard = rpc_guard(15888)
        self.sets = Sets(guard.name, guard.chains)
        for name, value in (("held", {}), ("writes", 0), ("refuses", False)):
            object.__setattr__(self.sets, name, value)
        self.clock = FakeClock()
        self.limit = PunchLimit(
            board=self.board,
            process=self.process,
            guard=TableKeeper(self.sets, self.clock, open_without=""),
            search=search,
            clock=self.clock,
            uplinks=lambda _pid, _spec: self.uplink,
        )

    @property
    def is_over(self) -> bool:
        return bool(self.sets.held.get(PUNCHING_OVER))

    async def passes(self, seconds: float) -> None:
        """Look every five seconds, as the daemon does."""
        await self.limit.look()
        for _ in range(int(seconds // 5)):
            await self.clock.advance(5)
            await self.limit.look()


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
        give(world.board, **change)
    elif change == "another uplink":
        world.uplink = "192.0.2.1:4001"
    else:
        world.process.identity = Identity(8, 1, "boot", "hash")
    await world.passes(170)
    assert not world.is_over
    await world.passes(20)
    assert world.is_over


async def test_a_new_daemon_opens_what_its_predecessor_closed() -> None:
    world = World()
    world.sets.held[PUNCHING_OVER] = ["udp"]
    await world.limit.look()
    assert not world.is_over


async def test_without_a_change_it_is_searched_by_the_wall_clock() -> None:
    """At the same time on both nodes, or neither would meet the other's packets."""
    world = World(Search(after_change_s=180, again_every_s=3600, again_for_s=120))
    open_s = 0
    await world.passes(300)
    for _ in range(2 * 720):  # two hours
        await world.passes(5)
        open_s += 0 if world.is_over else 5
    assert open_s == 2 * 120


async def test_on_a_metered_uplink_a_search_takes_a_minute() -> None:
    world = World()
    give(world.board, is_metered=True)
    await world.passes(55)
    assert not world.is_over
    await world.passes(5)
    assert world.is_over


async def test_where_nothing_is_punched_nothing_is_closed() -> None:
    world = World()
    give(world.board, overlay_spec=replace(SEARCHING, stun_servers=()))
    await world.passes(600)
    assert not world.sets.held


async def test_a_refusing_firewall_is_tried_again_and_costs_no_more() -> None:
    world = World()
    object.__setattr__(world.sets, "refuses", True)
    await world.passes(400)
    object.__setattr__(world.sets, "refuses", False)
    await world.passes(310)
    assert world.is_over


async def test_quiet_hours_cost_two_writes_in_five_minutes() -> None:
    world = World()
    await world.passes(200)
    before = world.sets.writes
    await world.passes(3000)
    assert world.sets.writes - before == 2 * 10
