"""What members reach on a node over the overlay, and what stays open for now after an upgrade."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from edgelink.config import Config
from edgelink.config.overlay_allow import Allowed, parse_allowed
from edgelink.errors import NotRecordedError
from edgelink.files import AT_ONCE, Files
from edgelink.overlay.openings import Opening, closing_chains, refuses_early
from edgelink.process.ports import Accepted
from edgelink.protocol.payloads import ClusterSpec, Directory, DirectoryEntry, EdgesOpenTo, Lease, Role
from edgelink.ray_cluster.command import listening_ports
from edgelink.shield.inside import LEFT_OPEN_S, LeftOpenPorts, SeenPorts, allowed_openings, own_openings, ssh_ports
from edgelink.testing import FakeClock
from edgelink.testing.payloads import cluster_spec, entry_of, lease

SEEN = SeenPorts(frozenset({22, 50022}), ((32768, 60999),))
IPS = {name: IPv4Address(f"10.10.0.{number}") for number, name in enumerate(["relay", "cloud", "edge-1", "edge-2"], 1)}
RELAY, HEAD, EDGE, OTHER = IPS.values()
STRANGER = IPv4Address("10.10.0.77")
JUPYTER = Accepted(8888, "jupyter-lab", EDGE)
ANYONE = "anyone"


def held(name: str, role: Role, *, is_relay: bool = False) -> Lease:
    return lease(name, IPS[name], role=role, is_relay=is_relay)


LEASES = {
    "relay": held("relay", Role.RELAY, is_relay=True),
    "head": held("cloud", Role.HEAD),
    "relay and head": held("cloud", Role.HEAD, is_relay=True),
    "edge": held("edge-1", Role.EDGE),
    "another edge": held("edge-2", Role.EDGE),
}
DIRECTORY = Directory(
    network_id="n",
    epoch=1,
    entries=tuple(entry_of(each) for where, each in LEASES.items() if where != "relay and head"),
)


def reached(openings: frozenset[Opening], protocol: str, port: int) -> str | set[IPv4Address]:
    """Who reaches a port."""
    meant = [each for each in openings if each.protocol == protocol and each.first <= port <= each.last]
    if any(each.sources is None for each in meant):
        return ANYONE
    return {address for each in meant for address in each.sources or ()}


RAYS = {("tcp", port): ANYONE for port in (20001, 20006, 20100, 20999)}
TRAININGS = {(protocol, port): ANYONE for protocol in ("tcp", "udp") for port in (29400, 29500, 32768, 60999)}
EVERYWHERE: dict[tuple[str, int], Any] = {("udp", 9749): ANYONE, ("tcp", 8888): set(), ("udp", 7447): set()}
CLOSED_ON_A_RELAY: dict[tuple[str, int], Any] = {
    key: set() for key in (*RAYS, *TRAININGS, ("tcp", 8270), ("tcp", 6379), ("tcp", 11010))
}


@pytest.mark.parametrize(
    ("where", "values", "wanted"),
    [
        ("relay", {}, {**CLOSED_ON_A_RELAY, ("tcp", 8883): ANYONE, ("tcp", 22): {HEAD}, ("tcp", 50022): {HEAD}}),
        ("edge", {}, {**RAYS, **TRAININGS, ("tcp", 6379): set(), ("tcp", 8270): set(), ("tcp", 8883): set()}),
        ("edge", {}, {("tcp", 22): {RELAY, HEAD}, ("tcp", 50022): {RELAY, HEAD}, ("tcp", 50023): ANYONE}),
        ("head", {}, {**RAYS, **TRAININGS, ("tcp", 6379): ANYONE, ("tcp", 8270): ANYONE, ("tcp", 22): {RELAY}}),
        ("head", {"web": {"listen": "loopback"}}, {("tcp", 8270): set()}),
        ("head", {"ray": {"port": 7000}}, {("tcp", 7000): ANYONE, ("tcp", 6379): set()}),
        ("relay and head", {}, {**RAYS, ("tcp", 6379): ANYONE, ("tcp", 8883): ANYONE, ("tcp", 22): {RELAY}}),
        ("edge", {"metrics": {"listen": "overlay"}}, {("tcp", 9747): ANYONE, ("tcp", 9748): set()}),
        ("relay", {"metrics": {"listen": "overlay"}}, {("tcp", 9748): ANYONE, ("tcp", 9747): set()}),
        ("edge", {}, {("tcp", 9747): set(), ("tcp", 15888): set()}),
        ("edge", {"firewall": {"rendezvous_ports": []}}, TRAININGS),
        ("edge", {"firewall": {"rendezvous_ports": ["1500-1600"]}}, {**TRAININGS, ("tcp", 1550): ANYONE}),
    ],
)
def test_what_a_node_answers(where: str, values: dict[str, Any], wanted: dict[tuple[str, int], Any]) -> None:
    config = Config.model_validate(values)
    openings = own_openings(config, LEASES[where], DIRECTORY, None, SEEN)
    assert {key: reached(openings, *key) for key in EVERYWHERE | wanted} == EVERYWHERE | wanted


def test_a_relay_that_became_the_head_answers_for_both() -> None:
    """Its relay's daemon, which may be the one that keeps the rules, still has the lease of a relay."""
    former, now = LEASES["relay"], LEASES["relay and head"]
    entry = DirectoryEntry(**now.model_dump(include=set(DirectoryEntry.model_fields)) | {"node_id": former.node_id})
    directory = DIRECTORY.model_copy(update={"entries": (entry,)})
    assert reached(own_openings(Config(), former, directory, None, SEEN), "tcp", 6379) == ANYONE


