"""Which hostname, overlay IP and preferred rank a new node gets. Pure: the store makes the answer durable.

Two nodes never hold one hostname, address or rank. What a live token promises to one machine (``reserved``) is not
given to another. Numbers are dealt from below: 10.10.0.2, 10.10.0.3 …; rank 0 is the head's, edges start at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from edgelink.errors import AddressPoolExhaustedError, ConfigError, LeaseConflictError
from edgelink.registry.payloads import Lease, Role

HEAD_RANK = 0


@dataclass(frozen=True)
class AllocationRequest:
    """None means: whatever is free."""

    node_id: str
    role: Role
    hostname: str
    overlay_ip: IPv4Address | None = None
    rank: int | None = None
    is_founder: bool = False  # the first relay: its address was settled with the network


@dataclass(frozen=True)
class Allocation:
    overlay_ip: IPv4Address
    rank: int | None


@dataclass(frozen=True)
class Reservation:
    """What one live token promises to whoever brings it."""

    token_id: str
    hostname: str | None = None
    overlay_ip: IPv4Address | None = None
    rank: int | None = None


def allocate(
    request: AllocationRequest,
    leases: Sequence[Lease],
    cidr: IPv4Network,
    relay_ip: IPv4Address,
    reserved: Sequence[Reservation] = (),
) -> Allocation:
    """The address and rank for ``request``.

    Raises:
        LeaseConflictError: what was asked for is another node's (who holds it, and what to do, is said).
        AddressPoolExhaustedError: no address is left.
        ConfigError: an address or rank that this network cannot give to anyone.
    """
    others = [lease for lease in leases if lease.node_id != request.node_id]
    _check_hostname(request.hostname, others, reserved)
    if request.is_founder:
        _check_address(relay_ip, others, ())
        return Allocation(relay_ip, None)
    if request.overlay_ip is not None:
        check_address_usable(request.overlay_ip, cidr, relay_ip)
        _check_address(request.overlay_ip, others, reserved)
    overlay_ip = request.overlay_ip or _next_address(others, cidr, relay_ip, reserved)
    return Allocation(overlay_ip, _rank(request, others, reserved))


def check_address_usable(overlay_ip: IPv4Address, cidr: IPv4Network, relay_ip: IPv4Address) -> None:
    """Whether any node but the relay may ever hold this address; ConfigError when not."""
    if overlay_ip not in cidr:
        raise ConfigError(
            f"the overlay IP {overlay_ip} lies outside of this network, {cidr}",
            hint=f"ask for one of {cidr}, or leave it out to get the next free one",
        )
    special = {
        cidr.network_address: "the network's own address",
        cidr.broadcast_address: "the network's broadcast address",
        relay_ip: "the relay's",
    }
    if overlay_ip in special:
        raise ConfigError(
            f"the overlay IP {overlay_ip} is {special[overlay_ip]}",
            hint="ask for another one, or leave it out to get the next free one",
        )


def check_rank_usable(role: Role, rank: int) -> None:
    """Whether a node of this role may ever hold this rank; ConfigError when not."""
    if role is Role.RELAY:
        raise ConfigError("a relay has no rank: it takes no part in Ray", hint="leave the rank out")
    if role is Role.HEAD and rank != HEAD_RANK:
        raise ConfigError(f"the head's rank is {HEAD_RANK}, not {rank}", hint="leave the rank out")
    if role is not Role.HEAD and rank == HEAD_RANK:
        raise ConfigError(f"rank {HEAD_RANK} is the head's", hint="give edges ranks from 1, or leave the rank out")


def _rank(request: AllocationRequest, others: Sequence[Lease], reserved: Sequence[Reservation]) -> int | None:
    if request.role is Role.RELAY:
        return None
    if request.role is Role.HEAD:
        for lease in others:
            if lease.role is Role.HEAD or lease.preferred_rank == HEAD_RANK:
                raise _conflict("this network already has a head", lease)
        return HEAD_RANK
    if request.rank is None:
        taken = {lease.preferred_rank for lease in others} | {item.rank for item in reserved}
        return next(rank for rank in range(HEAD_RANK + 1, len(taken) + 2) if rank not in taken)
    check_rank_usable(request.role, request.rank)
    for lease in others:
        if lease.preferred_rank == request.rank:
            raise _conflict(f"the rank {request.rank} is taken", lease)
    for item in reserved:
        if item.rank == request.rank:
            raise _promised(f"the rank {request.rank}", item)
    return request.rank


def _next_address(
    others: Sequence[Lease], cidr: IPv4Network, relay_ip: IPv4Address, reserved: Sequence[Reservation]
) -> IPv4Address:
    taken = {lease.overlay_ip for lease in others} | {item.overlay_ip for item in reserved} | {relay_ip}
    for address in cidr.hosts():
        if address not in taken:
            return address
    raise AddressPoolExhaustedError(
        f"all {cidr.num_addresses - 2} addresses of {cidr} are taken",
        hint="free the lease of a node that is gone with `edgelink registry release NODE` on the relay "
        "(`edgelink registry list` shows them); a larger network needs a new `edgelink bootstrap` with `relay.cidr`",
    )


def _check_hostname(hostname: str, others: Sequence[Lease], reserved: Sequence[Reservation]) -> None:
    for lease in others:
        if lease.hostname == hostname:
            raise _conflict(f"the hostname {hostname!r} is taken", lease)
    for item in reserved:
        if item.hostname == hostname:
            raise _promised(f"the hostname {hostname!r}", item)


def _check_address(overlay_ip: IPv4Address, others: Sequence[Lease], reserved: Sequence[Reservation]) -> None:
    for lease in others:
        if lease.overlay_ip == overlay_ip:
            raise _conflict(f"the overlay IP {overlay_ip} is taken", lease)
    for item in reserved:
        if item.overlay_ip == overlay_ip:
            raise _promised(f"the overlay IP {overlay_ip}", item)


def _conflict(what: str, holder: Lease) -> LeaseConflictError:
    return LeaseConflictError(
        f"{what}: node {holder.node_id} ({holder.hostname}, {holder.overlay_ip}) holds it since "
        f"{holder.granted_at:%Y-%m-%d}",
        hint="take another one (`edgelink join --hostname NAME`), or, if that node is gone for good, free its lease "
        f"with `edgelink registry release {holder.hostname}` on the relay",
    )


def _promised(what: str, item: Reservation) -> LeaseConflictError:
    return LeaseConflictError(
        f"{what} is promised to whoever brings the token {item.token_id}",
        hint=f"take another one, or revoke that token with `edgelink token revoke {item.token_id}` on the relay",
    )
