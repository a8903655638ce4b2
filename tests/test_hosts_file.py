"""Our block in the machine's hosts file."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board
from edgelink.overlay.overlay_names import OverlayNames
from edgelink.process import hosts_file, known_names
from edgelink.process.hosts_file import set_names, with_block
from edgelink.process.known_names import is_known_name
from edgelink.protocol.payloads import Directory
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with
from edgelink.testing.payloads import entry

OWN = "127.0.0.1 localhost\n# mine\n10.10.0.3 mine\n"
CLOUD, EDGE = IPv4Address("10.10.0.2"), IPv4Address("10.10.0.3")
NAMES = {EDGE: "edge-1", CLOUD: "cloud"}


def test_each_address_is_there_in_both_families() -> None:
    """torch asks for the IPv4 address as an IPv6 one; a name cannot be taken for one of the user's own."""
    block = with_block(OWN, NAMES).removeprefix(OWN).splitlines()[1:-1]
    assert block == [
        "10.10.0.2 cloud.edgelink.internal",
        "::ffff:10.10.0.2 cloud.edgelink.internal",
        "10.10.0.3 edge-1.edgelink.internal",
        "::ffff:10.10.0.3 edge-1.edgelink.internal",
    ]


def test_a_short_name_stands_beside_the_long_one_unless_the_machine_has_it() -> None:
    """`mine` is a line of the machine's own; it keeps its meaning."""
    text = with_block(OWN, {CLOUD: "cloud", EDGE: "mine"}, ["cloud", "mine"])
    words = {tuple(line.split()) for line in text.removeprefix(OWN).splitlines()[1:-1]}
    assert {each for each in words if len(each) == 3} == {
        (str(CLOUD), "cloud.edgelink.internal", "cloud"),
        (f"::ffff:{CLOUD}", "cloud.edgelink.internal", "cloud"),
    }
    assert with_block(text, {}) == OWN


LINES = st.lists(st.sampled_from(["", "127.0.0.1 localhost", "# x", "10.10.0.3 mine # EdgeLink", "\tfe80::1 a"]))
CHOICES = st.dictionaries(st.sampled_from([CLOUD, EDGE]), st.sampled_from(["cloud", "edge-1", "other"]))


@given(lines=LINES, before=CHOICES, names=CHOICES)
def test_nothing_else_is_ever_changed(
    lines: list[str], before: dict[IPv4Address, str], names: dict[IPv4Address, str]
) -> None:
    """Whatever was there before; written again, nothing changes; without names, everything is as it was."""
    own = "".join(f"{line}\n" for line in lines)
    once = with_block(with_block(own, before), names)
    assert once == with_block(own, names) == with_block(once, names)
    assert with_block(once, {}) == own


def test_lines_that_were_written_behind_or_into_the_block_stay() -> None:
    """Behind it always; in it only where its end is gone."""
    text = with_block(OWN, NAMES) + "192.0.2.1 added\n"
    assert with_block(text, {}) == OWN + "192.0.2.1 added\n"
    cut = with_block(OWN, {CLOUD: "cloud"}).replace("# END EdgeLink\n", "192.0.2.1 added\n")
    assert with_block(cut, {}).endswith("192.0.2.1 added\n")


def test_the_file_stays_the_same_kind_of_file(tmp_path: Path) -> None:
    """Its mode stays, a link stays one; the same again is no change."""
    target, link = tmp_path / "real", tmp_path / "hosts"
    target.write_text(OWN)
    target.chmod(0o644)
    link.symlink_to(target)
    assert set_names(link, NAMES)
    assert not set_names(link, NAMES)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o644
    assert set_names(link, {})
    assert target.read_text() == OWN


def test_a_full_disk_leaves_a_file_that_cannot_be_replaced_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container: the kernel writes what there is room for, and no more. The lines of others are not lost by it."""
    hosts = tmp_path / "hosts"
    hosts.write_text(with_block(OWN, {CLOUD: "cloud"}) + "192.0.2.1 added-behind\n")
    before, really = hosts.read_bytes(), os.pwrite

    def busy(path: Path, *_arguments: object, **_options: object) -> None:
        raise NotRecordedError("busy") from OSError(16, os.strerror(16))

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        room = len(before) - offset
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, data[:room], offset)

    monkeypatch.setattr(hosts_file, "write_atomic", busy)
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NotRecordedError, match="No space left"):
        set_names(hosts, NAMES)
    assert hosts.read_bytes() == before


def test_a_file_that_cannot_be_replaced_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where it is a mount; also when it gets shorter."""
    hosts = tmp_path / "hosts"
    hosts.write_text(OWN)
    inode = hosts.stat().st_ino

    def busy(path: Path, *_arguments: object, **_options: object) -> None:
        raise NotRecordedError("busy") from OSError(16, os.strerror(16))

    monkeypatch.setattr(hosts_file, "write_atomic", busy)
    assert set_names(hosts, NAMES)
    assert hosts.read_text() == with_block(OWN, NAMES)
    assert set_names(hosts, {})
    assert (hosts.read_text(), hosts.stat().st_ino) == (OWN, inode)


