"""`edgelink registry` and `token`, asked of a daemon's routes on a socket: what they print, what they exit with."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import AsyncIterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from registry_world import World
from structlog.testing import capture_logs
from telling import Words
from test_relay_service_enrol import FakeBroker

from edgelink.api.server import LocalApi, only_one
from edgelink.cli import token
from edgelink.cli.main import edgelink
from edgelink.conditions import Conditions, Status
from edgelink.config import Paths
from edgelink.errors import EdgelinkError, ExitCode
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import ConditionReport, Lease, NodeStatus, Role
from edgelink.protocol.statuses import StatusBoard
from edgelink.protocol.token import Token
from edgelink.relay.registry_routes import RegistryRoutes
from edgelink.testing import MemoryBroker, MemoryTransport
from edgelink.testing.facts import board_with
from edgelink.testing.registry_service import LoneService


class Relay:
    """A daemon's registry and its routes, without a broker."""

    def __init__(self, paths: Paths) -> None:
        self.world = World(paths.state)
        self.clock = self.world.clock
        self.store, self.authority = self.world.store, self.world.authority
        self.key = NodeKey.load_or_create(paths.node_key)
        self.authority.relay_membership(self.key, "relay")
        self.heard = StatusBoard()
        self.board = board_with(conditions=Conditions())
        self.registry = LoneService(
            authority=self.authority,
            store=self.store,
            network_id=self.world.keys.network_id,
            broker=FakeBroker(MemoryBroker({})),
            transport=MemoryTransport({}),
            clock=self.clock,
        )
        self.registry._board = self.heard
        self.routes = RegistryRoutes(
            self.board, self.key.node_id, self.store, self.authority, self.registry, self.clock
        )
        self.registry.refresh = self._refresh  # type: ignore[method-assign]

    async def _refresh(self) -> None:
        """There is no broker to be told."""

    def hear(self, lease: Lease, **said: Any) -> None:
        """The node says that it is there."""
        status = NodeStatus(node_id=lease.node_id, online=True, phase="Ready", **said)
        assert self.heard.receive(lease.node_id, status.model_dump_json().encode())

    async def call(self, *args: str, stdin: str | None = None) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, edgelink, args, input=stdin)

    async def json(self, *args: str, stdin: str | None = None) -> Any:
        result = await self.call(*args, stdin=stdin)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    async def refusal(self, *args: str, stdin: str | None = None) -> EdgelinkError:
        result = await self.call(*args, stdin=stdin)
        assert isinstance(result.exception, EdgelinkError), result.output
        return result.exception


@pytest.fixture
async def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    paths = Paths(tmp_path / "state", tmp_path / "run")
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(paths.state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(paths.runtime))
    relay = Relay(paths)
    api = LocalApi(paths.bootstrap_socket)
    with capture_logs():  # the daemon's, which would be among what the commands print
        async with api.serving(relay.routes.routes()):
            yield relay
    relay.store.close()


async def test_list_tells_leases_and_what_rests(relay: Relay) -> None:
    """For people one line each; for scripts one versioned document."""
    lease = relay.world.join("edge-1")
    relay.world.join("gone")
    relay.hear(lease)
    assert (await relay.json("registry", "release", "gone", "--json"))["rests_until"] == "2026-01-02T00:00:00+00:00"
    listed = await relay.json("registry", "list", "--json")
    assert listed["version"] == 1
    assert [(item["hostname"], item["online"]) for item in listed["leases"]] == [("relay", True), ("edge-1", True)]
    assert listed["leases"][0]["phase"] == relay.board.facts.phase.value, "who answers is there"
    assert {(rest["kind"], rest["value"]) for rest in listed["resting"]} == {
        ("hostname", "gone"),
        ("overlay_ip", "10.10.0.3"),
        ("rank", "2"),
    }
    text = (await relay.call("registry", "list")).stdout
    assert "overlay ip 10.10.0.3 rests until 2026-01-02T00:00:00+00:00, of gone" in text
    freed = await relay.call("registry", "release", "gone", "--now")
    assert "10.10.0.3 is free" in freed.stdout
    assert (await relay.json("registry", "list", "--json"))["resting"] == []


