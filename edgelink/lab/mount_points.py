"""Directories on the host that a lab's nodes mount their own over, shared by all labs of the machine.

A missing one is made, recorded before it is made, and removed again by the last lab that goes, if it is still empty.
Call with the lab lock held.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

from edgelink.files import write_atomic
from edgelink.lab.processes import NamespaceId, namespace_id
from edgelink.process import procfs

# Where the node sees it, and the mode of the node's own directory. A daemon gives Ray's to
# whom Ray runs as. Robots' is root's: nodes of two labs may have the same name, and so may their robots.
MOUNT_POINTS = {
    Path("/etc/edgelink"): 0o755,
    Path("/var/lib/edgelink"): 0o700,
    Path("/run/edgelink"): 0o755,
    Path("/var/lib/edgelink-ray"): 0o700,
    Path("/tmp/ray"): 0o1777,  # noqa: S108 - of other people's Ray
    Path("/var/tmp/edgelink-robots-0"): 0o700,  # noqa: S108
}


def make_missing(record: Path) -> None:
    made = _read(record)
    missing = [path for path in MOUNT_POINTS if not path.exists()]
    if not missing:
        return
    write_atomic(record, json.dumps(sorted({*made, *map(str, missing)})))
    for path in missing:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(MOUNT_POINTS[path])


def remove_made(record: Path) -> None:
    """Remove those we made that nobody uses; one that another lab still mounts over stays recorded for it."""
    made = _read(record)
    mounted = mounted_anywhere()
    still_used = [path for path in made if path in mounted]
    for path in set(made) - set(still_used):
        # Removing a directory detaches what other mount namespaces have mounted on it, hence the check above.
        with contextlib.suppress(OSError):
            Path(path).rmdir()
    if still_used:
        write_atomic(record, json.dumps(still_used))
    else:
        record.unlink(missing_ok=True)


def unmount_below(directory: Path) -> None:
    """Detach what somebody has mounted in a lab's directory and left there, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if Path(point).is_relative_to(directory)), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)


def mounted_anywhere() -> set[str]:
    """Every mount point of every mount namespace on this machine."""
    seen: set[NamespaceId | None] = {None}
    points: set[str] = set()
    for pid in procfs.all_pids():
        namespace = namespace_id(f"/proc/{pid}/ns/mnt")
        if namespace in seen:
            continue
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
            points.update(line.split()[4] for line in lines)
            seen.add(namespace)
    return points


def _read(record: Path) -> list[str]:
    if not record.exists():
        return []
    made: list[str] = json.loads(record.read_text())
    return made
