"""The programs over EasyTier's wheel: what they read, say and answer, and that they take no more than they need."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from edgelink.easytier_wheel import cli
from edgelink.easytier_wheel.answers import answer
from edgelink.easytier_wheel.arguments import parse
from edgelink.easytier_wheel.core import Rpc
from edgelink.easytier_wheel.events import lines_of
from edgelink.overlay.easytier_events import Refusal, last_refusal
from edgelink.overlay.status import parse_json, parse_next_hops

FILE = """
hostname = "edge-1"
[network_identity]
network_name = "lab"
network_secret = "very secret"
[[peer]]
uri = "tcp://203.0.113.10:11010"
[flags]
dev_name = "et0"
mtu = 1300
"""
NOW = datetime(2026, 11, 21, 7, 6, 35, tzinfo=UTC)


def test_the_command_line_wins_over_the_file() -> None:
    """What both say is the command line's, what one says stays, and peers add up."""
    words = ["-c", "x.toml", "-r", "127.0.0.1:15888", "--disable-env-parsing", "--hostname", "other", "--mtu", "1200"]
    arguments = parse([*words, "-p", "udp://203.0.113.11:11010", "--no-listener"], "")
    config = arguments.config(FILE)

    assert (arguments.config_file, arguments.rpc_portal) == ("x.toml", "127.0.0.1:15888")
    assert config["hostname"] == "other"
    assert config["network_identity"] == {"network_name": "lab", "network_secret": "very secret"}
    assert [peer["uri"] for peer in config["peer"]] == ["tcp://203.0.113.10:11010", "udp://203.0.113.11:11010"]
    assert config["flags"] == {"dev_name": "et0", "mtu": 1200}
    assert config["listeners"] == []


@pytest.mark.parametrize(
    "words, flags",
    [
        (["--private-mode", "true", "--disable-p2p"], {"private_mode": True, "disable_p2p": True}),
        (["--multi-thread=false", "--disable-ipv6"], {"multi_thread": False, "enable_ipv6": False}),
    ],
)
def test_switches_are_written_in_each_of_their_ways(words: list[str], flags: dict[str, bool]) -> None:
    """With a value, without one, and those that mean the opposite of their key."""
    assert parse(words, "").config("")["flags"] == flags


def test_without_a_file_it_listens_as_easytier_does() -> None:
    """On its default port; a port alone is one of TCP and one of UDP."""
    assert parse([], "").config("")["listeners"] == ["tcp://0.0.0.0:11010", "udp://0.0.0.0:11010"]
    assert parse(["-l", "11020"], "").config("")["listeners"] == ["tcp://0.0.0.0:11020", "udp://0.0.0.0:11020"]


def test_a_file_that_cannot_be_read_is_not_shown() -> None:
    """It has the network's secret in it."""
    with pytest.raises(ValueError, match="no TOML") as caught:
        parse(["-c", "x.toml"], "").config(FILE + "[")
    assert "very secret" not in repr(caught.value)


def test_an_unknown_flag_is_refused_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """As EasyTier does it."""
    with pytest.raises(SystemExit) as caught:
        parse(["--no-such-flag"], "")
    assert caught.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def connection(kind: str, latency_us: int) -> dict[str, Any]:
    tunnel = {"tunnel_type": kind, "local_addr": {"url": f"{kind}://192.168.11.2:4000"}, "remote_addr": {"url": "x"}}
    stats = {"latency_us": latency_us, "rx_bytes": 1500, "tx_bytes": 20}
    return {"peer_id": 7, "my_peer_id": 1, "tunnel": tunnel, "stats": stats, "loss_rate": 0.01}


def address(number: int) -> dict[str, Any]:
    return {"address": {"addr": (10 << 24) + (10 << 16) + number}, "network_length": 24}


class Node:
    """A node with a relay as its neighbour (peer 7), and cloud (peer 8) behind it."""

    def __init__(self) -> None:
        self.dialled = ["tcp://203.0.113.10:11010"]

    def node_info(self) -> dict[str, Any]:
        return {"peer_id": 1, "hostname": "edge-1", "ipv4_addr": "10.10.0.3/24", "version": "2.6.4-81487c36"}

    def peers(self) -> list[dict[str, Any]]:
        return [{"peer_id": 7, "conns": [connection("tcp", 2500), connection("udp", 1500)]}]

    def routes(self) -> list[dict[str, Any]]:
        relay = {"peer_id": 7, "hostname": "relay", "ipv4_addr": address(1), "cost": 1, "next_hop_peer_id": 7}
        cloud = {"peer_id": 8, "hostname": "cloud", "ipv4_addr": address(2), "cost": 2, "next_hop_peer_id": 7}
        return [relay, cloud | {"stun_info": {"udp_nat_type": 3}, "path_latency_latency_first": 4}]

    def connectors(self) -> list[dict[str, Any]]:
        return [{"url": url, "status": "Connected"} for url in self.dialled]

    def add_connector(self, url: str) -> None:
        self.dialled.append(url)

    def remove_connector(self, url: str) -> bool:
        known = url in self.dialled
        self.dialled = [one for one in self.dialled if one != url]
        return known


