"""Make ``docs/reference/errors.md`` from the code.

What an error says, and what it tells people to do, stands where it is raised. It is read from there, without running
anything: what is filled in at run time is shown as ``…``.
"""

from __future__ import annotations

import ast
import gc
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import edgelink
from edgelink.errors import EdgelinkError, ExitCode

_WIDTH = 160
_FILLED_IN = "…"
_ELSEWHERE = ("training/trainer", "testing")  # the trainer's errors are Python's, in the user's interpreter

_HEAD = """# Errors: what is said, and what to do

Every failure that EdgeLink names, by its reason. A command that fails prints `edgelink: MESSAGE`, `what to do: HINT`
and `reason: REASON` on stderr and ends with the exit status; a daemon shows reason and message as those of a
[condition](conditions.md), `--json` has them as `reason`, `message` and `hint`. Reasons are stable: scripts may rely
on them. Messages are not; what differs from case to case is shown here as `…`.

*Tried again* means that the daemon goes on trying, and that a script may.

This page is generated (`make reference`).
Symptoms, and which of these they lead to: [troubleshooting](../troubleshooting.md).

## Exit status

These are the exit statuses of every command. `run`, `head -- CMD` and `exec` end with the status of CMD.

EXIT_CODES
"""

_EXIT_CODES = {
    ExitCode.OK: "done; `status`: ready; `doctor`: nothing failed",
    ExitCode.FAILED: "failed; `status`: not ready, or no daemon runs",
    ExitCode.USAGE: "the command was called in a place or a way in which it cannot work",
    ExitCode.NODE_LOST: "Ray on a node died under CMD, and CMD was ended for it (`--on-node-loss`)",
    ExitCode.TRY_AGAIN: "timed out, the relay or somebody else does not answer, or a run is in progress: try again",
    ExitCode.CONFIG: "the configuration, the cluster file, another file or the machine has to be changed first",
}
_OTHERS = ("| 130 | ended by Ctrl+C |", "| other | the exit status of CMD; 128 + n if signal n ended it |")


@dataclass
class _Class:
    """An error class as its source states it; None is inherited."""

    base: str
    reason: str | None = None
    exit_code: str | None = None
    is_retryable: bool | None = None
    doc: str = ""


@dataclass
class Reason:
    """All that is raised with one reason."""

    name: str
    exit_codes: set[int] = field(default_factory=set)
    is_retryable: bool = False
    said: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # (message, hint) → files
    docs: set[str] = field(default_factory=set)


