"""Doctor on ufw and firewalld: lines and answers as their programs write them (ufw 0.36.2, firewalld 1.3.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_world import Machine
from telling import Words

from edgelink.doctor import Finding, Verdict
from edgelink.doctor.firewalls import other_firewalls

ALL = "0.0.0.0/0 any 0.0.0.0/0"
OVERLAY = f"allow any any {ALL} in_et0"  # ufw allow in on et0
MEND_RELAY = ("11010/tcp", "8883/tcp", "3478/udp", "3479/udp")


@pytest.fixture
def edge(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def relay(tmp_path: Path) -> Machine:
    """It reaches the Internet by wlan0."""
    return Machine(tmp_path, "bootstrap")


def asked(machine: Machine) -> Finding:
    return machine.ask(other_firewalls)


def with_ufw(machine: Machine, *rules: str, policy: str = "DROP") -> None:
    machine.write("etc/ufw/ufw.conf", "# boot\nENABLED=yes\nLOGLEVEL=low\n")
    machine.write("etc/default/ufw", f'IPV6=yes\nDEFAULT_INPUT_POLICY="{policy}"\n')
    lines = "".join(f"\n### tuple ### {rule}\n-A ufw-user-input -j ACCEPT\n" for rule in rules)
    machine.write("etc/ufw/user.rules", f"*filter\n### RULES ###\n{lines}\n### END RULES ###\n")


WITHOUT_BROKER = (("tcp", 11010), ("udp", 3478), ("udp", 3479))


def ufw_allow(*what: str) -> str:
    return "; ".join(f"ufw allow {each}" for each in what)


def test_a_ufw_in_the_way_is_found_with_the_commands_that_mend_it(tmp_path: Path) -> None:
    """On an edge the overlay's device, on a relay its ports as well; who lets them in passes."""
    edge, relay = Machine(tmp_path / "edge"), Machine(tmp_path / "relay", "bootstrap")
    for machine in (edge, relay):
        with_ufw(machine, f"allow tcp 22 {ALL} in")
    assert (asked(edge).verdict, asked(edge).remedy) == (Verdict.FAILED, "ufw allow in on et0")
    assert asked(relay).remedy == ufw_allow("in on et0", *MEND_RELAY)
    for machine in (edge, relay):
        with_ufw(machine, OVERLAY, f"allow tcp 11010 {ALL} in", f"allow any 8883 {ALL} in")
    assert asked(edge).verdict is Verdict.OK
    assert asked(relay).remedy == ufw_allow("3478/udp", "3479/udp")
    with_ufw(edge, policy="ACCEPT")
    assert asked(edge).verdict is Verdict.OK
    del relay.daemon["broker_pid"]  # a second relay has no broker
    with_ufw(relay, OVERLAY, *(f"allow {protocol} {port} {ALL} in" for protocol, port in WITHOUT_BROKER))
    assert asked(relay).verdict is Verdict.OK


@pytest.mark.parametrize(
    "rules",
    [
        # ufw allow 11010,8883/tcp; ufw allow 3478:3479/udp
        (f"allow tcp 8883,11010 {ALL} in", f"allow udp 3478:3479 {ALL} in"),
        # with a range among them; as many ports as there are of one protocol
        (f"allow tcp 22,8000:9000,11010 {ALL} in", f"allow udp any {ALL} in"),
        # ufw limit 8883/tcp; ufw allow log 11010/tcp; ufw allow … comment 'of the relay'
        (
            f"limit tcp 8883 {ALL} in",
            f"allow_log-all tcp 11010 {ALL} in",
            f"allow udp 3478:3479 {ALL} in comment=6f66207468652072656c6179",
        ),
        # ufw allow "EdgeLink relay", a profile of applications.d
        (
            f"allow tcp 8883,11010 {ALL} EdgeLink%20relay - in",
            f"allow udp 3478:3479 {ALL} EdgeLink%20relay - in",
        ),
        # ufw allow in on wlan0 to any port …; to one of this machine's addresses
        (
            f"allow tcp 8883 {ALL} in_wlan0",
            "allow tcp 11010 198.51.100.1 any 0.0.0.0/0 in",
            f"allow udp 3478:3479 {ALL} in_wlan0",
        ),
        # a refusal of somebody, of another port, of what goes out or through
        (
            "deny any any 0.0.0.0/0 any 203.0.113.9 in",
            f"deny tcp 25 {ALL} in",
            f"reject any any {ALL} out",
            f"route:deny any any {ALL} in_wlan0",
            f"deny tcp 8883 {ALL} in_eth5",
            f"allow any any {ALL} in",
        ),
    ],
)
def test_what_ufw_lets_in_is_let_in(relay: Machine, rules: tuple[str, ...]) -> None:
    """However it was said: lists, ranges, profiles, devices, limits."""
    with_ufw(relay, OVERLAY, *rules)
    assert asked(relay).remedy == ""
    assert asked(relay).verdict is Verdict.OK


