"""The allocator: tables, and the rule that nothing is ever given twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import Words, refuses

from edgelink.errors import AddressPoolExhaustedError, ConfigError, EdgelinkError, LeaseConflictError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Lease, Role
from edgelink.relay import allocator
from edgelink.relay.allocator import Allocation, AllocationRequest, NotFree
from edgelink.relay.holdings import Holdings
from edgelink.relay.records import Ranges, Reservation, Rest
from edgelink.testing import payloads

CIDR = IPv4Network("10.10.0.0/28")
RELAY_IP = IPv4Address("10.10.0.1")
KEYS = [NodeKey.generate() for _ in range(20)]


def lease(node: int, last: int, rank: int | None, hostname: str = "", role: Role = Role.EDGE) -> Lease:
    name, key = hostname or f"node-{node}", KEYS[node]
    known = {"node_id": key.node_id, "verify_key": key.verify_key_b64, "cidr": CIDR}
    return payloads.lease(name, CIDR[last], rank, role=role, **known)


RELAY = lease(0, 1, None, "relay", Role.RELAY)
HEAD = lease(1, 2, 0, "cloud", Role.HEAD)
EDGE = lease(2, 3, 1, "edge-1")


def allocate(
    request: AllocationRequest,
    leases: Sequence[Lease],
    cidr: IPv4Network,
    relay_ip: IPv4Address,
    reserved: Sequence[Reservation] = (),
    resting: Sequence[Rest] = (),
    ranges: Ranges = MappingProxyType({}),
) -> Allocation:
    return allocator.allocate(request, Holdings(leases), cidr, relay_ip, NotFree(reserved, resting), ranges)


def ask(role: Role = Role.EDGE, hostname: str = "new", **fields: Any) -> AllocationRequest:
    return AllocationRequest(KEYS[9].node_id, role, hostname, **fields)


@pytest.mark.parametrize(
    ("request_", "leases", "reserved", "last", "rank"),
    [
        (ask(), [], (), 2, 1),
        (ask(Role.HEAD), [], (), 2, 0),
        (ask(Role.RELAY, is_founder=True), [], (), 1, None),
        (ask(Role.RELAY), [RELAY, HEAD, EDGE], (), 4, None),
        (ask(), [RELAY, HEAD, EDGE], (), 4, 2),
        (ask(), [RELAY, lease(2, 5, 4)], (), 2, 1),
        (ask(), [RELAY, lease(2, 2, 1), lease(3, 4, 3)], (), 3, 2),
        (ask(overlay_ip=CIDR[14], rank=7), [RELAY, HEAD, EDGE], (), 14, 7),
        (ask(), [RELAY], (Reservation("t", "other", CIDR[2], 1),), 3, 2),
        (ask(hostname="edge-1"), [lease(9, 3, 2, "edge-1")], (), 3, 2),  # what it holds already
    ],
)
def test_what_is_given(
    request_: AllocationRequest, leases: list[Lease], reserved: tuple[Reservation, ...], last: int, rank: int | None
) -> None:
    """The lowest free address and rank, or what was asked for; promised ones are left alone."""
    given_ = allocate(request_, leases, CIDR, RELAY_IP, reserved)
    assert (given_.overlay_ip, given_.rank) == (CIDR[last], rank)


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (ask(hostname="edge-1"), LeaseConflictError, ["edge-1"]),
        (ask(overlay_ip=CIDR[3]), LeaseConflictError, ["10.10.0.3"]),
        (ask(rank=1), LeaseConflictError, ["rank 1"]),
        (ask(Role.HEAD), LeaseConflictError, [HEAD.node_id]),
        (ask(Role.RELAY, is_founder=True), LeaseConflictError, ["10.10.0.1"]),
        (ask(rank=0), ConfigError, ["rank 0"]),
        (ask(overlay_ip=CIDR[0]), ConfigError, ["10.10.0.0"]),
        (ask(overlay_ip=CIDR[15]), ConfigError, ["10.10.0.15"]),
        (ask(overlay_ip=CIDR[1]), ConfigError, ["10.10.0.1"]),
        (ask(overlay_ip=IPv4Address("10.11.0.5")), ConfigError, ["10.11.0.5", CIDR]),
        (ask(hostname="kept"), LeaseConflictError, ["kept", "t1"]),
        (ask(overlay_ip=CIDR[9]), LeaseConflictError, [CIDR[9], "t1"]),
        (ask(rank=9), LeaseConflictError, ["rank 9", "t1"]),
    ],
    ids=range(13),
)
def test_what_is_refused(
    request_: AllocationRequest, error: type[EdgelinkError], named: list[object], words: Words
) -> None:
    """A conflict is named, with something to do."""
    reserved = (Reservation("t1", "kept", CIDR[9], 9),)
    with refuses(error, *named) as caught:
        allocate(request_, [RELAY, HEAD, EDGE], CIDR, RELAY_IP, reserved)
    assert caught.value.hint
    words(caught.value)


def test_a_conflict_names_the_holder() -> None:
    """Who holds the hostname, its address and how to free it are in the message."""
    with pytest.raises(LeaseConflictError) as caught:
        allocate(ask(hostname="edge-1"), [EDGE], CIDR, RELAY_IP)
    for part in (EDGE.node_id, "10.10.0.3", "edgelink registry release edge-1"):
        assert part in str(caught.value)


def test_a_full_pool_is_named() -> None:
    """When all addresses are taken the message says so, and what to do."""
    full = [RELAY] + [lease(node, node + 1, node) for node in range(1, 14)]
    assert {item.overlay_ip for item in full} == set(CIDR.hosts())
    with refuses(AddressPoolExhaustedError, 14, "10.10.0.0/28") as caught:
        allocate(AllocationRequest(KEYS[19].node_id, Role.EDGE, "new"), full, CIDR, RELAY_IP)
    assert "edgelink registry release" in caught.value.hint


REST = Rest("overlay_ip", "10.10.0.2", KEYS[8].node_id, "gone", datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


def test_what_rests_is_refused_to_others() -> None:
    """Named with its former holder, the time, and what ends it; the next free one is another."""
    for_ever = replace(REST, kind="rank", value="1", until=None)
    with pytest.raises(LeaseConflictError, match=r"10\.10\.0\.2 rests until 2026-01-02 03:04 UTC.*gone") as caught:
        allocate(ask(overlay_ip=CIDR[2]), [RELAY], CIDR, RELAY_IP, resting=[REST])
    assert "edgelink registry release gone --now" in caught.value.hint
    with refuses(LeaseConflictError, "rank 1", for_ever.hostname):
        allocate(ask(rank=1), [RELAY], CIDR, RELAY_IP, resting=[for_ever])
    assert allocate(ask(), [RELAY], CIDR, RELAY_IP, resting=[REST, for_ever]) == Allocation(CIDR[3], 2)


def test_a_promise_of_what_rests_is_refused_to_others_too() -> None:
    """A token promises its bearer what another one's lease left behind: nobody else gets it."""
    reserved = (Reservation("t", None, CIDR[2], None),)
    with pytest.raises(LeaseConflictError, match="token t"):
        allocate(ask(overlay_ip=CIDR[2]), [RELAY], CIDR, RELAY_IP, reserved, [REST])


