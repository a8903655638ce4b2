"""EdgeLink's own nftables table around Ray: it answers on loopback and the overlay only.

Ray listens on every address whatever ``--node-ip-address`` says. Only the first packet of a connection is looked at:
replies to connections that this machine made from such a port get through.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgelink.overlay.nft import MARK, Table
from edgelink.overlay.rpc_guard import OPENING


def ray_guard(ray_ports: Iterable[tuple[int, int]], devices: Iterable[str]) -> Table:
    """Drops ``ray_ports`` (ranges, first and last) on every device but ``lo`` and ``devices``."""
    ports = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ray_ports)
    overlay = ", ".join(f'"{device}"' for device in devices)
    return Table(
        "edgelink",
        f"""  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "lo" accept comment "{MARK}"
    iifname {{ {overlay} }} accept
    tcp dport {{ {ports} }} {OPENING} drop
  }}
""",
    )
