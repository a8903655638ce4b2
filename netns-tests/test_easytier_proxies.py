"""What comes over the overlay comes from its sender, whatever the sender's EasyTier is told.

EasyTier's KCP and QUIC proxies would end a connection in the receiver's EasyTier. That opens another one from its own
address to the one that the sender named, past the receiver's firewalls.
"""

from __future__ import annotations

import pytest
from conftest import MakeLab
from machines import wait_until
from overlay_lab import CLOUD, EDGE, OVERLAY_IPS, RELAY, OverlayLab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120), pytest.mark.usefixtures("easytier")]
_SERVE = """
import socket
with socket.create_server(("0.0.0.0", 5201)) as server:
    print("listening", flush=True)
    print(server.accept()[1][0], flush=True)
"""


def test_who_connects_by_easytiers_proxies_is_seen_by_its_own_address(make_lab: MakeLab) -> None:
    """The edge's EasyTier has a proxy on, the cloud's is as EdgeLink starts it."""
    lab = make_lab()
    lab.up(edges=1)
    overlay = OverlayLab(lab)
    overlay.start(RELAY, CLOUD)
    log = lab.node_directory(CLOUD) / "served"
    try:
        for proxy in ("kcp", "quic"):
            overlay.start(EDGE, flags=(f"--enable-{proxy}-proxy",))
            overlay.wait_connected()
            log.write_text("")
            server = lab.popen(CLOUD, ["python3", "-c", _SERVE], log)
            try:
                wait_until("the server listens", log.read_text)
                lab.exec(EDGE, ["bash", "-c", f": > /dev/tcp/{OVERLAY_IPS[CLOUD]}/5201"], check=True, timeout_s=30)
                server.wait(30)
            finally:
                server.kill()
                server.wait()
            assert log.read_text().split() == ["listening", OVERLAY_IPS[EDGE]], proxy
            overlay.stop(EDGE)
    finally:
        overlay.end()
