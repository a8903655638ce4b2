"""The words of a command, and what a shell is given to run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_SCRIPT_BYTES = 1024 * 1024
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})


@dataclass(frozen=True)
class ShellText:
    """What a shell is given to run: what to call it, and the commands."""

    name: str
    text: str


def shell_text(argv: Sequence[str], directory: Path) -> ShellText | None:
    """What a shell runs in ``argv``. None: no script that can be read, and no commands."""
    for index, word in enumerate(argv):
        if word.endswith((".sh", ".bash")) and (text := _read(directory / word)) is not None:
            return ShellText(word, text)
        if 0 < index < len(argv) - 1 and is_commands_of(argv[index - 1], word):
            return ShellText(f"{Path(argv[index - 1]).name} {word}", argv[index + 1])
    return None


def module_of(words: Iterable[str], modules: Iterable[str]) -> str | None:
    """The module of one of these packages that the words name."""
    return next((word for word in words for module in modules if word.startswith(f"{module}.")), None)


def arguments_of(words: Sequence[str], modules: Iterable[str]) -> list[str]:
    """What stands behind the first module of these packages or Python script: the program's own.

    What comes before it is for who starts it, as ``ray job submit … --`` or ``uv run``; all words where there is none.
    """
    module = module_of(words, modules)
    begins = (n for n, word in enumerate(words, start=1) if word == module or word.endswith(".py"))
    return list(words[next(begins, 0) :])


def is_commands_of(program: str, option: str) -> bool:
    """Whether what follows is commands: ``bash -c``, ``sh -lc``."""
    return Path(program).name in SHELLS and re.fullmatch(r"-[a-z]*c", option) is not None


def _read(script: Path) -> str | None:
    try:
        with script.open(errors="replace") as file:
            return file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return None


def lines_of(text: str) -> Iterable[list[str]]:
    """The logical lines of a script as words."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            yield shlex.split(line, comments=True)
        except ValueError:  # a quote that ends on another line
            continue
