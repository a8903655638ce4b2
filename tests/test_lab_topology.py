"""The lab's shape, its files and its state: what can be said without a kernel."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from telling import refuses

from edgelink.config import load_config
from edgelink.errors import LabError
from edgelink.lab import node_files, state
from edgelink.lab.lab import Lab
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.state import LabState, locked_lab, locked_root
from edgelink.lab.topology import MAX_EDGES, NodeKind, build_topology


def test_a_command_in_a_node_has_the_signals_of_any_command() -> None:
    """Python ignores SIGPIPE: `lab exec cloud -- sh -c 'yes | head'` would complain."""
    program = (
        "import os\nfrom types import SimpleNamespace\nfrom edgelink.lab.lab import Lab\n"
        "lab = SimpleNamespace(_argv=lambda node, argv, cwd: argv, environment=lambda node: dict(os.environ))\n"
        "Lab.enter(lab, 'cloud', ['cat', '/proc/self/status'])"
    )
    status = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    ignored = next(int(line.split()[1], 16) for line in status.stdout.splitlines() if line.startswith("SigIgn:"))
    assert ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


@pytest.mark.parametrize("shape", [{}, {"direct": True}, {"spare_uplinks": True}, {"relays": 4}])
@pytest.mark.parametrize("edges", [1, 2, MAX_EDGES])
def test_addresses_are_unique_and_links_are_subnets(edges: int, shape: dict[str, Any]) -> None:
    """No two ports share an address, the two ends of a link share a network, no two networks overlap."""
    topology = build_topology(edges, **shape)
    ports = [port for link in topology.links for port in (link.near, link.far)]
    assert len({port.address.ip for port in ports}) == len(ports)
    assert len({(port.node, port.device) for port in ports}) == len(ports)
    assert all(len(port.device) <= 15 for port in ports)
    networks = [link.near.address.network for link in topology.links]
    assert [link.far.address.network for link in topology.links] == networks
    assert not any(one.overlaps(two) for one, two in itertools.combinations(networks, 2))


def test_every_default_route_leads_to_a_neighbour_and_none_leads_out() -> None:
    """A node's gateway is the other end of one of its links; the router in the middle has none."""
    topology = build_topology(2)
    for node in topology.nodes:
        neighbours = {link.far.address.ip for link in topology.links if link.near.node == node.name}
        if node.kind is NodeKind.INTERNET:
            assert node.gateway is None
        else:
            assert node.gateway in neighbours


def test_each_site_has_its_own_nat_router_unless_direct() -> None:
    """The names are those of the command line."""
    names = [node.name for node in build_topology(2).nodes]
    assert names == ["internet", "relay", "cloud-nat", "cloud", "edge-1-nat", "edge-1", "edge-2-nat", "edge-2"]
    assert not any(node.kind is NodeKind.NAT or node.firewall for node in build_topology(2, direct=True).nodes)
    assert [node.name for node in build_topology(1).machines] == ["relay", "cloud", "edge-1"]


def test_more_relays_have_public_addresses_of_their_own() -> None:
    """They run the relay's daemon, and no NAT is before them."""
    topology = build_topology(1, relays=3)
    relays = [node for node in topology.nodes if node.kind is NodeKind.RELAY]
    assert [node.name for node in relays] == ["relay", "relay-2", "relay-3"]
    assert {node.daemon for node in relays} == {"bootstrap"}
    assert {topology.uplinks(node.name)[0].far.node for node in relays} == {"internet"}
    with pytest.raises(LabError, match="1 to 4 relays"):
        build_topology(1, relays=5)


def test_a_spare_uplink_is_another_device_address_and_nat() -> None:
    """Only edges have one; the router's public address is of another provider."""
    topology = build_topology(1, spare_uplinks=True)
    first, spare = topology.uplinks("edge-1")
    assert (first.near.device, first.is_spare, spare.near.device, spare.is_spare) == ("eth0", False, "eth1", True)
    assert {link.far.node for link in (first, spare)} == {"edge-1-nat", "edge-1-nat2"}
    public = {topology.address(link.far.node) for link in (first, spare)}
    assert {str(address).rsplit(".", 1)[0] for address in public} == {"198.51.100", "192.0.2"}
    assert len(topology.uplinks("cloud")) == len(build_topology(1).uplinks("edge-1")) == 1


