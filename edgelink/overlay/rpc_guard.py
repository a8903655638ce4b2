"""The table around EasyTier: its RPC port hands the network secret to whoever asks, so to root on loopback only.

The same table holds the ends of its connections that are known to be dead (:mod:`edgelink.overlay.dead_paths`): what
EasyTier sends there is refused, so that it gives them up. It also refuses, while :mod:`edgelink.overlay.punching` says
so, the packets by which EasyTier looks for direct paths.

It keeps the overlay on its device: what is for a member leaves by no other, what has a member's address comes in by no
other, and nothing else comes in by that one. A member has an address that the registry has granted, as far as the
directory is known. Our own rule (:mod:`edgelink.overlay.own_routes`) sees to the ways; this holds where somebody's rule
comes before ours. It drops and does not reject, so that a TCP connection goes on when the way is back.

And it drops what the overlay brings from or takes to addresses of revoked nodes: their own EasyTier is kept out by the
change of the secret, which takes its time, and which a node whose disk is full does not follow. An address is easily
taken by another that has the secret: a belt, no lock.

Apart from the table around Ray's ports, because the relay has an EasyTier and no Ray, and because where relay and
head share a machine each daemon may come and go without taking the other's rules along.
"""

from __future__ import annotations

from edgelink.overlay import impostors
from edgelink.overlay.nft import MARK, OPENING, Table
from edgelink.overlay.openings import ASKED, closing_chains, refuses_early
from edgelink.overlay.overlay_drops import drop_chains
from edgelink.overlay.overlay_rules import NO_RULES, OverlayRules

RPC_TABLE = "edgelink_easytier"
# What Shielded says while the table is not in place.
OPEN_WITHOUT = (
    "EasyTier's RPC may be open to every user of this machine, packets from any address come in by the overlay to any "
    "port, and from overlay addresses by other devices; the routing rule alone keeps those for nodes on its device"
)
DEAD_PATHS = "dead_paths"  # the other end's address and port, and our port
PUNCHING_OVER = "punching_over"  # holds `udp` while EasyTier may not punch holes
STUN_OVER = "stun_over"  # the servers that EasyTier may not ask at present
DOUBTED = "doubted"  # addresses with which no connection begins at present
# EasyTier's UdpPacketType::HolePunch with its 16 random bytes, and its STUN question with CHANGE-REQUEST (v2.6.4,
# src/tunnel/udp.rs and src/common/stun.rs). Our own questions to these servers are 8 bytes shorter.
_PUNCH = "udp length 32 @th,96,32 0x05001000"
_STUN = "udp length 36 @th,96,32 0x2112a442"


def rpc_guard(rpc_port: int, device: str = "", rules: OverlayRules = NO_RULES) -> Table:
    """Close the RPC from outside, the overlay included, and on loopback to all but root. Close dead paths.

    Args:
        device: the overlay's.
        rules: what is done with packets on and beside ``device``.
    """
    return Table(
        RPC_TABLE,
        f"""  set {DEAD_PATHS} {{
    type ipv4_addr . inet_service . inet_service
    flags timeout
  }}
  set {PUNCHING_OVER} {{
    type inet_proto
    flags timeout
  }}
  set {STUN_OVER} {{
    type ipv4_addr . inet_service
    flags timeout
  }}
  set {DOUBTED} {{
    type ipv4_addr
    flags timeout
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    ip saddr @{DOUBTED} {OPENING} counter drop comment "{MARK}"
    iifname != "lo" tcp dport {rpc_port} {OPENING} counter drop comment "{MARK}"
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    ip daddr @{DOUBTED} {OPENING} counter drop comment "{MARK}"
    oifname "lo" tcp dport {rpc_port} meta skuid != 0 counter reject with tcp reset comment "{MARK}"
    ip daddr . udp dport . udp sport @{DEAD_PATHS} counter drop comment "{MARK}"
    meta l4proto @{PUNCHING_OVER} {_PUNCH} counter drop comment "{MARK}"
    ip daddr . udp dport @{STUN_OVER} {_STUN} counter drop comment "{MARK}"
    ip daddr . tcp dport @{STUN_OVER} counter drop comment "{MARK}"
  }}
{drop_chains(device, rules)}{impostors.chains(device, rules.impostors)}{_closed(device, rules)}""",
        kept=(DOUBTED, impostors.ECHOES, ASKED),  # the others are filled again by their parts, or expire soon
    )


def _closed(device: str, rules: OverlayRules) -> str:
    if rules.openings is None or rules.overlay_ip is None:
        return ""
    return closing_chains(device, rules.overlay_ip, rules.openings, refuses=refuses_early())
