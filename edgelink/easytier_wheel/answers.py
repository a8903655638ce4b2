"""What the core answers to ``easytier-cli``: the module's snapshots in the rows of EasyTier's ``-o json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from typing import Any, Protocol

_NAT_TYPES = (
    "Unknown",
    "OpenInternet",
    "NoPat",
    "FullCone",
    "Restricted",
    "PortRestricted",
    "Symmetric",
    "SymUdpFirewall",
    "SymmetricEasyInc",
    "SymmetricEasyDec",
)
_UNITS = ("B", "kB", "MB", "GB", "TB")
_CONNECTED, _DISCONNECTED = 0, 1

Row = dict[str, Any]


class Node(Protocol):
    """What is asked of the module's node."""

    def node_info(self) -> Row: ...
    def peers(self) -> list[Row]: ...
    def routes(self) -> list[Row]: ...
    def connectors(self) -> list[Row]: ...
    def add_connector(self, url: str) -> None: ...
    def remove_connector(self, url: str) -> bool: ...


def answer(node: Node, words: Sequence[str], *, is_verbose: bool = False) -> Any:
    """What ``easytier-cli WORDS`` prints, as what JSON is made of.

    Raises:
        ValueError: there is no such command, or it does not apply.
    """
    match [*words]:
        case ["peer"]:
            return _paths(node) if is_verbose else _peers(node)
        case ["route"]:
            return _routes(node)
        case ["node"]:
            return node.node_info()
        case ["connector"]:
            return [
                {
                    "url": {"url": connector["url"]},
                    "status": _CONNECTED if connector["status"] == "Connected" else _DISCONNECTED,
                }
                for connector in node.connectors()
            ]
        case ["connector", "add", url]:
            node.add_connector(url)
            return {}
        case ["connector", "remove", url]:
            if not node.remove_connector(url):
                raise ValueError(f"connector not found: {url}")
            return {}
    raise ValueError(f"no such command: {' '.join(words)}")


def _peers(node: Node) -> list[Row]:
    own, connections = node.node_info(), _connections(node)
    address, cidr = _address(own.get("ipv4_addr"))
    rows = [
        {
            "cidr": cidr,
            "ipv4": address,
            "hostname": own["hostname"],
            "cost": "Local",
            "lat_ms": "-",
            "loss_rate": "-",
            "rx_bytes": "-",
            "tx_bytes": "-",
            "tunnel_proto": "-",
            "nat_type": _nat_type(own),
            "id": str(own["peer_id"]),
            "version": own["version"],
        }
    ]
    for route in node.routes():
        address, cidr = _address(route.get("ipv4_addr"))
        links = connections.get(route["peer_id"], [])
        cost = route.get("cost", 0)
        latency_ms = _latency_ms(links) if links else float(route.get("path_latency_latency_first") or 0)
        rows.append(
            {
                "cidr": cidr,
                "ipv4": address,
                "hostname": route.get("hostname", ""),
                "cost": "p2p" if cost == 1 else f"relay({cost})",
                "lat_ms": f"{latency_ms:.2f}",
                "loss_rate": f"{max((link.get('loss_rate', 0.0) for link in links), default=0.0) * 100:.1f}%",
                "rx_bytes": _size(sum(int(link["stats"].get("rx_bytes", 0)) for link in links)),
                "tx_bytes": _size(sum(int(link["stats"].get("tx_bytes", 0)) for link in links)),
                "tunnel_proto": ",".join(dict.fromkeys(link["tunnel"]["tunnel_type"] for link in links)),
                "nat_type": _nat_type(route),
                "id": str(route["peer_id"]),
                "version": route.get("version", ""),
            }
        )
    return rows


def _paths(node: Node) -> list[Row]:
    peers = {peer["peer_id"]: peer for peer in node.peers()}
    return [{"route": route, "peer": peers.get(route["peer_id"])} for route in node.routes()]


def _routes(node: Node) -> list[Row]:
    own, connections, routes = node.node_info(), _connections(node), node.routes()
    named = {route["peer_id"]: (_address(route.get("ipv4_addr"))[0], route.get("hostname", "")) for route in routes}
    rows = [
        {
            "ipv4": _address(own.get("ipv4_addr"))[1],
            "hostname": own["hostname"],
            "proxy_cidrs": "",
            "next_hop_ipv4": "-",
            "next_hop_hostname": "Local",
            "next_hop_lat": 0.0,
            "path_len": 0,
            "path_latency": 0,
            "version": own["version"],
        }
    ]
    for route in routes:
        hop = route.get("next_hop_peer_id")
        address, hostname = ("DIRECT", "DIRECT") if hop == route["peer_id"] else named.get(hop, ("", ""))
        rows.append(
            {
                "ipv4": _address(route.get("ipv4_addr"))[1],
                "hostname": route.get("hostname", ""),
                "proxy_cidrs": "",
                "next_hop_ipv4": address,
                "next_hop_hostname": hostname,
                "next_hop_lat": _latency_ms(connections.get(hop, [])),
                "path_len": route.get("cost", 0),
                "path_latency": route.get("path_latency", 0),
                "version": route.get("version", ""),
            }
        )
    return rows


def _connections(node: Node) -> dict[Any, list[Row]]:
    return {peer["peer_id"]: peer["conns"] for peer in node.peers()}


def _address(found: Any) -> tuple[str, str]:
    """An overlay address, and the same with its prefix length; both empty where a node has none."""
    if not found:
        return "", ""
    if isinstance(found, str):
        return found.partition("/")[0], found
    address = str(IPv4Address((found.get("address") or {}).get("addr", 0)))
    return address, f"{address}/{found.get('network_length', 24)}"


def _latency_ms(links: Sequence[Row]) -> float:
    return min((int(link["stats"].get("latency_us", 0)) for link in links), default=0) / 1000


def _nat_type(of: Mapping[str, Any]) -> str:
    number = (of.get("stun_info") or {}).get("udp_nat_type", 0)
    return _NAT_TYPES[number] if isinstance(number, int) and 0 <= number < len(_NAT_TYPES) else str(number)


def _size(count_bytes: int) -> str:
    size, unit = float(count_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.2f} {_UNITS[unit]}" if unit else f"{count_bytes} B"