@pytest.mark.parametrize(
    "rules",
    [
        (f"route:allow any any {ALL} in_wlan0", f"route:allow tcp 11010 {ALL} in_wlan0!out_et0"),
        (f"allow any any {ALL} out", f"allow any any {ALL} out_wlan0"),
        (f"allow any any {ALL} in_eth5", "allow any any 0.0.0.0/0 any 192.168.0.0/16 in"),
        ("allow tcp 11010 0.0.0.0/0 any 10.0.0.0/8 in", "allow udp 1000:9000 0.0.0.0/0 53 0.0.0.0/0 in"),
        (f"allow esp any {ALL} in", f"allow tcp 3478:3479 {ALL} in", f"allow udp 8883,11010 {ALL} in"),
    ],
)
def test_what_is_for_others_or_goes_through_is_not_let_in(relay: Machine, rules: tuple[str, ...]) -> None:
    """Nodes come from everywhere, by the device that leads to the Internet."""
    with_ufw(relay, *rules)
    assert asked(relay).remedy == ufw_allow("in on et0", *MEND_RELAY)


def test_of_ufws_rules_the_first_that_fits_decides(relay: Machine) -> None:
    """One that refuses is overruled by one before it; where it comes first, the remedy goes before it."""
    allowed = f"allow any any {ALL} in"
    with_ufw(relay, allowed, f"deny tcp 8883 {ALL} in")
    assert asked(relay).verdict is Verdict.OK
    with_ufw(relay, f"deny tcp 8883 {ALL} in", allowed)
    assert asked(relay).remedy == "ufw insert 1 allow 8883/tcp"


def test_the_overlay_is_let_in_whole(edge: Machine) -> None:
    """By its device or by its network; a limit on connections is none that Ray could live with."""
    with_ufw(edge, "allow any any 0.0.0.0/0 any 10.10.0.0/24 in")
    assert asked(edge).verdict is Verdict.OK
    for rule in (f"allow tcp any {ALL} in_et0", f"allow any 22 {ALL} in_et0"):
        with_ufw(edge, rule)
        assert asked(edge).remedy == "ufw allow in on et0"
    with_ufw(edge, f"limit any any {ALL} in_et0")
    assert asked(edge).remedy == "ufw insert 1 allow in on et0"


