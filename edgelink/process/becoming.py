"""Become another program, as a shell's child would be it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # which a command, and a shell's every child, would inherit


def become(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Execute ``program`` in place of this process. Raises OSError, with this process as it was."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        os.execvpe(program, list(argv), dict(environment))  # noqa: S606 - becomes the command, by purpose
    except OSError:
        for number, handler in former.items():
            signal.signal(number, handler)
        raise


def shell_status(returncode: int) -> int:
    """Return a child's status as a shell gives it: 128 + n if signal n ended it (-n in ``returncode``)."""
    return returncode if returncode >= 0 else 128 - returncode
