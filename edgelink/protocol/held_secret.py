"""The network's secret as a node holds it, and what the registry has told the node of it (ADR 0020)."""

from __future__ import annotations

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
        """After the registry has said on which secret the network runs: the prepared one takes its place."""
        if state.secret_epoch == self.next_epoch and self.next_epoch > self.epoch and self.next_secret is not None:
            return HeldSecret(self.next_epoch, self.next_secret)
        if state.rotation is None and state.secret_epoch >= self.epoch and self.next_epoch is not None:
            return replace(self, next_epoch=None, next_secret=None)  # given up, or overtaken
        return self

    def given(self, other: HeldSecret) -> HeldSecret:
        """After the registry has given out another one: never an older one, whatever generation says so."""
        held = HeldSecret(other.epoch, other.secret) if other.epoch > self.epoch else self
        if other.next_epoch is not None and other.next_secret is not None and other.next_epoch > held.epoch:
            return replace(held, next_epoch=other.next_epoch, next_secret=other.next_secret)
        return held


@dataclass(frozen=True)
class HookAnswer:
    """The last answer of a robot's hook, and the change of the secret that it was asked about.

    ``why``: why the network goes on without the hook's word. Empty: the hook has said that it may.
    """

    rotation_id: str
    why: str = ""


@dataclass(frozen=True)
class NetworkTold:
    """What the registry has told this node of the network's secret.

    Attributes:
        state: the newest state that is on this node's disk. It counts.
        given: the newest secret that the registry has given to this daemon. None: it has given none yet.
        behind: the state of a registry that was restored from before ``state``.
        generation: of the registry that answers. 0: none has yet.
        known: what a registry that is behind has to be told of itself.
        is_revoked: the registry has put this node out.
        revoked_ips: overlay addresses of nodes that were put out, which nobody holds.
        is_on_disk: the newest that was heard of the registry is on this node's disk.
    """

    state: NetworkState | None = None
    given: HeldSecret | None = None
    behind: NetworkState | None = None
    generation: int = 0
    known: Envelope | None = None
    is_revoked: bool = False
    revoked_ips: tuple[IPv4Address, ...] = ()
    is_on_disk: bool = True

    @property
    def preparing(self) -> Rotation | None:
        """The change of the secret that all nodes are being prepared for."""
        rotation = None if self.state is None else self.state.rotation
        return rotation if rotation is not None and rotation.phase == "prepare" else None
