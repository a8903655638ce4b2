"""EasyTier's configuration by version: what is written, under which name, and what is never written."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from telling import refuses

from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay.config_file import OverlaySpec, argv, environment, render
from edgelink.overlay.easytier_capabilities import Capabilities, parse_version

SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="fleet-a",
    network_secret="s3cr3t-0123456789",
    overlay_ip=IPv4Interface("10.10.0.7/24"),
    peers=("tcp://203.0.113.10:11010", "tcp://relay.example.org:11010"),
    listeners=("tcp://0.0.0.0:11010",),
    device="et0",
    mtu=1380,
    rpc_port=15907,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)
VERSIONS = ["2.6.0", "2.6.4"]


def parsed(version: str, spec: OverlaySpec = SPEC) -> dict[str, Any]:
    return tomllib.loads(render(spec, Capabilities.for_version(version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_version_is_told(version: str) -> None:
    """Address with prefix, explicit listeners, identity, peers and device: the same everywhere."""
    toml = parsed(version)
    assert toml["ipv4"] == "10.10.0.7/24"
    assert toml["dhcp"] is False
    assert toml["hostname"] == "edge-1"
    assert toml["instance_id"] == "0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007"
    assert toml["listeners"] == ["tcp://0.0.0.0:11010"]
    assert toml["network_identity"] == {"network_name": "fleet-a", "network_secret": "s3cr3t-0123456789"}
    assert [peer["uri"] for peer in toml["peer"]] == list(SPEC.peers)
    assert (toml["flags"]["dev_name"], toml["flags"]["mtu"]) == ("et0", 1380)
    assert toml["flags"]["latency_first"] is False


def test_foreign_networks_are_not_relayed() -> None:
    """The whitelist holds our own network only."""
    flags = parsed("2.6.4")["flags"]
    assert flags["relay_network_whitelist"] == "fleet-a"
    assert flags["relay_all_peer_rpc"] is False
    assert flags["private_mode"] is True


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_connects_by_easytiers_proxies(version: str) -> None:
    """Other nodes may switch theirs on; this one takes no TCP from them."""
    flags = parsed(version)["flags"]
    assert (flags["disable_kcp_input"], flags["disable_quic_input"]) == (True, True)


@pytest.mark.parametrize("version, has_upnp", [("2.6.0", False), ("2.6.2", True), ("2.6.4", True)])
def test_nobody_outside_is_asked(version: str, has_upnp: bool) -> None:
    """An empty list of STUN servers means none. UPnP came with 2.6.2, switched on."""
    toml = parsed(version)
    assert (toml["stun_servers"], toml["stun_servers_v6"]) == ([], [])
    assert toml["flags"]["disable_udp_hole_punching"] is True
    assert toml["flags"].get("disable_upnp") == (True if has_upnp else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_holes_are_punched_with_our_own_stun_only(version: str) -> None:
    """The relays' servers are named, one of each first; p2p switched off asks nobody and dials nobody."""
    servers = ("203.0.113.10:3478", "203.0.113.10:3479", "relay-2.example:3478")
    toml = parsed(version, replace(SPEC, stun_servers=servers))
    assert toml["stun_servers"] == ["203.0.113.10:3478", "relay-2.example:3478", "203.0.113.10:3479"]
    assert (toml["flags"]["disable_udp_hole_punching"], toml["flags"]["disable_p2p"]) == (False, False)
    assert toml["flags"]["disable_sym_hole_punching"] is False
    assert toml["flags"]["disable_tcp_hole_punching"] is True  # its STUN servers cannot be chosen

    off = parsed(version, replace(SPEC, stun_servers=servers, p2p=False))
    assert off["stun_servers"] == []
    assert (off["flags"]["disable_udp_hole_punching"], off["flags"]["disable_p2p"]) == (True, True)


def test_other_stun_servers_do_not_cut_a_running_overlay() -> None:
    """They count from the next start on; a person who switches p2p off means it."""
    told = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    assert told.config_hash == SPEC.config_hash
    assert replace(SPEC, p2p=False).config_hash != SPEC.config_hash


