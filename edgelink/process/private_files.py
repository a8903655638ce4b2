"""Let a child see files of ours in place of the machine's, by a mount namespace of its own.

No wrapper program is run: a mount namespace belongs to a thread, so a short-lived thread takes one, mounts, and
starts the child from there. The child is our child, its program is its program, and it costs under a millisecond.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from edgelink.errors import PrivateFilesError
from edgelink.process.identity import Identity, is_alive

# From linux/sched.h and linux/mount.h; os.unshare and os.setns exist only from Python 3.12 on.
_CLONE_FS, _CLONE_NEWNS = 0x00000200, 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class PrivateFile(NamedTuple):
    """``source`` is what the child finds at ``target``; both exist, neither is a directory."""

    source: Path
    target: Path


def call_with(files: Sequence[PrivateFile], action: Callable[[], _T]) -> _T:
    """Run ``action`` where ``files`` are in place; what it starts keeps them, and nobody else sees them.

    Raises:
        PrivateFilesError: the kernel does not let us; ``action`` has not been run.
    """

    def run() -> _T:
        _call("unshare", _libc.unshare(_CLONE_NEWNS))
        # Slave, not private: what is unmounted on the machine must not be held by our child.
        _mount(None, "/", _MS_REC | _MS_SLAVE)
        _place(files)
        return action()

    return _in_own_thread(run)


def renew(identity: Identity, files: Sequence[PrivateFile]) -> None:
    """Put those of ``files`` in place that the running child does not see.

    The kernel takes a mount away when another file is renamed over its target, as most editors do.

    Raises:
        PrivateFilesError: it has no mount namespace of its own, or the kernel does not let us.
        ProcessLookupError: it is gone.
    """
    missing = [file for file in files if not is_seen(identity.pid, file)]
    if not missing:
        return
    if not is_alive(identity):
        raise ProcessLookupError(identity.pid)
    try:
        namespace = os.open(f"/proc/{identity.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(identity.pid) from error
    except OSError as error:
        raise PrivateFilesError(f"pid {identity.pid}: its mount namespace cannot be entered: {error}") from error

    def run() -> None:
        _call("unshare", _libc.unshare(_CLONE_FS))  # a thread enters a mount namespace only with a root of its own
        _call("setns", _libc.setns(namespace, _CLONE_NEWNS))
        _place(missing)

    try:
        if not is_alive(identity):  # again, after the open: what is open is its namespace, not a stranger's
            raise ProcessLookupError(identity.pid)
        if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/mnt")):  # noqa: PTH116 (a magic link)
            raise PrivateFilesError(f"pid {identity.pid}: was started without files of its own")
        _in_own_thread(run)
    finally:
        os.close(namespace)


def is_seen(pid: int, file: PrivateFile) -> bool:
    """Whether a process finds ``file.source`` at ``file.target``."""
    try:
        # An absolute link would be followed from our root, not from the process's: hence the resolving.
        return Path(f"/proc/{pid}/root{file.target.resolve()}").samefile(file.source)
    except OSError:
        return False


def _in_own_thread(action: Callable[[], _T]) -> _T:
    """A thread that is thrown away afterwards, and its namespaces with it."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="private-files") as thread:
        return thread.submit(action).result()


def _place(files: Sequence[PrivateFile]) -> None:
    for file in files:
        _mount(file.source, file.target, _MS_BIND)


def _mount(source: Path | None, target: Path | str, flags: int) -> None:
    origin = None if source is None else os.fsencode(source)
    result = _libc.mount(origin, os.fsencode(target), None, ctypes.c_ulong(flags), None)
    _call(f"mount on {target}", result)


def _call(what: str, result: int) -> None:
    if result == 0:
        return
    code = ctypes.get_errno()
    is_forbidden = code in (errno.EPERM, errno.EACCES)
    raise PrivateFilesError(
        f"{what}: {os.strerror(code)}: no program can be given files of its own here",
        hint="it takes CAP_SYS_ADMIN, which containers do not have by default" if is_forbidden else "",
    )