async def test_show_tells_all_of_one_node(relay: Relay) -> None:
    """Also of one that was released, or whose place another key took; a secret is nowhere."""
    key, token = NodeKey.generate(), relay.world.token(labels={"arm": "left"})
    lease = relay.world.lease(relay.world.enrol(key, token, "franka"))
    relay.hear(lease)
    shown = await relay.json("registry", "show", "franka", "--json")
    assert shown["lease"]["labels"] == {"arm": "left"}
    assert (shown["online"], shown["phase"], shown["revoked"]) == (True, "Ready", None)
    assert [item["token_id"] for item in shown["tokens"]] == [token.token_id]
    assert [(item["action"], item["node_id"]) for item in shown["history"]] == [("granted", lease.node_id)]
    assert token.secret not in json.dumps(shown)
    text = (await relay.call("registry", "show", lease.node_id)).stdout
    for part in ("franka edge 10.10.0.2 rank 1: Ready", "arm=left", "granted"):
        assert part in text

    relay.heard.forget(lease.node_id)
    await relay.call("registry", "release", "franka")
    text = (await relay.call("registry", "show", "franka")).stdout
    for part in ("holds no lease", "hostname franka rests until", "released by root"):
        assert part in text
    replacement = relay.world.token(replaces="franka")
    relay.world.enrol(NodeKey.generate(), replacement, "fresh")
    assert (await relay.json("registry", "show", "franka", "--json"))["lease"]["overlay_ip"] == "10.10.0.2"
    refused = await relay.refusal("registry", "show", "nobody")
    assert (refused.condition_reason, refused.exit_code) == ("NodeUnknown", ExitCode.FAILED)


async def test_set_changes_a_lease(relay: Relay) -> None:
    """Everything at once; 2 with nothing to change."""
    lease = relay.world.join("edge-1")
    told = await relay.call("registry", "set", "edge-1", "--hostname", "franka", "--ip", "10.10.0.9", "--rank", "4")
    assert f"franka ({lease.node_id}) holds 10.10.0.9 and rank 4" in told.stdout
    assert relay.store.history()[-1]["caller"] == "root"
    labelled = await relay.json("registry", "set", "franka", "--label", "a=b", "--label", "c=d", "--json")
    assert labelled["lease"]["labels"] == {"a": "b", "c": "d"}
    forced = await relay.json("registry", "set", "franka", "--rank", "5", "--unlabel", "a", "--force", "--json")
    assert (forced["lease"]["preferred_rank"], forced["lease"]["labels"]) == (5, {"c": "d"})
    assert forced["lease"]["lease_epoch"] == 3
    assert (await relay.call("registry", "set", "franka")).exit_code == ExitCode.USAGE
    assert (await relay.refusal("registry", "set", "franka", "--ip", "x")).exit_code == ExitCode.USAGE


async def test_a_node_that_follows_changes_is_given_them_at_once(relay: Relay) -> None:
    """While it is online; not during a run, which may have workers on it, unless forced."""
    lease, head = relay.world.join("edge-1"), relay.world.join("cloud", Role.HEAD)
    relay.hear(lease)
    relay.hear(head)
    changed = await relay.json("registry", "set", "edge-1", "--ip", "10.10.0.9", "--json")
    assert changed["lease"]["overlay_ip"] == "10.10.0.9"
    granted = ConditionReport(type="DriverRunning", status=Status.TRUE, reason="Granted", message="granted to pid 7")
    relay.hear(head, conditions=(granted,))
    refused = await relay.refusal("registry", "set", "edge-1", "--ip", "10.10.0.10")
    assert (refused.exit_code, refused.condition_reason) == (ExitCode.TRY_AGAIN, "RunInProgress")
    assert "pid 7" in refused.message
    await relay.json("registry", "set", "edge-1", "--label", "a=b", "--json")
    forced = await relay.json("registry", "set", "edge-1", "--ip", "10.10.0.10", "--force", "--json")
    assert forced["lease"]["overlay_ip"] == "10.10.0.10"


async def test_a_node_that_is_there_keeps_its_lease(relay: Relay) -> None:
    """Neither released nor replaced, with 75; the relay's own not at all, with 2."""
    lease = relay.world.join("edge-1")
    relay.hear(lease)
    for command in (["registry", "release", "edge-1"], ["token", "create", "--replaces", "edge-1"]):
        refused = await relay.refusal(*command)
        assert (refused.exit_code, refused.condition_reason) == (ExitCode.TRY_AGAIN, "NodeOnline")
        refused = await relay.refusal(*command[:-1], "relay")
        assert (refused.exit_code, refused.condition_reason) == (ExitCode.USAGE, "OwnLease")
    forced = await relay.json("token", "create", "--replaces", "edge-1", "--force", "--json")
    assert (forced["replaces"], forced["hostname"], forced["ip"]) == (lease.node_id, "edge-1", "10.10.0.2")
    assert relay.store.find_lease("edge-1") == lease


async def test_a_node_that_has_left_is_listed_as_such(relay: Relay) -> None:
    """Whatever the broker remembers of it."""
    lease = relay.world.join("edge-1")
    relay.store.set_left(lease.node_id, has_left=True)
    listed = (await relay.json("registry", "list", "--json"))["leases"]
    assert {row["hostname"]: row["phase"] for row in listed}["edge-1"] == "Left"
    assert " left " in (await relay.call("registry", "list")).stdout


