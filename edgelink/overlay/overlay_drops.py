"""The rules that drop packets on and beside the overlay's device, and what the kernel tells of what they dropped.

Chains before and after routing also hold for what the machine's containers send and are sent. Devices are named,
because their indexes change. Sets of addresses are part of the rules, so that nobody takes an element out unnoticed.

Each rule counts. A rule before it notes device and addresses in a set, for a while: in a rule of its own, because a
full set ends the rule that it is in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address

from edgelink.overlay.nft import MARK, address_set
from edgelink.overlay.overlay_rules import OverlayRules

_NOTED = "noted_"
_NOTED_MIN = 15  # minutes
_MOST_NOTED = 64  # a sender that makes addresses up fills the set, and the kernel's memory no further
_COUNTER = re.compile(r'counter packets (\d+) bytes \d+ drop comment "edgelink [0-9a-f]{16} (\w+)"')
_SET = re.compile(rf"set {_NOTED}(\w+) {{.*?\n\t}}", re.DOTALL)
_ELEMENT = re.compile(r'"?([^\s"{]+)"? \. ([\d.]+) \. ([\d.]+)')


class Kind(StrEnum):
    """What a rule drops."""

    FROM_REVOKED = "from_revoked"
    TO_REVOKED = "to_revoked"
    TO_MEMBER = "to_member"
    FROM_MEMBER = "from_member"
    FOREIGN = "foreign"
    UNLEASED = "unleased"


MEANINGS = {
    Kind.FROM_REVOKED: "by the overlay's device from the address of a revoked node",
    Kind.TO_REVOKED: "by it to such an address",
    Kind.TO_MEMBER: "to an overlay address by another device",
    Kind.FROM_MEMBER: "from an overlay address by another device",
    Kind.FOREIGN: "by the overlay's device from an address outside of the overlay's network",
    Kind.UNLEASED: "by it from an address that the registry has granted to nobody",
}
# What is said of what nobody expects, with its likely causes. Revoked nodes are expected, and said elsewhere.
_UNEXPECTED = {
    Kind.TO_MEMBER: "packets to {target} were to leave by {device}: a rule before EdgeLink's leads there",
    Kind.FROM_MEMBER: "packets from {source}, an overlay address, came in by {device}: somebody there pretends to be "
    "that node, or its packets go past the overlay",
    Kind.FOREIGN: "packets from {source}, outside of the overlay's network, came in by {device}: a node forwards those "
    "of its own networks, or root there makes addresses up",
    Kind.UNLEASED: "packets from {source}, which no lease has, came in by {device}: a released node is back, or root "
    "of a node takes other addresses",
}


@dataclass(frozen=True, order=True)
class Dropped:
    """Packets that were dropped lately: of which kind, by which device, from where, where to."""

    kind: Kind
    device: str
    source: IPv4Address
    target: IPv4Address

    def __str__(self) -> str:
        return _UNEXPECTED[self.kind].format(device=self.device, source=self.source, target=self.target)


class Drops:
    """What the rules have dropped while somebody looked.

    Attributes:
        totals: packets by kind, since the first look.
        lately: what was dropped unexpectedly within a quarter of an hour.
    """

    def __init__(self) -> None:
        self.totals = dict.fromkeys(Kind, 0)
        self.lately: tuple[Dropped, ...] = ()
        self._counted: dict[Kind, int] | None = None  # at the last look

    def note(self, listing: str, *, is_made_anew: bool) -> None:
        """Take into account what nft listed. Counters of a table that was made anew after that begin at 0."""
        counted = counted_in(listing)
        for kind, count in counted.items():
            before = counted if self._counted is None else self._counted
            since = count - before.get(kind, 0)
            self.totals[kind] += since if since >= 0 else count
        self._counted = {} if is_made_anew else counted
        self.lately = noted_in(listing)


def counted_in(listing: str) -> dict[Kind, int]:
    """Return the packets by kind that a listing of the table counts; pure."""
    return {Kind(kind): int(packets) for packets, kind in _COUNTER.findall(listing) if kind in list(Kind)}


def noted_in(listing: str) -> tuple[Dropped, ...]:
    """Return what a listing of the table notes of packets that nobody expected; pure."""
    found = [(found[1], _ELEMENT.findall(found[0])) for found in _SET.finditer(listing)]
    return tuple(
        sorted(
            Dropped(Kind(kind), device, IPv4Address(source), IPv4Address(target))
            for kind, elements in found
            if kind in list(_UNEXPECTED)
            for device, source, target in elements
        )
    )


def in_words(dropped: Sequence[Dropped]) -> str:
    """Say what was dropped unexpectedly, one of each kind. Counts are left out, so that the words stay the same."""
    first = {each.kind: each for each in reversed(dropped)}
    told = "; ".join(str(first[kind]) for kind in Kind if kind in first)
    more = len(dropped) - len(first)
    also = f"; more pairs of addresses: {more}" if more else ""
    return f"dropped in the last {_NOTED_MIN} min: {told}{also}" if told else ""


def drop_chains(device: str, rules: OverlayRules) -> str:
    """The sets and chains of EasyTier's table for the overlay's ``device``; pure.

    What comes from or goes to revoked nodes is dropped first, so that it counts as that: nobody holds their addresses.
    A packet that has nothing to do with the overlay passes one or two rules. The rest is in chains of its own.
    """
    leaves, comes_in, apart = [], [], ""
    if rules.revoked:
        leaves = [f'oifname "{device}" ip daddr {address_set(rules.revoked)} {_drop(Kind.TO_REVOKED)}']
        comes_in = [f'iifname "{device}" ip saddr {address_set(rules.revoked)} {_drop(Kind.FROM_REVOKED)}']
    if rules.overlay_ip is not None:
        own, network = rules.overlay_ip.ip, rules.overlay_ip.network
        leaves.append(_jump(f'oifname != "{device}" ip daddr {network}', Kind.TO_MEMBER))
        comes_in.append(_jump(f'iifname "{device}"', "by_overlay"))
        comes_in.append(_jump(f'iifname != "{device}" ip saddr {network}', Kind.FROM_MEMBER))
        by_overlay = [_jump(f"ip saddr != {network}", Kind.FOREIGN)]
        if rules.usable:
            let_in = f'ip saddr {address_set(rules.usable)} accept comment "{MARK}"'
            by_overlay = [let_in, *by_overlay, _jump("meta nfproto ipv4", Kind.UNLEASED)]
        apart = (
            _noted_drop(Kind.TO_MEMBER, "oifname", f'oifname "lo" ip daddr {own} accept comment "{MARK}"')
            + _noted_drop(Kind.FROM_MEMBER, "iifname", f'iifname "lo" ip saddr {own} accept comment "{MARK}"')
            + _noted_drop(Kind.FOREIGN, "iifname")
            + (_noted_drop(Kind.UNLEASED, "iifname") if rules.usable else "")
            + _chain("by_overlay", by_overlay)
        )
    return (
        apart
        + _chain("to_members", leaves, "type filter hook postrouting priority filter; policy accept;")
        + _chain("from_members", comes_in, "type filter hook prerouting priority raw; policy accept;")
    )


def _chain(name: str, rules: Sequence[str], hook: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in (hook, *rules) if line)
    return f"  chain {name} {{\n{lines}  }}\n" if rules else ""


def _jump(picks: str, chain: str) -> str:
    return f'{picks} jump {chain} comment "{MARK}"'


def _noted_drop(kind: Kind, device: str, *before: str) -> str:
    """The set of one kind, and the chain that notes and drops what comes to its end."""
    noted = f'update @{_NOTED}{kind} {{ {device} . ip saddr . ip daddr }} comment "{MARK}"'
    return _noted_set(kind) + _chain(kind, [*before, noted, _drop(kind)])


def _noted_set(kind: Kind) -> str:
    return f"""  set {_NOTED}{kind} {{
    type ifname . ipv4_addr . ipv4_addr
    size {_MOST_NOTED}
    flags dynamic,timeout
    timeout {_NOTED_MIN}m
  }}
"""


def _drop(kind: Kind) -> str:
    return f'counter drop comment "{MARK} {kind}"'
