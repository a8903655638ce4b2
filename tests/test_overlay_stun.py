"""Keeping EasyTier from public STUN servers: the names, the generated files, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from edgelink.overlay.capabilities import Capabilities
from edgelink.overlay.stun import (
    NAMES,
    NOWHERE,
    UNANSWERED,
    PrivateHosts,
    addresses_of,
    files_first,
    is_asked_by,
    leading_somewhere,
    render_hosts,
    usable_by,
)

OWN = b"127.0.0.1 localhost\n198.51.100.7 relay.example  # ours\n"


@pytest.fixture
def hosts(tmp_path: Path) -> PrivateHosts:
    for name in ("state", "etc", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "hosts").write_bytes(OWN)
    (tmp_path / "etc" / "nsswitch.conf").write_bytes(b"passwd: files\nhosts: files dns\n")
    return PrivateHosts(tmp_path / "state", etc=tmp_path / "etc", run=tmp_path / "run")


@pytest.mark.parametrize(
    "version, is_asked",
    [("2.0.3", True), ("2.2.4", True), ("2.4.4", True), ("2.4.5", False), ("2.5.0", True), ("2.6.4", True)],
)
def test_only_versions_without_a_switch_need_it(version: str, is_asked: bool) -> None:
    """UDP servers can be switched off from 2.4.5 on, the TCP servers of 2.5.0 and later cannot."""
    assert is_asked_by(Capabilities.for_version(version)) is is_asked


def test_the_machines_own_names_stay() -> None:
    """The private file is the machine's own with the STUN names before it, one a line."""
    content = render_hosts(OWN)
    assert content.endswith(OWN)
    assert leading_somewhere(content) == []
    assert max(map(len, content.splitlines())) < 100


def test_the_first_names_lead_to_our_servers_and_the_others_nowhere() -> None:
    """EasyTier asks its first two and one more by chance; lines keep their place when addresses change."""
    content = render_hosts(OWN, ("203.0.113.10", "198.51.100.7"))
    lines = [line.split() for line in content.decode().splitlines()[1:]]
    assert lines[:3] == [["203.0.113.10", NAMES[0]], ["198.51.100.7", NAMES[1]], [NOWHERE, NAMES[2]]]
    assert {address for address, name in lines[2 : len(NAMES)]} == {NOWHERE}
    assert len(content) == len(render_hosts(OWN, (UNANSWERED,))) == len(render_hosts(OWN))


def test_a_successor_knows_where_the_names_lead(hosts: PrivateHosts, tmp_path: Path) -> None:
    """The file is the record; where none is needed, there is none."""
    assert hosts.leading_to() == ()
    (tmp_path / "etc" / "hosts").write_text("".join(f"0.0.0.0 {name}\n" for name in NAMES))
    assert hosts.prepare(("203.0.113.10",)) != ()
    successor = PrivateHosts(tmp_path / "state", etc=tmp_path / "etc", run=tmp_path / "run")
    assert successor.leading_to() == ("203.0.113.10",)
    assert successor.prepare() == ()
    assert successor.leading_to() == ()


def test_where_files_cannot_be_put_in_place_nothing_leads_to_our_servers(hosts: PrivateHosts, tmp_path: Path) -> None:
    """And it matters only while names lead somewhere else."""
    hosts.prepare(("203.0.113.10",))
    assert hosts.give_up()
    assert hosts.leading_to() == ()
    (tmp_path / "etc" / "hosts").write_text("".join(f"0.0.0.0 {name}\n" for name in NAMES))
    assert not hosts.give_up()


@pytest.mark.parametrize(
    "version, usable",
    [
        ("2.0.3", ("relay.example:3478", "198.51.100.7:3478")),
        ("2.4.4", ("relay.example:3478", "198.51.100.7:3478")),
        ("2.4.5", ("relay.example:3478", "198.51.100.7:3478", "relay.example:3479")),
    ],
)
def test_each_relay_is_asked_first_and_by_old_versions_at_one_port_only(version: str, usable: tuple[str, ...]) -> None:
    """EasyTier always asks the first two. A hosts file says nothing of ports, and theirs is 3478."""
    servers = ("relay.example:3478", "relay.example:3479", "198.51.100.7:3478")
    assert usable_by(servers, Capabilities.for_version(version)) == usable


