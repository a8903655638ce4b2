"""The table around EasyTier: its RPC port hands the network secret to whoever asks, so to root on loopback only.

The same table holds the ends of its connections that are known to be dead (:mod:`edgelink.overlay.dead_paths`): what
EasyTier sends there is refused, so that it gives them up.

Apart from the table around Ray's ports, because the relay has an EasyTier and no Ray, and because where relay and
head share a machine each daemon may come and go without taking the other's rules along.
"""

from __future__ import annotations

from edgelink.overlay.nft import MARK, OPENING, Table

RPC_TABLE = "edgelink_easytier"
DEAD_PATHS = "dead_paths"  # the other end's address and port, and our port


def rpc_guard(rpc_port: int) -> Table:
    """The RPC is closed from outside, the overlay included, and on loopback to all but root; dead paths are closed."""
    return Table(
        RPC_TABLE,
        f"""  set {DEAD_PATHS} {{
    type ipv4_addr . inet_service . inet_service
    flags timeout
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname != "lo" tcp dport {rpc_port} {OPENING} counter drop comment "{MARK}"
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "lo" tcp dport {rpc_port} meta skuid != 0 counter reject with tcp reset comment "{MARK}"
    ip daddr . udp dport . udp sport @{DEAD_PATHS} counter drop comment "{MARK}"
  }}
""",
    )
