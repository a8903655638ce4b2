"""Can a direct path be found from here?"""

from __future__ import annotations

from ipaddress import IPv4Address

from edgelink.doctor.check import Finding, Surroundings, limited, ok, skipped
from edgelink.errors import EdgelinkError
from edgelink.protocol.membership import Membership


def stun_answers(surroundings: Surroundings) -> Finding:
    """Do the relays answer STUN, so that holes can be punched through the NATs between this node and others?"""
    overlay = surroundings.config.overlay
    if overlay.kind == "existing" or not overlay.p2p:
        return skipped("EasyTier looks for no direct paths here (overlay.kind, overlay.p2p)")
    try:
        membership = Membership.load(surroundings.paths)
    except EdgelinkError as error:
        return skipped(error.message)
    if membership is None or membership.lease.is_relay:
        return skipped("not a node that has to find a way through NAT")
    servers = membership.secrets.stun_servers
    seen = surroundings.probes.stun(servers)
    if servers and not seen:
        return skipped("the check `relay-name` says why nobody can be asked")
    return judge(seen)


def judge(seen: dict[str, tuple[IPv4Address, int] | None]) -> Finding:
    """What the servers' answers mean: by server, the address and port that it sees; pure."""
    if not seen:
        return limited(
            "no relay of this network answers STUN: between two NATs everything goes through a relay",
            "set relay.stun_ports on the relay",
        )
    silent = [server for server, address in seen.items() if address is None]
    found = {address for address in seen.values() if address is not None}
    addresses = sorted(f"{address}:{port}" for address, port in found)
    figure = f"seen as {', '.join(addresses)}" if addresses else ""
    if silent:
        return limited(
            f"no answer from {', '.join(f'udp {server}' for server in silent)}: fewer direct paths are found",
            "let UDP to these ports out here, and in at the relay",
            figure,
        )
    # More ports than one of an address; another address alone is another way out, to one relay's network.
    if len(found) > len({address for address, _ in found}):
        return limited(
            "this NAT shows everybody another port (symmetric): few direct paths are found through it",
            "another uplink, or a router without symmetric NAT; through the relay all works the same",
            figure,
        )
    return ok("the relays see this machine under one port: direct paths can be found", figure)
