"""`edgelink head -- CMD` as a process, on a machine that is no member of any network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "this machine has not joined a network" in done.stderr
    assert "`edgelink join TOKEN`" in done.stderr
    assert done.stderr.count("what other bring to the cluster section was not seen") == 1
    assert not ran.exists()
