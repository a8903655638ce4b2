"""What installing and removing a service does to a machine, one step at a time: told beforehand, then done."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgelink.errors import EdgelinkError
from edgelink.files import not_recorded, write_atomic

_SYSTEMCTL_TIMEOUT_S = 120.0  # the units' own TimeoutStopSec is 45 s


class ServiceError(EdgelinkError):
    """systemd did not do what it was asked."""

    reason = "ServiceFailed"


@dataclass(frozen=True)
class Machine:
    """Where units are put. ``is_booted``: whether systemd runs it; an image that is being made has none."""

    root: Path = Path("/")
    is_booted: bool = True

    def path(self, inside: Path) -> Path:
        return self.root / inside.relative_to("/")

    def read(self, inside: Path) -> str | None:
        """None where there is no such file; a link is read through."""
        try:
            return self.path(inside).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def is_masked(self, inside: Path) -> bool:
        """Whether an administrator has forbidden the unit (`systemctl mask`)."""
        path = self.path(inside)
        return path.is_symlink() and str(path.readlink()) == os.devnull

    def systemctl(self, *arguments: str, good: tuple[int, ...] = (0,)) -> str:
        """Its output.

        Raises:
            ServiceError: it is missing, does not answer, or ended with a status that is not ``good``.
        """
        command = ("systemctl", *arguments)
        words = " ".join(command)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SYSTEMCTL_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceError(f"`{words}`: {error}", hint="`systemctl status` shows the manager's state") from error
        if done.returncode not in good:
            answer = " ".join((done.stderr or done.stdout).split())
            raise ServiceError(f"`{words}` ended with status {done.returncode}: {answer}")
        return done.stdout


@dataclass(frozen=True)
class Write:
    """Have ``path`` hold ``text``."""

    path: Path
    text: str

    def told(self) -> str:
        return "\n".join([f"write {self.path}", *(f"    {line}".rstrip() for line in self.text.splitlines())])

    def do(self, machine: Machine) -> None:
        target = machine.path(self.path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_recorded(target.parent, error) from error
        write_atomic(target, self.text, mode=0o644)


@dataclass(frozen=True)
class Link:
    """Have ``path`` be a link to ``target``."""

    path: Path
    target: Path

    def told(self) -> str:
        return f"link {self.path} -> {self.target}"

    def do(self, machine: Machine) -> None:
        path = machine.path(self.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(self.target)
        except OSError as error:
            raise not_recorded(path, error) from error


@dataclass(frozen=True)
class Remove:
    """Have ``path`` be gone, also a directory with all that is in it."""

    path: Path

    def told(self) -> str:
        return f"remove {self.path}"

    def do(self, machine: Machine) -> None:
        path = machine.path(self.path)
        try:
            if path.is_dir() and not path.is_symlink():
                _remove_directory(path)
            else:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # it was made for this link alone, or it is not empty
                if path.parent.name.endswith(".wants"):
                    path.parent.rmdir()
        except OSError as error:
            raise not_recorded(path, error) from error


@dataclass(frozen=True)
class Systemctl:
    """``may_fail``: the unit need not be there, or need not have failed."""

    arguments: tuple[str, ...]
    may_fail: bool = False

    def told(self) -> str:
        return f"run systemctl {' '.join(self.arguments)}"

    def do(self, machine: Machine) -> None:
        with suppress(*((ServiceError,) if self.may_fail else ())):
            machine.systemctl(*self.arguments)


def _remove_directory(path: Path) -> None:
    """One that is a mount point cannot be removed, only emptied."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    try:
        path.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


Step = Write | Link | Remove | Systemctl


def do(steps: Iterable[Step], machine: Machine) -> None:
    """One after the other. Raises NotRecordedError, ServiceError: at the first that fails."""
    for step in steps:
        step.do(machine)
