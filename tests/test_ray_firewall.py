"""The nftables script around Ray's ports."""

from __future__ import annotations

import itertools

from edgelink.config import RayConfig
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.ray_cluster import command
from edgelink.ray_cluster.firewall import ray_guard


def script(device: str = "et0") -> str:
    return ray_guard(command.firewalled_ports(RayConfig()), [device]).script


def test_all_of_rays_ports_are_dropped_beside_lo_and_the_overlay() -> None:
    """Accept lo, then the overlay's device, then drop every port that Ray may listen on."""
    lines = [line.strip() for line in script().splitlines()]
    lo = next(i for i, line in enumerate(lines) if line.startswith('iifname "lo" accept'))
    overlay = lines.index('iifname { "et0" } accept')
    drop = next(i for i, line in enumerate(lines) if line.endswith("drop") and "20001-20007" in line)
    assert lo < overlay < drop
    for port in ("6379", "8265", "20100-20999", "44217", "44227"):
        assert port in lines[drop]


def test_easytier_rpc_is_for_root_on_loopback() -> None:
    """The RPC port is closed from outside, the overlay included, and on loopback to all but root."""
    text = rpc_guard(15888).script
    assert 'iifname != "lo" tcp dport 15888 tcp flags' in text
    assert 'oifname "lo" tcp dport 15888 meta skuid != 0 reject' in text
    assert "15888" not in script()


def test_running_the_script_twice_is_harmless() -> None:
    """The table is made, deleted and made anew in one transaction."""
    assert script().startswith("table inet edgelink\ndelete table inet edgelink\ntable inet edgelink {")


def test_another_configuration_is_another_table() -> None:
    """The mark inside tells whether the table in the kernel is the wanted one."""
    marks = {text.partition('comment "')[2].partition('"')[0] for text in (script(), script("et1"), script("et1"))}
    assert len(marks) == 2


def test_adjacent_ports_are_merged_into_ranges() -> None:
    """nft refuses overlapping intervals; a GCS port inside a range is no second element."""
    assert command.firewalled_ports(RayConfig(), gcs_port=20500) == command.firewalled_ports(RayConfig())
    ranges = command.firewalled_ports(RayConfig())
    assert all(first[1] + 1 < second[0] for first, second in itertools.pairwise(ranges))
