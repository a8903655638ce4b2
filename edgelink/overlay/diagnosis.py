"""Why nobody answers over an overlay whose device is as it should be: what EasyTier lists and says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from edgelink.overlay.easytier_events import Refusal, last_refusal
from edgelink.overlay.status import Peer

_ADVICE = {
    Refusal.REFUSED: "nothing listens there: is the relay's daemon Ready?",
    Refusal.NO_WAY: "this machine has no way there: check its uplink",
    Refusal.NAME: "the name does not resolve: check DNS",
    Refusal.SILENT: "no answer from there: check this machine's uplink, and that the relay's EasyTier port is open "
    "(tcp 11010 by default)",
}
TCP_REMEDY = (
    "on both ends, `sysctl net.ipv4.tcp_mtu_probing=1` finds what fits (`host.tcp: adjust` sets it); a smaller "
    "overlay.mtu does not help over TCP"
)
UDP_REMEDY = "set a smaller overlay.mtu (now {mtu}) on all nodes: it bounds EasyTier's UDP packets"
CUT_OFF = frozenset({"NobodyAnswers", "MtuBlackHole", "RelayUnreachable", "NetworkRefused", "WrongNetwork"})  # reasons
_FOREIGN = "PublicServer_"  # how a relay is listed that carries us as a foreign network


@dataclass(frozen=True)
class Diagnosis:
    """The condition's reason, and what it means and what to do."""

    reason: str
    message: str


def diagnose(
    rows: Sequence[Peer],
    output: str,
    peers: Iterable[str],
    wanted: Iterable[IPv4Address],
    holes: Sequence[str] = (),
    broker_away: str | None = None,
    *,
    uplink_is_stuck: bool = False,
) -> Diagnosis:
    """The likeliest cause.

    Args:
        rows: what EasyTier lists.
        output: the end of what it has printed.
        peers: the URLs that it dials.
        wanted: who does not answer.
        holes: the other ends of its TCP connections to which full packets do not get through.
        broker_away: None where the relay's broker answers, what answers in its place, or "" where nothing does.
        uplink_is_stuck: what EasyTier sends over TCP is not acknowledged.
    """
    if broker_away:
        return Diagnosis("RelayUnreachable", broker_away)
    if holes:
        return Diagnosis(
            "MtuBlackHole",
            f"small packets reach {', '.join(holes)}, full ones do not, and no router says so (an MTU black hole, no "
            f"firewall): {TCP_REMEDY}",
        )
    dialled = ", ".join(peers) or "nobody"
    others = [row for row in rows if not row.is_self]
    if foreign := [row.hostname.removeprefix(_FOREIGN) for row in others if row.hostname.startswith(_FOREIGN)]:
        return Diagnosis(
            "WrongNetwork",
            f"EasyTier is connected to {', '.join(foreign)}, but as a stranger's network: the network at {dialled} has "
            "another name than this node's lease says; check where that address leads, or join again with a new token",
        )
    missing = set(wanted)
    if listed := [row.hostname for row in others if row.ipv4 in missing]:
        if broker_away is not None or uplink_is_stuck:
            return Diagnosis(
                "NobodyAnswers",
                f"EasyTier lists {', '.join(listed)}, as it does for some seconds after a cut, but the relay does not "
                "answer outside of the overlay either: check this machine's uplink, and that the relay is up",
            )
        return Diagnosis(
            "NobodyAnswers",
            f"EasyTier is connected and lists {', '.join(listed)}: look at the firewall there, and at its "
            "`edgelink status`",
        )
    if others:
        return Diagnosis(
            "NobodyAnswers",
            f"EasyTier is connected to {', '.join(row.hostname for row in others)}, who is not asked: is the overlay "
            "of relay and head up? See their `edgelink status`",
        )
    return _not_connected(last_refusal(output), dialled)


def _not_connected(refusal: Refusal | None, dialled: str) -> Diagnosis:
    if refusal is Refusal.HANDSHAKE:
        return Diagnosis(
            "NetworkRefused",
            f"{dialled} ends the connection during the handshake: it is of another network, or has another secret than "
            "this node's lease (a relay that was made anew?); its log says which. Join again with a new token",
        )
    return Diagnosis(
        "RelayUnreachable", f"EasyTier does not get through to {dialled}: {_ADVICE[refusal or Refusal.SILENT]}"
    )
