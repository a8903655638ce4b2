"""Two machines with one name or address, as EasyTier lists them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.conditions import ConditionSet, Status
from edgelink.errors import OverlayError
from edgelink.overlay.identities import Identities
from edgelink.overlay.status import Peer
from edgelink.protocol.alternation import ALTERNATION_S
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle


class EasyTierList:
    """What ``identities`` asks for: EasyTier's list, and when it was asked."""

    def __init__(self, logs: Path, rows: list[Peer]) -> None:
        self.clock, self.rows, self.asked_s = FakeClock(), rows, list[float]()
        self.board = board_with()
        self.conditions = ConditionSet(self.clock, [], ["AddressesUnique"])
        self.identities = Identities(
            rows=self._ask,
            close_dead=self._close_dead,
            logs=logs,
            clock=self.clock,
            board=self.board,
            is_watchful=False,
        )

    async def _ask(self) -> list[Peer]:
        self.asked_s.append(self.clock.monotonic_s())
        return self.rows

    async def _close_dead(self) -> list[str]:
        return []

    async def talk(self, seconds: float) -> int:
        """EasyTier writes to its log ten times a second; how often it was asked meanwhile."""
        before = len(self.asked_s)
        for _ in range(round(seconds * 10)):
            self.identities.note_news()
            await settle(self.identities, self.board, self.conditions, self.clock)
            await self.clock.advance(0.1)
        return len(self.asked_s) - before


OWN_ROW = Peer(IPv4Address("10.10.0.3"), "edge-1", "Local", None, "", "2.6.4", peer_id="1")
OTHER_ROW = Peer(IPv4Address("10.10.0.1"), "relay", "p2p", 1.0, "tcp", "2.6.4", peer_id="2")


async def test_an_easytier_that_gets_through_to_nobody_is_hardly_asked(tmp_path: Path) -> None:
    """It tells of each try in its log; nobody can be listed twice meanwhile. With others there, a second is enough."""
    nobody = replace(OTHER_ROW, ipv4=None)  # let in for a moment
    for rows in ([OWN_ROW], [OWN_ROW, nobody]):
        world = EasyTierList(tmp_path, rows)
        assert await world.talk(10) in (9, 10), "perhaps it has just been started"
        await world.talk(5)
        assert await world.talk(60) in (5, 6, 7)
    assert await EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW]).talk(10) in (9, 10)


async def test_an_easytier_that_never_stops_talking_wakes_nobody_again(tmp_path: Path) -> None:
    """It was heard already, and is asked when it may be asked again."""
    world = EasyTierList(tmp_path, [])
    await world.talk(0.1)
    world.identities.note_news()
    world.identities.wakeup.clear()
    world.identities.note_news()
    assert not world.identities.wakeup.is_set


async def test_twins_that_stay_are_looked_at_at_leisure(tmp_path: Path) -> None:
    """Fresh ones are worth every look, a copied disk is not."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW, replace(OTHER_ROW, peer_id="3")])
    assert await world.talk(5) == 50
    await world.talk(90)
    assert world.conditions.get("AddressesUnique").reason == "NodeListedTwice"
    assert await world.talk(10) in (9, 10, 11)


async def test_twins_that_are_both_alive_are_told_within_seconds(tmp_path: Path) -> None:
    """A copied disk: from both something comes all the time. From an earlier life, still listed, nothing does."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW])
    await world.talk(2)

    async def talk(seconds: float, *, is_alive: bool) -> str:
        for second in range(round(seconds)):
            fresh = replace(OTHER_ROW, received=f"{second} kB")
            stale = replace(OTHER_ROW, peer_id="3", lat_ms=1 + second / 10 if is_alive else 1)
            world.rows = [OWN_ROW, fresh, stale]
            await world.talk(1)
        return world.conditions.get("AddressesUnique").reason

    assert await talk(20, is_alive=False) == "StaleTwin"
    assert await talk(5, is_alive=True) == "NodeListedTwice"
    assert "both are alive: relay (10.10.0.1)" in world.conditions.get("AddressesUnique").message
    world.rows = [OWN_ROW, OTHER_ROW]
    await world.talk(6)
    assert world.conditions.get("AddressesUnique").reason == "Unique"


