"""EasyTier as it is and may be: started, watched, asked and stopped by EdgeLink, with a stand-in of each version.

The stand-in says of each trap whether it was read in EasyTier's sources or seen in a run.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import easytier_stand_in
import pytest
from overlay_world import FakeCongestion, FakeRoutes

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.config import OverlayConfig, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import EasyTierNotFoundError, OverlayError, ProcessExitedError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.acquisition import EasyTierBinary, find_easytier
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.easytier_core import Core
from edgelink.overlay.link import LinkState
from edgelink.overlay.overlay_keeper import Around, OverlayKeeper
from edgelink.overlay.status import peers
from edgelink.overlay.stun import PrivateHosts
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process import SessionLauncher, SupervisedProcess
from edgelink.process.private_files import PrivateFile
from edgelink.testing import eventually, reserved_port
from edgelink.testing.facts import give, settle
from edgelink.testing.overlay import FakeLinks

ADDRESS = IPv4Interface("10.10.0.7/24")
SECRET = "abc$HOME-x-0123456789"
# One of each stretch that differs somewhere in the facts, and one that nobody has seen.
VERSIONS = ("2.6.0", "2.6.2", "2.6.4", "3.1.0")


class NoPrivateHosts(PrivateHosts):
    """Mounting files over the machine's own takes root; it is tested elsewhere."""

    def prepare(self, *_: Any) -> tuple[PrivateFile, ...]:
        return ()

    def renew(self, *_: Any) -> None:
        pass


@dataclass
class Node:
    """A daemon's overlay part, and the stand-in that it starts."""

    overlay: OverlayKeeper
    board: Board[Facts]
    conditions: ConditionSet
    process: SupervisedProcess
    binary: EasyTierBinary
    links: FakeLinks
    paths: Paths
    spec: OverlaySpec

    def effective(self) -> dict[str, Any]:
        """What the stand-in made of its file, arguments and environment."""
        found: dict[str, Any] = json.loads((self.paths.logs / "effective.json").read_text())
        return found

    async def look(self) -> None:
        """The kernel tells of something."""
        self.overlay.look_again()
        await settle(self.overlay, self.board, self.conditions, SystemClock())

    async def up(self) -> None:
        await self.look()
        await eventually((self.paths.logs / "effective.json").exists)
        self.links.state = LinkState(True, True, (ADDRESS,), 1360, index=4, routes=(ADDRESS.network,))
        await self.look()

    def written(self) -> str:
        """Everything in the log directory and in the condition."""
        logs = "".join(path.read_text() for path in self.paths.logs.iterdir() if path.name != "effective.json")
        return logs + self.conditions.get("OverlayUp").message


MakeNode = Callable[..., Awaitable[Node]]


class AnyMachine(ThisMachine):
    """On which nothing speaks against a start."""

    async def preflight(self, *_: Any) -> None:
        pass


@pytest.fixture
async def make_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeNode]:
    """Nodes of any version, in a machine whose environment has EasyTier's variables set for something else."""
    monkeypatch.setenv("ET_NETWORK_SECRET", "somebody-elses-secret")
    monkeypatch.setenv("ET_HOSTNAME", "somebody-else")
    monkeypatch.setenv("RUST_LOG", "off")
    nodes: list[Node] = []
    ports = ExitStack()

    async def make(version: str, fault: str = "", *, cli_version: str | None = None) -> Node:
        binary = find_easytier(easytier_stand_in.install(tmp_path, version, fault, cli_version=cli_version), tmp_path)
        port = ports.enter_context(reserved_port())
        spec = OverlaySpec(
            hostname="edge-1",
            network_name="net",
            network_secret=SECRET,
            overlay_ip=ADDRESS,
            peers=("tcp://203.0.113.1:11010",),
            listeners=(),
            device="et0",
            mtu=1380,
            rpc_port=port,
            instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
        )
        clock, links = SystemClock(), FakeLinks()
        paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
        conditions = ConditionSet(clock, ["OverlayUp"])
        process = SupervisedProcess("easytier", paths.processes / "easytier.json", SessionLauncher(), clock)

        board = Board(Facts())
        give(board, overlay_spec=spec, easytier_may_start=True)
        guard = TableKeeper(None, clock, open_without="nothing")
        overlay = OverlayKeeper(
            board=board,
            conditions=conditions,
            clock=clock,
            config=OverlayConfig(),
            core=Core(process, lambda: binary, paths, NoPrivateHosts(paths.state)),
            links=links,
            around=Around(guard, FakeRoutes(), FakeCongestion()),
            machine=AnyMachine(),
        )
        nodes.append(Node(overlay, board, conditions, process, binary, links, paths, spec))
        return nodes[-1]

    with ports:
        yield make
        for node in nodes:
            await node.process.stop(term_timeout_s=1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_runs_as_it_was_told(make_node: MakeNode, version: str) -> None:
    """What counts is what EasyTier makes of file, arguments and environment: secret, name, listeners, RPC address."""
    node = await make_node(version)
    await node.up()
    assert node.conditions.is_true("OverlayUp")
    effective = node.effective()
    assert effective["secret"] == SECRET, "neither ET_… nor $… has a say"
    assert (effective["hostname"], effective["listeners"]) == ("edge-1", [])
    assert effective["ignored"] == [], "no key that this version does not read: it would not say so"
    assert SECRET not in " ".join(effective["arguments"])
    assert [row.hostname for row in await peers(node.binary, node.spec.rpc_port)] == ["edge-1", "relay"]
    assert listening_addresses(node.spec.rpc_port) == {"127.0.0.1"}, "the RPC hands the secret to whoever asks"
    written = node.written()
    assert SECRET not in written
    assert "tun device ready" in written, "the events, which are needed, stay"
    assert "*" * len(SECRET) not in written, "RUST_LOG leaves the banner out: there was nothing to overwrite"


def listening_addresses(port: int) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port}
    return {socket.inet_ntoa(int(address, 16).to_bytes(4, "little")) for address in found}


