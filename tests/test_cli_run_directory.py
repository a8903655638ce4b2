"""Run directories: gone with the run, and those of killed runs with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgelink.cli.run_directory import present_directory, run_directory
from edgelink.errors import NotRecordedError, UsageError

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


def test_no_room_anywhere_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with one partition that is full: Python finds no place for temporary files then."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(NotRecordedError, match="/var/tmp") as caught, run_directory():
        pass
    assert "TMPDIR" in caught.value.hint


def test_a_present_directory_that_is_gone_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that was made anew under a shell that is still in the former one."""
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    assert present_directory() == tmp_path / "checkout"
    (tmp_path / "checkout").rmdir()
    with pytest.raises(UsageError, match="is gone: No such file"):
        present_directory()
