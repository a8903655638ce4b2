"""EasyTier's RPC port hands the network secret to whoever asks: to root on loopback only, by a table of our own.

Apart from the table around Ray's ports, because the relay has an EasyTier and no Ray, and because where relay and
head share a machine each daemon may come and go without taking the other's rules along.
"""

from __future__ import annotations

from edgelink.overlay.nft import MARK, OPENING, Table

RPC_TABLE = "edgelink_easytier"


def rpc_guard(rpc_port: int) -> Table:
    """Closed from outside, the overlay included, and on loopback to all but root."""
    return Table(
        RPC_TABLE,
        f"""  chain input {{
    type filter hook input priority filter; policy accept;
    iifname != "lo" tcp dport {rpc_port} {OPENING} drop comment "{MARK}"
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "lo" tcp dport {rpc_port} meta skuid != 0 reject with tcp reset comment "{MARK}"
  }}
""",
    )
