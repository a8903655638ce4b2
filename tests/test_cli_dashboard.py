"""What `edgelink dashboard` prints: links, and the way of a laptop."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from click.testing import CliRunner
from living import living
from telling import Words

from edgelink.api import schema
from edgelink.cli import dashboard

_ANSWERS = dashboard._answers
ANSWER: dict[str, Any] = {
    "link": "s3cret",
    "lives_s": 300.0,
    "port": 8270,
    "overlay_ip": "10.10.0.2",
    "hostname": "cloud",
    "ray_dashboard_port": 8265,
    "ray_token_path": "/run/edgelink/ray/token",
}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers; collects what it was asked."""
    asked: list[str] = []

    def call(_socket: Any, method: str, path: str, *_: Any) -> Any:
        asked.append(f"{method} {path}")
        return {"role": "head", "hostname": "cloud"} if path == "/status" else ANSWER

    monkeypatch.setattr(dashboard, "call", call)
    monkeypatch.setattr(dashboard, "_of_parents", lambda _pid: None)
    monkeypatch.setattr(dashboard, "_answers", lambda port: port == 8265)
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 198.51.100.7 22")
    return asked


def test_a_person_is_told_the_link_and_the_way(daemon: list[str], words: Words) -> None:
    """Each on a line of its own; the ssh command leads to the address at which this shell was reached."""
    shown = CliRunner().invoke(dashboard.command, []).output
    lines = [line.strip() for line in shown.splitlines()]
    assert "http://127.0.0.1:8270/#link=s3cret" in lines
    assert "http://10.10.0.2:8270/#link=s3cret" in lines
    assert "ssh -N -L 8270:127.0.0.1:8270 -L 8265:127.0.0.1:8265 alice@198.51.100.7" in lines
    assert any("http://localhost:8265/" in line for line in lines), "where the page's cookie does not go"
    words(shown)
    assert "sudo cat /run/edgelink/ray/token" in shown
    assert daemon == ["GET /status", "POST /dashboard"]
    CliRunner().invoke(dashboard.command, ["--log-out"])
    assert daemon[2:] == ["GET /status", "POST /dashboard/logout"]
    done = json.loads(CliRunner().invoke(dashboard.command, ["--log-out", "--json"]).output)
    schema.LoggedOut.model_validate(done)
    assert daemon[4:] == ["GET /status", "POST /dashboard/logout"]


@pytest.mark.parametrize(
    ("connection", "address", "end", "known"),
    [
        (None, None, "alice@cloud", False),
        (("198.18.0.7", "2222"), None, "-p 2222 alice@198.18.0.7", False),
        (("172.31.4.5", "2222"), "gpu.example.org", "-p 2222 alice@gpu.example.org", True),
        (None, "gpu.example.org", "alice@gpu.example.org", True),
        (("1.1.1.1", "22"), None, "alice@1.1.1.1", True),
        (("2606:4700::7", "22"), None, "alice@2606:4700::7", True),
        (("fd00::7", "22"), None, "alice@fd00::7", False),
        (("100.64.0.7", "22"), None, "alice@100.64.0.7", False),
    ],
)
def test_the_way_of_a_laptop(
    monkeypatch: pytest.MonkeyPatch, connection: tuple[str, str] | None, address: str | None, end: str, known: bool
) -> None:
    """Without an ssh of the caller's, the head's name has to do; whether a laptop reaches that, nobody knows."""
    monkeypatch.setenv("SUDO_USER", "alice")
    found = dashboard.told(ANSWER | {"overlay_ip": None}, connection, address=address, ray_answers=False)
    assert found["ssh"].endswith(f"8265:127.0.0.1:8265 {end}")
    assert (found["ssh_address"], found["ssh_address_known"]) == (end.rpartition("@")[2], known)
    assert found["overlay_url"] is None
    schema.Dashboard.model_validate(found)


@pytest.mark.parametrize(
    ("connection", "options", "address"),
    [
        ("192.0.2.7 50000 172.31.4.5 22", [], "172.31.4.5"),
        ("", [], "cloud"),
        ("192.0.2.7 50000 1.1.1.1 22", [], None),
        ("192.0.2.7 50000 172.31.4.5 22", ["--address", "gpu.example.org"], None),
    ],
)
def test_an_address_that_may_lead_nowhere_is_told(
    daemon: list[str], monkeypatch: pytest.MonkeyPatch, connection: str, options: list[str], address: str | None
) -> None:
    """Below the command that has it: behind 1:1 NAT a machine knows its private one only."""
    monkeypatch.setenv("SSH_CONNECTION", connection)
    shown = CliRunner().invoke(dashboard.command, options).output
    told = shown.partition("  ssh ")[2].partition("\n\n")[2]
    assert told.startswith(f"In place of {address}, ") == (address is not None)
    assert ("--address" in shown) == (address is not None)


@pytest.mark.parametrize("ray_answers", [True, False])
def test_what_is_said_fits_a_terminal(daemon: list[str], monkeypatch: pytest.MonkeyPatch, ray_answers: bool) -> None:
    """But for links and the command, which are copied."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(dashboard, "_answers", lambda _port: ray_answers)
    lines = CliRunner().invoke(dashboard.command, []).output.splitlines()
    copied = [line for line in lines if line.startswith(("  http://", "  ssh "))]
    assert len(copied) == 3
    assert max(len(line) for line in lines if line not in copied) <= 80


def test_a_dashboard_that_is_not_there_is_told(daemon: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray without its extra has none: nobody is to look for the fault in the way."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert _ANSWERS(port)
    assert not _ANSWERS(port)
    monkeypatch.setattr(dashboard, "_answers", lambda _port: False)
    shown = CliRunner().invoke(dashboard.command, []).output
    assert "ray[default] in the interpreter" in " ".join(shown.split())
    assert "sudo cat" not in shown


@pytest.mark.parametrize("value", ["", "1 2 3", "a b c d", "192.0.2.7 50000 198.51.100.7 ; ls"])
def test_what_is_no_connection_is_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Nothing of it gets into a command line."""
    monkeypatch.setenv("SSH_CONNECTION", value)
    monkeypatch.setattr(dashboard, "_of_parents", lambda _pid: None)
    assert dashboard._ssh_connection() is None


def test_sudo_is_asked_where_it_came_from() -> None:
    """It takes the variable from the command's environment, and keeps it in its own."""
    connection = "192.0.2.7 50000 198.51.100.7 22"
    with living({"SSH_CONNECTION": connection}) as sudo:
        assert dashboard._of_parents(sudo) == connection
