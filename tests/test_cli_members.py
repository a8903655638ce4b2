"""`edgelink ip` and `nodes` on any member: relay, head, edge; asked of a daemon that is played."""

from __future__ import annotations

import asyncio
import json
import shlex
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
        "nobody is asked",
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
    schema.Members.model_validate({"schema": 1, "members": rows})


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


NEAR = "tcp/localhost:7447"


@pytest.mark.parametrize(
    ("status", "peers", "listens_at", "dials"),
    [
        (OWN, (RELAY, CLOUD, ROBOT), "10.10.0.4", ["tcp/10.10.0.2:7447"]),
        ({**OWN, "role": "head", "overlay_ip": "10.10.0.2"}, (RELAY, ROBOT), "10.10.0.2", []),
    ],
    ids=["an edge", "the head"],
)
async def test_routers_of_ros_meet_at_the_heads(
    runtime: Path, status: dict[str, Any], peers: tuple[dict[str, Any], ...], listens_at: str, dials: list[str]
) -> None:
    """By overlay addresses, and on no other device; a node of ROS knows its own machine's router alone."""
    async with serving(runtime, "node.sock", status, *peers):
        variables = json.loads((await ask("env", "--ros", "--json")).stdout)
        exported = (await ask("env", "--ros")).stdout.splitlines()
    assert variables["RMW_IMPLEMENTATION"] == "rmw_zenoh_cpp"
    pairs = dict(pair.split("=", 1) for pair in variables["ZENOH_CONFIG_OVERRIDE"].split(";"))
    listens, connects = json.loads(pairs["listen/endpoints"]), json.loads(pairs["connect/endpoints"])
    assert listens["router"] == ["tcp/127.0.0.1:7447", f"tcp/{listens_at}:7447"]
    assert listens["peer"] == ["tcp/localhost:0"]
    assert connects == {"router": dials, "peer": [NEAR], "client": [NEAR]}
    assert [shlex.split(line) for line in exported] == [
        ["export", f"{key}={value}"] for key, value in variables.items()
    ]


async def test_what_else_is_set_for_zenoh_stays(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated twice, too: what an earlier call gave is replaced, what the user said is kept."""
    monkeypatch.setenv(
        "ZENOH_CONFIG_OVERRIDE", 'connect/endpoints=["tcp/192.0.2.1:7447"];transport/shared_memory=false'
    )
    async with serving(runtime, "node.sock", OWN, CLOUD):
        first = json.loads((await ask("env", "--ros", "--json")).stdout)["ZENOH_CONFIG_OVERRIDE"]
        monkeypatch.setenv("ZENOH_CONFIG_OVERRIDE", first)
        again = json.loads((await ask("env", "--ros", "--json")).stdout)["ZENOH_CONFIG_OVERRIDE"]
    assert again == first
    assert "transport/shared_memory=false" in first
    assert "192.0.2.1" not in first


@pytest.mark.parametrize(
    ("status", "peers", "words"),
    [(OWN, (ROBOT,), "head's overlay address"), ({**OWN, "overlay_ip": None}, (CLOUD,), "no overlay address")],
    ids=["no head", "no overlay"],
)
async def test_ros_without_an_overlay_address_is_refused(
    runtime: Path, status: dict[str, Any], peers: tuple[dict[str, Any], ...], words: str
) -> None:
    """Rather than an environment in which nobody is met."""
    async with serving(runtime, "node.sock", status, *peers):
        error = (await ask("env", "--ros")).exception
    assert isinstance(error, EdgelinkError)
    assert words in error.message


async def test_ros_has_no_driver(runtime: Path) -> None:
    assert "--json" in str((await ask("env", "--ros", "--show")).exception)


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