def test_ipv6_is_used_only_when_an_address_needs_it() -> None:
    """IPv6 opens ports of its own: on a relay, which everybody dials, and elsewhere where an address wants it."""
    assert parsed("2.6.4")["flags"]["enable_ipv6"] is False
    spec = replace(SPEC, peers=("tcp://[2001:db8::1]:11010",))
    assert parsed("2.6.4", spec)["flags"]["enable_ipv6"] is True
    assert parsed("2.6.4", replace(SPEC, is_relay=True))["flags"]["enable_ipv6"] is True


def test_a_relay_that_runs_is_not_restarted_for_ipv6() -> None:
    assert replace(SPEC, is_relay=True).config_hash == SPEC.config_hash


@pytest.mark.parametrize("secret", ['quo"te', "back\\slash", "$HOME", "tab\tand\nnewline", "ü€😀", "del\x7f", "'''"])
def test_any_secret_survives_toml(secret: str) -> None:
    """A secret is escaped, whatever is in it."""
    assert parsed("2.6.4", replace(SPEC, network_secret=secret))["network_identity"]["network_secret"] == secret


def test_the_secret_is_in_the_file_only() -> None:
    """Neither argv nor environment hold the secret; nor does the repr of a specification."""
    words = argv(Path("/opt/easytier-core"), Path("/x/easytier.toml"), SPEC)
    assert SPEC.network_secret not in " ".join((*words, *environment().values(), repr(SPEC)))


def test_the_command_line() -> None:
    """The RPC address, on loopback, and no expansion of the file; events without the banner that shows the secret."""
    words = argv(Path("core"), Path("f.toml"), SPEC)
    assert words == ("core", "-c", "f.toml", "-r", "127.0.0.1:15907", "--disable-env-parsing")
    assert environment()["RUST_LOG"] == "error,CORE=error,CORE::INSTANCE=info"


def test_the_configuration_hash_tells_configurations_apart() -> None:
    """Every part of the specification counts, so that a changed one is noticed on a running EasyTier."""
    changed = [
        replace(SPEC, network_secret="another-secret-012"),
        replace(SPEC, overlay_ip=IPv4Interface("10.10.0.8/24")),
        replace(SPEC, listeners=()),
        replace(SPEC, mtu=1300),
    ]
    assert len({SPEC.config_hash, replace(SPEC).config_hash}) == 1
    assert len({SPEC.config_hash, *(spec.config_hash for spec in changed)}) == 5
    # As ever: else an upgrade of EdgeLink would restart every EasyTier.
    assert SPEC.config_hash == "4c8e08d7a9124ceaf0496747631b55fa75ee356b1c3d1661188ca41feb13cdd7"
    assert replace(SPEC, p2p=False).config_hash == "1a06f36f3bca54becfa4a2fe721bb112ebf9913bf11f55e081c048e496a95811"
    # Other relays are no reason to cut an overlay: a running EasyTier is told of them.
    assert replace(SPEC, peers=()).config_hash == SPEC.config_hash


@pytest.mark.parametrize(
    "version, has_upnp", [("2.6.0", False), ("2.6.2", True), ("2.6.4-8428a89d", True), ("3.0.0", True)]
)
def test_capabilities_by_version(version: str, has_upnp: bool) -> None:
    """One table says what a version can do; one that nobody knows yet is used like the newest known one."""
    capabilities = Capabilities.for_version(version)
    assert capabilities.upnp_key is has_upnp
    assert capabilities.is_newer_than_known is (version == "3.0.0")


@pytest.mark.parametrize("version", ["2.0.3", "2.5.0", "2.5.9", "1.9.9"])
def test_an_older_version_is_refused_by_name(version: str) -> None:
    """With what is needed, and what to do."""
    needed = ("2.6.0", "2.6.4", "overlay.easytier_core")
    with refuses(EasyTierNotFoundError, version, *needed, reason="EasyTierTooOld"):
        Capabilities.for_version(version)


def test_what_names_no_version_is_refused() -> None:
    """An error with a hint."""
    with pytest.raises(EasyTierNotFoundError, match="no version"):
        parse_version("command not found")
    assert parse_version("easytier-core 2.6.4-8428a89d\n") == (2, 6, 4)
