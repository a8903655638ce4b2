"""A node whose only way to the broker leads through the overlay, while the network's secret changes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def held(lab: Lab, node: str) -> Iterator[None]:
    """Its daemon stands still; EasyTier goes on."""
    daemon = lab.daemon(node)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.long
def test_a_node_behind_another_relay_finds_the_network_on_its_new_secret(lab: Lab) -> None:
    """Prepared over the overlay, cut off by the change itself: it tries what it was told to prepare, and is back."""
    hide(lab, EDGE, lab.topology.address("relay"))
    registry = f"{overlay_ip(lab, 'relay')}:8883"

    def connected() -> str:
        status = road(lab).status(EDGE) or {"conditions": []}
        return next((c["message"] for c in status["conditions"] if c["type"] == "RegistryConnected"), "")

    wait_until("the broker is reached over the overlay", connected, 120, wanted=lambda seen: f"at {registry}" in seen)
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
    log = lab.daemon_log(EDGE)
    with held(lab, SECOND):  # nothing changes before it has answered, too
        lab.popen("relay", ["edgelink", "rotate-secret"], lab.host_path("relay", Paths().runtime) / "rotate.log")
        wait_until("it is prepared", log.read_text, 60, wanted=lambda text: "node.secret_prepared" in text)
        # Else the word of the change may just come through, ahead of EasyTier's own change.
        hide(lab, "relay", overlay_ip(lab, EDGE))
    begun_s = time.monotonic()
    wait_until("it tries", log.read_text, 150, wanted=lambda text: "node.secret_tried" in text)
    assert membership(lab, EDGE).secrets.secret_epoch == 1, "what is tried does not count yet"
    lab.exec("relay", ["nft", "delete", "table", "inet", "hidden"], check=True)
    wait_for_condition(lab, "relay", "SecretCurrent", "Current", 150)
    print(f"followed after {time.monotonic() - begun_s:.1f} s")
    assert membership(lab, EDGE).secrets.secret_epoch == 2
    assert membership(lab, EDGE).next_secret is None
    wait_for_condition(lab, EDGE, "PeersReachable", "Reachable")
    wait_for_condition(lab, EDGE, "SecretCurrent", "Current")
