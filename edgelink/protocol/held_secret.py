"""The network's secret as a node holds it, and what the registry has told the node of it (ADR 0050)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from edgelink.protocol.payloads import Envelope, NetworkSecrets, NetworkState, Rotation


@dataclass(frozen=True)
class HeldSecret:
    """The network's secret as a node has it, and the next one while the network changes to it.

    This is the one value for both on a node. What comes from the registry and what is on disk have other shapes, and
    are converted where they are read: :meth:`of` for what the registry gives out, ``Membership.held`` for the disk.
    """

    epoch: int
    secret: str = field(repr=False)
    next_epoch: int | None = None
    next_secret: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, secrets: NetworkSecrets) -> HeldSecret:
        """Return what the registry has given out in a document."""
        return cls(secrets.secret_epoch, secrets.network_secret, secrets.next_epoch, secrets.next_secret)

    @property
    def upcoming(self) -> HeldSecret | None:
        """The next secret as the one to run on. None: there is none that is newer."""
        if self.next_epoch is None or self.next_secret is None or self.next_epoch <= self.epoch:
            return None
        return HeldSecret(self.next_epoch, self.next_secret)

    def told(self, state: NetworkState) -> HeldSecret:
        """After the registry has said on which secret the network runs: the next one takes the present one's place."""
        if state.secret_epoch == self.next_epoch and self.next_epoch > self.epoch and self.next_secret is not None:
            return HeldSecret(self.next_epoch, self.next_secret)
        if state.rotation is None and state.secret_epoch >= self.epoch and self.next_epoch is not None:
            return replace(self, next_epoch=None, next_secret=None)  # of a registry that was lost since
        return self

    def given(self, other: HeldSecret) -> HeldSecret:
        """After the registry has given out another one: never an older one, whatever generation says so."""
        held = HeldSecret(other.epoch, other.secret) if other.epoch > self.epoch else self
        if other.next_epoch is not None and other.next_secret is not None and other.next_epoch > held.epoch:
            return replace(held, next_epoch=other.next_epoch, next_secret=other.next_secret)
        return held


@dataclass(frozen=True)
class NetworkTold:
    """What the registry has told this node of the network's secret.

    Attributes:
        state: the newest state that is on this node's disk. It counts.
        given: the newest secret that the registry has given to this daemon. None: it has given none yet.
        behind: the state of a registry that was restored from before ``state``.
        hours: when the relays change to the network's present and next secret, or have changed to it, by number of the
            secret, on the monotonic clock.
        known: what a registry that is behind has to be told of itself.
        is_revoked: the registry has put this node out.
        revoked_ips: overlay addresses of nodes that were put out, which nobody holds.
        is_on_disk: the newest that was heard of the registry is on this node's disk.
    """

    state: NetworkState | None = None
    given: HeldSecret | None = None
    behind: NetworkState | None = None
    hours: Mapping[int, float] = field(default_factory=dict)
    known: Envelope | None = None
    is_revoked: bool = False
    revoked_ips: tuple[IPv4Address, ...] = ()
    is_on_disk: bool = True

    @property
    def rotation(self) -> Rotation | None:
        """The change of the secret that is to come."""
        return None if self.state is None else self.state.rotation
