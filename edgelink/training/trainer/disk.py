"""Files that outlive a loss of power. As in edgelink.files, which is not shipped; standard library only."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """What was made, renamed and removed in ``path`` is on the disk when this returns; as far as its file system knows
    such a thing, which some of those on other machines do not.

    Raises:
        OSError: the disk does not take it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
