"""Where the head's GCS keeps its tables on disk, so that its death costs a run nothing (ADR 0046).

Ray makes the directory, as Ray's user, beside its sessions. A Ray goes on with the tables of another one only if it was
started in the same way: else former nodes, jobs and actors would come back into a cluster that they do not fit.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgelink.errors import RayClusterError
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger

FULL = "GcsStoreFull"
LEAST_FREE_BYTES = 16 * 1024 * 1024  # RocksDB reserves 4 to 8 MB for each of its two logs
_LEAST_FREE_FILES = 64
_MOST_FAILURES = 2
_DATABASES = ("kv", "tables")  # as Ray 2.60 calls them
# RocksDB makes them at each start, and keeps a thousand of the logs: 50 KB a start (measured).
_LEFTOVERS = (re.compile(r"LOG\.old\.\d+"), re.compile(r"OPTIONS-\d+"))
_KEPT = 2  # of each kind, the newest
_STATFS_BYTES = 256  # more than any struct statfs
# From linux/magic.h and the file systems' own headers. FUSE may be sshfs, s3fs or a provider's network volume.
_NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x65735546: "FUSE",
}
_libc = ctypes.CDLL(None, use_errno=True)
_log = get_logger("ray")


class GcsStore:
    """The directory, and a note beside the node's other state of what was started on it.

    Ray's user owns the directory and may put anything there, so nothing in it is believed or followed.
    """

    def __init__(self, directory: Path, note: Path, files: Files = AT_ONCE) -> None:
        self.directory = directory
        self._note = note
        self._files = files

    def why_not_here(self) -> str:
        """Say why the tables cannot lie there; empty where they can.

        RocksDB waits for the disk at every write, and a file server that stands still would take the GCS along. Root
        without CAP_DAC_OVERRIDE, as in some containers, may not enter what is Ray's user's alone.
        """
        try:
            kind = _NETWORK_FILE_SYSTEMS.get(file_system_of(_existing(self.directory)))
        except PermissionError:
            return f"the daemon may not enter {self.directory.parent}"
        return f"{self.directory} is on a {kind} file system" if kind else ""

    def check_room(self) -> None:
        """Raise RayClusterError where the disk has no room: a GCS ends at its first write that fails."""
        found = os.statvfs(_existing(self.directory))
        free_bytes = found.f_bavail * found.f_frsize
        has_files = found.f_files == 0 or found.f_favail >= _LEAST_FREE_FILES  # some file systems do not count them
        if free_bytes < LEAST_FREE_BYTES or not has_files:
            what = f"{free_bytes // 1024**2} MiB" if has_files else "no inodes"
            raise RayClusterError(
                f"Ray's GCS does not run: {what} free on the disk of its tables, {self.directory}; actors that run go "
                "on, new ones and new nodes wait",
                hint=f"free some space there (`df -h {self.directory}`, `df -i`): it starts by itself once there are "
                f"{LEAST_FREE_BYTES // 1024**2} MiB",
                reason=FULL,
            )

    def prepare(self, identity: str) -> None:
        """Make way for a `ray start`. Only one with the same ``identity`` goes on with the tables that are there.

        Raises:
            RayClusterError: they cannot be removed.
        """
        noted, failures = self._noted()
        if self.directory.is_symlink() or self.directory.exists():
            if noted != identity:
                self.remove("it was made by a Ray that was started in another way")
            elif failures >= _MOST_FAILURES:
                self.remove(f"`ray start` failed on it {failures} times")
            else:
                self.prune()
                return
        self._keep(identity, 0)

    def note_start(self, *, has_failed: bool) -> None:
        """Count the failures of `ray start` in a row."""
        noted, failures = self._noted()
        if has_failed or failures:
            self._keep(noted, failures + 1 if has_failed else 0)

    def remove(self, why: str) -> None:
        """Remove all tables: the next Ray begins a new cluster. A disk that is mounted there stays.

        Where the daemon may not look there are none: it made none.

        Raises:
            RayClusterError: they cannot be removed.
        """
        try:
            self.directory.lstat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        _log.info("ray.gcs_store_removed", directory=str(self.directory), why=why)
        try:
            if self.directory.is_symlink() or not self.directory.is_dir():
                self.directory.unlink()
                return
            for entry in list(self.directory.iterdir()):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            with suppress(OSError):
                self.directory.rmdir()
        except OSError as error:
            raise RayClusterError(
                f"the tables of a former Ray in {self.directory} cannot be removed: {error.strerror or error}",
                hint="remove the directory by hand, then Ray starts",
                reason="RayTempDir",
            ) from error

    def prune(self) -> None:
        """Remove the logs and options that RocksDB's former starts have left. No GCS runs."""
        for database in _DATABASES:
            with suppress(OSError), _opened(self.directory, database) as descriptor:
                names = os.listdir(descriptor)  # noqa: PTH208 (of a descriptor)
                for kind in _LEFTOVERS:
                    found = sorted((name for name in names if kind.fullmatch(name)), key=_number)
                    for name in found[:-_KEPT]:
                        os.unlink(name, dir_fd=descriptor)

    def _noted(self) -> tuple[str, int]:
        try:
            values = json.loads(self._note.read_text())
            return str(values["identity"]), int(values["failures"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", 0

    def _keep(self, identity: str, failures: int) -> None:
        self._files.keep(self._note, json.dumps({"identity": identity, "failures": failures}))


def file_system_of(path: Path) -> int:
    """Return the magic number of the file system that ``path`` lies on, as statfs(2). Raises OSError."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.statfs(os.fsencode(path), answer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF  # the first field


def _existing(path: Path) -> Path:
    """The directory itself, or the nearest one above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())


def _number(name: str) -> int:
    return int(re.split(r"[-.]", name)[-1])


@contextmanager
def _opened(directory: Path, name: str) -> Iterator[int]:
    """Open a directory without following a link that Ray's user may have put in its place. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    above = os.open(directory, flags)
    try:
        descriptor = os.open(name, flags, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
