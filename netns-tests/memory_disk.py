"""Disks in memory, for what is thrown away as a whole: to remove a system's files from a real one takes seconds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def mount_disk(directory: Path) -> None:
    """An empty disk at ``directory``, which is made."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "edgelink-test", directory], check=True)


def unmount_disk(directory: Path) -> None:
    """With all that is on it; also while somebody still looks at it."""
    subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def disk(directory: Path) -> Iterator[Path]:
    """Until it is left."""
    mount_disk(directory)
    try:
        yield directory
    finally:
        unmount_disk(directory)
