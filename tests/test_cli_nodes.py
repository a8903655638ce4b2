"""`edgelink nodes` and `edgelink wait` as processes, against a daemon that is played."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from cli_process import start_edgelink
from telling import Words

from edgelink.api.server import Caller, LocalApi, route, stream_route
from edgelink.cli import nodes
from edgelink.errors import DeadlineError, VersionMismatchError
from edgelink.protocol.payloads import ClusterSpec
from edgelink.ray_cluster.edge_reconciler import check_versions
from edgelink.ray_cluster.interpreter import Interpreter

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent

EDGE = {
    "hostname": "edge-1",
    "node_rank": 1,
    "overlay_ip": "10.10.0.3",
    "ready": True,
    "state": "ready",
    "has_ray": True,
    "ray": "alive",
    "path": "relayed",
    "via": "relay",
    "protocol": None,
    "latency_ms": 31.0,
    "cpus": 4.0,
    "gpus": 2,
    "versions": {"edgelink": "0.1.0", "ray": "2.60.0", "python": "3.11.7", "torch": None},
    "open_ports": [],
    "wrong": ["no torch, head has 2.5.1"],
}
ABSENT = {
    **dict.fromkeys(EDGE),
    "open_ports": [],
    "node_rank": 2,
    "ready": False,
    "ray": "nobody enrolled",
    "versions": {},
    "wrong": ["vacant"],
}
PATH = "through relay, 31 ms"
STRANGER = {"overlay_ip": "10.10.0.77", "hostname": "laptop", "wrong": ["a second Ray"]}


class Daemon:
    """Says what it is told to say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.role = "head"
        self.unmet: list[dict[str, str]] = []
        self.nodes = [EDGE, ABSENT]
        self.strangers = [STRANGER]
        self.left_out = ["edge-9"]
        self.totals = {"enrolled": 2, "nodes": 1, "gpus": 2, "cpus": 4.0}
        self.asked: list[dict[str, Any]] = []
        self.is_reached = True
        self.hangs = False

    async def _status(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        named = {"role": self.role, "hostname": "cloud", "head": {"hostname": "cloud", "overlay_ip": "10.10.0.2"}}
        return {**named, "ready": not self.unmet, "phase": "Starting", "conditions": self.unmet}

    async def _nodes(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        left_out = [{"hostname": hostname} for hostname in self.left_out]
        return {
            "nodes": self.nodes,
            "strangers": self.strangers,
            "left_out": left_out,
            "totals": self.totals,
            "edges_open_to": "all",
        }

    async def _paths(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"paths": []}

    async def _wait(self, _caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(body)
        if self.hangs:
            await asyncio.Event().wait()
        row = {"node_rank": 1, "hostname": "edge-1", "ready": False, "brief": "never seen", "warnings": []}
        yield {"event": "waiting", "nodes": [row], "left_s": 1.0, "notes": []}
        if not self.is_reached:
            raise DeadlineError("0 of 2 nodes after 1 s; missing: edge-1", reason="NodesMissing")
        yield {"event": "done", "totals": {"nodes": 2}}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        api = LocalApi(self.directory / "node.sock")
        async with api.serving(
            [
                route("GET", "/status", self._status),
                route("GET", "/nodes", self._nodes),
                route("GET", "/paths", self._paths),
                stream_route("POST", "/wait", self._wait),
            ]
        ):
            yield

    async def ask(self, *argv: str, env: dict[str, str] | None = None) -> tuple[int | None, str, str]:
        process = await start_edgelink(self.directory, *argv, env=env)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        ({"edges_open_to": "all"}, False),
        ({"edges_open_to": "head"}, True),
        ({"edges_open_to": "members"}, True),
    ],
    ids=["members", "no run", "a run"],
)
def test_nodes_tells_of_edges_that_are_closed_to_each_other(said: dict[str, str], is_told: bool, words: Words) -> None:
    found = {"nodes": [], "strangers": [], "left_out": [], "totals": {"enrolled": 0, "nodes": 0, "gpus": 0, "cpus": 0}}
    told = [line for line in nodes.lines({**found, **said}, 120) if "per-run" in line]
    assert len(told) == is_told
    words.on("nodes", "\n".join(told))


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("ready", "ready"), 0),
        (("ready", "missing"), 1),
        (("ready", "off"), 0),
        (("missing", "off"), 1),
        (("ready", "paused"), 75),
        (("missing", "paused"), 75),
    ],
)
def test_the_exit_status_tells_a_pause_from_who_is_missing(states: tuple[str, ...], status: int) -> None:
    rows = [{**EDGE, "state": state, "ready": state == "ready"} for state in states]
    assert nodes.exit_status(rows) == status


