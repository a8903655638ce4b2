"""What EasyTier's nftables table does with the packets of the overlay, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

from edgelink.overlay.openings import Opening


@dataclass(frozen=True)
class OverlayRules:
    """The rules of a node that knows nothing let everything pass.

    Attributes:
        overlay_ip: our own address, whose network is kept on the overlay's device. None: it is not known.
        revoked: addresses that nothing comes from or goes to on that device.
        usable: addresses that may come in by that device. None: not all are known, so all of the network's may.
        impostors: addresses that nothing but echoes comes from or goes to on that device.
        openings: what members reach on this node. None: everything.
    """

    overlay_ip: IPv4Interface | None = None
    revoked: frozenset[IPv4Address] = frozenset()
    usable: frozenset[IPv4Address] | None = None
    impostors: frozenset[IPv4Address] = frozenset()
    openings: frozenset[Opening] | None = None


NO_RULES = OverlayRules()
