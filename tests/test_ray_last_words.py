"""The last words of raylet and GCS: what is quoted of logs that belong to somebody else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from edgelink.ray_cluster.last_words import last_words, output_files

LOG = """[2026-11-21 11:52:05,603 I 1 1] (raylet) main.cc:1: hello
[2026-11-21 11:52:05,604 E 1 1] (raylet) node_manager.cc:2: first
[2026-11-21 11:52:05,605 C 1 1] (raylet) node_manager.cc:3: This node was marked dead
[state-dump] NodeManager: 1
[2026-11-21 11:52:05,606 I 1 1] (raylet) main.cc:4: bye
"""


def test_errors_come_before_chatter(tmp_path: Path) -> None:
    """The lines of severity E, C and F; of a log without any, its end."""
    log = tmp_path / "raylet.out"
    log.write_text(LOG)
    words = last_words([str(log)], os.getuid())
    assert "marked dead" in words
    assert "bye" not in words
    log.write_text("one\ntwo\n[state-dump] three\n\nfour\nfive\n")
    assert last_words([str(log)], os.getuid()) == "two | four | five"


def test_words_are_few(tmp_path: Path) -> None:
    """They end up in a condition that every node is told."""
    log = tmp_path / "raylet.err"
    log.write_text("x" * 500_000 + "\n" + "y" * 500_000)
    assert len(last_words([str(log)], os.getuid())) < 1000


def test_they_command_no_terminal(tmp_path: Path) -> None:
    """Ray's user could have written anything there, and root looks at `edgelink status`."""
    log = tmp_path / "raylet.err"
    log.write_text("out of \x1b]0;owned\x07\x1b[2J memory\n")
    assert last_words([str(log)], os.getuid()) == "out of �]0;owned��[2J memory"


def test_only_the_users_own_files_are_quoted(tmp_path: Path) -> None:
    """A link, a pipe, another owner or no file at all: nothing is said, and nobody is waited for."""
    secret, link, pipe = tmp_path / "secret", tmp_path / "raylet.out", tmp_path / "raylet.err"
    secret.write_text("a secret")
    link.symlink_to(secret)
    os.mkfifo(pipe)
    assert last_words([str(link), str(pipe), str(tmp_path / "missing")], os.getuid()) == ""
    assert last_words([str(secret)], os.getuid() + 1) == ""


def test_the_files_are_found_at_the_process(tmp_path: Path) -> None:
    """Where its standard output and error go; terminals and devices are none."""
    log = tmp_path / "out"
    with log.open("w") as file, subprocess.Popen(["sleep", "60"], stdout=file, stderr=subprocess.DEVNULL) as process:
        try:
            assert output_files(process.pid) == (str(log),)
        finally:
            process.kill()