def test_every_port_that_ray_is_given_is_open() -> None:
    """A port that is added to Ray's and not here would cost a training."""
    config = Config()
    for is_head, where in ((True, "head"), (False, "edge")):
        openings = own_openings(config, LEASES[where], DIRECTORY, None, SEEN)
        for port in listening_ports(config.ray, is_head=is_head, has_client=is_head).values():
            assert reached(openings, "tcp", port) == ANYONE


def test_nobody_reaches_sshd_while_it_is_not_known_who_is_the_head() -> None:
    openings = own_openings(Config(), LEASES["edge"], None, None, SEEN)
    assert reached(openings, "tcp", 22) == reached(openings, "tcp", 50022) == set()


def spec(edges_open_to: EdgesOpenTo, *members: str) -> ClusterSpec:
    """The head's word."""
    return cluster_spec(LEASES["head"], *(LEASES[name] for name in members), edges_open_to=edges_open_to)


RUNS = ("head", "edge", "another edge")


@pytest.mark.parametrize(
    ("where", "word", "wanted"),
    [
        ("edge", None, ANYONE),
        ("edge", spec("all", *RUNS), ANYONE),
        ("edge", spec("head", *RUNS), {RELAY, HEAD}),
        ("edge", spec("members", *RUNS), {RELAY, HEAD, OTHER}),
        ("edge", spec("members", "head", "edge"), {RELAY, HEAD}),
        ("edge", spec("members", "head", "another edge"), {RELAY, HEAD}),
        ("head", spec("head", *RUNS), ANYONE),
    ],
    ids=["no word", "all", "no run", "in the run", "alone in the run", "not in the run", "the head"],
)
def test_the_head_says_who_reaches_ray_and_a_training_on_an_edge(
    where: str, word: ClusterSpec | None, wanted: object
) -> None:
    """By every protocol; what nodes know of each other by is open to all, and sshd is what it was."""
    openings = own_openings(Config(), LEASES[where], DIRECTORY, word, SEEN)
    for key in [("tcp", 20001), ("tcp", 20500), ("tcp", 40000), ("udp", 40000), ("tcp", 29500)]:
        assert reached(openings, *key) == wanted, key
    assert reached(openings, "udp", 9749) == ANYONE
    assert reached(openings, "tcp", 50022) == {RELAY, HEAD} - {LEASES[where].overlay_ip}


