"""Run directories: gone with the run, and those of killed runs with the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgelink.cli.run_directory import run_directory

_HOLDER = """
import sys, time
from pathlib import Path
from edgelink.cli.run_directory import run_directory
with run_directory(Path(sys.argv[1])) as directory:
    print(directory, flush=True)
    time.sleep(60)
"""


def test_a_killed_runs_directory_goes_with_the_next_run(tmp_path: Path) -> None:
    """A living run's stays, and so does what only has such a name."""
    (tmp_path / "edgelink-run-file").touch()
    argv = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            theirs = Path(holder.stdout.readline().strip())
            with run_directory(tmp_path) as first:
                assert theirs.is_dir()
                assert first.is_dir()
            assert not first.exists()
        finally:
            holder.kill()
    assert theirs.is_dir()
    with run_directory(tmp_path):
        assert not theirs.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["edgelink-run-file"]