def directory(**names: IPv4Address) -> Directory:
    entries = tuple(entry(name, address, 1) for name, address in names.items())
    return Directory(network_id="n", epoch=1, entries=entries)


def names_in(
    hosts: Path,
    board: Board[Any],
    *,
    declined: bool = False,
    known: Collection[str] = (),
    clock: FakeClock | None = None,
) -> OverlayNames:
    async def is_known_name(name: str, _but: IPv4Address) -> bool:
        return name in known

    return OverlayNames(hosts, board, clock or FakeClock(), declined=declined, is_known_name=is_known_name)


async def test_a_name_that_the_resolver_knows_is_left_to_it(tmp_path: Path) -> None:
    """Whichever came first: it is asked again each hour. A daemon that is started anew goes on with what is there."""
    hosts, clock, known = tmp_path / "hosts", FakeClock(), ["cloud"]
    hosts.write_text(OWN)
    board = board_with(directory=directory(cloud=CLOUD, edge=EDGE))
    names = names_in(hosts, board, known=known, clock=clock)
    assert await names.ask()
    names.follow()
    assert hosts_file.short_names(hosts) == {"edge"}
    again = names_in(hosts, board, known=known, clock=clock)
    again.follow()
    assert hosts_file.short_names(hosts) == {"edge"}
    assert not await names.ask()
    known[:] = ["edge"]
    await clock.advance(3601)
    assert await names.ask()
    names.follow()
    assert hosts_file.short_names(hosts) == {"cloud"}


async def test_a_large_network_has_long_names_only(tmp_path: Path) -> None:
    """Its resolver would be asked without end."""
    hosts = tmp_path / "hosts"
    hosts.write_text(OWN)
    many = directory(**{f"edge-{number}": EDGE + number for number in range(100)})
    names = names_in(hosts, board_with(directory=many))
    assert not await names.ask()
    names.follow()
    assert "edge-99.edgelink.internal" in hosts.read_text()
    assert hosts_file.short_names(hosts) == frozenset()


async def test_the_machines_own_names_are_known() -> None:
    """Whatever its resolver says."""
    for name in ("localhost", socket.gethostname().lower()):
        assert await is_known_name(name, EDGE)


@pytest.mark.parametrize(
    ("answer", "status", "is_known"),
    [
        ("", 2, False),
        (f"{EDGE} STREAM robot\n::ffff:{EDGE} STREAM\n", 0, False),
        (f"{EDGE} STREAM robot\n192.0.2.7 STREAM\n", 0, True),
        ("", 1, True),
    ],
    ids=[
        "nobody knows it",
        "it is ours: systemd-resolved reads the hosts file, too",
        "a machine of theirs",
        "no getent",
    ],
)
async def test_what_the_resolver_says_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, is_known: bool
) -> None:
    getent = tmp_path / "getent"
    getent.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {status}\n")
    getent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(known_names, "_NSSWITCH", tmp_path / "nsswitch.conf")
    (tmp_path / "nsswitch.conf").write_text("hosts: files [NOTFOUND=continue] resolve dns\n")
    assert await is_known_name("robot", EDGE) is is_known


def test_the_names_follow_the_directory(tmp_path: Path) -> None:
    """What is not known changes nothing; who is gone is gone; `host.hosts: leave` takes all out."""
    hosts = tmp_path / "hosts"
    hosts.write_text(OWN)
    board = board_with()
    names = names_in(hosts, board)
    names.follow()
    assert hosts.read_text() == OWN
    board.given(directory=directory(cloud=CLOUD, edge=EDGE))
    names.follow()
    assert hosts.read_text() == with_block(OWN, {CLOUD: "cloud", EDGE: "edge"})
    board.given(directory=directory(cloud=CLOUD))
    names.follow()
    assert hosts.read_text() == with_block(OWN, {CLOUD: "cloud"})
    board.given(directory=None)  # a daemon that was started again, before the relay has told
    names.follow()
    assert hosts.read_text() == with_block(OWN, {CLOUD: "cloud"})
    names_in(hosts, board_with(), declined=True).follow()
    assert hosts.read_text() == OWN


def test_a_hosts_file_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    """It is said, and the node goes on."""
    names = names_in(tmp_path / "none", board_with(directory=directory(cloud=CLOUD)))
    names.follow()
    assert not (tmp_path / "none").exists()
    with pytest.raises(NotRecordedError, match="cannot be read"):
        set_names(tmp_path / "none", NAMES)
