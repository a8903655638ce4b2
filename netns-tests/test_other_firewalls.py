"""A relay and an edge on booted machines whose owners have ufw or firewalld: what stays out, whether doctor says so,
and whether what it says mends it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import booted
import pytest
from booted import BootedNode, installed_edgelink
from conftest import MakeLab
from machines import Machine, told_by_doctor, wait_until

from edgelink.config import Config
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.topology import RELAY_ADDRESS
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

EDGE = "edge-1"
RAYLET = Config().ray.node_manager_port
BROKER = Config().relay.broker_port
ON_AND_OFF = {
    "ufw": (["ufw", "--force", "enable"], ["ufw", "--force", "reset"]),
    "firewalld": (["systemctl", "start", "firewalld"], ["systemctl", "stop", "firewalld"]),
}
CONNECT_S = 3.0

pytestmark = [
    pytest.mark.usefixtures("easytier"),
    pytest.mark.timeout(420),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="needs a Debian with both: `make soak`"),
]
if reason := booted.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Site:
    """A machine, and where the cloud has to reach it."""

    machine: BootedNode
    lab: Lab
    address: str
    port: int

    def doctor(self) -> tuple[str, list[str]]:
        """What it finds of other firewalls, and the commands that mend it."""
        found = told_by_doctor(self.machine.run("edgelink", "doctor", "--json"))["other-firewalls"]
        return found["verdict"], [each for each in (found["remedy"] or "").split("; ") if each]

    def is_reached(self) -> bool:
        """By a new connection."""
        open_it = ["timeout", f"{CONNECT_S:g}", "bash", "-c", f"</dev/tcp/{self.address}/{self.port}"]
        return self.lab.exec(CLOUD, open_it, capture=True).returncode == 0


@pytest.fixture(scope="module")
def sites(make_shared_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """Relay and edge, each on a machine with both firewalls, neither on; the head is a process."""
    lab = make_shared_lab()
    lab.up(edges=1)
    easytier = find_easytier(None, default_cache_dir())
    edgelink = installed_edgelink(tmp_path_factory)
    with ExitStack() as stack:
        machines = {}
        for node, roles in ((RELAY, ["bootstrap"]), (EDGE, ())):
            machine = machines[node] = BootedNode(lab, node, easytier)
            stack.callback(machine.remove)
            machine.install(*roles, edgelink=edgelink, packages=("libpam-systemd", "ufw", "firewalld"))
            machine.boot()
        relay, edge = machines.values()
        relay.wait_ready()

        def token(role: str) -> str:
            return relay.run("edgelink", "token", "create", "--role", role, check=True).stdout.strip()

        Machine(lab, CLOUD).join(token("head"))
        lab.start(CLOUD)
        (edge.root / "root/token").write_text(token("edge"))
        edge.run("edgelink", "join", "--token-file", "/root/token", "--service", check=True)
        overlay_ip = edge.wait_ready()["overlay_ip"]
        yield {RELAY: Site(relay, lab, str(RELAY_ADDRESS), BROKER), EDGE: Site(edge, lab, overlay_ip, RAYLET)}


@pytest.mark.parametrize("firewall", ON_AND_OFF)
@pytest.mark.parametrize("node", [RELAY, EDGE])
def test_what_doctor_says_lets_in_what_the_node_needs(sites: dict[str, Site], node: str, firewall: str) -> None:
    site = sites[node]
    on, off = ON_AND_OFF[firewall]
    assert site.doctor() == ("ok", [])
    wait_until("the cloud reaches it", site.is_reached, 60)
    site.machine.run(*on, check=True)
    try:
        wait_until("the cloud does not reach it", lambda: not site.is_reached(), 60)  # firewalld answers before
        verdict, remedies = site.doctor()
        assert verdict == "failed"
        assert remedies
        for remedy in remedies:
            assert remedy.startswith(("ufw ", "firewall-cmd ")), remedy
            site.machine.run(*shlex.split(remedy), check=True)
        assert site.doctor() == ("ok", [])
        assert site.is_reached()
        site.machine.wait_ready()
    finally:
        site.machine.run(*off, check=True)
