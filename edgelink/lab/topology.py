"""What the lab looks like: nodes, addresses, links and firewalls. Pure: nothing here touches the machine.

::

    relay 203.0.113.10 ─── internet ─── cloud-nat ─── cloud    192.168.10.2
                              ├──────── edge-1-nat ── edge-1   192.168.11.2
                              └──────── edge-2-nat ── edge-2   192.168.12.2

``internet`` is the router between the sites, and has no link to anything outside the lab. It forwards between the relay
and the sites only, so that no two sites reach each other directly, whatever they try. Sites that are given a kind of
NAT reach each other's public addresses as well, as on the real Internet: there holes can be punched. With ``direct``
the sites have no NAT router and the internet forwards everything: the routed network on which overlay peers find a
direct path. With ``spare_uplinks`` each edge has a second device, ``eth1``, to a NAT router with another public address
(``edge-1-nat2``), as a robot has LTE besides Wi-Fi; it is down until ``Lab.move_uplink``. With ``relays`` there are
more machines with a public address, ``relay-2`` and so on, at other providers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface

from edgelink.errors import LabError

MAX_EDGES = 60  # a /30 per site from 198.51.100.0/24 (TEST-NET-2)
MAX_RELAYS = 4  # the first, and three from what the sites leave of that network
RELAY_ADDRESS = IPv4Address("203.0.113.10")
RELAY_DNS_NAME = "relay.edgelink.test"
INTERNET = "internet"
RELAY = "relay"
CLOUD = "cloud"
NODE_NAME_PATTERN = r"(relay(-[2-9])?|cloud(-nat)?|edge-[0-9]+(-nat2?)?|internet)"


class NodeKind(StrEnum):
    RELAY = "relay"
    CLOUD = "cloud"
    EDGE = "edge"
    NAT = "nat"
    INTERNET = "internet"


class NatKind(StrEnum):
    """What a router does with a port of its LAN; both let in only what answers a packet from inside."""

    CONE = "cone"  # the same public port towards everybody, the machine's own if it is free
    SYMMETRIC = "symmetric"  # another, random one for each whom the machine talks to


@dataclass(frozen=True)
class LabNode:
    """One machine of the lab; ``daemon`` is the EdgeLink verb that runs on it, None on routers."""

    name: str
    kind: NodeKind
    gateway: IPv4Address | None = None
    firewall: str | None = None  # an nft script

    @property
    def is_router(self) -> bool:
        return self.kind in (NodeKind.NAT, NodeKind.INTERNET)

    @property
    def daemon(self) -> str | None:
        return {NodeKind.RELAY: "bootstrap", NodeKind.CLOUD: "head", NodeKind.EDGE: "edge"}.get(self.kind)


@dataclass(frozen=True)
class Port:
    """One end of a link."""

    node: str
    device: str
    address: IPv4Interface


@dataclass(frozen=True)
class Link:
    near: Port
    far: Port
    is_spare: bool = False  # the near device has no address and is down


@dataclass(frozen=True)
class Topology:
    nodes: tuple[LabNode, ...]
    links: tuple[Link, ...]

    def node(self, name: str) -> LabNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(
            f"the lab has no node named {name!r}", hint=f"its nodes are: {', '.join(node.name for node in self.nodes)}"
        )

    @property
    def machines(self) -> tuple[LabNode, ...]:
        """The nodes that run EdgeLink: relay, cloud and edges."""
        return tuple(node for node in self.nodes if not node.is_router)

    def uplinks(self, name: str) -> tuple[Link, ...]:
        """The links that a machine can be connected by, the one it starts with first."""
        return tuple(link for link in self.links if link.near.node == name)

    def address(self, name: str) -> IPv4Address:
        """The first underlay address of a node."""
        for link in self.links:
            for port in (link.near, link.far):
                if port.node == name:
                    return port.address.ip
        raise LabError(f"the lab has no node named {name!r}")


def edge_name(number: int) -> str:
    return f"edge-{number}"


def relay_names(relays: int) -> list[str]:
    """The first relay, and ``relay-2`` …"""
    return [RELAY, *(f"{RELAY}-{number}" for number in range(2, relays + 1))]


def build_topology(
    edges: int = 2,
    *,
    direct: bool = False,
    spare_uplinks: bool = False,
    nat: Mapping[str, str] | None = None,
    relays: int = 1,
) -> Topology:
    """The lab with ``edges`` edges, each site behind its own NAT unless ``direct``.

    Args:
        nat: :class:`NatKind` by site ("cloud", "edge-1" …); those sites reach each other's public addresses.
    """
    kinds = {} if nat is None else dict(nat)
    if not 1 <= edges <= MAX_EDGES:
        raise LabError(f"a lab has 1 to {MAX_EDGES} edges, not {edges}", hint=f"use --edges 1 … --edges {MAX_EDGES}")
    sites = [CLOUD, *(edge_name(number) for number in range(1, edges + 1))]
    _check_nat(kinds, () if direct else sites)
    if not 1 <= relays <= MAX_RELAYS:
        raise LabError(f"a lab has 1 to {MAX_RELAYS} relays, not {relays}", hint="the first one has the registry")
    relay_gateway = IPv4Interface("203.0.113.1/24")
    nodes = [
        LabNode(INTERNET, NodeKind.INTERNET, firewall=None if direct else internet_rules(kinds)),
        LabNode(RELAY, NodeKind.RELAY, gateway=relay_gateway.ip),
    ]
    links = [Link(Port(RELAY, "wan", IPv4Interface(f"{RELAY_ADDRESS}/24")), Port(INTERNET, RELAY, relay_gateway))]
    for index, name in enumerate(relay_names(relays)[1:], MAX_EDGES + 1):
        provider = IPv4Interface(f"198.51.100.{4 * index + 1}/30")
        nodes.append(LabNode(name, NodeKind.RELAY, gateway=provider.ip))
        address = IPv4Interface(f"198.51.100.{4 * index + 2}/30")
        links.append(Link(Port(name, "wan", address), Port(INTERNET, name, provider)))
    for index, name in enumerate(sites):
        kind = NodeKind.CLOUD if name == CLOUD else NodeKind.EDGE
        provider = IPv4Interface(f"198.51.100.{4 * index + 1}/30")
        public = IPv4Interface(f"198.51.100.{4 * index + 2}/30")
        if direct:
            nodes.append(LabNode(name, kind, gateway=provider.ip))
            links.append(Link(Port(name, "eth0", public), Port(INTERNET, name, provider)))
            continue
        router, lan = f"{name}-nat", IPv4Interface(f"192.168.{10 + index}.1/24")
        address = IPv4Interface(f"192.168.{10 + index}.2/24")
        nodes.append(
            LabNode(router, NodeKind.NAT, gateway=provider.ip, firewall=nat_rules(kinds.get(name, NatKind.CONE)))
        )
        nodes.append(LabNode(name, kind, gateway=lan.ip))
        links.append(Link(Port(router, "wan", public), Port(INTERNET, name, provider)))
        links.append(Link(Port(name, "eth0", address), Port(router, "lan", lan)))
        if spare_uplinks and kind is NodeKind.EDGE:
            nodes.append(LabNode(f"{router}2", NodeKind.NAT, gateway=_spare(index, 1).ip, firewall=nat_rules()))
            links.append(
                Link(Port(f"{router}2", "wan", _spare(index, 2)), Port(INTERNET, f"{name}-2", _spare(index, 1)))
            )
            lan = IPv4Interface(f"192.168.{100 + index}.1/24")
            address = IPv4Interface(f"192.168.{100 + index}.2/24")
            links.append(Link(Port(name, "eth1", address), Port(f"{router}2", "lan", lan), is_spare=True))
    return Topology(tuple(nodes), tuple(links))


def _spare(index: int, host: int) -> IPv4Interface:
    """An address of the second provider, a /30 a site from 192.0.2.0/24 (TEST-NET-1)."""
    return IPv4Interface(f"192.0.2.{4 * index + host}/30")


def _check_nat(kinds: Mapping[str, str], sites: Collection[str]) -> None:
    """Raises LabError; ``sites`` are those with a router."""
    for site, kind in kinds.items():
        if site not in sites or kind not in set(NatKind):
            raise LabError(
                f"no NAT can be given as {site}={kind}",
                hint=f"sites with NAT here: {', '.join(sites) or 'none'}; kinds: {', '.join(NatKind)}",
            )


def nat_rules(kind: str = NatKind.CONE) -> str:
    """A home router: masquerades its LAN, drops whatever nobody inside asked for.

    Dropping it on ``input`` matters to hole punching, too: a stray packet that was let in would occupy the public port
    that the machine inside is about to use.
    """
    masquerade = "masquerade fully-random" if kind == NatKind.SYMMETRIC else "masquerade"
    return f"""
table ip nat {{
  chain postrouting {{ type nat hook postrouting priority srcnat; oifname "wan" {masquerade}; }}
}}
table inet filter {{
  chain input {{ type filter hook input priority filter; iifname "wan" ct state != {{ established, related }} drop; }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname "lan" accept; ct state {{ established, related }} accept;
  }}
}}
"""


def internet_rules(sites: Collection[str] = ()) -> str:
    """A relay and every site reach each other; of the sites, only ``sites`` do."""
    names = ", ".join(f'"{site}"' for site in sites)
    between = f"iifname {{ {names} }} oifname {{ {names} }} accept;" if names else ""
    return f"""
table inet filter {{
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname "{RELAY}*" accept; oifname "{RELAY}*" accept; {between}
  }}
}}
"""
