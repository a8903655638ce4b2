"""The overlay from here: its network, full packets, other EasyTiers, names of its addresses."""

from __future__ import annotations

from ipaddress import IPv4Address

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, limited, listed, ok, refused, skipped
from edgelink.errors import OverlayAddressError
from edgelink.overlay.diagnosis import TCP_REMEDY, UDP_REMEDY
from edgelink.overlay.echo_wire import PORT
from edgelink.overlay.link import check_collision
from edgelink.overlay.own_routes import PRIORITY
from edgelink.ray_cluster.local_ray import noted_user_uid

_MOST_PEERS = 12
_LATER_RULE = (
    f"where it is made, give it a priority above {PRIORITY}, or take the overlay's network out of what it picks"
)
_SLOW_NAME_S = 1.0
_MOST_NAMES = 3


def overlay_network(surroundings: Surroundings) -> Finding:
    """Does what is for the overlay leave by its device, and is its network used for nothing else here?

    The kernel is asked for each node. A rule before EdgeLink's own, or an address of this machine, may take packets
    that are the overlay's. A LAN, a VPN or a Docker bridge with the same addresses is not reached any more.
    """
    overlay = surroundings.config.overlay
    if overlay.kind == "existing":
        return skipped("the overlay is one that was there already (overlay.kind: existing)")
    network, _, others = surroundings.probes.local_networks(overlay.device)
    if network is not None and surroundings.membership is not None:
        own_ip, uid = surroundings.membership.lease.overlay_ip, noted_user_uid(surroundings.paths) or 0
        members = {IPv4Address(address): name for name, address in surroundings.peers.items()}
        ways = surroundings.probes.ways(overlay.device, own_ip, network, members, uid)
        if ways.elsewhere:
            return failed(ways.elsewhere, ways.remedy)
        if ways.caveat:
            return limited(ways.caveat, _LATER_RULE)
    if network is None and surroundings.membership is not None:
        network = surroundings.membership.lease.cidr
    if network is None and surroundings.is_relay:
        network = surroundings.config.relay.cidr
    if network is None:
        return skipped("the overlay's network is not known here yet")
    try:
        check_collision(network, others)
    except OverlayAddressError as error:
        return refused(error)
    return ok("packets for the overlay leave by its device", str(network))


def overlay_mtu(surroundings: Surroundings) -> Finding:
    """Do full packets get through the overlay?

    Each node that answers a small echo is asked for one as large as the device's MTU. Where only small ones get through
    (an MTU black hole), connections open and then stand still.
    """
    peers = dict(list(surroundings.peers.items())[:_MOST_PEERS])
    if not peers:
        return skipped("there is a way to no other node")
    device = surroundings.config.overlay.device
    _, mtu, _ = surroundings.probes.local_networks(device)
    if not mtu:
        return skipped(f"there is no device {device} with an address")
    full = surroundings.probes.echoes(peers.values(), device, mtu)
    lost = {name: address for name, address in peers.items() if address not in full}
    small = surroundings.probes.echoes(lost.values(), device) if lost else {}
    holes = [name for name, address in lost.items() if address in small]
    if holes:
        return failed(
            f"MTU black hole: small packets reach {listed(holes)}, full ones do not",
            _remedy(surroundings, holes),
            f"{mtu} bytes",
        )
    if not full:
        return skipped("no other node answers an echo")
    return ok(f"full packets pass from and to {listed([name for name in peers if name not in lost])}", f"{mtu} bytes")


def _remedy(surroundings: Surroundings, holes: list[str]) -> str:
    """What helps against a black hole depends on what EasyTier's packets travel in."""
    ways = {str(way["hostname"]): way for daemon in surroundings.daemons for way in daemon.get("paths", ())}
    transports = set()
    for name in holes:
        carrier = ways.get(str(ways[name].get("via")), ways[name])
        transports.add(carrier.get("protocol") or "tcp")
    remedies = [TCP_REMEDY] if transports != {"udp"} else []
    if "udp" in transports:
        remedies.append(UDP_REMEDY.format(mtu=surroundings.config.overlay.mtu))
    return "; ".join(remedies)


def echo_answered(surroundings: Surroundings) -> Finding:
    """Does this node answer echoes?

    The other nodes know by echoes over the overlay, on one UDP port, that this one is there.
    """
    if surroundings.membership is None or not surroundings.daemons:
        return skipped("no daemon of a node runs here")
    own = str(surroundings.membership.lease.overlay_ip)
    found = surroundings.probes.echoes([own], None).get(own)
    if found is None:
        return skipped("the overlay's device is not up")
    if found.is_refusal:
        return failed(
            f"nothing answers at udp port {PORT} of {own}: other nodes cannot compare clocks with this one",
            "the condition EchoAnswered of `edgelink status` says why",
        )
    return ok("this machine answers pings", f"udp port {PORT}")


def foreign_easytier(surroundings: Surroundings) -> Finding:
    """Does another EasyTier run on this machine?

    One that was started by hand takes ports and addresses, or joins the network a second time.
    """
    own = set(surroundings.own_pids.values())
    found = surroundings.probes.processes("easytier-core")
    foreign = [f"pid {pid}" for pid in sorted(found) if pid not in own]
    if foreign and not (surroundings.daemons or surroundings.may_read_state):
        return NOT_ROOT
    if foreign and surroundings.config.overlay.kind == "easytier":
        return limited(
            f"an EasyTier that EdgeLink did not start runs here: {listed(foreign)}",
            "end it, and what starts it at boot; the documentation tells how to take its network over",
        )
    return ok("no EasyTier runs but this node's own" if found else "no EasyTier runs")


def reverse_names(surroundings: Surroundings) -> Finding:
    """Is it known at once what the overlay's addresses are called?

    torch and gRPC ask for the name of each peer. Where DNS does not answer, each collective waits ten seconds more.
    """
    if not surroundings.is_node:
        return skipped("only collectives ask for them")
    lines = surroundings.text("etc/hosts").splitlines()
    known = {line.split()[0] for line in lines if line.split() and not line.startswith("#")}
    unknown = {name: address for name, address in surroundings.peers.items() if address not in known}
    if not surroundings.peers:
        return skipped("there is a way to no other node")
    answers = surroundings.probes.reverse(list(unknown.values())[:_MOST_NAMES])
    slow = [lookup.took_s for lookup in answers.values() if lookup.took_s >= _SLOW_NAME_S]
    if slow:
        return failed(
            f"/etc/hosts does not name {listed(list(unknown))}, and DNS takes its time to say that it does not, either",
            "`host.hosts: add` (the default) has EdgeLink keep their names; or mend /etc/resolv.conf",
            f"{max(slow):.1f} s for one name",
        )
    return ok(f"{'DNS' if unknown else '/etc/hosts'} has the other nodes' names at once")