def parse(text: str) -> ast.Module:
    """``ast.parse``, with no garbage collected in its middle: where a finalizer has something formatted that is parsed,
    too, CPython 3.11 loses count and raises SystemError."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()


@cache
def reasons(package: Path = Path(edgelink.__file__).parent) -> dict[str, Reason]:
    """Every reason that an error of ``package`` is raised with, by name."""
    calls: dict[Path, list[ast.Call]] = {}
    definitions: list[ast.ClassDef] = []
    constants: dict[Path, dict[str, str]] = {}
    for path in sorted(package.rglob("*.py")):
        text, place = path.read_text(), path.relative_to(package).as_posix()
        if place.startswith(_ELSEWHERE) or not re.search(r"Error\(|reason=", text):
            continue
        tree = parse(text)
        nodes = list(ast.walk(tree))
        calls[path] = [node for node in nodes if isinstance(node, ast.Call)]
        definitions += [node for node in nodes if isinstance(node, ast.ClassDef)]
        constants[path] = dict(_constants(tree))
    classes = {EdgelinkError.__name__: _Class("", EdgelinkError.reason, "FAILED", False)}
    while new := [item for item in definitions if item.name not in classes and _base(item, classes)]:
        for item in new:
            classes[item.name] = _class(item, classes)
    public = {name: text for each in constants.values() for name, text in each.items() if not name.startswith("_")}
    found: dict[str, Reason] = {}
    for path, made in calls.items():
        for call in made:
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            if name in classes:
                _add(found, classes, name, call, path.relative_to(package).as_posix(), public | constants[path])
    return dict(sorted(found.items()))


def render() -> str:
    """The page."""
    codes = [f"| {int(code)} | {_EXIT_CODES[code]} |" for code in ExitCode]
    table = "\n".join(["| exit status | meaning |", "|---|---|", *codes, *_OTHERS])
    lines = [_HEAD.replace("EXIT_CODES", table)]
    for reason in reasons().values():
        ends_with = " or ".join(map(str, sorted(reason.exit_codes)))
        again = ", tried again" if reason.is_retryable else ""
        lines += [f"## {reason.name}", "", f"Exit status {ends_with}{again}.", ""]
        lines += [f"- {doc}" for doc in sorted(reason.docs)]
        for (message, hint), places in sorted(reason.said.items()):
            text = f"{message}" + (f". *What to do:* {hint}" if hint else "") + f" ({', '.join(sorted(places))})"
            lines += textwrap.wrap(
                _plain(text), _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
            )
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _add(
    found: dict[str, Reason],
    classes: dict[str, _Class],
    name: str,
    call: ast.Call,
    place: str,
    constants: dict[str, str],
) -> None:
    keywords = {item.arg: item.value for item in call.keywords if item.arg}
    given = list(_words(keywords["reason"], constants)) if "reason" in keywords else [None]
    message = _text(call.args[0], constants) if call.args else ""
    said = (message, _text(keywords["hint"], constants) if "hint" in keywords else "")
    for word in given:
        reason = word or _inherited(classes, name, "reason")
        if not isinstance(reason, str) or reason == _FILLED_IN:
            continue
        entry = found.setdefault(reason, Reason(reason))
        entry.exit_codes.add(int(ExitCode[str(_inherited(classes, name, "exit_code"))]))
        entry.is_retryable |= bool(_inherited(classes, name, "is_retryable"))
        if re.search(r"\w", "".join(said)):
            entry.said.setdefault(said, set()).add(f"`{place}`")
        elif classes[name].reason == reason and classes[name].doc:  # the class makes its message itself
            entry.docs.add(classes[name].doc)


def _inherited(classes: dict[str, _Class], name: str, key: str) -> str | bool | None:
    known = classes[name]
    value = getattr(known, key)
    return value if value is not None or not known.base else _inherited(classes, known.base, key)


def _base(item: ast.ClassDef, classes: dict[str, _Class]) -> str:
    return next((base.id for base in item.bases if isinstance(base, ast.Name) and base.id in classes), "")


def _class(item: ast.ClassDef, classes: dict[str, _Class]) -> _Class:
    known = _Class(_base(item, classes), doc=(ast.get_docstring(item) or "").partition("\n")[0])
    for statement in item.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if not isinstance(target, ast.Name) or value is None:
            continue
        if target.id == "reason":
            is_constant = isinstance(value, ast.Constant)
            known.reason = str(value.value) if is_constant else classes[ast.unparse(value).split(".")[0]].reason
        elif target.id == "exit_code":
            known.exit_code = ast.unparse(value).rpartition(".")[2]
        elif target.id == "retryable" and isinstance(value, ast.Constant):
            known.is_retryable = bool(value.value)
    return known


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name) and isinstance(statement.value.value, str):
                    yield target.id, statement.value.value


def _words(node: ast.expr, constants: dict[str, str]) -> Iterator[str | None]:
    """What a reason may be; None: that of the class."""
    if isinstance(node, ast.IfExp):
        yield from _words(node.body, constants)
        yield from _words(node.orelse, constants)
    elif isinstance(node, ast.Constant):
        yield None if node.value is None else str(node.value)
    else:
        yield constants.get(ast.unparse(node), _FILLED_IN)


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    """A message or a hint as people read it, with ``…`` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return constants.get(node.value.id, _FILLED_IN)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, constants) + _text(node.right, constants)
    return constants.get(node.id, _FILLED_IN) if isinstance(node, ast.Name) else _FILLED_IN


def _plain(text: str) -> str:
    """Without what Markdown would take for something else."""
    text = re.sub(r"\s+", " ", re.sub(f"{_FILLED_IN}+", _FILLED_IN, text))
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]])", r"\\\1", part) for part in quoted)
