"""Count the strings of tests that quote a sentence of the product: four or more of its words in a row.

The rule of a cluster file is a fixed phrase, and no sentence. Reads the syntax tree only.
``python tests/quoted_sentences.py FILE…`` lists the strings of these files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from reference_pages.errors import parse

_ROOT = Path(__file__).parent.parent
_IN_A_ROW = 4
# A word of prose, with the punctuation around it: no path, option, setting, address, number, or word of SQL.
_WORD = re.compile(r"""[("'`]*(?![A-Z]{4})([A-Za-z]+(?:['-][A-Za-z]+)*)[)"'`,;:.?*]*""")
_RULE_AT = {"RuleBrokenError": 0, "add": 3}  # which argument names the rule
# Rules of nftables and lines of Python, which are no sentences.
_CODE = re.compile(r"\b(hook|saddr|daddr|dport|table inet|iifname|oifname)\b|^import ", re.MULTILINE)
_WITH_BODY = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def quoted(folder: Path) -> dict[Path, list[tuple[int, str]]]:
    """For each file of ``folder`` with quotations: line and text of each."""
    known = _of_the_product()
    found = {
        path: [
            (line, text)
            for line, text in strings(parse(path.read_text()))
            if not known.isdisjoint(runs(text)) and not _rules().fullmatch(text)
        ]
        for path in sorted(folder.glob("*.py"))
    }
    return {path: texts for path, texts in found.items() if texts}


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string but docstrings, and what ``assert`` and ``wait_until`` say if they fail."""
    left_out: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, _WITH_BODY) and node.body and isinstance(node.body[0], ast.Expr):
            left_out.add(node.body[0].value)
        elif isinstance(node, ast.Assert) and node.msg is not None:
            left_out.update(item for item in ast.walk(node.msg) if isinstance(item, ast.expr))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "wait_until":
            left_out.add(node.args[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.lineno, node.value


def runs(text: str) -> set[tuple[str, ...]]:
    """Return every run of four words in ``text``, which may be a regular expression."""
    words = [_WORD.fullmatch(part) for part in text.replace("\\", "").split()]
    prose = [[word[1].lower() for word in row if word] for is_prose, row in groupby(words, bool) if is_prose]
    return {tuple(row[at : at + _IN_A_ROW]) for row in prose for at in range(len(row) - _IN_A_ROW + 1)}


@cache
def _of_the_product() -> set[tuple[str, ...]]:
    files = [path for path in (_ROOT / "edgelink").rglob("*.py") if "testing" not in path.parts]
    found = [text for path in files for _, text in strings(parse(path.read_text())) if not _CODE.search(text)]
    return {run for text in found for run in runs(text)}


@cache
def _rules() -> re.Pattern[str]:
    """The rules that :class:`edgelink.placement.problems.Problem` names."""
    nodes = [node for path in (_ROOT / "edgelink/placement").glob("*.py") for node in ast.walk(parse(path.read_text()))]
    named: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            pairs = (each.elts if isinstance(each, ast.Tuple) else [each] for each in (node.targets[0], node.value))
            for name, value in zip(*pairs, strict=False):
                named.setdefault(ast.unparse(name), []).append(value)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for rule in node.args[_RULE_AT.get(called, len(node.args)) :][:1]:
                found.update(map(_pattern, named.get(ast.unparse(rule), [rule])))
    return re.compile("|".join(found - {""}))


def _pattern(rule: ast.expr) -> str:
    """Of a string, or of one that is put together; ``""`` where it is neither."""
    if isinstance(rule, ast.JoinedStr):
        return "".join(_pattern(part) or r"\w+" for part in rule.values)
    return re.escape(rule.value) if isinstance(rule, ast.Constant) and isinstance(rule.value, str) else ""


if __name__ == "__main__":
    named = {Path(name).resolve() for name in sys.argv[1:]}
    for folder in sorted({path.parent for path in named}):
        for path, texts in quoted(folder).items():
            for line, text in texts if path in named else ():
                sys.stdout.write(f"{path.name}:{line}: {text!r}\n")