async def test_a_name_that_does_not_resolve_leads_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to a refusal: 2.0.3 would try again at once for ever. Of many servers, two are asked."""

    async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host == "unknown.example":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    assert await addresses_of(("unknown.example:3478",)) == (UNANSWERED,)
    servers = ["unknown.example:3478", "203.0.113.10:3478", "203.0.113.10:3478", "198.51.100.7:3478", "192.0.2.1:3478"]
    assert await addresses_of(servers) == ("203.0.113.10", "198.51.100.7")


@pytest.mark.parametrize("host", ["relay..example", "x" * 64 + ".example"])
async def test_what_can_be_no_name_leads_to_nobody(host: str) -> None:
    assert await addresses_of((f"{host}:3478", "203.0.113.10:3478")) == ("203.0.113.10",)


def test_nothing_is_ever_sent_to_where_the_names_lead() -> None:
    """The kernel refuses UDP and TCP to it at once, so no packet leaves and no server on this machine is found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, pytest.raises(OSError, match=r"denied|unreachable"):
        udp.sendto(b"stun", (NOWHERE, 3478))
    with socket.socket() as tcp, pytest.raises(OSError, match="unreachable"):
        tcp.connect((NOWHERE, 3478))


def test_a_machine_whose_hosts_file_has_the_names_needs_nothing(hosts: PrivateHosts, tmp_path: Path) -> None:
    """A container's own hosts file (`extra_hosts`) does where mounting is not allowed; one name short does not."""
    own = tmp_path / "etc" / "hosts"
    own.write_text("".join(f"127.0.0.1\t{name.upper()} alias # x\n" for name in NAMES))
    assert hosts.prepare() == ()
    own.write_text("".join(f"0.0.0.0 {name}\n" for name in NAMES[1:]) + f"# 0.0.0.0 {NAMES[0]}\n1.2.3.4 {NAMES[0]}\n")
    assert leading_somewhere(own.read_bytes()) == [NAMES[0]]
    assert [file.target for file in hosts.prepare()] == [own]


@pytest.mark.parametrize(
    "before, after",
    [
        ("files dns", None),
        ("files [NOTFOUND=return] dns", None),
        (
            "mymachines resolve [!UNAVAIL=return] files myhostname dns",
            "files mymachines resolve [!UNAVAIL=return] myhostname dns",
        ),
        ("dns [!UNAVAIL=return] files [NOTFOUND=return]", "files dns [!UNAVAIL=return]"),
        ("resolve", "files resolve"),
    ],
)
def test_the_hosts_file_is_asked_first(before: str, after: str | None) -> None:
    """Where systemd-resolved or DNS come before the hosts file, EasyTier gets an order of its own; the rest stays."""
    text = "passwd: files\nhosts:      {}\nnetworks: files\n"
    answer = files_first(text.format(before).encode())
    assert answer == (None if after is None else text.replace("      ", " ").format(after).encode())
    assert files_first(b"passwd: files\n") is None


def test_a_cache_daemon_is_hidden(hosts: PrivateHosts, tmp_path: Path) -> None:
    """nscd would answer with the machine's hosts file, not with EasyTier's."""
    (tmp_path / "run" / "nscd").mkdir()
    assert len(hosts.prepare()) == 1
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(tmp_path / "run" / "nscd", os.O_RDONLY)  # its path may be too long for a socket
        server.bind(f"/proc/self/fd/{directory}/socket")
        os.close(directory)
        assert hosts.prepare()[1] == (Path(os.devnull), tmp_path / "run" / "nscd" / "socket")


def test_the_files_follow_the_machines_in_place(hosts: PrivateHosts, tmp_path: Path) -> None:
    """A changed hosts file reaches an EasyTier that has ours mounted: the same file, with new content."""
    (file,) = hosts.prepare()
    before = file.source.stat()
    hosts.prepare()
    assert file.source.stat().st_mtime_ns == before.st_mtime_ns, "nothing is written without need"
    (tmp_path / "etc" / "hosts").write_text("192.0.2.1 x\n")
    hosts.prepare()
    assert file.source.read_bytes() == render_hosts(b"192.0.2.1 x\n")
    assert file.source.stat().st_ino == before.st_ino
    assert file.source.stat().st_mode & 0o777 == 0o644
