"""Be called when something in a directory changes: inotify, which the standard library lacks."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgelink.log import get_logger

# From sys/inotify.h: closed after writing, moved here, made, deleted.
_EVENTS = 0x8 | 0x80 | 0x100 | 0x200
_WRITTEN = 0x2  # while it stays open, as a log does
_BUFFER_BYTES = 1 << 14

_libc = ctypes.CDLL(None, use_errno=True)
_log = get_logger("process")


@contextmanager
def watching(directory: Path, callback: Callable[[], None], *, growing: bool = False) -> Iterator[None]:
    """Call ``callback`` after each burst of changes in ``directory``, from the running event loop.

    ``growing``: also when something is written to a file that stays open.

    Where the kernel gives us no inotify (a limit is reached) it is never called, which is logged: whoever uses it
    looks from time to time anyway.
    """
    descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        _log.warning("process.no_inotify", error=os.strerror(ctypes.get_errno()))
        yield
        return
    loop = asyncio.get_running_loop()

    def drain() -> None:
        os.read(descriptor, _BUFFER_BYTES)  # which file it was does not matter
        callback()

    try:
        if _libc.inotify_add_watch(descriptor, os.fsencode(directory), _EVENTS | (_WRITTEN if growing else 0)) < 0:
            _log.warning("process.no_inotify", path=str(directory), error=os.strerror(ctypes.get_errno()))
        loop.add_reader(descriptor, drain)
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
