"""What easytier-cli says: peers, and what is dialled."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from living import children

from edgelink.errors import OverlayError
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.status import Peer, change_connector, connectors, duplicates, parse_json, peers

# `easytier-cli -o json …` of 2.6.4, recorded.
ROWS = [
    {
        "cidr": "10.10.0.2/24",
        "ipv4": "10.10.0.2",
        "hostname": "e1",
        "cost": "Local",
        "lat_ms": "-",
        "loss_rate": "-",
        "rx_bytes": "-",
        "tx_bytes": "-",
        "tunnel_proto": "-",
        "nat_type": "Unknown",
        "id": "4043431569",
        "version": "2.6.4-8428a89d",
    },
    {
        "cidr": "",
        "ipv4": "",
        "hostname": "relay",
        "cost": "p2p",
        "lat_ms": "1.22",
        "loss_rate": "0.0%",
        "rx_bytes": "1.93 kB",
        "tx_bytes": "1.94 kB",
        "tunnel_proto": "udp,tcp",
        "nat_type": "Unknown",
        "id": "741410679",
        "version": "2.6.4-8428a89d",
    },
    {
        "cidr": "10.10.0.1/24",
        "ipv4": "10.10.0.1",
        "hostname": "cloud",
        "cost": "relay(2)",
        "lat_ms": "5.00",
        "loss_rate": "0.0%",
        "rx_bytes": "0 B",
        "tx_bytes": "0 B",
        "tunnel_proto": "",
        "nat_type": "Unknown",
        "id": "1250289697",
        "version": "2.6.4-8428a89d",
    },
]
CONNECTORS = (
    '[{"url":{"url":"tcp://203.0.113.10:11010"},"status":0},{"url":{"url":"udp://[2001:db8::1]:11010"},"status":1}]'
)


def test_the_list_of_peers_is_read() -> None:
    """Address, cost and latency of each row; a relay without an address has none."""
    own, relay, cloud = parse_json(json.dumps(ROWS))
    assert (own.ipv4, own.is_self, own.lat_ms, own.loss, own.tunnel_proto) == (
        IPv4Address("10.10.0.2"),
        True,
        None,
        None,
        "",
    )
    assert (relay.ipv4, relay.is_direct, relay.lat_ms, relay.tunnel_proto) == (None, True, 1.22, "udp,tcp")
    assert (relay.loss, relay.received, relay.sent) == (0.0, "1.93 kB", "1.94 kB")
    assert (cloud.hostname, cloud.cost, cloud.lat_ms, cloud.is_direct) == ("cloud", "relay(2)", 5.0, False)
    assert (cloud.peer_id, cloud.nat_type, cloud.version) == ("1250289697", "Unknown", "2.6.4-8428a89d")


@pytest.mark.parametrize("text, loss", [("1.0%", 0.01), ("100.0%", 1.0), ("-", None), ("", None), ("0.010", None)])
def test_loss_is_a_percentage(text: str, loss: float | None) -> None:
    """What is none is not guessed at."""
    (peer,) = parse_json(json.dumps([ROWS[1] | {"loss_rate": text}]))
    assert peer.loss == loss


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
        return Peer(IPv4Address(ip), hostname, "p2p", 1.0, "tcp", "2.6.4")

    rows = [peer("10.0.0.1", "a"), peer("10.0.0.1", "b"), peer("10.0.0.2", "c"), peer("10.0.0.2", "c")]
    assert duplicates(rows) == {IPv4Address("10.0.0.1"): ["a", "b"]}


def cli_that_says(directory: Path, text: str) -> EasyTierBinary:
    """An EasyTier whose CLI notes its arguments in ``args`` and says this."""
    cli = directory / "easytier-cli"
    cli.write_text(f"#!/bin/sh\necho \"$@\" > {directory}/args\n/bin/cat <<'E'\n{text}\nE\n")
    cli.chmod(0o755)
    return EasyTierBinary(directory / "easytier-core", cli, "2.6.4")


async def test_the_cli_beside_the_core_is_asked_for_json(tmp_path: Path) -> None:
    """A failing one is an error, and so is none."""
    binary = cli_that_says(tmp_path, json.dumps(ROWS))
    assert [row.hostname for row in await peers(binary, 15888)] == ["e1", "relay", "cloud"]
    assert (tmp_path / "args").read_text() == "-p 127.0.0.1:15888 -o json peer\n"

    (tmp_path / "easytier-cli").write_text("#!/bin/sh\necho 'Connection refused' >&2; exit 1\n")
    with pytest.raises(OverlayError, match="Connection refused"):
        await peers(binary, 15888)
    with pytest.raises(OverlayError, match="no easytier-cli"):
        await peers(EasyTierBinary(tmp_path / "easytier-core", None, "2.6.4"), 15888)


async def test_what_is_dialled_is_read_and_changed(tmp_path: Path) -> None:
    """Connected or not."""
    binary = cli_that_says(tmp_path, CONNECTORS)
    assert await connectors(binary, 15888) == ["tcp://203.0.113.10:11010", "udp://[2001:db8::1]:11010"]
    await change_connector(binary, 15888, "add", "tcp://203.0.113.11:11010")
    assert (tmp_path / "args").read_text() == "-p 127.0.0.1:15888 -o json connector add tcp://203.0.113.11:11010\n"


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
