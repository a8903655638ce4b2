"""Keeping EasyTier from public STUN servers: the names, the generated files, and what is said where it cannot be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edgelink.overlay.stun import (
    NAMES,
    NOWHERE,
    PrivateHosts,
    files_first,
    leading_somewhere,
    one_of_each_relay_first,
    render_hosts,
)

OWN = b"127.0.0.1 localhost\n198.51.100.7 relay.example  # ours\n"


@pytest.fixture
def hosts(tmp_path: Path) -> PrivateHosts:
    for name in ("state", "etc", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "hosts").write_bytes(OWN)
    (tmp_path / "etc" / "nsswitch.conf").write_bytes(b"passwd: files\nhosts: files dns\n")
    return PrivateHosts(tmp_path / "state", etc=tmp_path / "etc", run=tmp_path / "run")


def test_the_machines_own_names_stay() -> None:
    """The private file is the machine's own with the STUN names before it, one a line."""
    content = render_hosts(OWN)
    assert content.endswith(OWN)
    assert leading_somewhere(content) == []
    assert max(map(len, content.splitlines())) < 100


def test_that_files_cannot_be_put_in_place_matters_while_names_lead_somewhere(
    hosts: PrivateHosts, tmp_path: Path
) -> None:
    hosts.prepare()
    assert hosts.give_up()
    (tmp_path / "etc" / "hosts").write_text("".join(f"0.0.0.0 {name}\n" for name in NAMES))
    assert not hosts.give_up()


def test_each_relay_is_asked_first() -> None:
    """EasyTier always asks the first two servers; the order of a relay's own stays."""
    servers = ("relay.example:3478", "relay.example:3479", "198.51.100.7:3478", "198.51.100.7:3479")
    assert one_of_each_relay_first(servers) == (
        "relay.example:3478",
        "198.51.100.7:3478",
        "relay.example:3479",
        "198.51.100.7:3479",
    )


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
