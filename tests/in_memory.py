"""Where temporary files cost no disk: the tests sync thousands of them, and none is looked at after a power cut."""

from __future__ import annotations

import os

_ROOM_BYTES = 256 << 20
_SHARED_MEMORY = "/dev/shm"


def _can_be_used() -> bool:
    """Not in a container that has 64 MB of it, where nothing may be executed."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    has_room = found.f_bavail * found.f_frsize >= _ROOM_BYTES
    return has_room and not found.f_flag & os.ST_NOEXEC and os.access(_SHARED_MEMORY, os.W_OK)


IN_MEMORY = _SHARED_MEMORY if _can_be_used() else None
