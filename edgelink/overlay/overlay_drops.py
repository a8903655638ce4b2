"""The rules that drop packets on and beside the overlay's device.

Chains before and after routing also hold for what the machine's containers send and are sent. Devices are named,
because their indexes change. Sets of addresses are part of the rules, so that nobody takes an element out unnoticed.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address

from edgelink.overlay.nft import MARK
from edgelink.overlay.overlay_rules import OverlayRules


def drop_chains(device: str, rules: OverlayRules) -> str:
    """The chains of EasyTier's table for the overlay's ``device``; pure."""
    return _without_revoked(device, rules.revoked) + _kept_on(device, rules)


def _without_revoked(device: str, revoked: Collection[IPv4Address]) -> str:
    if not revoked:
        return ""
    return f"""  chain from_revoked {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{device}" ip saddr {_set_of(revoked)} {_drop()}
  }}
  chain to_revoked {{
    type filter hook postrouting priority filter; policy accept;
    oifname "{device}" ip daddr {_set_of(revoked)} {_drop()}
  }}
"""


def _kept_on(device: str, rules: OverlayRules) -> str:
    if rules.overlay_ip is None:
        return ""
    own, network = rules.overlay_ip.ip, rules.overlay_ip.network
    unleased = f'    iifname "{device}" ip saddr != {_set_of(rules.usable)} {_drop()}\n' if rules.usable else ""
    return f"""  chain to_members {{
    type filter hook postrouting priority filter; policy accept;
    oifname "lo" ip daddr {own} accept comment "{MARK}"
    oifname != "{device}" ip daddr {network} {_drop()}
  }}
  chain from_members {{
    type filter hook prerouting priority raw; policy accept;
    iifname "lo" ip saddr {own} accept comment "{MARK}"
    iifname != "{device}" ip saddr {network} {_drop()}
    iifname "{device}" ip saddr != {network} {_drop()}
{unleased}  }}
"""


def _drop() -> str:
    return f'counter drop comment "{MARK}"'


def _set_of(addresses: Collection[IPv4Address]) -> str:
    return f"{{ {', '.join(map(str, sorted(addresses)))} }}"
