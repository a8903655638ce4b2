"""What takes long to make and is only read afterwards: made once a session, for all its files and workers.

It lies in the session's own temporary directory: never of another session or checkout, and removed with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgelink.overlay.acquisition import default_cache_dir, find_easytier

REPOSITORY = Path(__file__).parent.parent
_PACKAGES = REPOSITORY / ".ci/packages/packages.py"
_PYTHONS = ("3.11", "3.12", "3.13")  # that a bundle can be made for
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The directory that ``make`` has filled: for the first who asks; the session's other workers wait, and share it.

    What ``make`` could not finish is made anew for who asks next.
    """
    base = factory.getbasetemp()
    of_session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made, unfinished = of_session / name, of_session / f"{name}.unfinished"
    with (of_session / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(made)
    return made


def debian_root(packages: Sequence[str] = ()) -> Path:
    """The root of a small Debian, with these ``packages`` besides; to be copied, not to be changed. CalledProcessError:
    none can be made here."""
    made = subprocess.run([REPOSITORY / ".ci/debian-root", *packages], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())


def debian_python() -> str | None:
    """The version of the small Debian's Python; None where there is none that a bundle can be made for."""
    try:
        programs = debian_root() / "usr/bin"
    except subprocess.CalledProcessError:
        return None
    return next((version for version in _PYTHONS if (programs / f"python{version}").exists()), None)


def _programs(directory: Path) -> Path:
    """The directory with EasyTier's programs for a package.

    Those of the wheel work only in this machine's own environment: what is packed leads there where a test can see it,
    and answers what version it is where not, as in a Debian of its own.
    """
    easytier = find_easytier(None, default_cache_dir())
    if easytier.module is None:
        return easytier.core.parent
    directory.mkdir(exist_ok=True)
    for program in (easytier.core, easytier.core.with_name("easytier-cli")):
        text = f'#!/bin/sh\n[ -x {program} ] && exec {program} "$@"\necho "{program.name} {easytier.full_version}"\n'
        (directory / program.name).write_text(text)
        (directory / program.name).chmod(0o755)
    return directory


def packages(factory: pytest.TempPathFactory) -> Path:
    """The directory with sdist, wheel, bundle and .deb, as `make packages` makes them, for this Python and Debian's."""

    def make(dist: Path) -> None:
        versions = {OWN_PYTHON, debian_python()} - {None}
        easytier = _programs(dist.parent / "easytier")
        options = [f"--python={version}" for version in versions]
        command = [sys.executable, _PACKAGES, "deb", "--dist", dist, "--easytier", easytier, *options]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)

    return made_once(factory, "packages", make)
