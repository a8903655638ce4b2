"""A thief notes what it could do. This file is read while it is root: an ordinary user may not be able to read it.

Nothing but the standard library, for the same reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

done: list[str] = []


@contextmanager
def trying(what: str) -> Iterator[None]:
    """Note ``what`` unless the system forbids it, or hides what it would be done to."""
    try:
        yield
    except OSError:
        return
    done.append(what)


def become(uid: int) -> None:
    """Give up root's rights for those of an ordinary account."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
