"""A node whose only way to the broker leads through the overlay, while the network's secret changes."""

from __future__ import annotations

import time

import pytest
from conftest import MakeLab
from machines import membership, overlay_ip, road, start_with_relay, wait_for_condition, wait_until

from edgelink.config import Paths
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


def hide(lab: Lab, node: str, address: str) -> None:
    """From now on ``node`` gets nothing through to ``address``."""
    script = f"table inet hidden {{ chain out {{ type filter hook output priority -300; ip daddr {address} drop; }}; }}"
    lab.exec(node, ["nft", "-f", "-"], stdin=script, capture=True, check=True)


@pytest.mark.long
def test_a_node_behind_another_relay_finds_the_network_on_its_new_secret(lab: Lab) -> None:
    """Told over the overlay, cut off by the change itself: it changes by its own clock, and is back."""
    hide(lab, EDGE, lab.topology.address("relay"))
    registry = f"{overlay_ip(lab, 'relay')}:8883"

    def connected() -> str:
        status = road(lab).status(EDGE) or {"conditions": []}
        return next((c["message"] for c in status["conditions"] if c["type"] == "RegistryConnected"), "")

    wait_until("the broker is reached over the overlay", connected, 120, wanted=lambda seen: f"at {registry}" in seen)
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
    log = lab.daemon_log(EDGE)
    lab.popen("relay", ["edgelink", "rotate-secret"], lab.host_path("relay", Paths().runtime) / "rotate.log")
    wait_until("it has the next secret", log.read_text, 60, wanted=lambda text: "node.secret_prepared" in text)
    # Else the word of the change may just come through, ahead of EasyTier's own change.
    hide(lab, "relay", overlay_ip(lab, EDGE))
    assert membership(lab, "relay").secrets.secret_epoch == 1, "the hour has not come"
    wait_until("the hour", lambda: membership(lab, "relay").secrets.secret_epoch, 10, wanted=lambda epoch: epoch == 2)
    begun_s = time.monotonic()
    wait_until("it tries", log.read_text, 30, wanted=lambda text: "node.secret_tried" in text)
    print(f"changed by its own clock {time.monotonic() - begun_s:.1f} s after the relay")
    assert membership(lab, EDGE).secrets.secret_epoch == 1, "what is tried does not count yet"
    lab.exec("relay", ["nft", "delete", "table", "inet", "hidden"], check=True)
    wait_for_condition(lab, "relay", "SecretCurrent", "Current", 150)
    print(f"followed after {time.monotonic() - begun_s:.1f} s")
    assert membership(lab, EDGE).secrets.secret_epoch == 2
    assert membership(lab, EDGE).next_secret is None
    wait_for_condition(lab, EDGE, "PeersReachable", "Reachable")
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
