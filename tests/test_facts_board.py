"""The board: one writer a fact, no half a change, nothing seen that is not on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest

from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board, Fact, Row, WiringError
from edgelink.reconcile import Wakeup


@dataclass(frozen=True)
class Facts:
    lease: str | None
    device: int
    address: str
    warning: str


@dataclass(frozen=True)
class LeaseOnly:
    lease: str | None


@dataclass(frozen=True)
class Both:
    device: int
    address: str
    own: int


LEASE: Final[Fact[str | None]] = Fact("lease")
DEVICE: Final[Fact[int]] = Fact("device")
ADDRESS: Final[Fact[str]] = Fact("address")
WARNING: Final[Fact[str]] = Fact("warning")


@pytest.fixture
def board() -> Board[Facts]:
    return Board(Facts(lease=None, device=0, address="", warning=""))


def address_of(now: LeaseOnly) -> str:
    return f"10.10.0.{now.lease}" if now.lease else ""


def test_a_second_writer_is_refused_by_both_names(board: Board[Facts]) -> None:
    board.claim(LEASE, "store")
    with pytest.raises(WiringError, match="lease is written by store; renewal"):
        board.claim(LEASE, "renewal")


def test_facts_that_do_not_exist_are_refused(board: Board[Facts]) -> None:
    @dataclass(frozen=True)
    class Wrong:
        leese: str

    with pytest.raises(WiringError, match=r"overlay .*leese"):
        board.read(Wrong, "overlay", Wakeup())
    with pytest.raises(WiringError, match="leese"):
        board.claim(Fact[str]("leese"), "overlay")


def test_a_fact_that_is_read_needs_a_writer_or_is_declared_absent(board: Board[Facts]) -> None:
    """A forgotten wire is found when the daemon is put together, not in the field."""
    board.read(Both, "peers", Wakeup())
    board.claim(DEVICE, "overlay")
    with pytest.raises(WiringError, match="address, which peers reads"):
        board.require_writers()
    board.require_writers(absent={"address"})


def test_only_another_value_wakes_and_only_its_readers(board: Board[Facts]) -> None:
    leases, devices = Wakeup(), Wakeup()
    board.read(LeaseOnly, "lease's reader", leases)
    board.read(Both, "device's reader", devices)
    put = board.claim(LEASE, "store")
    put(None)
    assert not leases.is_set
    put("3")
    assert (leases.is_set, devices.is_set) == (True, False)
    assert board.facts.lease == "3"


def test_nobody_sees_a_fact_without_what_is_derived_from_it(board: Board[Facts]) -> None:
    """Also where one is derived from another."""

    @dataclass(frozen=True)
    class AddressOnly:
        address: str

    put = board.claim(LEASE, "store")
    board.derive(ADDRESS, "addresses", LeaseOnly, address_of)
    board.derive(WARNING, "warnings", AddressOnly, lambda now: "" if now.address else "no address")
    assert board.facts == Facts(None, 0, "", "no address")
    before, woken = board.facts, Wakeup()
    board.read(Both, "peers", woken)
    put("3")
    assert board.facts == Facts("3", 0, "10.10.0.3", "")
    assert before == Facts(None, 0, "", "no address"), "a value that was handed out stays as it was"
    assert woken.is_set
    with pytest.raises(WiringError, match="address is written by addresses"):
        board.claim(ADDRESS, "overlay")


def test_inputs_are_what_was_declared_and_nothing_else(board: Board[Facts]) -> None:
    board.claim(DEVICE, "overlay")(7)
    assert board.select(Both, own=1) == Both(device=7, address="", own=1)


def test_a_durable_fact_is_on_disk_before_anybody_sees_it(board: Board[Facts]) -> None:
    seen_while_saving: list[str | None] = []

    def save(value: str) -> str | None:
        seen_while_saving.append(board.facts.lease)
        return value

    assert board.claim_durable(LEASE, "store", save)("3") == "3"
    assert seen_while_saving == [None]
    assert board.facts.lease == "3"


def test_what_could_not_be_saved_is_not_seen(board: Board[Facts]) -> None:
    def save(value: str) -> str | None:
        raise NotRecordedError("the disk is full")

    commit = board.claim_durable(LEASE, "store", save)
    with pytest.raises(NotRecordedError):
        commit("3")
    assert board.facts.lease is None


def test_the_reference_names_writers_and_readers(board: Board[Facts]) -> None:
    board.claim_durable(LEASE, "store", str)
    board.derive(ADDRESS, "addresses", LeaseOnly, address_of)
    board.read(Both, "peers", Wakeup())
    board.claim(DEVICE, "overlay")
    assert board.rows() == [
        Row("lease", "store", ("addresses",), is_durable=True),
        Row("device", "overlay", ("peers",), is_durable=False),
        Row("address", "addresses", ("peers",), is_durable=False),
    ]
