"""Which lease of its own a node believes: the newest that the registry has signed.

The operator may change a lease (`edgelink registry set`), and a node that was released and joined again has another
one. Of two the one that was granted later counts, and of one grant the one with the higher epoch; an older one that a
broker plays again does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from edgelink.errors import UntrustedError
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope, Lease
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message


def age(lease: Lease) -> tuple[datetime, int]:
    """The higher, the newer, of leases of one node."""
    return lease.granted_at, lease.lease_epoch


@dataclass(frozen=True)
class HeardLease:
    """A lease of this node that the registry has signed."""

    envelope: Envelope
    lease: Lease

    def is_newer_than(self, lease: Lease) -> bool:
        return age(self.lease) > age(lease)


class LeaseWatch:
    """Keeps the newest lease of this node that was heard."""

    def __init__(self, membership: Membership) -> None:
        self._network_id = membership.network_id
        self._verify_key = membership.registry_verify_key
        self._node_id = membership.lease.node_id
        self._topic = Topics(membership.network_id).lease(self._node_id)
        self._newest = membership.lease
        self._envelope: Envelope | None = None

    def take(self, message: Message, on_disk: Membership) -> bool:
        """Believe a lease that is as new as the one on disk; False when the message is none of ours.

        Raises:
            UntrustedError, ValidationError: it is forged, malformed, another node's, or older than what is known.
        """
        if message.topic != self._topic:
            return False
        if age(on_disk.lease) > age(self._newest):
            self._newest, self._envelope = on_disk.lease, None
        if message.payload:  # a cleared retained message says nothing
            self._take(Envelope.model_validate_json(message.payload))
        return True

    @property
    def heard(self) -> HeardLease | None:
        """The newest lease that was heard in this daemon's life, if it is as new as the one on disk."""
        return None if self._envelope is None else HeardLease(self._envelope, self._newest)

    def _take(self, envelope: Envelope) -> None:
        lease = open_envelope(envelope, Kind.LEASE, Lease, self._verify_key)
        if lease.node_id != self._node_id or lease.network_id != self._network_id:
            raise UntrustedError(f"a lease of another node, {lease.node_id}")
        if age(lease) < age(self._newest) or (age(lease) == age(self._newest) and lease != self._newest):
            raise UntrustedError(
                f"lease {lease.lease_epoch} of {lease.granted_at:%Y-%m-%d %H:%M:%S} UTC is older than "
                f"{self._newest.lease_epoch} of {self._newest.granted_at:%Y-%m-%d %H:%M:%S} UTC",
                reason="Outdated",
            )
        self._newest, self._envelope = lease, envelope