@pytest.mark.parametrize(("state", "mark"), [("off", "-"), ("paused", "!"), ("silent", "✗")])
def test_only_what_is_a_fault_is_marked_as_one(state: str, mark: str) -> None:
    """Who was switched off on purpose is idle."""
    row = {**EDGE, "ready": False, "state": state, "versions": {}, "wrong": ["why"]}
    totals = {"enrolled": 1, "nodes": 0, "gpus": 0, "cpus": 0}
    told = nodes.lines({"nodes": [row], "strangers": [], "left_out": [], "totals": totals, "edges_open_to": "all"}, 80)
    assert [click.unstyle(line)[0] for line in told if "why" in line] == [mark]


def test_a_paused_node_has_no_path() -> None:
    """EasyTier knows the route to it for a while yet, and nothing gets through."""
    totals = {"enrolled": 1, "nodes": 0, "gpus": 0, "cpus": 0}
    rest = {"strangers": [], "left_out": [], "totals": totals, "edges_open_to": "all"}
    for state, path in (("ready", PATH), ("paused", "-")):
        told = nodes.lines({"nodes": [{**EDGE, "state": state, "ready": state == "ready"}], **rest}, 120)
        assert " ".join(told[1].split()).endswith(path)
        assert told[1].count(PATH) == (path == PATH)


def test_a_watch_tells_a_pause_once() -> None:
    """Not each second anew, although how long it lasts is told."""
    rest = {"strangers": [], "left_out": []}
    looks = [
        nodes.facts(
            {"nodes": [{**EDGE, "state": "paused", "ready": False, "ray": ray, "wrong": [f"paused: {ray}"]}], **rest}
        )
        for ray in ("paused 12s", "paused 13s")
    ]
    assert looks[0]["edge-1"].token == looks[1]["edge-1"].token
    assert "12s" in looks[0]["edge-1"].text


async def test_nodes_is_a_table_with_what_is_wrong_below(daemon: Daemon, words: Words) -> None:
    """Who is missing makes the exit status 1; who is there and has a flaw does not."""
    daemon.nodes = [{**EDGE, "open_ports": ["tcp/22 from 10.10.0.2", "udp/5000-5010 from all"]}, ABSENT]
    async with daemon.serving():
        status, out, _ = await daemon.ask("nodes")
        lines = out.splitlines()
        assert status == 1
        assert " ".join(lines[1].split()) == f"edge-1 1 10.10.0.3 alive 4 2 {PATH}"
        assert " ".join(lines[2].split()) == "- 2 - nobody enrolled - - -"
        assert "tcp/22 from 10.10.0.2, udp/5000-5010 from all" in lines[4]
        assert lines[5] == f"! edge-1: {EDGE['wrong'][0]}"
        assert lines[6] == f"✗ rank 2: {ABSENT['wrong'][0]}"
        assert all(text in lines[7] for text in ("? ", "10.10.0.77", "laptop", STRANGER["wrong"][0]))
        assert lines[8].startswith("- edge-9: ")
        assert all(figure in lines[9] for figure in ("1 of 2 nodes", "4 CPUs", "2 GPUs"))
        words.on("nodes", out)
        daemon.nodes = [EDGE]
        status, out, _ = await daemon.ask("nodes", "--json")
        assert status == 0
        assert json.loads(out)["nodes"] == [EDGE]


