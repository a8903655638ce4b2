"""Look for the program and the script of a command before anybody waits for nodes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from edgelink.errors import UsageError
from edgelink.training.command_words import SHELLS, shell_text

_PYTHON = re.compile(r"python[0-9.]*")
# What is at the end of a line's pipe, and ends well whatever came before.
_END_OF_PIPE = re.compile(r"(?<!\|)\|&?\s*(tee|ts|cat|grep|sed|awk)\b(?:[^|;&]|>&|&>)*;?\s*$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs", "-o")  # of Python, and of a shell


def check_command(argv: Sequence[str], directory: Path, verbs: Collection[str], path: str | None = None) -> None:
    """Refuse a command of which it is sure that it cannot begin.

    Args:
        directory: where it runs.
        verbs: EdgeLink's own commands.
        path: the search path of the driver and of its caller. None: not known yet, so the program is not looked for.

    Raises:
        UsageError: the program, its script or EdgeLink's command is not there.
    """
    if path is not None:
        find_program(argv[0], path)
    name = Path(argv[0]).name
    if name == "edgelink" and len(argv) > 1 and not argv[1].startswith("-") and argv[1] not in verbs:
        near = get_close_matches(argv[1], verbs, n=1)
        hint = f"did you mean `edgelink {near[0]}`?" if near else "`edgelink --help` lists its commands"
        raise UsageError(f"edgelink has no command {argv[1]!r}", hint=hint)
    script = _script(argv) if _PYTHON.fullmatch(name) or name in SHELLS else None
    if script is not None and _is_missing(directory / script):
        raise UsageError(f"{script}: there is no such file in {directory}", hint=_near_file(directory / script))


def hides_failure(argv: Sequence[str], directory: Path) -> str | None:
    """Return what to say where a shell script ends in a pipe to ``tee`` or its like. None: it does not.

    Its exit status is theirs. Half of RLinf's scripts are so: a training that failed would never be started again.
    """
    found = shell_text(argv, directory)
    if found is None or "pipefail" in " ".join(argv):
        return None
    text, name = found.text, found.name
    lines = [
        line for line in text.replace("\\\n", " ").splitlines() if not re.match(r"\s*(#.*|fi|done|esac|\})?\s*$", line)
    ]
    end = _END_OF_PIPE.search(lines[-1]) if lines else None
    if end is None or re.search("pipefail|PIPESTATUS", text):
        return None
    cure = f"`bash -o pipefail {name}`" if name.endswith((".sh", ".bash")) else "`bash -o pipefail -c`"
    return (
        f"{name} ends in `| {end[1]}`, so its exit status is that of {end[1]}: a training that fails would count as "
        f"done. Write `set -o pipefail` at its beginning, or run {cure}"
    )


def find_program(name: str, path: str) -> str:
    """Return the path of the program ``name``. Raises UsageError."""
    program = shutil.which(name, path=path)
    if program is None:
        raise UsageError(f"{name}: command not found", hint="correct it, or give its path: no directory in PATH has it")
    return program


def _script(argv: Sequence[str]) -> str | None:
    """Return the file that an interpreter is to run. None: a module, a command, or standard input."""
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or (not word.startswith("--") and re.search("[cms]", word)):
            return None
    return None


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # a directory that may not be searched: the interpreter will say so
        return False


def _near_file(missing: Path) -> str:
    try:
        there = [each.name for each in missing.parent.iterdir()]
    except OSError:
        there = []
    near = get_close_matches(missing.name, there, n=1)
    return f"did you mean {near[0]}?" if near else "correct the path, or `cd` to where the file is"
