"""`edgelink revoke` and `edgelink rotate-secret`: what is asked of the daemon, what is shown, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from telling import Words

from edgelink.cli import relay_request, revoke, rotate_secret, rotation_request
from edgelink.errors import DeadlineError, EdgelinkError, ExitCode


def row(hostname: str, state: str, *, done: bool = False, online: bool = True, relay: bool = False) -> dict[str, Any]:
    return {"hostname": hostname, "state": state, "done": done, "online": online, "relay": relay}


class Daemon:
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = items
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, _socket: Any, _method: str, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.asked.append((path, body))
        return iter(self.items)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    found = Daemon()
    monkeypatch.setattr(rotation_request, "EventStream", found)
    return found


@pytest.mark.parametrize("reason", ["NodeUnknown", "DaemonNotRunning"])
def test_a_mistyped_name_or_another_machine_is_told_before_the_question(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise EdgelinkError("no such node", reason=reason)

    monkeypatch.setattr(relay_request, "call", refuse)
    monkeypatch.setattr(revoke, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    result = CliRunner().invoke(revoke.command, ["franka2"], input="y\n")
    assert isinstance(result.exception, EdgelinkError)
    assert (result.exception.condition_reason, result.output, daemon.asked) == (reason, "", [])


def test_a_revocation_is_shown_as_it_goes(daemon: Daemon, words: Words) -> None:
    """Each change of a node once, with the time; the last line says that it is out."""
    waiting = {
        "event": "nodes",
        "after_s": 0.1,
        "nodes": [row("relay", "is told"), row("edge-1", "is told")],
    }
    changed = {
        "event": "nodes",
        "after_s": 1.4,
        "nodes": [row("relay", "runs on secret 2"), row("edge-1", "is told")],
    }
    daemon.items = (
        {"event": "revoked", "hostname": "franka-2", "node_id": "wm7c"},
        waiting,
        changed,
        {"event": "done", "after_s": 2.0, "behind": []},
    )
    result = CliRunner().invoke(revoke.command, ["franka-2", "--yes", "--hold", "5s", "--all-tokens"])
    assert result.exit_code == 0, result.output
    assert result.output.count("edge-1               is told") == 1
    assert "franka-2 (wm7c) is off the broker" in result.output
    assert "1.4 s  relay                runs on secret 2" in result.output
    assert any({"franka-2", "2.0"} <= set(line.split()) for line in result.output.splitlines())
    words(result.output)
    assert daemon.asked == [
        (
            "/revoke",
            {"node": "franka-2", "hold_s": 5.0, "all_tokens": True},
        )
    ]
    CliRunner().invoke(revoke.command, ["franka-2", "--yes", "--now"])
    assert daemon.asked[1][1]["hold_s"] == 0.0


def test_who_is_not_on_the_new_secret_is_named_with_75(daemon: Daemon, words: Words) -> None:
    """It is out, and yet somebody may go on with the old secret."""
    behind = [row("relay-2", "…", relay=True), row("edge-7", "…", online=False)]
    daemon.items = ({"event": "done", "after_s": 2.0, "behind": behind},)
    result = CliRunner().invoke(revoke.command, ["franka-2", "--yes"])
    assert isinstance(result.exception, DeadlineError)
    assert result.exception.exit_code is ExitCode.TRY_AGAIN
    assert "relay-2 (a relay), edge-7 (offline)" in result.exception.message
    words(result.output)


def test_for_scripts_each_answer_is_a_line(daemon: Daemon) -> None:
    """--json: the daemon's own objects and nothing else."""
    daemon.items = ({"event": "nodes", "after_s": 0.1, "nodes": []}, {"event": "done", "after_s": 2.0, "behind": []})
    result = CliRunner().invoke(rotate_secret.command, ["--json"])
    assert [json.loads(line) for line in result.output.splitlines()] == list(daemon.items)
    assert daemon.asked[0] == ("/rotate-secret", {"hold_s": 60.0})


def test_a_daemon_that_ends_meanwhile_is_no_success(daemon: Daemon, words: Words) -> None:
    """Its successor goes on, and that is what the message says."""
    daemon.items = ({"event": "nodes", "after_s": 0.1, "nodes": []},)
    result = CliRunner().invoke(rotate_secret.command)
    assert isinstance(result.exception, EdgelinkError)
    assert result.exception.hint
    words(result.exception)


def test_who_is_still_on_the_broker_is_not_said_to_be_off(daemon: Daemon, words: Words) -> None:
    """While the broker is away it cannot be told."""
    daemon.items = (
        {"event": "revoked", "hostname": "franka-2", "node_id": "wm7c", "off_broker": False},
        {"event": "done", "after_s": 2.0, "behind": []},
    )
    result = CliRunner().invoke(revoke.command, ["franka-2", "--yes"])
    assert "is off the broker" not in result.output
    words(result.output)