def test_peers_are_told_as_edgelink_reads_them() -> None:
    """Ourselves first, then neighbours and those behind them."""
    own, relay, cloud = parse_json(json.dumps(answer(Node(), ["peer"])))

    assert (own.is_self, str(own.ipv4), own.hostname, own.lat_ms) == (True, "10.10.0.3", "edge-1", None)
    assert (relay.is_direct, relay.lat_ms, relay.tunnel_proto, relay.loss) == (True, 1.5, "tcp,udp", 0.01)
    assert (relay.received, relay.sent, relay.peer_id) == ("3.00 kB", "40 B", "7")
    assert (cloud.cost, str(cloud.ipv4), cloud.lat_ms, cloud.nat_type) == ("relay(2)", "10.10.0.2", 4.0, "FullCone")


def test_routes_name_the_next_hop() -> None:
    """Of who is reached through another; neighbours are direct."""
    hops = parse_next_hops(json.dumps(answer(Node(), ["route"])))
    assert {str(ip): hop for ip, hop in hops.items()} == {"10.10.0.2": "relay"}


def test_connections_are_told_with_their_peer() -> None:
    """A peer that is reached through another has none."""
    relay, cloud = answer(Node(), ["peer"], is_verbose=True)
    assert [conn["tunnel"]["tunnel_type"] for conn in relay["peer"]["conns"]] == ["tcp", "udp"]
    assert cloud["peer"] is None


def test_connectors_are_changed_and_told() -> None:
    """Added, listed, removed; one that is not there is an error."""
    node = Node()
    answer(node, ["connector", "add", "tcp://203.0.113.11:11010"])
    assert [row["url"]["url"] for row in answer(node, ["connector"])] == node.dialled
    answer(node, ["connector", "remove", "tcp://203.0.113.10:11010"])
    assert node.dialled == ["tcp://203.0.113.11:11010"]
    with pytest.raises(ValueError, match="not found"):
        answer(node, ["connector", "remove", "tcp://203.0.113.10:11010"])
    with pytest.raises(ValueError, match="no such command: credential list"):
        answer(node, ["credential", "list"])


def test_the_command_line_is_answered_by_the_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over its RPC: what it says is printed as JSON, a refusal and a core that is gone are errors with status 1."""

    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["easytier-cli", "-p", f"127.0.0.1:{port}", *words])
        return cli.main()

    with Rpc(socket.create_server(("127.0.0.1", 0)), Node()) as rpc:
        port = rpc.server_address[1]
        thread = threading.Thread(target=rpc.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert run("-o", "json", "connector", "add", "tcp://203.0.113.11:11010") == 0
        capsys.readouterr()
        assert run("-o", "json", "connector") == 0
        assert len(json.loads(capsys.readouterr().out)) == 2
        assert run("connector", "remove", "tcp://nobody:1") == 1
        assert "connector not found: tcp://nobody:1" in capsys.readouterr().err
        rpc.shutdown()
        thread.join()
    assert run("peer") == 1
    assert "Connection refused" in capsys.readouterr().err


def test_events_are_said_in_words_that_edgelink_reads() -> None:
    """A refused dialling is told from a connection."""
    refused = {"ConnectError": ["tcp://203.0.113.10:11010", "V4", "IOError(Connection refused (os error 111))"]}
    lines = lines_of({"PeerAdded": 7}, "i", NOW) + lines_of(refused, "i", NOW)
    assert last_refusal("".join(lines)) is Refusal.REFUSED
    assert last_refusal("".join(lines_of({"PeerAdded": 7}, "i", NOW))) is None
    assert lines[0] == "2026-11-21T07:06:35.000000000Z  INFO CORE::INSTANCE: [i] new peer added peer_id=7\n"


def test_what_an_unknown_event_is_about_is_not_said() -> None:
    """It may be the configuration."""
    assert "very secret" not in "".join(lines_of({"ConfigPatched": {"network_secret": "very secret"}}, "i", NOW))


def test_the_programs_import_nothing_else_of_edgelink() -> None:
    """They start often, and the core stays: without what the daemon needs."""
    script = (
        "import sys; import edgelink.easytier_wheel.core, edgelink.easytier_wheel.cli\n"
        "print(*sorted(n for n in sys.modules if n.startswith('edgelink.') and 'easytier_wheel' not in n))\n"
        "print(*sorted({'asyncio', 'pydantic', 'easytier_pyo3'} & {*sys.modules}))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("program", ["easytier-core", "easytier-cli"])
def test_the_programs_run_by_the_environments_own_interpreter(tmp_path: Path, program: str) -> None:
    """Through a link, too; there the directories beside them are those of the file that it leads to."""
    source = Path(__file__).parent.parent / "edgelink/easytier_wheel/programs" / program
    place = tmp_path / "share/edgelink/easytier-wheel" / program
    python = tmp_path / "bin/python3"
    for path, text in ((place, source.read_text()), (python, '#!/bin/sh\necho "$@"\n')):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / program).symlink_to(place)
    for path in (place, tmp_path / program):
        told = subprocess.run([path, "-o", "a b"], capture_output=True, text=True, check=True)
        # The core, which stays, is known by the path of its program; the command line is not.
        what = str(path) if program == "easytier-core" else "-m edgelink.easytier_wheel.cli"
        assert told.stdout == f"-I {what} -o a b\n"


def test_the_core_is_a_program_of_pythons_as_well() -> None:
    """What the shell executes is the same file again, by Python."""
    source = Path(__file__).parent.parent / "edgelink/easytier_wheel/programs/easytier-core"
    command = [sys.executable, "-I", source, "--no-such-flag"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, "--no-such-flag" in told.stderr) == (2, True)
