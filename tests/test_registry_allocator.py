"""The allocator: tables, and the rule that nothing is ever given twice."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.errors import AddressPoolExhaustedError, ConfigError, EdgelinkError, LeaseConflictError
from edgelink.registry.allocator import AllocationRequest, Reservation, allocate
from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import Lease, Role

CIDR = IPv4Network("10.10.0.0/28")
RELAY_IP = IPv4Address("10.10.0.1")
KEYS = [NodeKey.generate() for _ in range(20)]


def lease(node: int, last: int, rank: int | None, hostname: str = "", role: Role = Role.EDGE) -> Lease:
    return Lease(
        network_id="n",
        node_id=KEYS[node].node_id,
        hostname=hostname or f"node-{node}",
        role=role,
        is_relay=role is Role.RELAY,
        overlay_ip=CIDR[last],
        cidr=CIDR,
        preferred_rank=rank,
        verify_key=KEYS[node].verify_key_b64,
        granted_at=datetime(2026, 1, 2, tzinfo=UTC),
    )


RELAY = lease(0, 1, None, "relay", Role.RELAY)
HEAD = lease(1, 2, 0, "cloud", Role.HEAD)
EDGE = lease(2, 3, 1, "edge-1")


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
        (ask(hostname="edge-1"), [lease(9, 3, 1, "edge-1")], (), 2, 1),  # its own lease is no conflict
    ],
)
def test_what_is_given(
    request_: AllocationRequest, leases: list[Lease], reserved: tuple[Reservation, ...], last: int, rank: int | None
) -> None:
    """The lowest free address and rank, or what was asked for; promised ones are left alone."""
    given_ = allocate(request_, leases, CIDR, RELAY_IP, reserved)
    assert (given_.overlay_ip, given_.rank) == (CIDR[last], rank)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ask(hostname="edge-1"), LeaseConflictError, "hostname 'edge-1'"),
        (ask(overlay_ip=CIDR[3]), LeaseConflictError, "overlay IP 10.10.0.3"),
        (ask(rank=1), LeaseConflictError, "rank 1"),
        (ask(Role.HEAD), LeaseConflictError, "already has a head"),
        (ask(Role.RELAY, is_founder=True), LeaseConflictError, "overlay IP 10.10.0.1"),
        (ask(rank=0), ConfigError, "rank 0 is the head's"),
        (ask(overlay_ip=CIDR[0]), ConfigError, "network's own"),
        (ask(overlay_ip=CIDR[15]), ConfigError, "broadcast"),
        (ask(overlay_ip=CIDR[1]), ConfigError, "relay's"),
        (ask(overlay_ip=IPv4Address("10.11.0.5")), ConfigError, "outside"),
        (ask(hostname="kept"), LeaseConflictError, "token t1"),
        (ask(overlay_ip=CIDR[9]), LeaseConflictError, "token t1"),
        (ask(rank=9), LeaseConflictError, "token t1"),
    ],
)
def test_what_is_refused(request_: AllocationRequest, error: type[EdgelinkError], words: str) -> None:
    """A conflict is named, with something to do."""
    reserved = (Reservation("t1", "kept", CIDR[9], 9),)
    with pytest.raises(error, match=words) as caught:
        allocate(request_, [RELAY, HEAD, EDGE], CIDR, RELAY_IP, reserved)
    assert caught.value.hint


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
    with pytest.raises(AddressPoolExhaustedError, match=r"all 14 addresses of 10\.10\.0\.0/28") as caught:
        allocate(AllocationRequest(KEYS[19].node_id, Role.EDGE, "new"), full, CIDR, RELAY_IP)
    assert "edgelink registry release" in caught.value.hint


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
