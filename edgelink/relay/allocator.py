"""Which hostname, overlay IP and preferred rank a new node gets. Pure: the store makes the answer durable.

Two nodes never hold one hostname, address or rank. What a live token promises to one machine (:class:`Reservation`),
and what rests because its holder was released (:class:`Rest`), is not given to another. Numbers are dealt from
below, addresses within the range of the node's role: 10.10.0.2, 10.10.0.3 …; rank 0 is the head's, edges start at 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from types import MappingProxyType

from edgelink.errors import AddressPoolExhaustedError, ConfigError, LeaseConflictError
from edgelink.protocol.payloads import Lease, Role
from edgelink.relay.holdings import Holdings
from edgelink.relay.records import Ranges, Reservation, Rest

HEAD_RANK = 0
AddressNumbers = tuple[int, int]  # first and last

_ANOTHER_NAME = "take another one (`--hostname NAME`)"


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


class NotFree:
    """What nobody holds, and yet not everybody may have: promised by tokens, or at rest."""

    def __init__(self, reserved: Iterable[Reservation] = (), resting: Iterable[Rest] = ()) -> None:
        self.hostnames: dict[str, Reservation | Rest] = {}
        self.addresses: dict[int, Reservation | Rest] = {}
        self.ranks: dict[int, Reservation | Rest] = {}
        for rest in resting:
            if rest.kind == "hostname":
                self.hostnames[rest.value] = rest
            elif rest.kind == "overlay_ip":
                self.addresses[int(IPv4Address(rest.value))] = rest
            else:
                self.ranks[int(rest.value)] = rest
        for item in reserved:  # after what rests: a promise for it is to its former holder, and counts for the others
            self.add(item)

    def add(self, item: Reservation) -> None:
        if item.hostname is not None:
            self.hostnames[item.hostname] = item
        if item.overlay_ip is not None:
            self.addresses[int(item.overlay_ip)] = item
        if item.rank is not None:
            self.ranks[item.rank] = item

    @staticmethod
    def former(not_free: dict[int, Reservation | Rest], node_id: str) -> int | None:
        """What of ``not_free`` rests because this node held it; what it held last, where an operator had changed it."""
        newest_first = reversed(not_free.items())
        return next((n for n, held in newest_first if isinstance(held, Rest) and held.node_id == node_id), None)


def allocate(
    request: AllocationRequest,
    holdings: Holdings,
    cidr: IPv4Network,
    relay_ip: IPv4Address,
    not_free: NotFree | None = None,
    ranges: Ranges = MappingProxyType({}),
) -> Allocation:
    """The address and rank for ``request``: what it asks for, else what the node holds or held, else the next free.

    Raises:
        LeaseConflictError: what was asked for is another node's (who holds it, and what to do, is said).
        AddressPoolExhaustedError: no address is left.
        ConfigError: an address or rank that this network cannot give to anyone.
    """
    not_free = not_free or NotFree()
    _check_hostname(request, holdings, not_free)
    if request.is_founder:
        _check_address(request, relay_ip, holdings, NotFree())
        return Allocation(relay_ip, None)
    if request.overlay_ip is not None:
        check_address_usable(request.overlay_ip, cidr, relay_ip)
        _check_address(request, request.overlay_ip, holdings, not_free)
        return Allocation(request.overlay_ip, _rank(request, holdings, not_free))
    own = holdings.lease(request.node_id)
    if own is not None:
        return Allocation(own.overlay_ip, _rank(request, holdings, not_free))
    former = not_free.former(not_free.addresses, request.node_id)
    if former is not None:
        return Allocation(IPv4Address(former), _rank(request, holdings, not_free))
    return Allocation(
        _next_address(request.role, holdings, cidr, relay_ip, not_free, ranges), _rank(request, holdings, not_free)
    )


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


def check_ranges(ranges: Ranges, cidr: IPv4Network) -> None:
    """Whether addresses of this network can be dealt from these ranges, one a role; ConfigError when not."""
    hosts = _hosts(cidr)
    for role, (first, last) in ranges.items():
        if not hosts[0] <= int(first) <= int(last) <= hosts[1]:
            raise ConfigError(
                f"relay.ranges: {role.value}: {first}-{last} is no range of addresses of {cidr}",
                hint=f"give FIRST-LAST, both from {IPv4Address(hosts[0])} to {IPv4Address(hosts[1])}",
            )
    by_first = sorted(ranges.items(), key=lambda item: item[1])
    for (role, one), (other_role, other) in pairwise(by_first):
        if other[0] <= one[1]:
            raise ConfigError(
                f"relay.ranges: those of {role.value} and {other_role.value} share {other[0]}",
                hint="let one end before the other begins",
            )


def _rank(request: AllocationRequest, holdings: Holdings, not_free: NotFree) -> int | None:
    if request.role is Role.RELAY:
        return None
    if request.role is Role.HEAD:
        head = holdings.of_rank(HEAD_RANK)
        if head is not None and head.node_id != request.node_id:
            raise conflict(
                "this network already has a head",
                head,
                otherwise="join as an edge, with a token of `edgelink token create`",
            )
        return HEAD_RANK
    if request.rank is None:
        own = holdings.lease(request.node_id)
        former = own.preferred_rank if own is not None else not_free.former(not_free.ranks, request.node_id)
        return former or holdings.ranks.lowest_free(HEAD_RANK + 1, None, not_free.ranks)
    check_rank_usable(request.role, request.rank)
    what = f"the rank {request.rank}"
    _refuse(request, what, holdings.of_rank(request.rank), not_free.ranks.get(request.rank))
    return request.rank


def _next_address(
    role: Role, holdings: Holdings, cidr: IPv4Network, relay_ip: IPv4Address, not_free: NotFree, ranges: Ranges
) -> IPv4Address:
    others = not_free.addresses.keys() | {int(relay_ip)}
    for first, last in _dealt_from(role, cidr, ranges):
        number = holdings.addresses.lowest_free(first, last, others)
        if number is not None:
            return IPv4Address(number)
    resting = sum(isinstance(held, Rest) for held in not_free.addresses.values())
    of_whom = f" for the role {role.value} ({'-'.join(map(str, ranges[role]))})" if role in ranges else ""
    raise AddressPoolExhaustedError(
        f"all {cidr.num_addresses - 2} addresses of {cidr} are taken"
        if not of_whom
        else f"all addresses{of_whom} are taken",
        hint="free the lease of a node that is gone with `edgelink registry release NODE --now` on the relay "
        f"(`edgelink registry list` shows them; {resting} rest after a release, which the same command ends); a "
        "larger network needs a new `edgelink relay` with `relay.cidr`",
    )


def _hosts(cidr: IPv4Network) -> AddressNumbers:
    return int(cidr.network_address) + 1, int(cidr.broadcast_address) - 1


def _dealt_from(role: Role, cidr: IPv4Network, ranges: Ranges) -> list[AddressNumbers]:
    """Where the next free address of a role is looked for: its range, or what is in nobody's."""
    numbers = {of: (int(first), int(last)) for of, (first, last) in ranges.items()}
    if role in numbers:
        return [numbers[role]]
    left = []
    first, end = _hosts(cidr)
    for start, last in sorted(numbers.values()):
        left.append((first, start - 1))
        first = last + 1
    return [(low, high) for low, high in [*left, (first, end)] if low <= high]