RANGES = {Role.HEAD: (CIDR[2], CIDR[3]), Role.EDGE: (CIDR[9], CIDR[10])}


def test_each_role_is_dealt_from_its_range() -> None:
    """A role without one gets what is in nobody's; an address that is asked for may be anywhere."""
    assert allocate(ask(), [RELAY], CIDR, RELAY_IP, ranges=RANGES).overlay_ip == CIDR[9]
    assert allocate(ask(Role.HEAD), [RELAY], CIDR, RELAY_IP, ranges=RANGES).overlay_ip == CIDR[2]
    relays = [RELAY]
    for node in range(1, 10):
        given_ = allocate(
            AllocationRequest(KEYS[node].node_id, Role.RELAY, f"r{node}"), relays, CIDR, RELAY_IP, ranges=RANGES
        )
        relays.append(lease(node, int(given_.overlay_ip) - int(CIDR[0]), None, f"r{node}", Role.RELAY))
    assert [int(item.overlay_ip) - int(CIDR[0]) for item in relays] == [1, 4, 5, 6, 7, 8, 11, 12, 13, 14]
    assert allocate(ask(overlay_ip=CIDR[3]), [RELAY], CIDR, RELAY_IP, ranges=RANGES).overlay_ip == CIDR[3]


def test_a_full_range_is_named() -> None:
    """Although the network has free addresses."""
    full = [RELAY, lease(2, 9, 1), lease(3, 10, 2)]
    with pytest.raises(AddressPoolExhaustedError, match=r"role edge \(10\.10\.0\.9-10\.10\.0\.10\)"):
        allocate(ask(), full, CIDR, RELAY_IP, ranges=RANGES)


