"""Who holds which hostname, overlay IP and rank, in memory: what the allocator looks things up in.

Finding the next free number takes the same time in a network of three and of sixty thousand nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from ipaddress import IPv4Address

from edgelink.protocol.payloads import Lease


class Numbers:
    """Which numbers are taken, each by one lease; knows the lowest that is not."""

    def __init__(self) -> None:
        self._holders: dict[int, Lease] = {}
        self._taken_below: dict[int, int] = {}  # from each first number asked for on: all below this one are taken

    def get(self, number: int) -> Lease | None:
        return self._holders.get(number)

    def take(self, number: int, lease: Lease) -> None:
        self._holders[number] = lease

    def free(self, number: int) -> None:
        del self._holders[number]
        for first, lowest in self._taken_below.items():
            if first <= number < lowest:
                self._taken_below[first] = number

    def lowest_free(self, first: int, last: int | None, others: Container[int]) -> int | None:
        """The lowest from ``first`` to ``last`` (None: without end) that is neither taken nor among ``others``."""
        start = first
        while True:
            number = self._taken_below.get(start, start)
            while number in self._holders:
                number += 1
            self._taken_below[start] = number
            if last is not None and number > last:
                return None
            if number not in others:
                return number
            start = number + 1  # remembered, too: what is among the others stays so for hours


class Holdings:
    """The leases of one network."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        self._by_node: dict[str, Lease] = {}
        self._by_hostname: dict[str, Lease] = {}
        self.addresses = Numbers()
        self.ranks = Numbers()
        for lease in leases:
            self.put(lease)

    @property
    def leases(self) -> Collection[Lease]:
        return self._by_node.values()

    def lease(self, node_id: str) -> Lease | None:
        return self._by_node.get(node_id)

    def of_hostname(self, hostname: str) -> Lease | None:
        return self._by_hostname.get(hostname)

    def of_address(self, overlay_ip: IPv4Address) -> Lease | None:
        return self.addresses.get(int(overlay_ip))

    def of_rank(self, rank: int) -> Lease | None:
        return self.ranks.get(rank)

    def put(self, lease: Lease) -> None:
        """New, or in place of the same node's."""
        self.remove(lease.node_id)
        self._by_node[lease.node_id] = self._by_hostname[lease.hostname] = lease
        self.addresses.take(int(lease.overlay_ip), lease)
        if lease.preferred_rank is not None:
            self.ranks.take(lease.preferred_rank, lease)

    def remove(self, node_id: str) -> None:
        lease = self._by_node.pop(node_id, None)
        if lease is None:
            return
        del self._by_hostname[lease.hostname]
        self.addresses.free(int(lease.overlay_ip))
        if lease.preferred_rank is not None:
            self.ranks.free(lease.preferred_rank)
