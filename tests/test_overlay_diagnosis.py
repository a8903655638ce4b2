"""Why nobody answers, and who claims whose address: by EasyTier's words and lists as they were measured."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from edgelink.overlay.address_holders import impostors, twins
from edgelink.overlay.diagnosis import diagnose
from edgelink.overlay.easytier_events import Refusal, last_refusal
from edgelink.overlay.status import Peer

RELAY, HEAD, OWN = IPv4Address("10.10.0.1"), IPv4Address("10.10.0.2"), IPv4Address("10.10.0.3")
DIALLED = ("tcp://203.0.113.10:11010",)


def row(ip: IPv4Address | None, hostname: str, cost: str = "p2p", peer_id: str = "1") -> Peer:
    return Peer(ip, hostname, cost, 1.0, "tcp", "2.6.4", peer_id=peer_id)


SELF = row(OWN, "edge-1", "Local")

# In the layout of 2.6.4: an attempt that failed, and one that came about.
ERROR = (
    "2026-11-21T07:06:34.639586977Z  INFO CORE::INSTANCE::CONNECTION: [0b0e] connect to peer error "
    'dst="tcp://203.0.113.10:11010" ip_version="V4" error={}\n'
)
CONNECTED = (
    "2026-11-21T07:06:35.640586977Z  INFO CORE::INSTANCE::CONNECTION: [0b0e] new peer connection added "
    "conn_info=PeerConnInfo { my_peer_id: 1 }\n"
    "2026-11-21T07:06:35.641586977Z  INFO CORE::INSTANCE: [0b0e] new peer added peer_id=741410679\n"
)
# 2.6.4, measured by hand: a wrong secret, and the layout of its output (docs/reference/easytier.md).
WRONG_SECRET_2_6_4 = """\
2026-11-21T07:06:35.639586977Z  INFO CORE::INSTANCE::CONNECTION: [0b0e] connecting to peer dst=tcp://203.0.113.10:11010
2026-11-21T07:06:35.640586977Z  INFO CORE::INSTANCE::CONNECTION: [0b0e] new peer connection added conn_info=PeerConnInfo { my_peer_id: 1 }
2026-11-21T07:06:35.641586977Z  INFO CORE::INSTANCE: [0b0e] new peer added peer_id=741410679
2026-11-21T07:06:35.642586977Z  INFO CORE::INSTANCE: [0b0e] peer removed peer_id=741410679
"""  # noqa: E501
ERROR_2_6_4 = """\
2026-11-21T07:06:36.639586977Z  INFO CORE::INSTANCE::CONNECTION: [0b0e] connect to peer error dst="tcp://203.0.113.10:11010" ip_version="V4" error=TunnelError(
    IOError(
        Os {
            code: 111,
            kind: ConnectionRefused,
            message: "Connection refused",
        },
    ),
)
"""  # noqa: E501


@pytest.mark.parametrize(
    "output, refusal",
    [
        (ERROR.format('WaitRespError("conn closed during wait handshake response")'), Refusal.HANDSHAKE),
        (
            ERROR.format(
                'TunnelError(IOError(Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }))'
            ),
            Refusal.REFUSED,
        ),
        (ERROR.format("Timeout(Elapsed(()))"), Refusal.SILENT),
        (ERROR.format("TunnelError(Shutdown)"), Refusal.NO_WAY),
        (WRONG_SECRET_2_6_4 * 3, Refusal.HANDSHAKE),
        (ERROR_2_6_4, Refusal.REFUSED),
        (ERROR.format("Timeout(Elapsed(()))") + CONNECTED, None),
        (WRONG_SECRET_2_6_4.replace("peer removed", "peer noted"), None),
        ("", None),
        ("no event at all\n", None),
    ],
)
def test_why_easytier_is_not_connected(output: str, refusal: Refusal | None) -> None:
    """The last word counts; a connection that came about after errors is none."""
    assert last_refusal(output) == refusal


@pytest.mark.parametrize(
    "rows, output, reason, words",
    [
        (
            [SELF],
            ERROR.format('WaitRespError("conn closed…")'),
            "NetworkRefused",
            ["another secret", "Join again"],
        ),
        ([SELF], WRONG_SECRET_2_6_4 * 3, "NetworkRefused", ["another secret"]),
        ([SELF], ERROR.format("invalid proof and unknown credential"), "NetworkRefused", ["another secret"]),
        ([SELF, row(None, "PublicServer_relay")], CONNECTED, "WrongNetwork", ["relay", "another name"]),
        ([SELF], ERROR_2_6_4, "RelayUnreachable", ["nothing listens", "Ready"]),
        ([SELF], ERROR.format("Timeout(Elapsed(()))"), "RelayUnreachable", ["no answer", "tcp 11010"]),
        ([SELF], ERROR.format("TunnelError(Shutdown)"), "RelayUnreachable", ["uplink"]),
        ([SELF], "", "RelayUnreachable", ["no answer"]),
        ([SELF, row(RELAY, "relay")], CONNECTED, "NobodyAnswers", ["lists relay", "firewall"]),
        (
            [SELF, row(IPv4Address("10.10.0.9"), "edge-9")],
            CONNECTED,
            "NobodyAnswers",
            ["edge-9", "relay and head"],
        ),
    ],
)
def test_the_likeliest_cause_is_named(rows: list[Peer], output: str, reason: str, words: list[str]) -> None:
    """A wrong network, a wrong secret, a relay that is away, and a silent one are told apart."""
    found = diagnose(rows, output, DIALLED, [RELAY, HEAD])
    assert found.reason == reason
    for word in words:
        assert word in found.message


def test_a_black_hole_is_no_firewall() -> None:
    """EasyTier lists the relay all the while: what tells is that the relay's packets arrive and ours do not."""
    found = diagnose([SELF, row(RELAY, "relay")], CONNECTED, DIALLED, [RELAY, HEAD], ["203.0.113.10:11010"])
    assert found.reason == "MtuBlackHole"
    assert "203.0.113.10:11010" in found.message
    assert "tcp_mtu_probing=1" in found.message


