"""EdgeLink's own nftables table around Ray: it answers on loopback and the overlay only.

Ray listens on every address whatever ``--node-ip-address`` says, and so do the collectives of its workers and of the
driver. Only the first packet of a connection is looked at: replies to connections that this machine made get through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network, collapse_addresses, ip_network

from edgelink.overlay.nft import MARK, OPENING, Table
from edgelink.process.port_ranges import Ranges, listed

RAY_TABLE = "edgelink"


def ray_guard(
    ray_ports: Ranges,
    devices: Sequence[str],
    *,
    rendezvous_ports: Ranges = (),
    allow_from: Iterable[str] = (),
    robots: Iterable[IPv4Address] = (),
    members: IPv4Network | None = None,
) -> Table:
    """Drops connections to ``ray_ports`` and ``rendezvous_ports`` on every device but ``lo`` and ``devices``.

    Args:
        ray_ports: what Ray itself listens on.
        devices: the overlay's.
        rendezvous_ports: where processes of a training meet: ports that nobody pins.
        allow_from: networks and devices that may reach all of it.
        robots: addresses that may call back a process of the training; Ray itself stays closed to them.
        members: where the members are, where ``devices`` lead to others, too; None: everybody there is one.
    """
    networks, more_devices = _sorted_out(allow_from)
    rules = ['iifname "lo" accept']
    if members is None:
        rules.append(f"{_by([*devices, *more_devices])} accept")
    else:
        rules.append(f"{_by(devices)} ip saddr {members} accept")
        rules += [f"{_by(more_devices)} accept"] if more_devices else []
    rules += _from(networks)
    rules.append(f"tcp dport {{ {listed(ray_ports)} }} {OPENING} counter drop")
    if rendezvous := listed(rendezvous_ports):
        rules += _from(IPv4Network(robot) for robot in robots)
        rules.append(f"tcp dport {{ {rendezvous} }} {OPENING} counter drop")
    lines = "\n".join(f'    {rule} comment "{MARK}"' for rule in rules)
    return Table(
        RAY_TABLE,
        f"  chain input {{\n    type filter hook input priority filter; policy accept;\n{lines}\n  }}\n",
    )


def _by(devices: Iterable[str]) -> str:
    return "iifname {{ {} }}".format(", ".join(f'"{device}"' for device in dict.fromkeys(devices)))


def _sorted_out(allow_from: Iterable[str]) -> tuple[list[IPv4Network | IPv6Network], list[str]]:
    networks: list[IPv4Network | IPv6Network] = []
    devices: list[str] = []
    for item in allow_from:
        try:
            networks.append(ip_network(item, strict=False))
        except ValueError:
            devices.append(item)
    return networks, devices


def _from(networks: Iterable[IPv4Network | IPv6Network]) -> list[str]:
    """Rules that accept all that comes from there."""
    found = list(networks)
    four = [network for network in found if isinstance(network, IPv4Network)]
    six = [network for network in found if isinstance(network, IPv6Network)]
    rules = []
    if four:
        rules.append(f"ip saddr {{ {', '.join(map(str, collapse_addresses(four)))} }} accept")
    if six:
        rules.append(f"ip6 saddr {{ {', '.join(map(str, collapse_addresses(six)))} }} accept")
    return rules
