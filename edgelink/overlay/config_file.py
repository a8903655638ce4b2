"""EasyTier's configuration file, command line and environment, from what the overlay is to be. Pure.

The secret goes into the file (0600) and nowhere else. Unknown keys and keys after a table header are ignored by
EasyTier without a word, so top-level keys come first and a key is written only where the version reads it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from ipaddress import IPv4Interface
from pathlib import Path
from urllib.parse import urlsplit
from uuid import NAMESPACE_OID, UUID, uuid5

from edgelink.config.schemes import OVER_UDP
from edgelink.overlay.easytier_capabilities import Capabilities
from edgelink.overlay.stun import one_of_each_relay_first

# What EasyTier takes off its configured MTU for the device when encryption is on (measured on 2.6.4).
ENCRYPTION_OVERHEAD = 20
# All event lines stay, the banner with the secret goes (measured on 2.6.4).
_QUIET_RUST_LOG = "error,CORE=error,CORE::INSTANCE=info"


@lru_cache(maxsize=4096)  # asked for every node of a network at each change of who is online
def instance_of(network_id: str, node_id: str) -> UUID:
    """The instance id of a node's EasyTier, the same for the node's life."""
    return uuid5(NAMESPACE_OID, f"edgelink/{network_id}/{node_id}")


@dataclass(frozen=True)
class OverlaySpec:
    """The overlay as one node is to have it."""

    hostname: str
    network_name: str
    network_secret: str
    overlay_ip: IPv4Interface
    peers: tuple[str, ...]
    listeners: tuple[str, ...]
    device: str
    mtu: int
    rpc_port: int
    instance_id: UUID | str
    p2p: bool = True
    stun_servers: tuple[str, ...] = ()  # host:port, of our own relays
    is_relay: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        return self.network_secret, toml_string(self.network_secret)[1:-1]

    @property
    def may_use_udp(self) -> bool:
        """Whether its EasyTier may have a connection by UDP, where nobody is told that the other end has ended."""
        punches = self.p2p and not self.is_relay  # whom a relay carries for is connected to it already
        return punches or any(urlsplit(url).scheme in OVER_UDP for url in (*self.peers, *self.listeners))

    @property
    def punching(self) -> bool:
        """Whether EasyTier looks for direct paths through NAT."""
        return self.p2p and bool(self.stun_servers)

    @property
    def device_mtu(self) -> int:
        return self.mtu - ENCRYPTION_OVERHEAD

    @property
    def config_hash(self) -> str:
        """Which overlay a running EasyTier was started for.

        Of the specification, not of the file: a new EdgeLink that writes the file differently, or a new EasyTier
        on disk, is no reason to cut an overlay that works. Nor are other STUN servers and a relay's IPv6, which count
        from its next start, or other relays: a running EasyTier is told of them, see :mod:`edgelink.overlay.dialled`.
        """
        values = asdict(self)
        del values["stun_servers"], values["peers"], values["is_relay"]
        if self.p2p:
            del values["p2p"]  # as before there was such a choice
        return hashlib.sha256(json.dumps(values, default=str, sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"OverlaySpec({self.hostname} {self.overlay_ip} on {self.device}, network {self.network_name})"


def render(spec: OverlaySpec, capabilities: Capabilities) -> str:
    """The TOML file for this version of EasyTier."""
    top: dict[str, object] = {
        "instance_name": spec.hostname,
        "instance_id": str(spec.instance_id),
        "hostname": spec.hostname,
        "ipv4": str(spec.overlay_ip),
        "dhcp": False,
        "listeners": list(spec.listeners),
        "stun_servers": list(one_of_each_relay_first(spec.stun_servers)) if spec.punching else [],
        "stun_servers_v6": [],
    }
    lines = [*_pairs(top), "", "[network_identity]"]
    lines += _pairs({"network_name": spec.network_name, "network_secret": spec.network_secret})
    for peer in spec.peers:
        lines += ["", "[[peer]]", *_pairs({"uri": peer})]
    lines += ["", "[flags]", *_pairs(_flags(spec, capabilities)), ""]
    return "\n".join(lines)


def _flags(spec: OverlaySpec, capabilities: Capabilities) -> dict[str, object]:
    flags: dict[str, object] = {
        "dev_name": spec.device,
        "mtu": spec.mtu,
        "latency_first": False,
        # With it, EasyTier also listens on [::] beside each 0.0.0.0, where the kernel lets it; it dials IPv6 without.
        "enable_ipv6": spec.is_relay or any("[" in url for url in (*spec.peers, *spec.listeners)),
        "disable_p2p": not spec.p2p,
        # Without a STUN server that answers, no hole can be punched.
        "disable_udp_hole_punching": not spec.punching,
        "disable_sym_hole_punching": not spec.punching,
        "disable_tcp_hole_punching": True,  # its STUN servers cannot be chosen
        "relay_all_peer_rpc": False,
        "relay_network_whitelist": spec.network_name,  # ours only; without it not even our own is relayed
        "private_mode": True,
        # EasyTier would connect from this machine's own address, which no firewall tells from this machine.
        "disable_kcp_input": True,
        "disable_quic_input": True,
        "multi_thread": False,  # faster and a third less CPU (measured on 2.6.4)
        # Measured: a changed own address is noticed after 16 instead of 31 s; the routing table knows the way.
        "bind_device": False,
    }
    return flags | ({"disable_upnp": True} if capabilities.upnp_key else {})


def argv(core: Path, path: Path, spec: OverlaySpec) -> tuple[str, ...]:
    """Return the command line, which never holds a secret.

    A bare port would have the RPC listen on 0.0.0.0, and a ``$`` in the secret would be expanded.
    """
    return str(core), "-c", str(path), "-r", f"127.0.0.1:{spec.rpc_port}", "--disable-env-parsing"


def environment() -> dict[str, str]:
    """The whole environment: no ET_… variable may override the file."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "RUST_LOG": _QUIET_RUST_LOG,
    }


def toml_string(text: str) -> str:
    """A TOML basic string; its escapes are those of JSON, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _pairs(values: dict[str, object]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return toml_string(str(value))
