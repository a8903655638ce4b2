"""Find the interpreters of this machine that have Ray. None of them is ever run as root.

Whoever can change an interpreter decides what it does: root runs nothing that another user can write to. So each is
asked as the user who can change it; one that is root's alone is asked as an ordinary user, too.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from edgelink.errors import ConfigError, MissingDependencyError
from edgelink.ray_cluster.interpreter import Interpreter, RayUser, inspect_interpreter, user_of

NOBODY_UID = 65534
_MOST = 64
_AT_ONCE = 8
_ENVIRONMENTS = (
    *("*/bin/python", "*/envs/*/bin/python", "*/versions/*/bin/python"),  # venv, conda, pyenv
    *("*/.venv/bin/python", "*/venv/bin/python"),  # in a project's directory
)
_PLACES = (
    *("usr/bin/python3", "usr/local/bin/python3"),
    *(f"{place}/{pattern}" for place in ("opt", "srv") for pattern in _ENVIRONMENTS),
)


def candidates(homes: Iterable[Path], root: Path = Path("/")) -> Iterator[Path]:
    """Yield the interpreters in the usual places: the system's, and environments in /opt, /srv and ``homes``."""
    seen: set[Path] = set()
    found = [path for pattern in _PLACES for path in _matches(root, pattern)]
    found += [path for home in homes for pattern in _ENVIRONMENTS for path in _matches(home, pattern)]
    for python in found:
        with suppress(OSError):
            place = _real(python.parent)  # not of the file itself: an environment's is a link to the system's
            if place not in seen and python.exists():
                seen.add(place)
                yield python


def _matches(directory: Path, pattern: str) -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _real(path: Path) -> Path:
    """As ``Path.resolve``, which raises RuntimeError where links lead in a circle."""
    return Path(os.path.realpath(path, strict=True))


def owner_of(python: Path) -> int | None:
    """Return the id of the user who can change what ``python`` does; 0: root alone can.

    None: several users can, or everybody, so that nobody's identity is safe to run it under.

    Raises:
        OSError: there is no such file, or its links lead in a circle.
    """
    owners: set[int] = set()
    real = _real(python)
    for path in {python, *python.parents, real, *real.parents}:
        status = path.lstat()
        is_sticky = bool(status.st_mode & stat.S_ISVTX)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & stat.S_IWOTH and not is_sticky:
            return None
        owners.add(status.st_uid)
    owners.discard(0)
    return None if len(owners) > 1 else next(iter(owners), 0)


def asker_of(python: Path, otherwise: RayUser | None) -> RayUser | None:
    """Return whom to run ``python`` as to ask it something: the user who can change it, never root.

    Args:
        otherwise: whom one that only root can change is asked as. None: the user nobody.

    None: it is not safe to ask it, or it cannot be looked at.
    """
    try:
        owner = owner_of(python)
    except OSError:
        return None
    if owner == 0:
        return otherwise or user_of(NOBODY_UID)
    return None if owner is None else user_of(owner)


async def find_pythons(places: Iterable[Path], otherwise: RayUser | None) -> list[Interpreter]:
    """Return the interpreters among ``places`` that have Ray, in this order. Those that cannot be asked are left out.

    Args:
        otherwise: see :func:`asker_of`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(python: Path) -> Interpreter | None:
        if (asker := asker_of(python, otherwise)) is None:
            return None
        async with turns:
            try:
                return await inspect_interpreter(python, asker=asker)
            except (ConfigError, MissingDependencyError):
                return None

    asked = [ask(python) for python, _ in zip(places, range(_MOST), strict=False)]
    return [found for found in await asyncio.gather(*asked) if found]
