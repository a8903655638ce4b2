"""The ports that this machine listens on, by its roles and its configuration; pure."""

from __future__ import annotations

from edgelink.doctor.check import Surroundings
from edgelink.process import ports
from edgelink.process.ports import Protocol
from edgelink.ray_cluster.command import listening_ports


def own_ports(surroundings: Surroundings) -> dict[tuple[Protocol, int], str]:
    """Each with the key that sets it; without the range of Ray's workers."""
    config, is_head = surroundings.config, "head" in surroundings.roles
    found: dict[tuple[Protocol, int], str] = {}
    if config.overlay.kind == "easytier" and surroundings.roles:
        found["tcp", config.overlay.rpc_port] = "overlay.rpc_port"
        key = "relay.easytier_listeners" if surroundings.is_relay else "overlay.listeners"
        for url in config.relay.easytier_listeners if surroundings.is_relay else config.overlay.listeners:
            found["tcp" if url.startswith(("tcp", "ws")) else "udp", ports.port_of(url)] = key
    if surroundings.is_relay:
        found |= {("tcp", config.relay.broker_port): "relay.broker_port"} if surroundings.has_broker else {}
        found |= {("udp", port): "relay.stun_ports" for port in config.relay.stun_ports}
    if config.metrics.listen != "nowhere":
        found |= {("tcp", config.metrics.relay_port): "metrics.relay_port"} if surroundings.is_relay else {}
        found |= {("tcp", config.metrics.port): "metrics.port"} if surroundings.is_node else {}
    if is_head and config.web.listen != "off":
        found["tcp", config.web.port] = "web.port"
    if surroundings.has_ray:
        found |= {("tcp", port): key for key, port in listening_ports(config.ray, is_head=is_head).items()}
    return found