async def test_a_file_that_easytier_cannot_read_gives_nothing_away(make_node: MakeNode) -> None:
    """Its error shows the whole file, its crash report too; our error shows neither, and both files are private."""
    node = await make_node("2.6.4", "bad toml")
    await node.look()
    await node.process.wait()
    with pytest.raises(ProcessExitedError) as caught:
        await node.look()
    assert "status 1" in caught.value.message
    assert SECRET not in str(caught.value) + node.written()
    assert "*" * len(SECRET) in node.written()
    left = [node.paths.logs / name for name in ("easytier.log", "easytier-panic.log")]
    assert [path.stat().st_mode & 0o777 for path in left] == [0o600, 0o600], "2.6.4 leaves 0644 by itself"


async def test_a_start_that_failed_is_told_with_its_status_and_last_words(make_node: MakeNode) -> None:
    """Its device could not be made."""
    node = await make_node("2.6.4", "no tun")
    await node.look()
    assert await node.process.wait() == 1
    with pytest.raises(ProcessExitedError, match=r"with status 1 .*Operation not permitted"):
        await node.look()
    assert not node.conditions.is_true("OverlayUp")


@pytest.mark.parametrize("fault, status", [("", 0), ("ignores SIGTERM", -9)])
async def test_it_is_stopped_whatever_it_makes_of_sigterm(make_node: MakeNode, fault: str, status: int) -> None:
    """It ends by itself, or not at all: then SIGKILL."""
    node = await make_node("2.6.4", fault)
    await node.up()
    await node.process.stop(term_timeout_s=1 if fault else 20)
    assert (node.process.identity, node.process.exit_status) == (None, status)


@pytest.mark.parametrize("version, cli_version", [("2.6.0", "2.6.4"), ("2.6.4", "2.6.0")])
async def test_a_cli_of_another_version_is_an_error_that_says_so(
    make_node: MakeNode, version: str, cli_version: str
) -> None:
    """Their RPC counts methods by position."""
    node = await make_node(version, cli_version=cli_version)
    await node.up()
    with pytest.raises(OverlayError) as caught:
        await peers(node.binary, node.spec.rpc_port)
    assert caught.value.condition_reason == "CliFailed"


async def test_one_instance_among_several_is_read_and_none_is_an_error(make_node: MakeNode) -> None:
    """The answer may be wrapped a level deeper, or not be there yet."""
    node = await make_node("2.6.4", "several instances")
    await node.up()
    assert [row.hostname for row in await peers(node.binary, node.spec.rpc_port)] == ["edge-1", "relay"]
    easytier_stand_in.install(node.binary.core.parent, "2.6.4", "no instance")
    with pytest.raises(OverlayError, match="no running instances"):
        await peers(node.binary, node.spec.rpc_port)


@pytest.mark.parametrize("version, is_new", [("2.6.4", False), ("2.6.5", True)])
async def test_a_version_that_nobody_knows_yet_is_used_and_told_of(
    make_node: MakeNode, version: str, is_new: bool
) -> None:
    """It works like the newest known one; the condition says so, in case it does not."""
    node = await make_node(version)
    await node.up()
    message = node.conditions.get("OverlayUp").message
    assert (f"EasyTier {version} is newer" in message) is is_new


@pytest.mark.parametrize("version", ["2.0.3", "2.5.0"])
async def test_an_older_easytier_is_refused_before_it_is_used(tmp_path: Path, version: str) -> None:
    """By name, with what to install."""
    with pytest.raises(EasyTierNotFoundError, match=rf"EasyTier {version} is too old") as caught:
        find_easytier(easytier_stand_in.install(tmp_path, version), tmp_path)
    assert caught.value.condition_reason == "EasyTierTooOld"