def test_the_head_alone_is_let_in_while_it_is_not_known_who_is_in_the_network() -> None:
    assert reached(own_openings(Config(), LEASES["edge"], None, spec("head", *RUNS), SEEN), "tcp", 20001) == {HEAD}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("8888", Allowed("tcp", 8888, 8888)),
        ("8000-8099", Allowed("tcp", 8000, 8099)),
        ("tcp/8888", Allowed("tcp", 8888, 8888)),
        ("udp/7447  from edge-1", Allowed("udp", 7447, 7447, "edge-1")),
        ("5432 from head", Allowed("tcp", 5432, 5432, "head")),
        ("5432 from 10.10.0.9", Allowed("tcp", 5432, 5432, IPv4Address("10.10.0.9"))),
    ],
)
def test_what_can_be_allowed(text: str, wanted: Allowed) -> None:
    assert parse_allowed(text) == wanted
    assert Config.model_validate({"firewall": {"overlay_allow": [text]}}).firewall.overlay_allow == (text,)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0", "1 to 65535"),
        ("70000", "1 to 65535"),
        ("90-80", "above its last"),
        ("sctp/80", "is not like"),
        ("80 from", "is not like"),
        ("80 from 10.10.0.500", "neither an address"),
        ("80 from Edge_1", "neither an address"),
        (True, "overlay_allow"),
        ("", "is not like"),
    ],
)
def test_what_cannot_be_allowed(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Config.model_validate({"firewall": {"overlay_allow": [value]}})


def test_who_is_meant_by_what_is_allowed() -> None:
    """Roles as in the network's access rules. A node that nobody knows is opened nothing."""
    texts = [1, "2 from edge-2", "3 from edge", "4 from relay", "5 from head", "6 from 10.10.0.77", "7 from edge-9"]
    config = Config.model_validate({"firewall": {"overlay_allow": texts}})
    openings = allowed_openings(config, DIRECTORY)
    assert [reached(openings, "tcp", port) for port in range(1, 9)] == [
        ANYONE,
        {OTHER},
        {EDGE, OTHER},
        {RELAY},
        {HEAD},
        {STRANGER},
        set(),
        set(),
    ]


def rules(*openings: Opening, refuses: bool = True) -> list[str]:
    """The rules of the chain that everything on the overlay's device passes, in order."""
    text = closing_chains("et7", IPv4Interface("10.10.0.3/24"), openings, refuses=refuses)
    chain = text[text.index("chain inside") :].split("\n")[2:]
    return [line.strip().partition(" comment")[0] for line in chain if " comment" in line]


def test_packets_of_connections_and_of_other_devices_pass_first() -> None:
    """The rules cost what runs next to nothing."""
    assert rules(Opening("tcp", 1, 2))[:3] == [
        'iifname != "et7" accept',
        "ip daddr != { 10.10.0.3, 10.10.0.255, 224.0.0.0/4, 255.255.255.255 } counter drop",
        "tcp flags & (fin|syn|rst|ack) != syn accept",
    ]


def test_what_is_closed_answers_at_once_where_the_kernel_can() -> None:
    assert rules()[-2:] == ["meta l4proto tcp counter reject with tcp reset", "counter reject"]
    assert rules(refuses=False)[-1] == "counter drop"
    assert not any("reject" in rule for rule in rules(refuses=False))


@pytest.mark.parametrize(
    ("release", "refuses"),
    [("4.9.337-tegra", False), ("5.4.0-216", False), ("5.9.0", True), ("5.15.148-tegra", True), ("6.1.0-28", True)],
)
def test_old_kernels_only_drop(release: str, refuses: bool) -> None:
    assert refuses_early(release) == refuses


def test_an_opening_for_nobody_opens_nothing() -> None:
    assert rules(Opening("tcp", 8888, 8888, frozenset())) == rules()


def test_an_opening_for_some_is_for_these_only() -> None:
    told = rules(Opening("tcp", 8888, 8889, frozenset({EDGE, HEAD, STRANGER})), Opening("udp", 5, 5, frozenset({EDGE})))
    assert "ip saddr { 10.10.0.2-10.10.0.3, 10.10.0.77 } tcp dport { 8888-8889 } accept" in told
    assert "ip saddr { 10.10.0.3 } udp dport { 5 } accept" in told
    assert len(told) == len(rules()) + 2


class FullDisk(Files):
    """Nothing can be written while it ``is_full``."""

    is_full = True

    def require(self, path: Path, content: bytes | str) -> None:
        if self.is_full:
            raise NotRecordedError("full", hint="")
        super().require(path, content)


async def test_what_is_in_use_stays_open_for_a_week_of_running(tmp_path: Path) -> None:
    """Daemons come and go meanwhile, and no clock on the wall is asked."""
    path, left_s = tmp_path / "left.json", LEFT_OPEN_S
    clock = FakeClock()
    LeftOpenPorts(path, AT_ONCE, clock).set([JUPYTER])
    while left_s > 0:
        clock = FakeClock()  # the machine was started anew
        left_open = LeftOpenPorts(path, AT_ONCE, clock)
        assert left_open.is_known
        assert [each.port for each in left_open.look().ports] == [8888]
        await clock.advance(86400.0 - 1)
        left_open.look()
        left_s -= 86400.0
    await clock.advance(3600.0)
    assert left_open.look().ports == ()
    assert LeftOpenPorts(path, AT_ONCE, clock).look().ports == ()


async def test_the_week_begins_once_it_is_on_disk(tmp_path: Path) -> None:
    """A full disk closes nothing that is in use."""
    clock, files, path = FakeClock(), FullDisk(), tmp_path / "left.json"
    left_open = LeftOpenPorts(path, files, clock)
    left_open.set([JUPYTER])
    await clock.advance(8 * 86400.0)
    assert left_open.look().left_s == LEFT_OPEN_S
    assert not path.exists()
    files.is_full = False
    left_open.look()
    await clock.advance(LEFT_OPEN_S - 10)
    assert [each.port for each in left_open.look().ports] == [8888]
    await clock.advance(20)
    assert left_open.look().ports == ()


def test_a_broken_record_is_none(tmp_path: Path) -> None:
    """The node looks again."""
    path = tmp_path / "left.json"
    path.write_text('{"ports": [{"port"')
    assert not LeftOpenPorts(path, AT_ONCE, FakeClock()).is_known


def test_systemd_listens_for_sshd_where_its_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else systemd listens on is not sshd's."""
    held = {"systemd": frozenset({22, 2222, 9090}), "sshd": frozenset({6010})}
    monkeypatch.setattr(
        "edgelink.process.ports.ports_of_root", lambda programs: {p: held[p] for p in programs & held.keys()}
    )
    assert ssh_ports(tmp_path) == {22, 6010}
    (tmp_path / "sshd_config.d").mkdir()
    (tmp_path / "sshd_config").write_text("#Port 9090\nport 2222\n")
    assert ssh_ports(tmp_path) == {2222, 6010}
