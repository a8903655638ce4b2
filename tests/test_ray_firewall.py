"""The nftables script around Ray's ports."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import closing
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

import pytest
from living import living

from edgelink.config import Config, RayConfig
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.process import ports
from edgelink.process.port_ranges import listed, merged, within, without
from edgelink.process.ports import Listener
from edgelink.ray_cluster import command
from edgelink.ray_cluster.firewall import ray_guard
from edgelink.ray_cluster.rendezvous import TORCH_PORTS, closed_ranges, ephemeral_ranges, open_ranges, wanted_ranges

REVOKED = IPv4Address("10.10.0.9")
DRIVER = {"RAY_ADDRESS": "10.10.0.2:6379"}


def script(device: str = "et0", **more: object) -> str:
    return ray_guard(command.firewalled_ports(RayConfig()), [device], **more).script  # type: ignore[arg-type]


def rules(**more: object) -> list[str]:
    return [line.strip().partition(" comment")[0] for line in script(**more).splitlines()]


def test_all_of_rays_ports_are_dropped_beside_lo_and_the_overlay() -> None:
    """Accept lo, then the overlay's device, then drop every port that Ray may listen on."""
    lines = rules()
    lo = lines.index('iifname "lo" accept')
    overlay = lines.index('iifname { "et0" } accept')
    drop = next(i for i, line in enumerate(lines) if line.endswith("drop") and "20001-20007" in line)
    assert lo < overlay < drop
    for port in ("6379", "8265", "20100-20999", "44217", "44227"):
        assert port in lines[drop]


def test_where_a_training_meets_is_closed_to_all_but_robots() -> None:
    """Who may call back a process of the training gets no further into Ray itself."""
    lines = rules(rendezvous_ports=[(29500, 29500), (32768, 60999)], robots=[IPv4Address("172.16.0.2")])
    rays = next(i for i, line in enumerate(lines) if "20001-20007" in line)
    robot = lines.index("ip saddr { 172.16.0.2/32 } accept")
    rendezvous = next(i for i, line in enumerate(lines) if line.startswith("tcp dport { 29500, 32768-60999 }"))
    assert rays < robot < rendezvous
    assert lines[rendezvous].endswith("drop")


def test_networks_and_devices_may_be_let_in() -> None:
    """Before anything is dropped; overlapping networks, which nft refuses, are made one."""
    lines = rules(allow_from=["10.1.0.0/16", "10.1.2.3", "eth1", "fd00::/8"])
    drop = next(i for i, line in enumerate(lines) if line.endswith("drop"))
    for rule in (
        'iifname { "et0", "eth1" } accept',
        "ip saddr { 10.1.0.0/16 } accept",
        "ip6 saddr { fd00::/8 } accept",
    ):
        assert lines.index(rule) < drop


def test_a_device_that_leads_to_others_is_open_to_members_only() -> None:
    """An existing overlay's device may be the one to the Internet; what `ray.allow_from` names is open as ever."""
    lines = rules(members=IPv4Network("172.31.0.0/16"), allow_from=["eth1"])
    assert 'iifname { "et0" } ip saddr 172.31.0.0/16 accept' in lines
    assert 'iifname { "eth1" } accept' in lines
    assert 'iifname { "et0" } accept' not in lines


def test_every_rule_bears_the_mark_and_those_that_close_count() -> None:
    """A table of which somebody took one rule away is not the wanted one."""
    guards = (
        (ray_guard([(1, 2)], ["et0"], rendezvous_ports=[(5, 6)]), 2),
        (rpc_guard(15888), 8),
        (rpc_guard(15888, "et0", OverlayRules(revoked=frozenset({REVOKED}))), 10),
        (rpc_guard(15888, "et0", OverlayRules(IPv4Interface("10.10.0.3/24"), frozenset({REVOKED}))), 13),
        (rpc_guard(15888, "et0", OverlayRules(impostors=frozenset({REVOKED}))), 10),
    )
    for table, rules in guards:
        closing_rules = [line for line in table.script.splitlines() if " drop" in line or " reject" in line]
        assert len(closing_rules) == rules
        assert all(" counter " in line for line in closing_rules)
        inside = [line.strip() for line in table.script.splitlines() if line.startswith("    ")]
        every = [line for line in inside if not line.startswith(("type ", "flags ", "size ", "timeout "))]
        assert all(table.mark in line for line in every)
        assert {line.strip() for line in closing_rules} <= set(every)


def test_ranges_without_others() -> None:
    """Pure arithmetic, at both ends and in the middle."""
    assert without([(10, 20)], [(10, 10), (15, 15), (20, 20), (99, 99)]) == ((11, 14), (16, 19))
    assert without([(10, 10)], [(10, 10)]) == ()
    assert without([(10, 20), (30, 40)], [(1, 12), (18, 33), (40, 90)]) == ((13, 17), (34, 39))
    assert within([(10, 20), (30, 40), (50, 60)], (15, 35)) == ((15, 20), (30, 35))
    assert listed([(30, 40), (10, 10)]) == "10, 30-40"
    assert merged([(10, 20), (15, 30), (31, 40), (50, 50)]) == ((10, 40), (50, 50))


