"""`edgelink ssh`: what the system's ssh is given. A daemon and a node are played."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgelink.cli import ssh
from edgelink.errors import UsageError
from edgelink.launch.remote_request import ssh_host_keys

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"
_SSH = """#!/bin/sh
for word in "$@"; do
  case $word in -oUserKnownHostsFile=*) cat "${word#*=}" >"$TOLD.known";; esac
  printf '%s\\n' "$word"
done >"$TOLD"
exit 5
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a played ssh writes its words, and beside it what it was told of known hosts."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(_SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


def play(monkeypatch: pytest.MonkeyPatch, keys: list[str]) -> None:
    """A daemon that knows edge-1, and believes the hello that comes from its address."""

    def call(_socket: Path, _method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert body["node"] == "edge-1"
        if path == "/exec/look":
            return {"overlay_ip": "10.10.0.3"}
        assert json.loads(body["hello"]) == {"from": "10.10.0.3"}
        return {"ssh_keys": keys}

    async def hello(_node: str, overlay_ip: str) -> str:
        return json.dumps({"from": overlay_ip})

    monkeypatch.setattr(ssh, "call", call)
    monkeypatch.setattr(ssh, "_hello", hello)


def test_ssh_knows_the_node_by_what_the_node_has_signed(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks nothing: a host with another key is refused. Its exit status is ours."""
    play(monkeypatch, [KEY])
    argv = ["robot@edge-1", "-L", "8888:localhost:8888", "uptime", "-p"]

    done = CliRunner().invoke(ssh.command, argv, standalone_mode=False)

    assert done.return_value == 5
    words = told.read_text().splitlines()
    assert words[-5:] == ["robot@10.10.0.3", *argv[1:]]
    assert {"-oStrictHostKeyChecking=yes", "-oHostKeyAlias=edge-1", "-oGlobalKnownHostsFile=/dev/null"} <= {*words}
    assert told.with_suffix(".known").read_text() == f"edge-1 {KEY}\n"


def test_a_node_without_sshd_is_no_question_of_trust(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, [])
    with pytest.raises(UsageError, match="no host keys"):
        CliRunner().invoke(ssh.command, ["edge-1"], standalone_mode=False, catch_exceptions=False)
    assert not told.exists()


def test_host_keys_are_read_without_their_comments(tmp_path: Path) -> None:
    (tmp_path / "ssh_host_ed25519_key.pub").write_text(f"{KEY} root@robot\n")
    (tmp_path / "ssh_host_rsa_key.pub").write_text("")
    (tmp_path / "ssh_host_ed25519_key").write_text("secret")
    assert ssh_host_keys(tmp_path) == (KEY,)
    assert ssh_host_keys(tmp_path / "nowhere") == ()
