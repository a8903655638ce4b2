"""`edgelink access`, asked of a daemon's routes on a socket: what it prints, what it exits with."""

from __future__ import annotations

import os

import pytest
from telling import Words, refuses
from test_cli_registry import Relay, relay  # noqa: F401 (a fixture)

from edgelink.api.server import Caller
from edgelink.errors import ExitCode, UsageError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role


async def test_a_rule_is_made_shown_and_taken_away(relay: Relay, words: Words) -> None:
    """By those who say it in the same words; who made it, and when, is shown; so is what it comes to."""
    relay.hear(relay.world.join("cloud", Role.HEAD))
    relay.hear(relay.world.join("edge-1"))
    made = await relay.json("access", "allow", "head", "tcp/8888", "--from", "edge", "--from", "relay", "--json")
    assert (made["new"], made["told"], [rule["from"] for rule in made["rules"]]) == (2, None, ["edge", "relay"])
    listed = await relay.json("access", "list", "--json")
    (first, _) = listed["rules"]
    assert first == {
        "to": "head",
        "ports": "tcp/8888",
        "from": "edge",
        "made_at": relay.clock.now().isoformat(),
        "made_by": "root",
        "opens_on": ["cloud"],
        "lets_in": ["edge-1"],
        "left_out": False,
    }
    assert (listed["version"], listed["behind"], listed["own_word"]) == (1, [], [])
    header, row, _ = (await relay.call("access", "list")).stdout.splitlines()
    assert header.split()[:3] == ["TO", "PORTS", "FROM"]
    assert row.split() == ["head", "tcp/8888", "edge", "2026-01-01T00:00", "root", "cloud", "edge-1"]
    again = await relay.call("access", "allow", "head", "tcp/8888", "--from", "edge")
    assert (again.exit_code, "was allowed before" in again.output) == (0, True)
    gone = await relay.call("access", "deny", "head", "tcp/8888", "--from", "edge")
    words(gone.output)
    assert len(gone.output.splitlines()) > 1, "the relay's rule leaves it open"
    assert [rule["from"] for rule in (await relay.json("access", "list", "--json"))["rules"]] == ["relay"]
    history = (await relay.call("access", "list", "--history")).stdout.splitlines()
    assert [line.partition("  ")[2] for line in history] == [
        "access allowed by root: head tcp/8888 from edge",
        "access allowed by root: head tcp/8888 from relay",
        "access denied by root: head tcp/8888 from edge",
    ]


async def test_a_node_is_called_by_its_present_name(relay: Relay) -> None:
    lease = relay.world.join("edge-1")
    await relay.json("access", "allow", "edge-1", "tcp/22", "--from", "head", "--json")
    await relay.json("registry", "set", "edge-1", "--hostname", "franka", "--json")
    (rule,) = (await relay.json("access", "list", "--json"))["rules"]
    assert (rule["to"], rule["opens_on"], rule["lets_in"]) == ("franka", ["franka"], [])
    assert f"edge-1 ({lease.node_id}) tcp/22 from head" in (await relay.call("access", "list", "--history")).stdout
    assert "nobody now" in (await relay.call("access", "list")).stdout
    await relay.json("registry", "release", "franka", "--json")
    (rule,) = (await relay.json("access", "list", "--json"))["rules"]
    assert (rule["to"], rule["opens_on"]) == (lease.node_id, [])
    gone = await relay.call("access", "deny", lease.node_id, "tcp/22", "--from", "head")
    assert gone.exit_code == 0, "its rule can still be taken away"


async def test_who_does_not_follow_is_named(relay: Relay, words: Words) -> None:
    """Of those that a rule opens: who is away."""
    relay.hear(relay.world.join("there"))
    relay.world.join("away")
    relay.hear(relay.world.join("cloud", Role.HEAD))
    made = await relay.json("access", "allow", "edge", "tcp/80", "--from", "all", "--json")
    behind = {each["hostname"]: each["why"] for each in made["behind"]}
    assert behind == {"away": "offline"}
    told = (await relay.call("access", "deny", "edge", "tcp/80", "--from", "all")).output
    assert all(why in told for why in behind.values()), "there it is open until then"
    words(told)
    await relay.json("access", "allow", "edge", "tcp/80", "--from", "all", "--json")
    told = (await relay.call("access", "list")).output
    assert all(why in told for why in behind.values())
    assert "every member" in told
    words(told)


async def test_a_label_that_a_node_gives_itself_is_named_with_what_to_do(relay: Relay, words: Words) -> None:
    """And that does it."""
    relay.world.join("cloud", Role.HEAD)
    relay.world.enrol(NodeKey.generate(), relay.world.token(), "edge-1", labels={"site": "lab"})
    told = (await relay.call("access", "allow", "head", "tcp/80", "--from", "site=lab")).output
    assert "nobody now" in told
    words(told)
    assert "labels site=lab (its own word)" in (await relay.call("registry", "show", "edge-1")).stdout
    assert "`edgelink registry set edge-1 --label site=lab`" in told
    await relay.json("registry", "set", "edge-1", "--label", "site=lab", "--json")
    listed = await relay.json("access", "list", "--json")
    assert (listed["own_word"], listed["rules"][0]["lets_in"]) == ([], ["edge-1"])


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (("allow", "head", "http", "--from", "edge"), "Usage", ExitCode.USAGE),
        (("allow", "cluod", "tcp/1", "--from", "edge"), "NodeUnknown", ExitCode.FAILED),
        (("allow", "head", "tcp/1", "--from", "egde"), "NodeUnknown", ExitCode.FAILED),
        (("deny", "head", "tcp/1", "--from", "edge"), "RuleUnknown", ExitCode.FAILED),
    ],
)
async def test_what_cannot_be_is_refused(relay: Relay, arguments: tuple[str, ...], reason: str, code: ExitCode) -> None:
    """With a hint; nothing is recorded."""
    refused = await relay.refusal("access", *arguments)
    assert (refused.condition_reason, refused.exit_code, bool(refused.hint)) == (reason, code, True)
    assert (await relay.json("access", "list", "--json"))["changes"] == []


async def test_nothing_is_opened_to_nobody_in_particular(relay: Relay) -> None:
    """Everybody has to be said: `--from all`."""
    assert (await relay.call("access", "allow", "head", "tcp/1")).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("route", ["list_access", "allow_access", "deny_access"])
async def test_a_local_user_opens_and_learns_nothing(relay: Relay, route: str) -> None:
    """A map of what is open where is for root."""
    body = {"target": "all", "ports": "tcp/22", "sources": ["all"]}
    with refuses(UsageError, reason="PermissionDenied"):
        await getattr(relay.routes, route)(Caller(1, os.geteuid() + 4711, 4711), body)
    assert relay.authority.access.all() == []
