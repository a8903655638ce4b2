"""What goes into a bundle: the versions that the tests run with, and EasyTier for the machine that it is for."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "release"))
import packages

_ROOT = Path(__file__).parent.parent
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def pinned(lock: Path) -> dict[str, str]:
    return dict(_PINNED.findall(lock.read_text()))


def test_the_daemons_lock_is_that_of_the_tests() -> None:
    """Whoever locks anew does both; all that EdgeLink itself asks for is in it, and neither Ray nor torch."""
    daemon, tests = pinned(packages.DAEMON_LOCK), pinned(_ROOT / "tests/requirements.lock")
    assert {name: version for name, version in daemon.items() if tests.get(name) != version} == {}
    asked = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in asked} - daemon.keys() == set()
    assert not {"ray", "torch", "numpy"} & daemon.keys()


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_an_easytier_for_another_machine_is_refused(tmp_path: Path, machine: str, number: int) -> None:
    """Before it is on a robot."""
    given = tmp_path / "given"
    given.mkdir()
    for name in ("easytier-core", "easytier-cli"):
        (given / name).write_bytes(b"\x7fELF\2\1\1" + bytes(11) + number.to_bytes(2, "little") + bytes(44))
    packages.put_easytier(tmp_path / machine, machine, given)
    assert {file.name for file in (tmp_path / machine).iterdir()} == {"easytier-core", "easytier-cli"}
    other = "aarch64" if machine == "x86_64" else "x86_64"
    with pytest.raises(SystemExit, match=f"is not for {other}.*--easytier"):
        packages.put_easytier(tmp_path / other, other, given)
