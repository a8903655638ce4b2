"""The script that a process runs: by its executable alone, one Python is like every other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INTERPRETER = re.compile(r"python[\d.]*|(ba|da)?sh")
_NO_FILE = ("-c", "-m")  # options that stand in place of a file


@dataclass(frozen=True)
class Script:
    """A file that an interpreter runs, and the SHA-256 of its content."""

    path: str
    sha256: str


def script_of(argv: Sequence[str]) -> Script | None:
    """Return the script that this command line runs; None for a program of another kind.

    The kernel shows a file that begins with ``#!`` as an argument of its interpreter, so both ways of writing it name
    the same script. Only absolute paths count.
    """
    words = list(argv)
    is_interpreter = bool(words) and _INTERPRETER.fullmatch(Path(words[0]).name) is not None
    if is_interpreter:
        del words[0]
        while words and words[0].startswith("-"):
            if words.pop(0) in _NO_FILE:
                return None
    if not words or not (path := Path(words[0])).is_absolute():
        return None
    try:
        if path.is_file() and (is_interpreter or _names_its_interpreter(path)):
            return Script(words[0], hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError:
        pass  # gone, or not ours to read
    return None


def _names_its_interpreter(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"
