"""The process that keeps one lab node's mount and host name namespaces alive. A script, run by a bare ``python -IS``.

It is started in the host's namespaces, enters the node's network namespace, gives itself a mount and a UTS namespace,
arranges the node's private files in it, reports ``ok`` (or what went wrong) on a pipe and becomes ``sleep``. It
imports nothing of EdgeLink and nothing outside the standard library, so that eight of them start in a moment.

Argument: one JSON object, see :class:`edgelink.lab.namespaces.HolderSpec`.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

# From linux/sched.h and linux/mount.h; os.unshare and os.setns exist only from Python 3.12 on.
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 4096, 8192, 16384, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    # The bytes must outlive the call: c_char_p does not copy.
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {kind or source} on {target}")


def enter(spec: dict[str, Any]) -> None:
    with Path(spec["netns"]).open("rb") as namespace:
        _check(_libc.setns(namespace.fileno(), CLONE_NEWNET), spec["netns"])
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    # Slave, not private: an unmount on the host (another lab's namespace going away) must not be held up by our copy.
    mount("none", "/", None, MS_REC | MS_SLAVE)
    socket.sethostname(spec["hostname"])


def arrange_files(spec: dict[str, Any]) -> None:
    for source, target in spec["binds"]:
        mount(source, target, None, MS_BIND)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"size={spec['shm_size']},mode=1777")  # noqa: S108
    # A fresh sysfs shows this network namespace's devices in /sys/class/net; the cgroup tree below it is kept.
    cgroups, parked = "/sys/fs/cgroup", spec["scratch"]
    keep_cgroups = os.path.ismount(cgroups)
    if keep_cgroups:
        mount(cgroups, parked, None, MS_BIND | MS_REC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if keep_cgroups:
        mount(parked, cgroups, None, MS_MOVE)


def apply_sysctls(spec: dict[str, Any]) -> None:
    for name, value in spec["sysctls"].items():
        path = Path("/proc/sys") / name
        if path.exists():  # a kernel without IPv6 has nothing to switch off
            path.write_text(value)


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    report = spec["report_fd"]
    os.set_inheritable(report, False)
    try:
        enter(spec)
        arrange_files(spec)
        apply_sysctls(spec)
    except OSError as error:
        os.write(report, f"{error.strerror}: {error.filename}".encode())
        raise SystemExit(1) from error
    os.write(report, b"ok")
    os.chdir("/")
    os.execvp("sleep", ["edgelink-lab-holder", "infinity"])  # noqa: S606


if __name__ == "__main__":
    main()
