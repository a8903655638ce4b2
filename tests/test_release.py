"""What goes into a bundle: the versions that the tests run with, and EasyTier for the machine that it is for."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
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


@pytest.mark.parametrize(("largest", "taken"), [(2**31 - 1, False), (2**63 - 1, True)], ids=["32-bit", "64-bit"])
def test_a_32_bit_python_on_a_64_bit_kernel_is_not_taken(tmp_path: Path, largest: int, taken: bool) -> None:
    """As on some boards, where `uname -m` says nothing of the programs: no wheel of the bundle would fit it."""
    tools, bundle, prefix = tmp_path / "tools", tmp_path / "bundle", tmp_path / "prefix"
    tools.mkdir()
    bundle.mkdir()
    for name in ("cat", "dirname", "mktemp", "rm", "sh", "sha256sum", "uname"):
        (tools / name).symlink_to(str(shutil.which(name)))
    interpreter = tools / "python3"
    interpreter.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || exec {sys.executable} "$@"\n'
        f'exec {sys.executable} -c "import sys; sys.maxsize = {largest}; $2"\n'
    )
    interpreter.chmod(0o755)
    shutil.copy(packages.HERE / "install", bundle)
    (bundle / "MACHINE").write_text(platform.machine())
    (bundle / "SHA256SUMS").write_text(f"{hashlib.sha256(platform.machine().encode()).hexdigest()}  MACHINE\n")
    done = subprocess.run(
        [bundle / "install", "--prefix", prefix, "--bin", tmp_path / "bin"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, "this bundle has no wheels"
    assert prefix.exists() == taken
    assert ("needs a 64-bit Python 3.11 or later" in done.stderr) != taken, done.stderr


def test_a_debs_size_counts_one_wheel_of_each_package_and_its_bytecode(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "easytier").mkdir()
    (tmp_path / "easytier/easytier-core").write_bytes(bytes(3 * 1024))
    for name, files in {
        "fast-1.0-cp311-cp311-linux_x86_64.whl": {"fast.so": 9 * 1024},
        "fast-1.0-cp312-cp312-linux_x86_64.whl": {"fast.so": 10 * 1024},
        "plain-2.0-py3-none-any.whl": {"plain.py": 1025, "data": 1},
        "pip-26.0-py3-none-any.whl": {"pip.py": 1024 * 1024},
    }.items():
        with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as wheel:
            for file, size in files.items():
                wheel.writestr(file, bytes(size))
    assert packages.installed_size_of(tmp_path) == 10 + (2 * 2 + 1) + 3
