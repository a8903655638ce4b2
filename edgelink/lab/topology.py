"""What the lab looks like: nodes, addresses, links and firewalls. Pure: nothing here touches the machine.

::

    relay 203.0.113.10 ─── internet ─── cloud-nat ─── cloud    192.168.10.2
                              ├──────── edge-1-nat ── edge-1   192.168.11.2
                              └──────── edge-2-nat ── edge-2   192.168.12.2

``internet`` is the router between the sites. It forwards between the relay and the sites only, so that no two sites
reach each other directly, and it has no link to anything outside the lab. With ``direct`` the sites have no NAT
router and the internet forwards everything: the routed network on which overlay peers find a direct path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface

from edgelink.errors import LabError

MAX_EDGES = 60  # a /30 per site from 198.51.100.0/24 (TEST-NET-2)
RELAY_ADDRESS = IPv4Address("203.0.113.10")
RELAY_DNS_NAME = "relay.edgelink.test"
INTERNET = "internet"
RELAY = "relay"
CLOUD = "cloud"
NODE_NAME_PATTERN = r"(relay|cloud(-nat)?|edge-[0-9]+(-nat)?|internet)"


class NodeKind(StrEnum):
    RELAY = "relay"
    CLOUD = "cloud"
    EDGE = "edge"
    NAT = "nat"
    INTERNET = "internet"


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

    def address(self, name: str) -> IPv4Address:
        """The first underlay address of a node."""
        for link in self.links:
            for port in (link.near, link.far):
                if port.node == name:
                    return port.address.ip
        raise LabError(f"the lab has no node named {name!r}")


def edge_name(number: int) -> str:
    return f"edge-{number}"


def build_topology(edges: int = 2, *, direct: bool = False) -> Topology:
    """The lab with ``edges`` edges, each site behind its own NAT unless ``direct``."""
    if not 1 <= edges <= MAX_EDGES:
        raise LabError(f"a lab has 1 to {MAX_EDGES} edges, not {edges}", hint=f"use --edges 1 … --edges {MAX_EDGES}")
    relay_gateway = IPv4Interface("203.0.113.1/24")
    nodes = [
        LabNode(INTERNET, NodeKind.INTERNET, firewall=None if direct else internet_rules()),
        LabNode(RELAY, NodeKind.RELAY, gateway=relay_gateway.ip),
    ]
    links = [Link(Port(RELAY, "wan", IPv4Interface(f"{RELAY_ADDRESS}/24")), Port(INTERNET, RELAY, relay_gateway))]
    for index, name in enumerate([CLOUD, *(edge_name(number) for number in range(1, edges + 1))]):
        kind = NodeKind.CLOUD if name == CLOUD else NodeKind.EDGE
        provider = IPv4Interface(f"198.51.100.{4 * index + 1}/30")
        public = IPv4Interface(f"198.51.100.{4 * index + 2}/30")
        if direct:
            nodes.append(LabNode(name, kind, gateway=provider.ip))
            links.append(Link(Port(name, "eth0", public), Port(INTERNET, name, provider)))
            continue
        router, lan = f"{name}-nat", IPv4Interface(f"192.168.{10 + index}.1/24")
        address = IPv4Interface(f"192.168.{10 + index}.2/24")
        nodes.append(LabNode(router, NodeKind.NAT, gateway=provider.ip, firewall=nat_rules()))
        nodes.append(LabNode(name, kind, gateway=lan.ip))
        links.append(Link(Port(router, "wan", public), Port(INTERNET, name, provider)))
        links.append(Link(Port(name, "eth0", address), Port(router, "lan", lan)))
    return Topology(tuple(nodes), tuple(links))


def nat_rules() -> str:
    """A home router: masquerades its LAN, drops whatever nobody inside asked for."""
    return """
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan" masquerade; }
}
table inet filter {
  chain input { type filter hook input priority filter; iifname "wan" ct state != { established, related } drop; }
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname "lan" accept; ct state { established, related } accept;
  }
}
"""


def internet_rules() -> str:
    """Only the relay reaches and is reached by the sites: no hole punching succeeds, as between two strict NATs."""
    return f"""
table inet filter {{
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname "{RELAY}" accept; oifname "{RELAY}" accept;
  }}
}}
"""