def test_the_kernels_ephemeral_ports_are_closed_unless_told_otherwise(tmp_path: Path) -> None:
    """And torch's own, which are below them; a file that cannot be read means the kernel's default."""
    assert wanted_ranges(Config(), tmp_path) == ((29400, 29400), (29500, 29500), (32768, 60999))
    assert wanted_ranges(Config.model_validate({"firewall": {"rendezvous_ports": []}})) == ()
    chosen = Config.model_validate({"firewall": {"rendezvous_ports": ["40000-40010", 50000]}})
    assert wanted_ranges(chosen) == ((40000, 40010), (50000, 50000))


@pytest.mark.parametrize(
    ("kernels", "reserved", "closed", "left_open"),
    [
        ("32768\t60999", "", "32768-60999", ""),
        ("40000\t50000", "", "40000-50000", ""),
        ("1024\t65535", "", "32768-60999", "1024-29399, 29401-29499, 29501-32767, 61000-65535"),
        ("1024\t65535", "1024-32767,40000,61000-65535", "32768-39999, 40001-60999", ""),
        ("10000\t20000", "", "", "10000-20000"),
        ("nonsense", "nonsense", "32768-60999", ""),
    ],
)
def test_a_tuned_range_closes_no_more_than_an_untuned_one(
    tmp_path: Path, kernels: str, reserved: str, closed: str, left_open: str
) -> None:
    """1024 to 65535 would be nearly every port of the machine; what stays open is told, or asked for by name."""
    (tmp_path / "net/ipv4").mkdir(parents=True)
    (tmp_path / "net/ipv4/ip_local_port_range").write_text(f"{kernels}\n")
    (tmp_path / "net/ipv4/ip_local_reserved_ports").write_text(f"{reserved}\n")
    torch = [(port, port) for port in TORCH_PORTS]
    assert listed(without(wanted_ranges(Config(), tmp_path), torch)) == closed
    assert set(torch) <= set(wanted_ranges(Config(), tmp_path))
    assert listed(open_ranges(Config(), tmp_path)) == left_open
    asked = Config.model_validate({"firewall": {"rendezvous_ports": ["1024-65535"]}})
    assert listed(wanted_ranges(asked, tmp_path)) == "1024-65535"
    assert open_ranges(asked, tmp_path) == ()


def test_this_kernels_own_range_is_read() -> None:
    """From the files of the network namespace."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert ephemeral_ranges()[0][0] >= first
    assert ephemeral_ranges()[-1][1] <= last


def test_services_of_others_in_the_range_stay_open() -> None:
    """sshd on port 50022 is not the training's; Ray's own and a driver are closed."""
    config = Config.model_validate({"firewall": {"rendezvous_ports": ["40000-59999"]}, "relay": {"broker_port": 48883}})
    with living({}) as sshd, living(DRIVER) as driver:
        listening = [
            Listener(50022, sshd, "sshd", 0),
            Listener(50025, driver, "python", 1000),
            Listener(50023, 4321, "ray::Env", 1000),
        ]
        found = closed_ranges(config, lambda pid: pid == 4321, 1000, lambda: listening)
    assert found == ((40000, 48882), (48884, 50021), (50023, 59999))


@pytest.mark.parametrize("ray_uid", [1000, 0, None])
def test_who_cannot_be_told_stays_open_unless_it_is_rays_own_user(ray_uid: int | None) -> None:
    """In a container that may not look at others, sshd and the kernel's NFS are root's; so is Ray at times."""
    config = Config.model_validate({"firewall": {"rendezvous_ports": ["40000-40009"]}})
    gone = 2**22 + 1  # above any process's number
    listening = [
        Listener(40001, None, "", 0),
        Listener(40002, None, "", 1000),
        Listener(40003, None, "", 1001),
        Listener(40004, gone, "?", 0),
    ]
    found = closed_ranges(config, lambda _pid: False, ray_uid, lambda: listening)
    left_open = {port for port in range(40000, 40010) if not any(low <= port <= high for low, high in found)}
    assert left_open == ({40001, 40003, 40004} if ray_uid == 1000 else {40001, 40002, 40003, 40004})


def test_who_listens_is_found_by_the_kernels_table() -> None:
    """A socket on all addresses is listed with its process, one on loopback is not."""
    with closing(socket.create_server(("0.0.0.0", 0))) as wide, closing(socket.create_server(("127.0.0.1", 0))) as own:
        found = {listener.port: listener for listener in ports.listeners()}
        assert found[wide.getsockname()[1]].pid is not None
        assert found[wide.getsockname()[1]].name
        assert found[wide.getsockname()[1]].uid == os.geteuid()
        assert own.getsockname()[1] not in found


@pytest.mark.parametrize("source", ["10.0.0.0/8", "192.168.1.7", "fd00::1", "eth0", "wlp3s0"])
def test_sources_that_are_let_in(source: str) -> None:
    """Addresses, networks and devices."""
    assert Config.model_validate({"ray": {"allow_from": [source]}}).ray.allow_from == (source,)


@pytest.mark.parametrize("source", ["10.0.0.500", "10.0.0.0/33", "fd00::/200", "a device", "x" * 16, ""])
def test_sources_that_make_no_sense(source: str) -> None:
    """A mistyped address is not taken for a device's name."""
    with pytest.raises(ValueError, match="neither address"):
        Config.model_validate({"ray": {"allow_from": [source]}})