def test_ufws_rules_are_for_root_alone(edge: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """0640 root: whoever may not read them is told so, and nothing else."""
    with_ufw(edge)
    read_text = Path.read_text

    def refuse(path: Path, *args: str, **options: str) -> str:
        if path.name == "user.rules":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    edge.probes.root = False
    assert asked(edge).verdict is Verdict.SKIPPED
    assert "only root" in asked(edge).message


def test_a_relay_that_is_stopped_is_a_relay(relay: Machine) -> None:
    """By the registry that it keeps."""
    relay.daemons = []
    relay.paths.authority_keys.mkdir()
    with_ufw(relay, OVERLAY)
    assert asked(relay).remedy == ufw_allow(*MEND_RELAY)


def test_no_advice_to_open_a_device_that_is_not_ours(edge: Machine) -> None:
    """An existing overlay's device may be the one to the Internet."""
    with_ufw(edge)
    edge.config["overlay"] = {"kind": "existing", "device": "eth0"}
    assert asked(edge).verdict is Verdict.SKIPPED


def zone(name: str, *, target: str = "default", interfaces: str = "", services: str = "ssh", opened: str = "") -> str:
    return (
        f"{name}{' (active)' if interfaces else ''}\n"
        f"  target: {target}\n  icmp-block-inversion: no\n  interfaces: {interfaces}\n  sources: \n"
        f"  services: {services}\n  ports: {opened}\n  protocols: \n  forward: yes\n  masquerade: no\n"
        "  forward-ports: \n  source-ports: \n  icmp-blocks: \n  rich rules: \n"
        '\trule family="ipv4" port port="9999" protocol="tcp" accept\n'
    )


def with_firewalld(machine: Machine, *zones: str) -> None:
    # `run` takes the spaces at the end of what is printed
    machine.programs |= {
        "firewall-cmd --state": "running",
        "firewall-cmd --get-default-zone": "public",
        "firewall-cmd --list-all-zones": "\n".join(zones).strip(),
        "firewall-cmd --info-service=ssh": "ssh\n  ports: 22/tcp\n  protocols: \n  source-ports: \n  modules: ",
        "firewall-cmd --info-service=mqtt-tls": "mqtt-tls\n  ports: 8883/tcp\n  protocols: \n  includes: \n  helpers: ",
    }


TRUSTED = zone("trusted", target="ACCEPT", interfaces="et0", services="")
MEND_DEVICE = "firewall-cmd --permanent --zone=trusted --change-interface=et0; firewall-cmd --reload"


def test_a_firewalld_in_the_way_is_found(tmp_path: Path) -> None:
    """The overlay's device belongs into a zone that trusts it; a relay's ports into that of the way to the Internet."""
    edge, relay = Machine(tmp_path / "edge"), Machine(tmp_path / "relay", "bootstrap")
    opened = zone("public", opened="3478-3479/udp 8883/tcp 11010/tcp")
    for machine in (edge, relay):
        with_firewalld(machine, opened, zone("trusted", target="ACCEPT", services=""))
        assert asked(machine).verdict is Verdict.FAILED
        assert asked(machine).remedy == MEND_DEVICE
        with_firewalld(machine, opened, TRUSTED)
        assert asked(machine).verdict is Verdict.OK
    with_firewalld(relay, zone("public", services="ssh mqtt-tls", opened="11010/udp 8000-9000/udp"), TRUSTED)
    closed = ("11010/tcp", "3478/udp", "3479/udp")
    commands = [f"firewall-cmd --permanent --zone=public --add-port={port}" for port in closed]
    assert asked(relay).remedy == "; ".join([*commands, "firewall-cmd --reload"])


def test_the_zone_that_counts_is_that_of_the_way_to_the_internet(relay: Machine) -> None:
    """It need not be the default one; one that accepts all needs no ports."""
    opened = zone("work", interfaces="wlan0", opened="8883/tcp 11010/tcp 3478-3479/udp")
    with_firewalld(relay, zone("public", interfaces="eth0"), opened, TRUSTED)
    assert asked(relay).verdict is Verdict.OK
    closed = zone("work", interfaces="wlan0", opened="11010/tcp 3478-3479/udp")
    with_firewalld(relay, zone("public", opened="8883/tcp"), closed, TRUSTED)
    assert asked(relay).remedy.startswith("firewall-cmd --permanent --zone=work --add-port=8883/tcp; ")
    with_firewalld(relay, zone("public"), zone("trusted", target="ACCEPT", interfaces="et0 wlan0", services=""))
    assert asked(relay).verdict is Verdict.OK


@pytest.mark.parametrize(
    "programs",
    [
        {"firewall-cmd --state": "running"},
        {"systemctl is-active firewalld": "active"},
    ],
)
def test_a_firewalld_that_talks_to_root_only(relay: Machine, programs: dict[str, str]) -> None:
    """It asks polkit who may know."""
    relay.programs |= programs
    relay.probes.root = False
    assert asked(relay).verdict is Verdict.SKIPPED
    assert "only root" in asked(relay).message


def test_a_ruleset_that_is_flushed_at_each_reload_is_told(edge: Machine, words: Words) -> None:
    """It does no harm for long."""
    edge.write("etc/nftables.conf", "#!/usr/sbin/nft -f\nflush ruleset\n")
    assert asked(edge).verdict is Verdict.OK
    words(asked(edge).message)
