"""The ports of a node that members reach over the overlay. Everything else is closed (ADR 0042).

Only the first packet of a TCP connection is looked at, and UDP answers are known by what this machine has sent: the
kernel's connection tracking is not needed, which would look at every packet of the machine. The wire's own ports count,
before any translation of addresses, so that a container's published port is closed like any other.
"""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Literal

from edgelink.overlay.nft import MARK
from edgelink.process.port_ranges import in_words, listed, merged

ASKED = "asked"  # the member's address and port, and our port, of UDP that this machine has sent
_ASKED_S = 180  # as long as the kernel's connection tracking remembers a UDP stream at most
_MOST_ASKED = 65535
_REFUSES_EARLY = (5, 9)  # the first Linux that refuses a packet before routing


@dataclass(frozen=True)
class Opening:
    """Ports of this node that members may reach over the overlay.

    Attributes:
        first: the first port.
        last: the last port.
        sources: the overlay addresses that may reach them. None: those of all members.
    """

    protocol: Literal["tcp", "udp"]
    first: int
    last: int
    sources: frozenset[IPv4Address] | None = None

    @property
    def in_words(self) -> str:
        """The ports, and how many may reach them."""
        ports = in_words(self.protocol, self.first, self.last)
        if self.sources is None:
            return f"{ports} from all"
        return f"{ports} from {next(iter(self.sources)) if len(self.sources) == 1 else f'{len(self.sources)} nodes'}"


def told(openings: Iterable[Opening], most: int) -> tuple[str, ...]:
    """Return the openings in words, in order of their ports, and no more than ``most`` of them."""
    words = [one.in_words for one in sorted(openings, key=lambda one: (one.protocol, one.first, one.last))]
    return tuple(words) if len(words) <= most else (*words[: most - 1], f"and {len(words) - most + 1} more")


def refuses_early(release: str = "") -> bool:
    """Return whether a kernel of this release can answer a closed port before routing. Older ones can only drop."""
    found = re.match(r"(\d+)\.(\d+)", release or platform.release())
    return found is not None and (int(found[1]), int(found[2])) >= _REFUSES_EARLY


def closing_chains(device: str, own: IPv4Interface, openings: Collection[Opening], *, refuses: bool) -> str:
    """Return the chains that close everything but ``openings`` on ``device``, and the set that they need.

    What is for another address than ``own`` is dropped: root of a node could send it on by this machine, which may be a
    router for its containers, to its containers and its LAN.

    Args:
        refuses: whether the kernel answers a closed port at once. Else it drops the packet.
    """
    to_all = [opening for opening in openings if opening.sources is None]
    udp = _ports(to_all, "udp")
    asks = f"udp sport != {udp}" if udp else "meta l4proto udp"  # their answers come in anyway
    rules = [
        f'iifname != "{device}" accept',
        f"ip daddr != {{ {own.ip}, {own.network.broadcast_address}, 224.0.0.0/4, 255.255.255.255 }} counter drop",
        "tcp flags & (fin|syn|rst|ack) != syn accept",
        "meta nfproto ipv6 counter drop",  # the overlay has none
        *_accepted(to_all),
        "meta l4proto icmp accept",
        f"ip saddr . udp sport . udp dport @{ASKED} accept",
        "ip frag-off & 0x1fff != 0 accept",  # what follows a first fragment, which is judged, and is nothing without it
    ]
    by_sources: defaultdict[frozenset[IPv4Address], list[Opening]] = defaultdict(list)
    for opening in openings:
        if opening.sources:
            by_sources[opening.sources].append(opening)
    for sources in sorted(by_sources, key=sorted):
        addresses = ", ".join(_ranges(sources))
        rules += [f"ip saddr {{ {addresses} }} {rule}" for rule in _accepted(by_sources[sources])]
    rules += ["meta l4proto tcp counter reject with tcp reset", "counter reject"] if refuses else ["counter drop"]
    lines = "\n".join(f'    {rule} comment "{MARK}"' for rule in rules)
    return f"""  set {ASKED} {{
    type ipv4_addr . inet_service . inet_service
    size {_MOST_ASKED}
    flags dynamic,timeout
    timeout {_ASKED_S}s
  }}
  chain ask_members {{
    type filter hook postrouting priority 300; policy accept;
    oifname "{device}" {asks} update @{ASKED} {{ ip daddr . udp dport . udp sport }} comment "{MARK}"
  }}
  chain inside {{
    type filter hook prerouting priority -290; policy accept;
{lines}
  }}
"""


def _ranges(addresses: Iterable[IPv4Address]) -> list[str]:
    """Addresses as nft and people write them: those of a role are a range, as a rule."""
    ranges = merged((int(address), int(address)) for address in addresses)
    return ["-".join(str(IPv4Address(end)) for end in dict.fromkeys(ends)) for ends in ranges]


def _accepted(openings: Iterable[Opening]) -> list[str]:
    found = list(openings)
    ports = {protocol: _ports(found, protocol) for protocol in ("tcp", "udp")}
    return [f"{protocol} dport {wanted} accept" for protocol, wanted in ports.items() if wanted]


def _ports(openings: Iterable[Opening], protocol: str) -> str:
    ranges = merged((opening.first, opening.last) for opening in openings if opening.protocol == protocol)
    return f"{{ {listed(ranges)} }}" if ranges else ""
