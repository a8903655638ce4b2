"""What the trainer says while it runs: lines, and on a terminal one more that is written anew with each update."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

_CLEAR = "\r\x1b[2K"


class Voice:
    """Writes to ``out``; progress is a plain line each where that is no terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty()
        self._progress = ""

    def say(self, line: str) -> None:
        """A line that stays."""
        clear = _CLEAR if self._progress else ""
        self._out.write(f"{clear}{line}\n{self._progress}")
        self._out.flush()

    def progress(self, line: str) -> None:
        """How far it is; takes the place of the line before on a terminal."""
        if not self._is_terminal:
            self.say(line)
            return
        # A line that breaks cannot be cleared as one.
        self._progress = line[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"{_CLEAR}{self._progress}")
        self._out.flush()

    def settle(self) -> None:
        """The last progress stays where it is."""
        if self._progress:
            self._out.write("\n")
            self._out.flush()
            self._progress = ""


def duration_text(seconds: float) -> str:
    """Such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