async def test_a_pipe_gets_the_token_alone(relay: Relay) -> None:
    """`edgelink token create | edgelink join -` relies on it."""
    made = await relay.call("token", "create", "--hostname", "robot")
    assert Token.parse(made.stdout.removesuffix("\n")).token_id == relay.authority.tokens()[0].token_id


async def test_a_lost_token_is_asked_for_again(relay: Relay) -> None:
    lost = await relay.json("token", "create", "--hostname", "robot", "--rank", "7", "--json")
    refused = await relay.refusal("token", "create", "--hostname", "robot")
    assert "--reissue" in refused.hint
    made = await relay.json("token", "create", "--hostname", "robot", "--reissue", "--json")
    assert (made["rank"], made["token"] != lost["token"]) == (7, True)


@pytest.mark.parametrize(("options", "is_warned"), [([], True), (["--replaces", "cloud"], False)])
async def test_who_makes_a_token_for_a_second_head_is_told(relay: Relay, options: list[str], is_warned: bool) -> None:
    relay.world.join("cloud", Role.HEAD)
    made = await relay.call("token", "create", "--role", "head", *options)
    assert ("edgelink: cloud is " in made.stderr) is is_warned


@pytest.mark.parametrize(("role", "words"), [("edge", ["up"]), ("relay", ["up", "--relay"])])
def test_a_person_gets_the_whole_command(role: str, words: list[str]) -> None:
    line = token.command_to_paste({"role": role, "token": "elt1_x"})
    assert shlex.split(line) == ["sudo", "edgelink", *words, "elt1_x"]


def test_how_long_a_token_is_good_is_told_by_the_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        made = {"created_at": "2026-01-01T00:00:00+00:00", "expires_at": "2026-01-01T01:30:00+00:00"}
        told = token.validity({**made, "hostname": None, "uses": 1, "role": "edge"})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "90 min" in told
    assert "02:30" in told


async def test_export_holds_everything_but_secrets(relay: Relay) -> None:
    """In a file or on stdout."""
    relay.world.join("cloud", Role.HEAD)
    result = relay.world.enrol(NodeKey.generate(), token := relay.world.token(), "edge-1")
    relay.world.join("gone")
    await relay.call("registry", "release", "gone")
    exported = await relay.json("registry", "export")
    assert exported["network"]["cidr"] == "10.10.0.0/24"
    assert [item["hostname"] for item in exported["leases"]] == ["relay", "cloud", "edge-1"]
    assert {rest["hostname"] for rest in exported["resting"]} == {"gone"}
    assert result.broker_password is not None
    text = json.dumps(exported)
    for secret in (relay.world.network.secret, token.secret, result.broker_password):
        assert secret not in text
    file = Path(relay.store.path.with_name("fleet.json"))
    assert (await relay.call("registry", "export", "-o", str(file))).exit_code == 0
    assert json.loads(file.read_text())["leases"] == exported["leases"]


async def test_import_gives_each_machine_its_own_token(relay: Relay) -> None:
    """Those that hold the lease already need none; a machine gets with its token what the file says."""
    held = relay.world.join("edge-1")
    fleet = {
        "version": 1,
        "leases": [
            {"hostname": "edge-1", "node_id": held.node_id, "overlay_ip": "10.10.0.2"},
            {"hostname": "edge-2", "overlay_ip": "10.10.0.50", "preferred_rank": 9, "labels": {"arm": "left"}},
            {"hostname": "relay-2", "role": "relay", "is_relay": True},
        ],
    }
    text = json.dumps(fleet)
    tried = await relay.json("registry", "import", "-", "--dry-run", "--json", stdin=text)
    assert tried == {
        "version": 1,
        "machines": [
            {"hostname": "edge-1", "state": "held", "token": None},
            {"hostname": "edge-2", "state": "token", "token": None},
            {"hostname": "relay-2", "state": "relay", "token": None},
        ],
    }
    assert len(relay.store.tokens.all()) == 1
    imported = await relay.json("registry", "import", "-", "--json", "--ttl", "2d", stdin=text)
    token = Token.parse(imported["machines"][1]["token"])
    lease = relay.world.lease(relay.world.enrol(NodeKey.generate(), token, "whatever"))
    assert (lease.hostname, lease.overlay_ip, lease.preferred_rank) == ("edge-2", IPv4Address("10.10.0.50"), 9)
    assert lease.labels == {"arm": "left"}


