"""RLINF_CODE_WORKING_DIR, before RLinf reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from telling import Words, refuses

from edgelink.errors import ConfigError
from edgelink.training.code_sync import check_code_sync

MB = 1_000_000


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    (root / "rlinf/models").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "rlinf/__init__.py").touch()
    return root


def put(file: Path, size_bytes: int) -> None:
    """A sparse file: as large as it says, but for the disk."""
    file.touch()
    os.truncate(file, size_bytes)


def check(value: str, directory: Path, **environment: str) -> str | None:
    return check_code_sync({"RLINF_CODE_WORKING_DIR": value, "PATH": "/usr/bin:/bin", **environment}, directory)


@pytest.mark.parametrize("value", ["", "0", "off", "No", " false "])
def test_off_is_off(value: str, tmp_path: Path) -> None:
    """As RLinf reads it; unset, too."""
    assert check(value, tmp_path) is None
    assert check_code_sync({}, tmp_path) is None


def test_a_small_package_needs_no_words(checkout: Path) -> None:
    """Checkout or package; what lies beside the package is not carried."""
    put(checkout / "data.bin", 600 * MB)
    assert check(str(checkout), checkout) is None
    assert check(str(checkout / "rlinf"), checkout) is None


def test_a_large_package_is_told_with_its_largest_files(checkout: Path) -> None:
    """Largest first."""
    put(checkout / "rlinf/models/big.pt", 90 * MB)
    put(checkout / "rlinf/small.pt", 20 * MB)
    words = check(str(checkout), checkout) or ""
    assert "has 110 MB" in words
    assert words.endswith("largest: models/big.pt 90 MB, small.pt 20 MB, __init__.py 0 MB")


def test_too_large_a_package_is_refused(checkout: Path) -> None:
    """Before Ray would, after all nodes are up."""
    put(checkout / "rlinf/models/big.pt", 512 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match=r"models/big\.pt 537 MB.* at most 537 MB") as caught:
        check(str(checkout), checkout)
    assert caught.value.condition_reason == "CodeTooLarge"


def test_what_git_ignores_is_not_carried(checkout: Path) -> None:
    """Ray leaves out what .gitignore names."""
    put(checkout / "rlinf/models/big.pt", 600 * MB)
    (checkout / "rlinf/.gitignore").write_text("*.pt\n")
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    assert check(str(checkout), checkout) is None


@pytest.mark.parametrize("value", ["src", "/nowhere/rlinf", "/usr"])
def test_what_rlinf_would_refuse_is_refused(value: str, tmp_path: Path, words: Words) -> None:
    """With the value, the reason, and what to give instead."""
    with refuses(ConfigError, f"RLINF_CODE_WORKING_DIR={value}: ", reason="CodeSyncRefused") as caught:
        check(value, tmp_path)
    assert caught.value.hint
    words(caught.value)


def test_auto_is_where_the_drivers_python_imports_it_from(checkout: Path, tmp_path: Path) -> None:
    """Else the present directory, when that is a checkout; else there is nothing to carry."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    put(checkout / "rlinf/models/big.pt", 600 * MB)
    found = {"PATH": str(programs)}
    with refuses(ConfigError, reason="CodeTooLarge"):
        check("auto", tmp_path, **found, PYTHONPATH=str(checkout))
    with refuses(ConfigError, reason="CodeTooLarge"):
        check("auto", checkout, PATH="/nowhere")
    with refuses(ConfigError, programs, reason="CodeSyncRefused"):
        check("auto", programs, **found)