async def test_a_twin_behind_another_node_is_told_after_a_while(tmp_path: Path) -> None:
    """Nothing is known of whether it is alive: of the way to it only its neighbour knows."""
    world = EasyTierList(tmp_path, [OWN_ROW])
    far = replace(OTHER_ROW, cost="relay(2)")
    for second in range(20):
        world.rows = [OWN_ROW, replace(far, lat_ms=second), replace(far, peer_id="3", lat_ms=second)]
        await world.talk(1)
    assert world.conditions.get("AddressesUnique").reason == "StaleTwin"
    await world.talk(90)
    assert world.conditions.get("AddressesUnique").reason == "NodeListedTwice"


async def test_a_node_with_two_voices_is_told(tmp_path: Path) -> None:
    """By what it says to the registry, whatever EasyTier lists."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW])
    world.board.given(alternations=(("edge-2", 0.0),))
    await world.talk(2)
    found = world.conditions.get("AddressesUnique")
    assert (found.status, found.reason) == (Status.FALSE, "NodeCloned")
    assert "edge-2" in found.message
    await world.talk(ALTERNATION_S + 6)
    assert world.conditions.is_true("AddressesUnique")


async def test_what_the_registry_says_needs_no_other_question(tmp_path: Path) -> None:
    """Another holder, or a voice too many, is told at once by the list that is known."""
    world = EasyTierList(tmp_path, [OWN_ROW, OTHER_ROW])
    await settle(world.identities, world.board, world.conditions, world.clock)
    assert world.conditions.get("AddressesUnique").reason == "Unique"
    world.board.given(holders={IPv4Address("10.10.0.1"): "edge-7"})
    await settle(world.identities, world.board, world.conditions, world.clock)
    assert world.conditions.get("AddressesUnique").reason == "AddressClaimedTwice"
    assert len(world.asked_s) == 1


async def test_a_claimed_address_is_told_and_a_fresh_twin_is_not_alarming(tmp_path: Path) -> None:
    """AddressesUnique: by EasyTier's list and the directory; the earlier life of a node goes by itself."""
    clock = FakeClock()
    conditions = ConditionSet(clock, [], ["AddressesUnique"])
    own = Peer(IPv4Address("10.10.0.3"), "edge-1", "p2p", 1.0, "tcp", "2.6.4", peer_id="1")
    rows: list[Peer] | None = None

    async def ask() -> list[Peer]:
        if rows is None:
            raise OverlayError("no answer")
        return rows

    closings = 0

    async def close_dead() -> list[str]:
        nonlocal closings
        closings += 1
        return ["198.51.100.6:40381"]

    board = board_with(holders={IPv4Address("10.10.0.3"): "edge-1"})
    identities = Identities(
        rows=ask,
        board=board,
        is_watchful=False,
        close_dead=close_dead,
        logs=tmp_path,
        clock=clock,
    )

    async def reason() -> tuple[Status, str]:
        await clock.advance(1)
        identities.note_news()
        await settle(identities, board, conditions, clock)
        found = conditions.get("AddressesUnique")
        return found.status, found.reason

    assert await reason() == (Status.UNKNOWN, "NotAsked")
    rows = [own]
    assert await reason() == (Status.TRUE, "Unique")
    assert closings == 0, "nobody's connection is touched while nobody is listed twice"
    rows = [own, replace(own, peer_id="2")]
    assert await reason() == (Status.TRUE, "StaleTwin")
    assert closings == 1
    await clock.advance(91)
    assert await reason() == (Status.FALSE, "NodeListedTwice")
    rows = [own]
    assert await reason() == (Status.TRUE, "Unique")
    rows = [own, replace(own, hostname="spare-robot", peer_id="2")]
    assert await reason() == (Status.FALSE, "AddressClaimedTwice")
    assert "spare-robot" in conditions.get("AddressesUnique").message
