"""EasyTier's peer list, in both of its forms."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from living import children

from edgelink.errors import OverlayError
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.status import Peer, duplicates, parse_json, parse_table, peers

TABLE = """\
┌──────────────┬──────────┬──────────┬────────┬───────────┬──────────┬──────────┬──────────────┬──────────┬────────────┬─────────┐
│ ipv4         │ hostname │ cost     │ lat_ms │ loss_rate │ rx_bytes │ tx_bytes │ tunnel_proto │ nat_type │ id         │ version │
├──────────────┼──────────┼──────────┼────────┼───────────┼──────────┼──────────┼──────────────┼──────────┼────────────┼─────────┤
│ 10.10.0.2/24 │ edge-1   │ Local    │ -      │ -         │ -        │ -        │ -            │ Unknown  │ 3484727322 │ 2.0.3   │
├──────────────┼──────────┼──────────┼────────┼───────────┼──────────┼──────────┼──────────────┼──────────┼────────────┼─────────┤
│ 10.10.0.3/24 │ edge-2   │ relay(2) │ 0.104  │ 0.000     │ 834 B    │ 881 B    │ tcp          │ Unknown  │ 677101018  │ 2.0.3   │
├──────────────┼──────────┼──────────┼────────┼───────────┼──────────┼──────────┼──────────────┼──────────┼────────────┼─────────┤
│              │ relay    │ p2p      │ 0.080  │ 0.000     │ 1.99 kB  │ 2.23 kB  │ tcp          │ Unknown  │ 320155659  │ 2.0.3   │
└──────────────┴──────────┴──────────┴────────┴───────────┴──────────┴──────────┴──────────────┴──────────┴────────────┴─────────┘
"""  # noqa: E501
ROWS = [
    {
        "ipv4": "10.10.0.2",
        "hostname": "e1",
        "cost": "Local",
        "lat_ms": "-",
        "tunnel_proto": "-",
        "id": "4",
        "version": "2.6.4",
    },
    {"ipv4": "", "hostname": "relay", "cost": "p2p", "lat_ms": "1.22", "tunnel_proto": "udp,tcp", "version": "2.6.4"},
]


def test_the_table_of_old_versions_is_read_by_its_header() -> None:
    """Address, cost and latency of each row; a relay without an address has none."""
    own, edge, relay = parse_table(TABLE)
    assert (own.ipv4, own.is_self, own.lat_ms, own.tunnel_proto) == (IPv4Address("10.10.0.2"), True, None, "")
    assert (edge.hostname, edge.cost, edge.lat_ms, edge.is_direct) == ("edge-2", "relay(2)", 0.104, False)
    assert (relay.ipv4, relay.is_direct, relay.version, relay.tunnel_proto) == (None, True, "2.0.3", "tcp")


def test_renamed_and_moved_columns_are_found() -> None:
    """Columns are known by name, not by place."""
    (peer,) = parse_table("│ hostname │ lat(ms) │ ipv4 │\n│ e9 │ 7 │ 10.0.0.9/24 │\n")
    assert (peer.hostname, peer.lat_ms, peer.ipv4) == ("e9", 7.0, IPv4Address("10.0.0.9"))
    assert parse_table("nothing here") == []


@pytest.mark.parametrize("name", ["e│p2p│²│", "e │ Local │ 1 │ 0", "x\n│ junk │"])
def test_a_name_with_lines_of_the_table_in_it_speaks_for_nobody_else(name: str) -> None:
    """A node may run an EasyTier that gives itself any name: it ends no daemon, is nobody else, stays in the list."""
    found = parse_table(TABLE.replace("edge-2  ", name))
    known = {peer.ipv4: peer for peer in found if peer.ipv4 is not None}
    assert set(known) == {IPv4Address("10.10.0.2"), IPv4Address("10.10.0.3")}
    assert known[IPv4Address("10.10.0.2")].is_self
    assert not known[IPv4Address("10.10.0.3")].is_self
    assert [peer.hostname for peer in found if peer.ipv4 is None and peer.is_direct] == ["relay"]


def test_json_of_newer_versions() -> None:
    """From 2.3.0 on the rows are JSON."""
    own, relay = parse_json(json.dumps(ROWS))
    assert (own.is_self, own.lat_ms) == (True, None)
    assert (relay.ipv4, relay.lat_ms, relay.tunnel_proto) == (None, 1.22, "udp,tcp")


def test_a_name_commands_no_terminal() -> None:
    """Whoever is in the overlay chooses what its EasyTier is called; `edgelink status` shows it."""
    (peer,) = parse_json(json.dumps([ROWS[1] | {"hostname": "relay\x1b]52;c;eA==\x07"}]))
    assert peer.hostname == "relay�]52;c;eA==�"


@pytest.mark.parametrize("text", ["", "no running instances found", '{"a": 1}', "[1]", "3"])
def test_an_unexpected_answer_is_an_error(text: str) -> None:
    """What is no peer list is reported, not guessed at."""
    with pytest.raises(OverlayError, match="unexpected answer"):
        parse_json(text)


def test_two_hosts_with_one_address_are_told() -> None:
    """A cloned robot shows; the ghost row of a node that restarted does not."""

    def peer(ip: str, hostname: str) -> Peer:
        return Peer(IPv4Address(ip), hostname, "p2p", 1.0, "tcp", "2.0.3")

    rows = [peer("10.0.0.1", "a"), peer("10.0.0.1", "b"), peer("10.0.0.2", "c"), peer("10.0.0.2", "c")]
    assert duplicates(rows) == {IPv4Address("10.0.0.1"): ["a", "b"]}


async def test_the_cli_is_asked_in_its_own_dialect(tmp_path: Path) -> None:
    """peers() runs the CLI beside the core, with JSON only where it knows it; a failing one is an error."""
    cli = tmp_path / "easytier-cli"
    cli.write_text("#!/bin/sh\n" + f'echo "$@" > {tmp_path}/args\n' + f"/bin/cat <<'E'\n{TABLE}E\n")
    cli.chmod(0o755)
    rows = await peers(EasyTierBinary(tmp_path / "easytier-core", cli, "2.0.3"), 15888)
    assert [row.hostname for row in rows] == ["edge-1", "edge-2", "relay"]
    assert (tmp_path / "args").read_text() == "-p 127.0.0.1:15888 peer\n"

    cli.write_text("#!/bin/sh\necho 'Connection refused' >&2; exit 1\n")
    with pytest.raises(OverlayError, match="Connection refused"):
        await peers(EasyTierBinary(tmp_path / "easytier-core", cli, "2.6.4"), 15888)
    with pytest.raises(OverlayError, match="no easytier-cli"):
        await peers(EasyTierBinary(tmp_path / "easytier-core", None, "2.6.4"), 15888)


@pytest.mark.parametrize("how", ["removed", "not to be executed"])
async def test_a_cli_that_cannot_be_run_is_an_error_of_the_overlay(tmp_path: Path, how: str) -> None:
    """EasyTier is upgraded by hand, say: whoever asks now and then is not to end of it."""
    cli = tmp_path / "easytier-cli"
    if how != "removed":
        cli.write_text("#!/bin/sh\n")
    with pytest.raises(OverlayError, match="easytier-cli cannot be run: ") as caught:
        await peers(EasyTierBinary(tmp_path / "easytier-core", cli, "2.6.4"), 15888)
    assert caught.value.condition_reason == "CliFailed"


async def test_a_cli_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a foreign program holds EasyTier's port: an error, and no process is left; nor of one that ends late."""
    monkeypatch.setattr("edgelink.overlay.status._TIMEOUT_S", 0.3)
    cli, before = tmp_path / "easytier-cli", children()
    for ends in ("exec sleep 1000", "sleep 0.3; exit 1"):
        cli.write_text(f"#!/bin/sh\n{ends}\n")
        cli.chmod(0o755)
        with pytest.raises(OverlayError) as caught:
            await peers(EasyTierBinary(tmp_path / "easytier-core", cli, "2.6.4"), 15888)
        assert caught.value.condition_reason in ("CliTimedOut", "CliFailed")
        assert children() <= before