async def test_import_is_all_or_nothing(relay: Relay) -> None:
    """Each machine that cannot be what the file says is named, with the holder; no token is made."""
    relay.world.join("edge-1")
    fleet = [
        {"hostname": "edge-1", "overlay_ip": "10.10.0.9"},
        {"hostname": "good"},
        {"hostname": "same-ip", "overlay_ip": "10.10.0.2"},
        {"hostname": "good"},
        {"hostname": "outside", "overlay_ip": "10.11.0.2"},
    ]
    text = json.dumps({"version": 1, "leases": fleet})
    refused = await relay.refusal("registry", "import", "-", stdin=text)
    assert (refused.exit_code, refused.condition_reason) == (ExitCode.FAILED, "LeaseConflict")
    assert "3 of 5 machines" in refused.message
    for part in ("edge-1: ", "another overlay IP", "good: the hostname 'good' is promised", "outside: the overlay IP"):
        assert part in refused.message
    assert len(relay.store.tokens.all()) == 1
    for unusable in ("", "[]", '{"version": 2, "leases": []}', '{"version": 1, "leases": [{"hostname": "Not One"}]}'):
        refused = await relay.refusal("registry", "import", "-", stdin=unusable)
        assert (refused.exit_code, refused.condition_reason) == (ExitCode.CONFIG, "ConfigInvalid")


@pytest.mark.parametrize("name", ["édge 1", "edge-1?now", "edge-1#", "../registry"])
async def test_a_name_is_that_name_and_nothing_else(relay: Relay, name: str) -> None:
    """Not a part of an address, of which the rest would be left away."""
    relay.world.join("edge-1")
    refusal = await relay.refusal("registry", "release", name)
    assert name in refusal.message
    leases = (await relay.json("registry", "list", "--json"))["leases"]
    assert {lease["hostname"] for lease in leases} == {"relay", "edge-1"}


async def test_no_name_is_a_mistake_of_the_caller(relay: Relay, words: Words) -> None:
    """As by an empty variable of the shell."""
    result = await relay.call("registry", "release", "")
    assert result.exit_code == ExitCode.USAGE
    words(result.output.splitlines()[-1])


@pytest.mark.parametrize("argv", [["export", "-o"], ["backup"]])
async def test_what_is_no_file_does_not_become_one(relay: Relay, tmp_path: Path, argv: list[str], words: Words) -> None:
    """A device such as /dev/null would be a file for everybody from then on."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "latest").symlink_to("monday")
    (tmp_path / "monday").touch()
    for place in ("pipe", "link"):
        refusal = await relay.refusal("registry", *argv, str(tmp_path / place))
        assert (refusal.exit_code, "/pipe" in refusal.message) == (ExitCode.USAGE, True)
        words(refusal, DIRECTORY=tmp_path)
    assert (tmp_path / "pipe").is_fifo()
    assert (await relay.call("registry", *argv, str(tmp_path / "latest"))).exit_code == 0
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "monday").stat().st_size > 0
    refusal = await relay.refusal("registry", *argv, str(tmp_path / "none/file"))
    assert (refusal.exit_code, refusal.condition_reason) == (ExitCode.FAILED, "NotRecorded")


async def test_a_registry_is_replaced_only_while_no_daemon_has_it(relay: Relay, tmp_path: Path) -> None:
    """It would write into what was set aside; then it says where that lies."""
    file = str(tmp_path / "backup.tar")
    assert (await relay.call("registry", "backup", file)).exit_code == 0
    with only_one(Paths(tmp_path / "state").lock_of("bootstrap")):  # as its daemon does
        refusal = await relay.refusal("registry", "restore", "--replace", file)
    assert (refusal.exit_code, refusal.condition_reason) == (ExitCode.USAGE, "AlreadyRunning")
    relay.store.close()
    done = await relay.call("registry", "restore", "--replace", file)
    assert done.exit_code == 0, done.exception
    (aside,) = (tmp_path / "state").glob("registry-set-aside-*")
    assert str(aside) in done.output


async def test_bytes_that_are_no_text_are_not_imported(relay: Relay, tmp_path: Path) -> None:
    """A backup, say, in place of an export."""
    (tmp_path / "file").write_bytes(b"{\xff}")
    result = await relay.call("registry", "import", str(tmp_path / "file"))
    assert result.exit_code == ExitCode.USAGE
    assert "is no text" in result.output


async def test_check_finds_a_registry_whole(relay: Relay) -> None:
    """While the daemon runs; exit status 0."""
    relay.world.join("edge-1")
    checked = await relay.json("registry", "check", "--json")
    assert checked == {"version": 1, "ok": True, "leases": 2, "problems": []}
    assert "2 leases, each signed" in (await relay.call("registry", "check")).stdout
