"""What the trainer says while it runs: lines, and on a terminal one more that is written anew with each update."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TextIO

_CLEAR = "\r\x1b[2K"


class Voice:
    """Writes to ``out``; progress is a plain line each where that is no terminal.

    A log on a full disk, or a reader that is gone, costs lines and not the training.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._progress = ""

    def say(self, line: str) -> None:
        """Write a line that stays, no wider than the terminal."""
        clear = _CLEAR if self._progress else ""
        self._write(f"{clear}{folded(line) if self._is_terminal else line}\n{self._progress}")

    def progress(self, line: str) -> None:
        """How far it is; takes the place of the line before on a terminal."""
        if not self._is_terminal:
            self.say(line)
            return
        # A line that breaks cannot be cleared as one.
        self._progress = fitted(line, shutil.get_terminal_size().columns - 1)
        self._write(f"{_CLEAR}{self._progress}")

    def settle(self) -> None:
        """The last progress stays where it is."""
        if self._progress:
            self._write("\n")
            self._progress = ""

    def complain(self, line: str) -> None:
        """Why it ends, on standard error."""
        with suppress(OSError):
            print(folded(line) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """What cannot be written to the very end is nobody's any more: Python would end with status 120 for it."""
        for stream in (self._out, sys.stderr):
            try:
                stream.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # what is still in the buffer goes out with the next one
            self._out.write(text)
            self._out.flush()


def folded(line: str) -> str:
    """Return ``line`` broken between words where the terminal ends, with what follows indented further."""
    columns = shutil.get_terminal_size().columns
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts) or line


def fitted(line: str, columns: int) -> str:
    """Return as many fields of ``line``, which two spaces separate, as fit into ``columns``."""
    while len(line) > columns and "  " in line.strip():
        line = line.rstrip().rpartition("  ")[0]
    return line[:columns]


def duration_text(seconds: float) -> str:
    """Such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
