"""What keeps a text from being YAML, in EdgeLink's own words: the line, what is wrong with it, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

_LINE_END = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")  # as YAML counts lines
_BRACKETS = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|(?<!\S)#[^\n]*|[\[{\]}]""")
_KEY_WITHOUT_COLON = re.compile(r"\s*(?:- +)*([A-Za-z_][\w.-]*)(?:\s+([\[{].*?|[^\s#][^:]*?))?\s*(?:#.*)?")
_KEY_WITHOUT_SPACE = re.compile(r"\s*(?:- +)*([A-Za-z_][\w.-]*):([^\s:/].*)")


class YamlMistakeError(Exception):
    """A text that is not YAML, or not the YAML that EdgeLink reads.

    Args:
        line: counted from 1.
        problem: the predicate of a sentence about the line: "is indented by a tab".
        hint: what to do.
    """

    def __init__(self, line: int, problem: str, hint: str) -> None:
        super().__init__(f"line {line} {problem}")
        self.line = line
        self.hint = hint


@contextmanager
def told_plainly(text: str) -> Iterator[None]:
    """Raise YamlMistakeError instead of what PyYAML raises while it reads ``text``."""
    try:
        yield
    except yaml.reader.ReaderError as error:
        problem = f"has the character U+{int(error.character):04X}, which YAML does not allow"
        raise YamlMistakeError(_lines_before(text, error.position) + 1, problem, "remove it") from error
    except yaml.MarkedYAMLError as error:
        raise _mistake(error, text) from error
    except RecursionError as error:
        raise YamlMistakeError(1, "begins what is nested too deeply", "nest less") from error


def key_without_colon(line: str) -> tuple[str, str] | None:
    """Return a key and what to write, where ``line`` has a key and its value but no colon, or no space after it."""
    if found := _KEY_WITHOUT_COLON.fullmatch(line):
        key, value = found.groups()
        return key, f"{key}: {value}" if value else f"{key}:"
    if found := _KEY_WITHOUT_SPACE.fullmatch(line):
        return found[1], f"{found[1]}: {found[2].strip()}"
    return None


def colon_missing(line: int, key: str, wanted: str) -> YamlMistakeError:
    """The mistake in line ``line``, which :func:`key_without_colon` found."""
    return YamlMistakeError(line, f"has no colon and space after {key}", f"write `{wanted}`")


def _lines_before(text: str, position: int) -> int:
    return len(_LINE_END.findall(text[:position]))


def _line_of_open_bracket(text: str, position: int) -> int:
    """The line of the innermost bracket that is open at ``position``, counted from 0."""
    opened: list[int] = []
    for found in _BRACKETS.finditer(text, 0, position):
        if found[0] in "[{":
            opened.append(_lines_before(text, found.start()))
        elif found[0] in "]}" and opened:
            opened.pop()
    return opened[-1] if opened else _lines_before(text, position)


def _mistake(error: yaml.MarkedYAMLError, text: str) -> YamlMistakeError:
    lines = _LINE_END.split(text)
    mark = error.problem_mark or error.context_mark
    assert mark is not None
    at, column = mark.line, mark.column
    begin = (error.context_mark or mark).line
    problem, context = str(error.problem), str(error.context)
    line = lines[at] if at < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return YamlMistakeError(at + 1, "is indented by a tab", "use spaces")
    if line[column : column + 1] == "\t":
        return YamlMistakeError(at + 1, f"has a tab in column {column + 1}", "use a space")
    if "quoted scalar" in context and "end of stream" in problem:
        return YamlMistakeError(begin + 1, "opens a quote that is not closed", "close it")
    if "flow" in context:
        opened = _line_of_open_bracket(text, mark.index)
        return YamlMistakeError(
            opened + 1, "opens a bracket that is not closed rightly", "close it, and check its commas"
        )
    if "expected ':'" in problem or "mapping values" in problem or "expected <block end>" in problem:
        above = next((number for number in range(at - 1, -1, -1) if lines[number].strip()), at)
        for number in dict.fromkeys((begin, at, above)):
            if number < len(lines) and (found := key_without_colon(lines[number])):
                return colon_missing(number + 1, *found)
        if _indent(line) != _indent(lines[above]) and "expected ':'" not in problem and above != at:
            return YamlMistakeError(at + 1, "is indented otherwise than the lines it belongs to", "align it with them")
        return YamlMistakeError(at + 1, f"has a second colon in column {column + 1}", "put the value in quotes")
    if sign := re.search(r"(?:character|the tag|alias) '(.+?)'", problem):
        hint = f"put the value in quotes, if {sign[1]} is part of it"
        return YamlMistakeError(at + 1, f"has {sign[1]} in column {column + 1}, which means nothing there", hint)
    if "another document" in problem:
        return YamlMistakeError(at + 1, "begins a second document", "keep one document in the file")
    if "unhashable key" in problem:
        return YamlMistakeError(at + 1, "has a key that is no text", "put it in quotes")
    return YamlMistakeError(at + 1, f"cannot be read as YAML from column {column + 1} on", "correct it there")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
