"""EasyTier's configuration by version: what is written, under which name, and what is never written."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay.capabilities import Capabilities, parse_version
from edgelink.overlay.config_file import OverlaySpec, argv, environment, render

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
VERSIONS = ["2.0.3", "2.4.2", "2.4.5", "2.6.4"]


def parsed(version: str, spec: OverlaySpec = SPEC) -> dict[str, Any]:
    return tomllib.loads(render(spec, Capabilities.for_version(version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_version_is_told(version: str) -> None:
    """Address with prefix, explicit listeners, loopback RPC, identity, peers and device: the same everywhere."""
    toml = parsed(version)
    assert toml["ipv4"] == "10.10.0.7/24"
    assert toml["dhcp"] is False
    assert toml["hostname"] == "edge-1"
    assert toml["instance_id"] == "0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007"
    assert toml["listeners"] == ["tcp://0.0.0.0:11010"]
    assert toml["rpc_portal"] == "127.0.0.1:15907"
    assert toml["network_identity"] == {"network_name": "fleet-a", "network_secret": "s3cr3t-0123456789"}
    assert [peer["uri"] for peer in toml["peer"]] == list(SPEC.peers)
    assert (toml["flags"]["dev_name"], toml["flags"]["mtu"]) == ("et0", 1380)
    assert toml["flags"]["latency_first"] is False


@pytest.mark.parametrize(
    "version, name, absent",
    [
        ("2.0.3", "foreign_network_whitelist", "relay_network_whitelist"),
        ("2.4.2", "relay_network_whitelist", "foreign_network_whitelist"),
        ("2.6.4", "relay_network_whitelist", "foreign_network_whitelist"),
    ],
)
def test_foreign_networks_are_not_relayed(version: str, name: str, absent: str) -> None:
    """The whitelist holds our own network only, under the name that the version reads."""
    flags = parsed(version)["flags"]
    assert flags[name] == "fleet-a"
    assert absent not in flags
    assert flags["relay_all_peer_rpc"] is False
    assert ("private_mode" in flags) == (version != "2.0.3")


@pytest.mark.parametrize("version, can", [("2.0.3", False), ("2.4.2", False), ("2.4.5", True), ("2.6.4", True)])
def test_stun_is_switched_off_where_the_version_can(version: str, can: bool) -> None:
    """From 2.4.5 on an empty list means none."""
    toml = parsed(version)
    assert toml.get("stun_servers") == ([] if can else None)
    assert toml["flags"]["disable_udp_hole_punching"] is True
    assert toml["flags"].get("disable_upnp") == (True if version == "2.6.4" else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_holes_are_punched_with_our_own_stun_only(version: str) -> None:
    """The relay's servers are named where a version takes them; p2p switched off asks nobody and dials nobody."""
    servers = ("203.0.113.10:3478", "203.0.113.10:3479")
    toml = parsed(version, replace(SPEC, stun_servers=servers))
    can_be_told = version in ("2.4.5", "2.6.4")
    assert toml.get("stun_servers") == (list(servers) if can_be_told else None)
    assert (toml["flags"]["disable_udp_hole_punching"], toml["flags"]["disable_p2p"]) == (False, False)
    assert toml["flags"].get("disable_sym_hole_punching", False) is False
    assert toml["flags"].get("disable_tcp_hole_punching", True) is True  # its STUN servers cannot be chosen

    off = parsed(version, replace(SPEC, stun_servers=servers, p2p=False))
    assert off.get("stun_servers", []) == []
    assert (off["flags"]["disable_udp_hole_punching"], off["flags"]["disable_p2p"]) == (True, True)


def test_other_stun_servers_do_not_cut_a_running_overlay() -> None:
    """They count from the next start on; a person who switches p2p off means it."""
    told = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    assert told.config_hash == SPEC.config_hash
    assert replace(SPEC, p2p=False).config_hash != SPEC.config_hash


def test_ipv6_is_used_only_when_an_address_needs_it() -> None:
    """IPv6 opens a random port, and kills old versions where the kernel has none; an IPv6 relay still works."""
    assert parsed("2.0.3")["flags"]["enable_ipv6"] is False
    spec = replace(SPEC, peers=("tcp://[2001:db8::1]:11010",))
    assert parsed("2.0.3", spec)["flags"]["enable_ipv6"] is True


@pytest.mark.parametrize("secret", ['quo"te', "back\\slash", "$HOME", "tab\tand\nnewline", "ü€😀", "del\x7f", "'''"])
def test_any_secret_survives_toml(secret: str) -> None:
    """A secret is escaped, whatever is in it."""
    assert parsed("2.0.3", replace(SPEC, network_secret=secret))["network_identity"]["network_secret"] == secret


@pytest.mark.parametrize("version", VERSIONS)
def test_the_secret_is_in_the_file_only(version: str) -> None:
    """Neither argv nor environment hold the secret; nor does the repr of a specification."""
    capabilities = Capabilities.for_version(version)
    words = argv(Path("/opt/easytier-core"), Path("/x/easytier.toml"), SPEC, capabilities)
    assert SPEC.network_secret not in " ".join((*words, *environment(capabilities).values(), repr(SPEC)))


def test_the_command_line_follows_the_version() -> None:
    """Old versions ignore flags next to -c; new ones need the RPC address there, on loopback, and no expansion."""
    old = argv(Path("core"), Path("f.toml"), SPEC, Capabilities.for_version("2.0.3"))
    new = argv(Path("core"), Path("f.toml"), SPEC, Capabilities.for_version("2.6.4"))
    assert old == ("core", "-c", "f.toml")
    assert new == ("core", "-c", "f.toml", "-r", "127.0.0.1:15907", "--disable-env-parsing")
    assert "RUST_LOG" not in environment(Capabilities.for_version("2.0.3"))
    assert "CORE::INSTANCE=info" in environment(Capabilities.for_version("2.6.4"))["RUST_LOG"]


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
    "version, abilities",
    [
        ("2.0.3", {"relay_whitelist": False, "json_cli": False, "netlink_device_setup": False, "quiet_banner": False}),
        ("2.2.4", {"relay_whitelist": True, "json_cli": False, "netlink_device_setup": True, "rpc_flag": False}),
        ("2.3.1", {"json_cli": True, "private_mode": True, "stun_switch": False}),
        ("2.6.4-8428a89d", {"stun_switch": True, "quiet_banner": True, "upnp_key": True, "env_parsing_switch": True}),
        ("3.0.0", {"quiet_banner": True}),
    ],
)
def test_capabilities_by_version(version: str, abilities: dict[str, bool]) -> None:
    """One table says what a version can do."""
    capabilities = Capabilities.for_version(version)
    assert {name: getattr(capabilities, name) for name in abilities} == abilities


def test_versions_that_cannot_be_used_are_refused() -> None:
    """Too old, or no version at all, is an error with a hint."""
    with pytest.raises(EasyTierNotFoundError, match=r"2\.0\.2 is too old"):
        Capabilities.for_version("2.0.2")
    with pytest.raises(EasyTierNotFoundError, match="no version"):
        parse_version("command not found")
    assert parse_version("easytier-core 2.6.4-8428a89d\n") == (2, 6, 4)