@pytest.mark.parametrize("value", [False, {"enabled": False}])
def test_the_firewall_can_be_switched_off_in_two_words(value: object) -> None:
    """YAML reads `off` as false."""
    assert not Config.model_validate({"firewall": value}).firewall.enabled
    assert Config.model_validate({"firewall": True}).firewall.enabled


@pytest.mark.parametrize("text", ["60000-50000", "0-10", "70000", "a-b", [1, 2, 3]])
def test_ranges_that_make_no_sense(text: object) -> None:
    """Refused with the key."""
    with pytest.raises(ValueError, match="rendezvous_ports"):
        Config.model_validate({"firewall": {"rendezvous_ports": [text]}})


def test_easytier_rpc_is_for_root_on_loopback() -> None:
    """The RPC port is closed from outside, the overlay included, and on loopback to all but root."""
    text = rpc_guard(15888).script
    assert 'iifname != "lo" tcp dport 15888 tcp flags' in text
    assert 'oifname "lo" tcp dport 15888 meta skuid != 0 counter reject' in text
    assert "15888" not in script()


def test_what_revoked_nodes_held_is_dropped_both_ways_on_the_overlay_only() -> None:
    """Without any, the table is what it is without revoked nodes."""
    table = rpc_guard(1, "et7", OverlayRules(revoked=frozenset({REVOKED, IPv4Address("10.10.0.3")})))
    lines = [line.strip() for line in table.chains.split("\n")]
    dropped = "{ 10.10.0.3, 10.10.0.9 } counter drop"
    assert any(line.startswith(f'iifname "et7" ip saddr {dropped}') for line in lines)
    assert any(line.startswith(f'oifname "et7" ip daddr {dropped}') for line in lines)
    assert rpc_guard(1, "et7", OverlayRules()) == rpc_guard(1)


def test_the_overlay_stays_on_its_device() -> None:
    """Our own address is reached by loopback; a member's by no other device, in and out."""
    chains = chains_of(OverlayRules(IPv4Interface("10.10.0.3/24")))
    assert chains["to_members"] == ['oifname != "et7" ip daddr 10.10.0.0/24 jump to_member']
    assert chains["from_members"] == [
        'iifname "et7" jump by_overlay',
        'iifname != "et7" ip saddr 10.10.0.0/24 jump from_member',
    ]
    assert chains["by_overlay"] == ["ip saddr != 10.10.0.0/24 jump foreign"]
    for kind, own in (("to_member", 'oifname "lo" ip daddr'), ("from_member", 'iifname "lo" ip saddr')):
        assert chains[kind][0] == f"{own} 10.10.0.3 accept"
    for kind in ("to_member", "from_member", "foreign"):
        assert chains[kind][-2].startswith(f"update @noted_{kind} ")
        assert chains[kind][-1] == "counter drop"


def chains_of(rules: OverlayRules) -> dict[str, list[str]]:
    """The rules of each chain of EasyTier's table, without their comments."""
    found: dict[str, list[str]] = {}
    for block in rpc_guard(1, "et7", rules).chains.split("  chain ")[1:]:
        name, *lines = block.partition("\n  }\n")[0].splitlines()
        found[name.removesuffix(" {")] = [line.strip().partition(" comment")[0] for line in lines]
    return {name: [line for line in lines if not line.startswith("type ")] for name, lines in found.items()}


def test_an_address_that_nobody_has_does_not_come_in() -> None:
    """As far as it is known who has which; as long as it is not, all of the network's do."""
    own, known = IPv4Interface("10.10.0.3/24"), frozenset({IPv4Address("10.10.0.10"), IPv4Address("10.10.0.2")})
    chains = chains_of(OverlayRules(own, usable=known))
    assert chains["by_overlay"] == [
        "ip saddr { 10.10.0.2, 10.10.0.10 } accept",
        "ip saddr != 10.10.0.0/24 jump foreign",
        "meta nfproto ipv4 jump unleased",
    ]
    assert chains["unleased"][-1] == "counter drop"
    for usable in (None, frozenset[IPv4Address]()):
        assert chains_of(OverlayRules(own, usable=usable)) == chains_of(OverlayRules(own))
    assert chains_of(OverlayRules(usable=known)) == chains_of(OverlayRules())


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
