"""The words of a command, also of the one that a shell script or ``bash -c`` starts, as far as they can be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_MAX_SCRIPT_BYTES = 1024 * 1024
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_ARRAY = re.compile(r"\[[@*]\]")
_AFTER = re.compile(r"[|;&]|\d*>")  # what begins another command, or says where the output goes
_REST = frozenset({"$@", "$*", "${@}", "${*}", "${@:1}"})


def command_words(argv: Sequence[str], directory: Path, modules: Iterable[str]) -> list[str]:
    """The words of ``argv``, or those of the line that names one of ``modules`` in what a shell is given to run; where
    none does, of the first line that names a Python script.

    What only the shell knows stays as it is written, as in ``trainer.nnodes=$NNODES``.

    Args:
        directory: where ``argv`` runs.
        modules: packages such as ``verl``; a word ``verl.…`` is a module of it.
    """
    found = shell_text(argv, directory)
    lines = [] if found is None else list(lines_of(found.text, found.rest))
    of_module = (line for line in lines if module_of(line, modules) is not None)
    of_script = (line for line in lines if any(each.endswith(".py") for each in line))
    return next(of_module, None) or next(of_script, None) or list(argv)


@dataclass(frozen=True)
class ShellText:
    """What a shell is given to run: what to call it, the commands, and what ``$@`` is in them."""

    name: str
    text: str
    rest: tuple[str, ...]


def shell_text(argv: Sequence[str], directory: Path) -> ShellText | None:
    """What a shell runs in ``argv``. None: no script that can be read, and no commands."""
    for index, word in enumerate(argv):
        rest = tuple(argv[index + 1 :])
        if word.endswith((".sh", ".bash")) and (text := _read(directory / word)) is not None:
            return ShellText(word, text, rest)
        if index and is_commands_of(argv[index - 1], word) and rest:  # the word after the commands is their $0
            return ShellText(f"{Path(argv[index - 1]).name} {word}", rest[0], rest[2:])
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


def known_to_the_shell(arguments: Iterable[str], switches: Collection[str] = ()) -> list[str]:
    """Which of a program's arguments are for the shell to say, as ``"${ARGS[@]}"``: each may be any number of them.

    The value of an option, as in ``--path $DIR``, is one; ``switches`` are options without a value.
    """
    own = list(takewhile(lambda word: not _AFTER.match(word), arguments))
    has_value = [before.startswith("--") and before not in switches and "=" not in before for before in ["", *own]]
    return [
        word
        for word, is_value in zip(own, has_value, strict=False)
        if word.startswith(("$", "`")) and (not is_value or _ARRAY.search(word))
    ]


def is_commands_of(program: str, option: str) -> bool:
    """Whether what follows is commands: ``bash -c``, ``sh -lc``."""
    return Path(program).name in SHELLS and re.fullmatch(r"-[a-z]*c", option) is not None


def _read(script: Path) -> str | None:
    try:
        with script.open(errors="replace") as file:
            return file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return None


def lines_of(text: str, rest: Sequence[str] = ()) -> Iterable[list[str]]:
    """The logical lines of a script as words; ``rest``: what ``$@`` is."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that ends on another line
            continue
        yield [each for word in words for each in (rest if word in _REST else [word])]