@pytest.mark.parametrize(
    ("rows", "broker_away", "is_stuck", "reason", "words"),
    [
        ([SELF, row(RELAY, "relay")], "no TLS: a portal", True, "RelayUnreachable", "no TLS: a portal"),
        ([SELF], "no TLS: a portal", False, "RelayUnreachable", "no TLS: a portal"),
        ([SELF, row(RELAY, "relay")], "", False, "NobodyAnswers", "this machine's uplink"),
        ([SELF, row(RELAY, "relay")], None, True, "NobodyAnswers", "this machine's uplink"),
        ([SELF], "", False, "RelayUnreachable", "nothing listens"),
    ],
)
def test_what_is_known_outside_of_the_overlay_counts(
    rows: list[Peer], broker_away: str | None, is_stuck: bool, reason: str, words: str
) -> None:
    """EasyTier lists whom it has lost for some seconds, which is no reason to look at a firewall far away."""
    found = diagnose(rows, ERROR_2_6_4, DIALLED, [RELAY, HEAD], broker_away=broker_away, uplink_is_stuck=is_stuck)
    assert (found.reason, words in found.message, "firewall" in found.message) == (reason, True, False)


HOLDERS = {RELAY: "relay", OWN: "edge-1"}


def test_an_address_that_somebody_else_claims_is_named() -> None:
    """A cloned robot, a node set up by hand with a leased address; a stranger on a free address is not our affair."""
    assert impostors([SELF, row(RELAY, "relay"), row(IPv4Address("10.10.0.99"), "guest")], HOLDERS) == []
    (wrong,) = impostors([SELF, row(RELAY, "laptop")], HOLDERS)
    assert all(word in wrong for word in ("10.10.0.1", "relay's", "laptop"))
    (twice,) = impostors([SELF, row(OWN, "spare-robot")], HOLDERS)
    assert all(word in twice for word in ("10.10.0.3", "edge-1 and spare-robot", "edge-1's"))


def test_a_node_that_is_listed_twice_is_a_twin_not_an_impostor() -> None:
    """Its earlier life, or a clone with the same name: only time tells."""
    rows = [SELF, row(OWN, "edge-1", peer_id="2"), row(RELAY, "relay")]
    assert impostors(rows, HOLDERS) == []
    assert twins(rows) == {"edge-1 (10.10.0.3)": rows[:2]}
    assert twins(rows[:1] + rows[2:]) == {}


def test_a_hostname_at_two_addresses_is_a_twin() -> None:
    """A copied disk whose address somebody changed by hand."""
    other = row(IPv4Address("10.10.0.7"), "edge-1", peer_id="2")
    assert list(twins([SELF, other])) == ["edge-1 (10.10.0.3, 10.10.0.7)"]
