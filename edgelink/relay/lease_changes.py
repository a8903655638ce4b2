"""What only the operator's explicit, recorded word does to a lease that was acknowledged: release it, or change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv4Address

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.errors import ConfigError, RegistryError
from edgelink.fault_points import reached
from edgelink.protocol.keys import Kind
from edgelink.protocol.payloads import Lease, NodeStatus, unusable_fields
from edgelink.protocol.statuses import waiting_for_lease
from edgelink.relay.allocator import Allocation, AllocationRequest, NotFree, allocate, check_rank_usable
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.quarantine import held_by
from edgelink.relay.records import Released
from edgelink.relay.rotation import lease_epoch_after
from edgelink.relay.store import RegistryStore

_WRITE_EACH_S = 3600.0  # of a node that goes on with what it gave up


@dataclass(frozen=True)
class LeaseChange:
    """None, and what is not named: as it was."""

    hostname: str | None = None
    overlay_ip: IPv4Address | None = None
    rank: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unlabel: tuple[str, ...] = ()

    @property
    def is_of_labels_only(self) -> bool:
        return self.hostname is None and self.overlay_ip is None and self.rank is None


class LeaseChanges:
    """Changes of ``store``'s leases, each one transaction. ``quarantine_s``: how long rests what a node gives up."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock, quarantine_s: float) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._quarantine_s = quarantine_s

    def release(self, node: str, *, at_once: bool = False, caller: str = "") -> Released:
        """Take a lease away, by hostname or node_id.

        What the node held rests before others get it; ``at_once``: it does not, nor does what rests of a node that
        was released before.

        Raises:
            RegistryError: no such node.
        """
        with self._store.transaction():
            if at_once and self._store.find_lease(node) is None:
                rests = self._store.quarantine.end(node)
                if rests:
                    node_id, hostname = rests[-1].node_id, rests[-1].hostname
                    self._store.record("freed before its time", node_id, f"what {hostname} held", caller)
                    return Released(node_id, hostname, {rest.kind: rest.value for rest in rests}, None)
            lease = self._store.release(node, caller=caller)
            rests_until = None if at_once else self._rests_until()
            if rests_until is not None:
                self._store.quarantine.put(lease, rests_until)
            reached("release.written")
        reached("release.committed")
        return Released(lease.node_id, lease.hostname, held_by(lease), rests_until)

    def change(self, node: str, change: LeaseChange, not_free: NotFree, *, caller: str = "") -> Lease:
        """Sign the node (by hostname or node_id) another lease; what it no longer holds rests. Its lease now.

        ``not_free``: what others may come to hold, which it cannot have.

        Raises:
            RegistryError: no such node. LeaseConflictError: what it is to have is another's.
            ConfigError: nobody could hold that in this network.
        """
        with self._store.transaction():
            lease, network = self._store.require_lease(node), self._store.require_network()
            if change.rank is not None:
                check_rank_usable(lease.role, change.rank)
            overlay_ip = None if change.overlay_ip == lease.overlay_ip else change.overlay_ip
            if overlay_ip is not None and lease.overlay_ip == network.relay_ip:
                raise ConfigError(
                    f"{lease.hostname}'s address, {network.relay_ip}, was settled with the network", hint="leave it"
                )
            asked = AllocationRequest(
                lease.node_id, lease.role, change.hostname or lease.hostname, overlay_ip, change.rank
            )
            given = (
                Allocation(lease.overlay_ip, lease.preferred_rank)  # nothing that anybody else could have been promised
                if change.is_of_labels_only
                else allocate(asked, self._store.holdings, network.cidr, network.relay_ip, not_free)
            )
            labels = {name: text for name, text in lease.labels.items() if name not in change.unlabel}
            labels |= dict(change.labels)
            by_operator = {*lease.given_labels, *change.labels} & labels.keys()
            changed = {
                "hostname": asked.hostname,
                "overlay_ip": given.overlay_ip,
                "preferred_rank": given.rank,
                "labels": labels,
                "given_labels": tuple(sorted(by_operator)),
            }
            if all(getattr(lease, name) == value for name, value in changed.items()):
                return lease
            epoch = lease_epoch_after(lease.lease_epoch, self._store.generation())
            try:
                new = Lease.model_validate({**dict(lease), **changed, "lease_epoch": epoch})
            except ValidationError as error:
                raise ConfigError(
                    f"no lease can be changed to that: {unusable_fields(error)}",
                    hint="a hostname has lower-case letters, digits and `-`, at most 32 characters; labels are at most "
                    "32, names of 1 to 64 characters, values of up to 256",
                ) from error
            rests_until = self._rests_until()
            if rests_until is not None:
                self._store.quarantine.put(lease, rests_until)
            self._store.put_lease(self._keys.sign(Kind.LEASE, new), action="changed", caller=caller)
            reached("change.written")
        reached("change.committed")
        return new

    def keep_resting(self, statuses: Iterable[NodeStatus]) -> None:
        """What nodes gave up rests on while they say that they still use it; of their newest statuses, at any time."""
        until, slack = self._rests_until(), timedelta(seconds=min(_WRITE_EACH_S, self._quarantine_s / 2))
        if until is None:
            return
        for node_id in waiting_for_lease(statuses):
            with suppress(RegistryError):  # where this cannot be written, nobody is granted anything either
                self._store.quarantine.prolong(node_id, until, slack=slack)

    def left_ips(self) -> tuple[IPv4Address, ...] | None:
        """The addresses that changed leases had, and that their nodes may still use. None: nobody keeps them."""
        if not self._quarantine_s:
            return None
        resting = [rest for rest in self._store.quarantine.resting() if rest.kind == "overlay_ip"]
        return tuple(sorted(IPv4Address(rest.value) for rest in resting if self._store.lease(rest.node_id)))

    def _rests_until(self) -> datetime | None:
        return self._clock.now() + timedelta(seconds=self._quarantine_s) if self._quarantine_s else None
