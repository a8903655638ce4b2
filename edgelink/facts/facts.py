"""The facts of one daemon. Each field has one writer and at least one reader outside its writer's file.

``None`` means that the fact is not known, or that there is none; where the two differ, the fact has a type of its own.
Values are data. A kind of daemon that has no writer of a fact says so when it is put together (``absent``).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgelink.overlay.config_file import OverlaySpec
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import Envelope, Lease
from edgelink.registry.rotation import HeldSecret


@dataclass(frozen=True)
class Facts:
    """See ``docs/reference/facts.md`` for the writer and the readers of each.

    Attributes:
        membership: this node's membership as it is on disk.
        lease_in_use: the lease that the daemon runs with, whatever is on disk. None: the one on disk.
        coming_lease: a lease on disk that comes into use once Ray has ended.
        kept_secret: the network's secret that the daemon still runs with although another one is on disk.
        tries_next_secret: EasyTier is to run on the next secret, because nobody is heard on the present one.
        running: the membership that the daemon runs with. Derived.
        overlay_spec: what EasyTier has to be on this node. Derived.
    """

    membership: Membership | None = None
    lease_in_use: Envelope | None = None
    coming_lease: Lease | None = None
    kept_secret: HeldSecret | None = None
    tries_next_secret: bool = False
    running: Membership | None = None
    overlay_spec: OverlaySpec | None = None
