"""A node whose only way to the broker leads through the overlay, while the network's secret changes."""

from __future__ import annotations

import time

import pytest
from conftest import MakeLab
from machines import membership, overlay_ip, road, start_with_relay, wait_for_condition, wait_until

from edgelink.lab import Lab

pytestmark = [pytest.mark.timeout(420), pytest.mark.usefixtures("easytier")]

EDGE, SECOND = "edge-1", "relay-2"


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    """Two relays and an edge; no Ray: nobody is the head."""
    lab = make_lab()
    lab.up(edges=1, relays=2)
    start_with_relay(lab, [EDGE])
    wait_for_condition(lab, EDGE, "PeersReachable", "Reachable")
    road(lab).add_relay(SECOND)
    wait_for_condition(lab, EDGE, "RelaysDialled", "AllDialled")
    return lab


def hide_the_registrys_relay(lab: Lab, node: str) -> None:
    """From now on ``node`` gets nothing through to its public address."""
    rule = f"ip daddr {lab.topology.address('relay')} drop"
    script = f"table inet hidden {{ chain out {{ type filter hook output priority -300; {rule}; }}; }}"
    lab.exec(node, ["nft", "-f", "-"], stdin=script, capture=True, check=True)


def test_a_node_behind_another_relay_finds_the_network_on_its_new_secret(lab: Lab) -> None:
    """Prepared over the overlay, cut off by the change itself: it tries what it was told to prepare, and is back."""
    hide_the_registrys_relay(lab, EDGE)
    registry = f"{overlay_ip(lab, 'relay')}:8883"

    def connected() -> str:
        status = road(lab).status(EDGE) or {"conditions": []}
        return next((c["message"] for c in status["conditions"] if c["type"] == "RegistryConnected"), "")

    wait_until("the broker is reached over the overlay", connected, 120, wanted=lambda seen: f"at {registry}" in seen)
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
    begun_s = time.monotonic()
    lab.exec("relay", ["edgelink", "rotate-secret", "--timeout", "30s"], capture=True, timeout_s=180)
    wait_for_condition(lab, "relay", "SecretCurrent", "Current", 150)
    print(f"on the new secret after {time.monotonic() - begun_s:.1f} s")
    assert membership(lab, EDGE).secrets.secret_epoch == 2
    assert membership(lab, EDGE).next_secret is None
    wait_for_condition(lab, EDGE, "PeersReachable", "Reachable")
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
    assert "node.secret_tried" in lab.daemon_log(EDGE).read_text(), "it was told of the change: nothing was shown"