@pytest.mark.parametrize(
    ("ranges", "named"),
    [
        ({Role.EDGE: (CIDR[5], CIDR[4])}, ["edge: 10.10.0.5-10.10.0.4", CIDR]),
        ({Role.EDGE: (CIDR[0], CIDR[4])}, ["edge: 10.10.0.0-10.10.0.4", CIDR]),
        ({Role.EDGE: (CIDR[4], CIDR[15])}, ["edge: 10.10.0.4-10.10.0.15", CIDR]),
        ({Role.EDGE: (IPv4Address("10.11.0.1"), IPv4Address("10.11.0.2"))}, ["edge: 10.11.0.1-10.11.0.2", CIDR]),
        ({Role.EDGE: (CIDR[4], CIDR[8]), Role.HEAD: (CIDR[8], CIDR[9])}, ["edge and head", "10.10.0.8"]),
    ],
)
def test_unusable_ranges(ranges: Ranges, named: list[object]) -> None:
    with refuses(ConfigError, "relay.ranges", *named) as caught:
        allocator.check_ranges(ranges, CIDR)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("cidr", "relay_at"),
    [("10.20.0.0/28", 1), ("10.20.0.0/28", 5), ("10.20.0.0/28", -2), ("10.20.0.0/24", 1), ("10.20.0.0/18", 300)],
)
def test_a_network_of_any_size_is_dealt_to_its_last_address(cidr: str, relay_at: int) -> None:
    """Wherever the relay sits, every host address is given exactly once, lowest first, and then the network is full."""
    network = IPv4Network(cidr)
    relay_ip = network[relay_at]
    template = lease(2, 3, 1)
    holdings = Holdings()
    free = [address for address in network.hosts() if address != relay_ip]
    for number, address in enumerate(free):
        request = AllocationRequest(f"n{number}", Role.EDGE, f"h{number}")
        given_ = allocator.allocate(request, holdings, network, relay_ip)
        assert given_ == Allocation(address, number + 1)
        holdings.put(
            template.model_copy(
                update={
                    "node_id": request.node_id,
                    "hostname": request.hostname,
                    "overlay_ip": address,
                    "preferred_rank": given_.rank,
                }
            )
        )
    with pytest.raises(AddressPoolExhaustedError):
        allocator.allocate(ask(), holdings, network, relay_ip)
    holdings.remove("n7")
    assert allocator.allocate(ask(), holdings, network, relay_ip) == Allocation(free[7], 8)


asks = st.lists(
    st.tuples(
        st.integers(0, 19),
        st.sampled_from([Role.EDGE, Role.EDGE, Role.HEAD]),
        st.sampled_from([f"h{number}" for number in range(12)]),
        st.none() | st.integers(0, 15),
        st.none() | st.integers(0, 5),
    ),
    max_size=40,
)


@given(asks)
def test_nothing_is_given_twice(wishes: list[tuple[int, Role, str, int | None, int | None]]) -> None:
    """Whatever is asked in whatever order, no two nodes share hostname, address or rank."""
    leases = [RELAY]
    for node, role, hostname, last, rank in wishes:
        if any(held.node_id == KEYS[node].node_id for held in leases):
            continue
        overlay_ip = CIDR[last] if last is not None else None
        request = AllocationRequest(KEYS[node].node_id, role, hostname, overlay_ip, rank)
        try:
            given_ = allocate(request, leases, CIDR, RELAY_IP)
        except EdgelinkError:
            continue
        assert given_.overlay_ip in set(CIDR.hosts()) - {RELAY_IP}
        assert (given_.rank == 0) == (role is Role.HEAD)
        leases.append(lease(node, int(given_.overlay_ip) - int(CIDR[0]), given_.rank, hostname, role))
    ranks = [held.preferred_rank for held in leases if held.preferred_rank is not None]
    assert len({held.hostname for held in leases}) == len({held.overlay_ip for held in leases}) == len(leases)
    assert len(set(ranks)) == len(ranks)