def _check_hostname(request: AllocationRequest, holdings: Holdings, not_free: NotFree) -> None:
    hostname = request.hostname
    what = f"the hostname {hostname!r}"
    _refuse(request, what, holdings.of_hostname(hostname), not_free.hostnames.get(hostname))


def _check_address(request: AllocationRequest, overlay_ip: IPv4Address, holdings: Holdings, not_free: NotFree) -> None:
    what = f"the overlay IP {overlay_ip}"
    _refuse(request, what, holdings.of_address(overlay_ip), not_free.addresses.get(int(overlay_ip)))


def _refuse(request: AllocationRequest, what: str, holder: Lease | None, claim: Reservation | Rest | None) -> None:
    """Unless nobody but the asking node has a right to it."""
    if holder is not None and holder.node_id != request.node_id:
        otherwise = _ANOTHER_NAME if holder.hostname == request.hostname else "take another one"
        raise conflict(f"{what} is taken", holder, otherwise)
    if isinstance(claim, Reservation):
        raise LeaseConflictError(
            f"{what} is promised to whoever brings the token {claim.token_id}",
            hint=f"take another one, or revoke that token with `edgelink token revoke {claim.token_id}` on the relay",
        )
    if claim is not None and claim.node_id != request.node_id:
        raise at_rest(what, claim)


def at_rest(what: str, rest: Rest) -> LeaseConflictError:
    """The refusal of something that its former holder may still be using."""
    until = f"until {rest.until:%Y-%m-%d %H:%M} UTC" if rest.until else "for good"
    return LeaseConflictError(
        f"{what} rests {until}: node {rest.node_id} ({rest.hostname}) held it and was released",
        hint="take another one; if this is that machine, re-imaged, use a token of `edgelink token create --replaces "
        f"{rest.hostname}`; if that node is surely off, free it: `edgelink registry release {rest.hostname} --now` on "
        "the relay",
    )


def conflict(what: str, holder: Lease, otherwise: str = _ANOTHER_NAME) -> LeaseConflictError:
    """Return the refusal of something that ``holder`` holds. ``otherwise``: what another machine is to do."""
    return LeaseConflictError(
        f"{what}: {holder.hostname} ({holder.overlay_ip}, {holder.node_id}) holds it since "
        f"{holder.granted_at:%Y-%m-%d}",
        hint=f"{otherwise}; if this is that machine, re-imaged, use a token of "
        f"`edgelink token create --replaces {holder.hostname}`; if that node is gone for good, free its lease: "
        f"`edgelink registry release {holder.hostname}` on the relay",
    )
