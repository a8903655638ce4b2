"""`edgelink ip` and `nodes` on any member: relay, head, edge; asked of a daemon that is played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgelink.api import schema
from edgelink.api.server import Caller, LocalApi, route
from edgelink.cli.main import edgelink
from edgelink.cli.members import exit_status, lines, members
from edgelink.errors import EdgelinkError, ExitCode
from edgelink.testing.schema import deviations

NO_WAY = dict.fromkeys(("path", "via", "protocol", "latency_ms", "loss", "loses_full_packets"))
RELAYED = {**NO_WAY, "path": "relayed", "via": "relay"}
RELAY = {"hostname": "relay", "overlay_ip": "10.10.0.1", "node_rank": None, "role": "relay", **NO_WAY}
CLOUD = {"hostname": "cloud", "overlay_ip": "10.10.0.2", "node_rank": 0, "role": "head", **RELAYED}
ROBOT = {"hostname": "robot", "overlay_ip": "10.10.0.3", "node_rank": 1, "role": "edge", **RELAYED}
OWN = {"role": "edge", "hostname": "edge-2", "overlay_ip": "10.10.0.4", "node_rank": 2, "phase": "Ready"}
OF_RELAY = {"role": "bootstrap", "hostname": "relay", "overlay_ip": "10.10.0.1", "node_rank": None, "phase": "Ready"}


def lease(of: dict[str, Any], *, online: bool, phase: str = "Ready", paused: bool = False) -> dict[str, Any]:
    return {"hostname": of["hostname"], "online": online, "phase": phase, "paused": paused}


@pytest.mark.parametrize(
    ("status", "peers", "states"),
    [
        (OWN, [{**CLOUD, "answers": True}, {**ROBOT, "answers": None}], {"cloud": "answers", "robot": None}),
        (OWN, [{**CLOUD, "answers": False}], {"cloud": "silent"}),
        (OWN, [CLOUD], {"cloud": None}),
        (
            {**OF_RELAY, "nodes": [lease(CLOUD, online=True, phase="Degraded"), lease(ROBOT, online=False)]},
            [{**CLOUD, "answers": None}, {**ROBOT, "answers": None}],
            {"cloud": "degraded", "robot": "offline"},
        ),
        ({**OF_RELAY, "nodes": [lease(CLOUD, online=True)]}, [CLOUD, ROBOT], {"cloud": "ready", "robot": None}),
        ({**OF_RELAY, "nodes": [lease(ROBOT, online=True, paused=True)]}, [ROBOT], {"robot": "paused"}),
        ({**OF_RELAY, "nodes": [lease(ROBOT, online=False, phase="Left")]}, [ROBOT], {"robot": "left"}),
        ({**OF_RELAY, "nodes": [lease(ROBOT, online=False, phase="Stopping")]}, [ROBOT], {"robot": "off"}),
    ],
    ids=[
        "an edge",
        "a silent head",
        "an older daemon",
        "the relay",
        "one that the relay omits",
        "one that the head misses",
        "one that left",
        "one that was switched off",
    ],
)
def test_each_member_tells_what_it_knows(
    status: dict[str, Any], peers: list[dict[str, Any]], states: dict[str, str | None]
) -> None:
    """What others say of themselves on the relay, who answers on an edge; and nothing where nothing is known."""
    own, *others = rows = members(status, peers)
    assert (own["hostname"], own["state"], own["path"]) == (status["hostname"], "ready", "self")
    assert {row["hostname"]: row["state"] for row in others} == states
    away = bool({"silent", "offline"} & set(states.values()))
    assert exit_status(rows) is (
        ExitCode.TRY_AGAIN if "paused" in states.values() else ExitCode.FAILED if away else ExitCode.OK
    )
    assert list(deviations({"schema": 1, "members": rows}, schema.Members)) == []


@pytest.mark.parametrize(("in_ray", "rank"), [(None, 7), (2, 2)])
def test_a_rank_is_that_in_ray_or_else_that_of_the_lease(in_ray: int | None, rank: int) -> None:
    """As other nodes tell it of this one."""
    (own,) = members({**OWN, "node_rank": in_ray, "preferred_rank": 7}, [])
    assert own["node_rank"] == rank


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_of_members_fits_the_terminal(width: int) -> None:
    """And names the head, which alone knows Ray."""
    peers = [{**CLOUD, "hostname": "c" * 32, "answers": True}, {**ROBOT, "via": "r" * 32, "answers": False}]
    told = lines({"members": members(OWN, peers)}, width)
    assert [line for line in told if len(line) > max(width, 56)] == []
    assert "c" * 32 in told[-1]


@asynccontextmanager
async def serving(directory: Path, socket: str, status: dict[str, Any], *peers: dict[str, Any]) -> AsyncIterator[None]:
    async def of_status(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return status

    async def of_peers(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"peers": list(peers)}

    api = LocalApi(directory / socket)
    async with api.serving([route("GET", "/status", of_status), route("GET", "/peers", of_peers)]):
        yield


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(tmp_path))
    return tmp_path


async def ask(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, edgelink, words, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "address"),
    [((), "10.10.0.4"), (("cloud",), "10.10.0.2"), (("1",), "10.10.0.3"), (("edge-2",), "10.10.0.4")],
    ids=["this machine", "a hostname", "a rank", "this machine's name"],
)
async def test_the_address_of_a_node(runtime: Path, words: tuple[str, ...], address: str) -> None:
    """Alone on its line, for scripts."""
    async with serving(runtime, "node.sock", OWN, RELAY, CLOUD, ROBOT):
        assert (await ask("ip", *words)).stdout == f"{address}\n"


async def test_the_relay_knows_addresses_too(runtime: Path) -> None:
    async with serving(runtime, "bootstrap.sock", OF_RELAY, CLOUD):
        assert (await ask("ip", "cloud")).stdout == "10.10.0.2\n"


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (OWN, ["nobody"], "NoSuchNode"),
        ({**OWN, "overlay_ip": None}, [], "OverlayFailed"),
        (None, [], "DaemonNotRunning"),
    ],
)
async def test_an_address_that_is_not_known(
    runtime: Path, status: dict[str, Any] | None, words: list[str], reason: str
) -> None:
    if status is None:
        error = (await ask("ip", *words)).exception
    else:
        async with serving(runtime, "node.sock", status, CLOUD):
            error = (await ask("ip", *words)).exception
    assert isinstance(error, EdgelinkError)
    assert error.condition_reason == reason


@pytest.mark.parametrize(("answers", "exit_code"), [(True, 0), (False, 1)])
async def test_an_edge_lists_the_nodes_and_says_by_its_exit_status_who_is_away(
    runtime: Path, answers: bool, exit_code: int
) -> None:
    async with serving(runtime, "node.sock", OWN, {**CLOUD, "answers": answers}, ROBOT):
        listed = await ask("nodes", "--json")
    assert listed.return_value == exit_code
    assert [row["hostname"] for row in json.loads(listed.stdout)["members"]] == ["edge-2", "cloud", "robot"]
