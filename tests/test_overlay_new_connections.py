"""Whose new connections are held back: facts in, elements of a set out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ipaddress import IPv4Address

import pytest

from edgelink.conditions import ConditionSet
from edgelink.overlay.new_connections import Held, HoldBack, Inputs, NewConnections
from edgelink.overlay.nft import Applied, Table
from edgelink.overlay.rpc_guard import DOUBTED, rpc_guard
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle

HEAD, NOBODY = frozenset({IPv4Address("10.10.0.2")}), frozenset[IPv4Address]()


@pytest.mark.parametrize(
    ("doubted", "own", "does", "again_s"),
    [
        (NOBODY, Held(NOBODY, float("-inf")), None, 30.0),
        (HEAD, Held(NOBODY, float("-inf")), HoldBack(HEAD), None),
        (HEAD, Held(HEAD, 98.0), None, 8.0),
        (HEAD, Held(HEAD, 90.0), HoldBack(HEAD), None),
        (NOBODY, Held(HEAD, 99.0), HoldBack(NOBODY), None),
    ],
    ids=["nobody is doubted", "the head is", "it is held back", "renewed before it expires", "it proves itself again"],
)
def test_whose_connections_are_held_back(
    doubted: frozenset[IPv4Address], own: Held, does: HoldBack | None, again_s: float | None
) -> None:
    guard = TableKeeper(rpc_guard(15888), FakeClock(), open_without="")
    part = NewConnections(board=board_with(), guard=guard, clock=FakeClock())
    decision = part.plan(Inputs(doubted, own), 100.0)
    assert decision.does == does
    assert again_s is None or decision.again_s == again_s


@pytest.mark.parametrize("is_wanted", [True, False], ids=["while EasyTier runs", "without EasyTier there is no set"])
async def test_the_set_expires_without_a_daemon(monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool) -> None:
    changes: list[tuple[str, list[str]]] = []

    async def replace_elements(_table: Table, of_set: str, elements: list[str]) -> None:
        changes.append((of_set, elements))

    monkeypatch.setattr(Table, "replace_elements", replace_elements)
    clock, board = FakeClock(), board_with()
    guard = TableKeeper(rpc_guard(15888), clock, open_without="")
    guard.is_wanted = is_wanted
    part = NewConnections(board=board, guard=guard, clock=clock)
    conditions = ConditionSet(clock, [], [part.condition])
    board.given(doubted=HEAD)
    await settle(part, board, conditions, clock)
    board.given(doubted=NOBODY)
    await settle(part, board, conditions, clock)
    assert changes == ([(DOUBTED, ["10.10.0.2 timeout 30s"]), (DOUBTED, [])] if is_wanted else [])
    assert part.own.addresses == NOBODY


async def test_a_doubt_that_comes_while_the_table_is_put_back_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new table takes what the old one's set held when that began."""
    held: list[str] = []
    is_read = asyncio.Event()

    async def apply(_table: Table) -> Applied:
        found = list(held)
        await is_read.wait()
        held[:] = found
        return Applied("", is_made=True)

    async def replace_elements(_table: Table, _set: str, elements: Iterable[str]) -> None:
        held[:] = elements

    monkeypatch.setattr(Table, "apply", apply)
    monkeypatch.setattr(Table, "replace_elements", replace_elements)
    guard = TableKeeper(rpc_guard(15888), FakeClock(), open_without="")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(guard.keep())
        await asyncio.sleep(0)
        tasks.create_task(guard.hold(DOUBTED, ["10.10.0.2"]))
        await asyncio.sleep(0)
        is_read.set()
    assert held == ["10.10.0.2"]


def test_only_the_first_packet_of_a_connection_is_dropped() -> None:
    lines = [line.strip() for line in rpc_guard(15888).chains.split("\n") if f"@{DOUBTED}" in line]
    opening = "tcp flags & (fin|syn|rst|ack) == syn counter drop"
    assert [line.partition(" comment")[0] for line in lines] == [
        f"ip saddr @{DOUBTED} {opening}",
        f"ip daddr @{DOUBTED} {opening}",
    ]