async def test_the_page_about_looking_shows_what_is_printed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edgelink nodes` where two nodes are not as they should be, in a terminal of 80 columns."""
    monkeypatch.syspath_prepend(ROOT / "netns-tests")
    steps = importlib.import_module("typed_page").steps(ROOT / "docs/how-to/look.md")
    (shown,) = (step.shown for step in steps if step.command.startswith("edgelink nodes   # franka-1"))
    has = {"ray": "2.60.0", "python": "3.11.7", "torch": "2.5.1"}
    versions = {"ray_version": has["ray"], "python_version": has["python"]}
    head = ClusterSpec.model_construct(**versions)
    with pytest.raises(VersionMismatchError) as refused:
        check_versions(Interpreter(Path("/opt/train/bin/python"), "3.10.12", has["ray"], 1000), head)
    nodes = [
        EDGE | {"hostname": name, "node_rank": rank, "overlay_ip": f"10.10.0.{rank + 2}", "versions": has, "wrong": []}
        for rank, name in enumerate(("cloud", "franka-1", "franka-2"))
    ]
    nodes[0] |= {"cpus": 32.0, "gpus": 8, "path": "self", "latency_ms": None}
    nodes[1] |= {"cpus": 8.0, "gpus": 0, "path": "direct", "protocol": "tcp", "latency_ms": 9.0}
    nodes[1] |= {"versions": has | {"torch": "2.4.0"}, "wrong": ["torch 2.4.0, head has 2.5.1"]}
    nodes[2] |= {"ready": False, "ray": "overlay up, Ray refused (Python 3.10.12, head has 3.11.7)"}
    nodes[2] |= {"versions": has | {"python": "3.10.12"}, "wrong": [f"VersionMismatch: {refused.value}"]}
    daemon.nodes = nodes
    daemon.strangers, daemon.left_out = [], []
    daemon.totals = {"enrolled": 3, "nodes": 2, "gpus": 8, "cpus": 40.0}
    async with daemon.serving():
        status, out, _ = await daemon.ask("nodes", env={"COLUMNS": "80"})
    assert status == 1
    assert out.splitlines() == shown


async def test_what_is_the_heads_is_refused_elsewhere(daemon: Daemon) -> None:
    """And the head is named."""
    daemon.role = "edge"
    async with daemon.serving():
        status, _, err = await daemon.ask("wait", "--for", "nodes=2")
        assert status == 2
        assert "cloud (10.10.0.2)" in err


async def test_wait_for_what_the_cluster_has(daemon: Daemon) -> None:
    """Several goals at once; 75 is the daemon's own verdict, names included."""
    async with daemon.serving():
        status, out, err = await daemon.ask("wait", "--for", "nodes=2", "--for", "gpus=16", "--timeout", "5s", "--json")
        assert status == 0, err
        assert [json.loads(line)["event"] for line in out.splitlines()] == ["waiting", "done"]
        assert daemon.asked[0]["goals"] == {"nodes": 2, "gpus": 16}
        assert 0 < daemon.asked[0]["timeout_s"] <= 5
        daemon.is_reached = False
        status, out, err = await daemon.ask("wait", "--for", "nodes=2", "--timeout", "5s")
        assert status == 75
        assert out == ""
        assert "0/1: edge-1 never seen" in err
        assert "missing: edge-1" in err


async def test_a_daemon_that_hangs_does_not_outlast_the_deadline(daemon: Daemon) -> None:
    """A script waits no longer than it said, or little longer."""
    daemon.hangs = True
    async with daemon.serving():
        status, _, err = await daemon.ask("wait", "--for", "nodes=2", "--timeout", "0s")
    assert status == 75
    assert "DaemonNotRunning" in err
    assert daemon.asked


async def test_the_end_of_a_wait_for_ready_is_told_too(daemon: Daemon) -> None:
    """Once, and last: with other goals beside it, those end the wait."""
    async with daemon.serving():
        for more in ((), ("--for", "nodes=2")):
            status, out, err = await daemon.ask("wait", "--for", "ready", *more, "--timeout", "50s", "--json")
            assert status == 0, err
            events = [json.loads(line)["event"] for line in out.splitlines()]
            assert (events[-1], events.count("done")) == ("done", 1)


async def test_wait_for_a_ready_node_also_before_its_daemon_runs(daemon: Daemon) -> None:
    """A script may wait for what systemd is about to start; at the deadline it is told what is missing."""
    status, _, err = await daemon.ask("wait", "--timeout", "0s")
    assert status == 75
    assert "TimedOut" in err
    assert "`sudo edgelink up`" in err
    waiting = asyncio.ensure_future(daemon.ask("wait", "--timeout", "50s"))
    daemon.unmet = [{"type": "OverlayUp", "status": "False", "reason": "Starting", "message": "soon"}]
    async with daemon.serving():
        status, _, err = await daemon.ask("wait", "--for", "ready", "--timeout", "0s")
        assert status == 75
        assert "OverlayUp: Starting" in err
        assert err.count("soon") == 1
        daemon.unmet = []
        assert (await waiting)[0] == 0


@pytest.mark.parametrize("goal", ["nodes", "nodes=0", "nodes=x", "tpus=1", "ready=1"])
async def test_what_is_no_goal_is_a_usage_error(daemon: Daemon, goal: str) -> None:
    """Before any daemon is asked."""
    status, _, err = await daemon.ask("wait", "--for", goal)
    assert status == 2
    assert "none of ready, nodes=N, gpus=N, cpus=N" in err
