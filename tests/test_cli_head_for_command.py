"""`edgelink head -- CMD` as a process, on a machine that is no member of any network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

CLUSTER = "defaults: [other]\ncluster: {num_nodes: 2, component_placement: {actor: 0}}"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a network that is there already, nothing of it is touched, and nobody needs to be root."""
    composer = tmp_path / "composer"
    composer.write_text("#!/bin/sh\nexit 3\n")
    composer.chmod(0o755)
    (tmp_path / "edgelink.yaml").write_text(f"overlay: {{kind: existing, device: lo}}\nray: {{python: {composer}}}\n")
    directories = {"EDGELINK_STATE_DIR": str(tmp_path / "state"), "EDGELINK_RUNTIME_DIR": str(tmp_path / "run")}
    return {**os.environ, **directories, "EDGELINK_CONFIG": str(tmp_path / "edgelink.yaml")}


def test_the_daemons_own_answer_is_the_end(environment: dict[str, str], tmp_path: Path) -> None:
    """It has not joined, how it would, and with the daemon's exit status; CMD is not run, the warning said once."""
    cluster, ran = tmp_path / "train.yaml", tmp_path / "ran"
    cluster.write_text(CLUSTER)
    argv = ["-m", "edgelink.cli.main", "head", "--cluster", str(cluster), "--", "touch", str(ran)]
    done = subprocess.run(
        [sys.executable, *argv], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 78, done.stderr
    assert "NotJoined" in done.stderr
    assert "`edgelink join TOKEN`" in done.stderr
    assert done.stderr.count("warning: ") == 1
    assert not ran.exists()


def test_files_are_those_of_the_callers_directory(environment: dict[str, str], tmp_path: Path) -> None:
    """The daemon starts elsewhere. And what daemons before it have said is not told as this one's."""
    cluster, log = tmp_path / "train.yaml", tmp_path / "state/logs/head.log"
    cluster.write_text(CLUSTER)
    log.parent.mkdir(parents=True)
    log.write_text("edgelink: what was wrong yesterday\n")
    (tmp_path / "token").write_text("edgelink_no-token\n")
    relative = {"EDGELINK_CONFIG": "edgelink.yaml", "EDGELINK_STATE_DIR": "state", "EDGELINK_RUNTIME_DIR": "run"}
    argv = ["-m", "edgelink.cli.main", "head", "--token-file", "token", "--cluster", cluster.name, "--", "true"]
    done = subprocess.run(
        [sys.executable, *argv],
        env={**environment, **relative},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "No such file" not in done.stderr
    assert "token" in done.stderr
    assert "yesterday" not in done.stderr
    assert "yesterday" in log.read_text()