@pytest.mark.parametrize("edges", [0, -1, MAX_EDGES + 1])
def test_an_impossible_number_of_edges_is_refused(edges: int) -> None:
    """The message says how many are possible."""
    with pytest.raises(LabError, match=f"1 to {MAX_EDGES}"):
        build_topology(edges)


@pytest.mark.parametrize(
    "nat, direct",
    [({"edge-3": "cone"}, False), ({"relay": "cone"}, False), ({"edge-1": "open"}, False), ({"edge-1": "cone"}, True)],
)
def test_a_nat_that_cannot_be_is_refused(nat: dict[str, str], direct: bool) -> None:
    """A site that is not there, a kind that is none, and a lab without routers."""
    (entry,) = nat.items()
    with pytest.raises(LabError, match="=".join(entry)):
        build_topology(2, direct=direct, nat=nat)


@pytest.mark.parametrize("name", ["", "Lab", "a_b", "-a", "a-", "../x", "x" * 33])
def test_a_lab_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    """The name becomes part of paths and namespaces."""
    with pytest.raises(LabError, match="cannot be named"):
        Lab(name)


def test_the_nodes_configuration_is_valid(tmp_path: Path) -> None:
    """What the lab writes is what the daemon reads; overrides reach into sections."""
    overrides = {"relay": {"cidr": "10.77.0.0/24"}, "ray": {"port": 6380}}
    config = node_files.node_config(ray_python=None, accelerators=False, overrides=overrides)
    node_files.write_node_files(tmp_path / "edge-1", "edge-1", config)
    file = node_files.private_copy(tmp_path / "edge-1", Path("/etc/edgelink")) / "edgelink.yaml"
    loaded = load_config(file, environ={})
    assert loaded.relay.advertise == ("203.0.113.10",)
    assert str(loaded.relay.cidr) == "10.77.0.0/24"
    assert (loaded.ray.port, loaded.ray.num_gpus, loaded.ray.allow_root) == (6380, 0, True)
    assert node_files.private_copy(tmp_path / "edge-1", Path("/var/lib/edgelink")).stat().st_mode & 0o777 == 0o700


def test_accelerators_are_left_to_ray_when_asked_for() -> None:
    """Only then may Ray count the machine's accelerators itself."""
    assert "num_gpus" not in node_files.node_config(ray_python=None, accelerators=True)["ray"]


def test_state_survives_the_process(tmp_path: Path) -> None:
    """Another command finds the same lab, and knows the holder from a stranger with the same pid."""
    own = PinnedProcess.of(os.getpid())
    LabState(edges=3, direct=True, accelerators=False, holders={"relay": own}).save(tmp_path / "state.json")
    loaded = LabState.load(tmp_path / "state.json")
    assert loaded == LabState(edges=3, direct=True, accelerators=False, holders={"relay": own})
    assert loaded.holders["relay"].is_alive
    assert not PinnedProcess(own.pid, own.start_ticks + 1, own.boot_id).is_alive
    assert not PinnedProcess(own.pid, own.start_ticks, "another boot").is_alive


def test_the_root_directory_goes_with_its_last_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is private, locked while in use, and gone when nothing is left in it."""
    root = tmp_path / "labs"
    monkeypatch.setattr(state, "LAB_ROOT", root)
    with locked_root():
        assert root.stat().st_mode & 0o777 == 0o700
        with (root / ".lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (root / "a").mkdir()
    assert root.exists()
    with locked_root():
        (root / "a").rmdir()
    assert not root.exists()


def test_a_lab_is_changed_by_one_at_a_time_while_others_go_on(tmp_path: Path) -> None:
    """Also while another lab is built or removed, which may take long. One that is not up keeps nobody."""

    def is_free(directory: Path) -> bool:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with locked_lab(one), locked_lab(tmp_path / "none"):
        assert (is_free(one), is_free(other)) == (False, True)
    assert is_free(one)


def test_a_root_directory_somebody_else_prepared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/var/tmp is everyone's: a link there would let another user choose where secrets are written."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "labs").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(state, "LAB_ROOT", tmp_path / "labs")
    with refuses(LabError, tmp_path / "labs"), locked_root():
        pass
