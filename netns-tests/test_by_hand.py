"""The baseline: the guide's own commands, typed on every machine of the lab, do lead to one Ray cluster."""

from __future__ import annotations

import pytest
from by_hand.road import ByHandRoad
from test_lab import traces

from edgelink.lab import Lab


@pytest.mark.long  # of the benchmarks' other side; EdgeLink's own road is test_road
@pytest.mark.timeout(1500)  # three Rays start; see node.sh on busy machines
@pytest.mark.usefixtures("easytier")
def test_the_road_by_hand(network: Lab) -> None:
    """Relay, cloud and two edges behind NAT: three nodes alive in Ray under their overlay IPs, then all is gone."""
    road = ByHandRoad(network)
    road.overlay("relay", "cloud", "edge-1", "edge-2")
    for node in ("cloud", "edge-1", "edge-2"):
        devices = network.exec(node, ["ip", "-br", "-4", "address"], capture=True, check=True).stdout
        assert f"{road.overlay_ip(node)}/24" in devices
    road.head()
    road.edge(1)
    road.edge(2)
    nodes = road.ray_nodes()
    assert all(node["alive"] for node in nodes)
    assert {node["ip"] for node in nodes} == {"10.10.0.2", "10.10.0.11", "10.10.0.12"}
    road.stop("edge-2", "edge-1", "cloud", "relay")
    assert [node.name for node in network.topology.machines if network.pids(node.name)] == []
    network.down()
    assert traces(network) == []
