"""RLINF_CODE_WORKING_DIR, checked before RLinf does: which tree it means, and how much Ray would carry to each node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from edgelink.errors import ConfigError
from edgelink.frameworks.packages import packages_of

NAME = "RLINF_CODE_WORKING_DIR"
WARN_BYTES = 100_000_000
MOST_BYTES = 512 * 1024 * 1024  # Ray's limit of one package
_OFF = ("", "0", "false", "no", "off")
_SHOWN = 5
_LOOK_S = 20.0
_LEVELS_UP = 12  # as far up as RLinf looks


def is_auto(environment: Mapping[str, str]) -> bool:
    """Whether the driver's interpreter has a say in which code it is."""
    return environment.get(NAME, "").strip().lower() == "auto"


def is_off(environment: Mapping[str, str]) -> bool:
    """Whether RLinf carries no code, so that each node's own is used."""
    return environment.get(NAME, "").strip().lower() in _OFF


def check_code_sync(environment: Mapping[str, str], directory: Path) -> str | None:
    """What is to be said of the code that the driver's environment tells RLinf to carry; None: nothing.

    Args:
        environment: the driver's.
        directory: where it runs.

    Raises:
        ConfigError: RLinf would refuse the value, or Ray the size.
    """
    if is_off(environment):
        return None
    value = environment[NAME].strip()
    package = _of_auto(environment, directory) if is_auto(environment) else _of_path(value)
    files = _files(package)
    total = sum(files.values())
    if total <= WARN_BYTES:
        return None
    largest = sorted(files.items(), key=lambda item: item[1], reverse=True)[:_SHOWN]
    named = ", ".join(f"{path.relative_to(package)} {_mb(size)}" for path, size in largest)
    message = (
        f"{NAME}={value}: {package} has {_mb(total)} that each node would be sent over the overlay; largest: {named}"
    )
    if total > MOST_BYTES:
        raise ConfigError(
            f"{message}. Ray takes at most {_mb(MOST_BYTES)}",
            hint=f"move them out of the package or name them in {package}/.gitignore, or install rlinf on every node "
            f"and unset {NAME}",
            reason="CodeTooLarge",
        )
    return message


def _of_path(value: str) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise _refused(value, "is a relative path", "give an absolute one, `auto`, or `off`")
    path = path.resolve()
    if not path.is_dir():
        raise _refused(value, f"{path} is no directory on this machine", "it is read here, on the head")
    if (path / "pyproject.toml").is_file() and (path / "rlinf/__init__.py").is_file():
        return path / "rlinf"
    if path.name == "rlinf" and (path / "__init__.py").is_file():
        return path
    raise _refused(
        value,
        "is neither a checkout of RLinf (pyproject.toml and rlinf/__init__.py) nor its package `rlinf`",
        "give the directory of the checkout",
    )


def _of_auto(environment: Mapping[str, str], directory: Path) -> Path:
    """As RLinf finds it: the checkout that the driver's interpreter imports it from, else the present directory."""
    package = imported_from(environment, directory)
    for parent in [] if package is None else [package, *package.parents][:_LEVELS_UP]:
        if (parent / "pyproject.toml").is_file():
            if (parent / "rlinf/__init__.py").is_file():
                return parent / "rlinf"
            raise _refused("auto", f"{parent} has a pyproject.toml, but no rlinf/", "give the checkout's path")
    if (directory / "pyproject.toml").is_file() and (directory / "rlinf/__init__.py").is_file():
        return (directory / "rlinf").resolve()
    where = f"rlinf is installed in {package}" if package else "the driver's python has no rlinf"
    raise _refused(
        "auto",
        f"there is no checkout to carry: {where}, and {directory} is no checkout",
        "run the command in the checkout, or give its absolute path",
    )


def imported_from(environment: Mapping[str, str], directory: Path) -> Path | None:
    """Return the directory of the rlinf that the driver's `python` would import. None: it has none."""
    python = shutil.which("python", path=environment.get("PATH", os.defpath))
    try:
        found = packages_of(python, ["rlinf"], environment, directory).get("rlinf") if python else None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Path(found.at) if found is not None and found.at else None


def _files(package: Path) -> dict[Path, int]:
    """Sizes in bytes of what Ray would pack: all but what .gitignore keeps out, where git can say what that is."""
    sizes = {}
    kept = _not_ignored(package)
    for root, directories, names in os.walk(package):
        directories[:] = [name for name in directories if name not in (".git", "__pycache__")]
        for name in names:
            path = Path(root, name)
            if kept is not None and path not in kept:
                continue
            try:
                sizes[path] = path.stat().st_size
            except OSError:  # a dangling link, or gone meanwhile
                continue
    return sizes


def _not_ignored(package: Path) -> set[Path] | None:
    """None where there is no git, or no repository."""
    command = ["git", "-c", "safe.directory=*", "-C", str(package), "ls-files", "-coz", "--exclude-standard"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return {package / os.fsdecode(name) for name in answer.stdout.split(b"\0") if name}


def _refused(value: str, why: str, hint: str) -> ConfigError:
    return ConfigError(f"{NAME}={value}: {why}", hint=hint, reason="CodeSyncRefused")


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:.0f} MB"
