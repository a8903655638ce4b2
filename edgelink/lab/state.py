"""What a lab remembers between two commands: its shape, and which processes hold it together."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgelink.errors import LabError
from edgelink.files import locked_directory, private_directory, write_atomic
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.wan_conditions import WanConditions

LAB_ROOT = Path("/var/tmp/edgelink-lab")  # noqa: S108 -- 0700 and ours, checked below; survives a reboot's /tmp cleaning
LOCK_NAME = ".lock"  # and, with an ending, the slots of :mod:`edgelink.lab.ray_slots`


@dataclass
class LabState:
    edges: int
    direct: bool
    accelerators: bool
    spare_uplinks: bool = False
    nat: dict[str, str] = field(default_factory=dict)
    shm_size: str = "1g"
    relays: int = 1
    is_complete: bool = False
    holders: dict[str, PinnedProcess] = field(default_factory=dict)
    daemons: dict[str, PinnedProcess] = field(default_factory=dict)
    wan: dict[str, WanConditions] = field(default_factory=dict)  # by machine that was ever given any
    delayer: PinnedProcess | None = None

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> LabState:
        values = json.loads(path.read_text())
        for key in ("holders", "daemons"):
            values[key] = {node: PinnedProcess(**process) for node, process in values[key].items()}
        values["wan"] = {node: WanConditions(**fields) for node, fields in values["wan"].items()}
        if values["delayer"]:
            values["delayer"] = PinnedProcess(**values["delayer"])
        return cls(**values)


def lab_root() -> Path:
    """The directory of all labs. /var/tmp is everyone's, so make sure that nobody else made it first."""
    LAB_ROOT.mkdir(mode=0o700, exist_ok=True)
    if LAB_ROOT.is_symlink() or LAB_ROOT.lstat().st_uid != os.geteuid():
        raise LabError(f"{LAB_ROOT} belongs to somebody else", hint="remove it, then try again")
    return private_directory(LAB_ROOT)


@contextlib.contextmanager
def locked_root() -> Iterator[Path]:
    """One builds or removes a lab at a time. The root directory goes with its last lab."""
    while True:
        root = lab_root()
        with (root / LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_same(lock.fileno(), root / LOCK_NAME):
                continue  # removed by the one we waited for
            try:
                yield root
            finally:
                files = list(root.iterdir())
                if all(file.name.startswith(LOCK_NAME) for file in files):
                    for file in files:
                        file.unlink()
                    root.rmdir()
            return


def locked_lab(directory: Path) -> AbstractContextManager[None]:
    """One changes the lab of this directory at a time, while others build, change or remove theirs."""
    return locked_directory(directory) if directory.is_dir() else contextlib.nullcontext()  # it is not up


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
