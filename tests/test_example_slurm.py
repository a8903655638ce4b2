"""The example for Slurm takes no directory that somebody else has made. Its line alone is run here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docs" / "examples" / "slurm" / "edgelink.sbatch"
Before = Callable[[Path], object]


def make_own(directory: Path) -> subprocess.CompletedProcess[str]:
    """As the script makes its directory on each node."""
    found = re.search(r"^make_own='.*?^.*?exit 1; }'$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    words = f'set -euo pipefail\numask 077\n{found[0]}\nbash -c "$make_own" "$1"'
    return subprocess.run(["bash", "-c", words, "test", str(directory)], capture_output=True, text=True, check=False)


def a_link(directory: Path) -> None:
    target = directory.with_name("elsewhere")
    target.mkdir()
    directory.symlink_to(target)


def of_another_user(directory: Path) -> None:
    directory.mkdir(mode=0o777)
    os.chown(directory, 65534, -1)


@pytest.mark.parametrize("before", [lambda directory: None, Path.mkdir], ids=["not there", "of a former try"])
def test_it_makes_a_directory_for_itself(before: Before, tmp_path: Path) -> None:
    before(tmp_path / "own")
    assert make_own(tmp_path / "own").returncode == 0


def test_the_directory_is_closed_to_others(tmp_path: Path) -> None:
    make_own(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "before",
    [
        a_link,
        Path.touch,
        pytest.param(of_another_user, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    ],
)
def test_what_somebody_else_made_is_not_taken(before: Before, tmp_path: Path) -> None:
    before(tmp_path / "own")
    refused = make_own(tmp_path / "own")
    assert (refused.returncode, "remove it" in refused.stderr) == (1, True)


def test_no_directory_is_made_in_another_way() -> None:
    assert not re.search(r"mkdir -p|mkdir -m", SCRIPT.read_text())
    assert SCRIPT.read_text().count('bash -c "$make_own"') == 3, "here, for the token, and on each edge"
