"""Pages of docs/ that are typed, word for word: their commands, and what they show below each beside what is seen.

A block of a page is a session: `cloud$` in front of a command says where it is typed, lines without a prompt are what
is seen then, or the part of it that matters, with `…` for the rest. A block without any prompt is a file or an excerpt.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
TOKEN = "elt1_…"
EVERYWHERE = "all"
ANYTHING = 200  # characters that a `…` may stand for
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"(\w+)\$ +(.*)")
# What was measured is another figure each time.
_MEASURED = re.compile(r"\d[\d.,/]*(?= (?:ms|s|%|[kMG]B|Mbit/s)(?!\w))")


@dataclass
class Step:
    """A command of the page, on which machine, and the lines that the page shows of its output."""

    machine: str
    command: str
    shown: list[str] = field(default_factory=list)


def steps(page: Path) -> list[Step]:
    """All of them, in the order of the page."""
    found: list[Step] = []
    for block in (block for language, block in _BLOCK.findall(page.read_text()) if not language):
        here_document, is_session = "", False
        for line in block.splitlines():
            prompt = _PROMPT.match(line)
            if here_document:
                found[-1].command += f"\n{line}"
                here_document = "" if line == here_document else here_document
            elif prompt:
                is_session = True
                found.append(Step(prompt[1], prompt[2]))
                here_document = next(iter(re.findall(r"<<'(\w+)'", prompt[2])), "")
            elif is_session and found[-1].command.endswith("\\"):
                found[-1].command += f"\n{line}"
            elif is_session:
                found[-1].shown.append(line)
    return found


class Desk(ABC):
    """Whoever sits at the machines of a page, and copies its tokens from where they were printed."""

    def __init__(self, names: list[str], replaced: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._replaced = dict(replaced or {})
        self._tokens: list[str] = []
        self.took_s: list[tuple[Step, float]] = []

    def do(self, step: Step) -> str:
        """Type a command; what it says, in which is what the page shows."""
        command, started_s = step.command, time.monotonic()
        for written, here in self._replaced.items():
            command = command.replace(written, here)
        if TOKEN in command:
            command = command.replace(TOKEN, self._tokens.pop(0))
        places = self._names if step.machine == EVERYWHERE else [step.machine]
        with ThreadPoolExecutor() as pool:
            said = list(pool.map(lambda name: self.type(name, command, step.shown), places))
        self.took_s.append((step, time.monotonic() - started_s))
        print(f"{step.machine}$ {step.command}   # {self.took_s[-1][1]:.1f} s\n{said[0]}")
        self._tokens += re.findall(r"^elt1_\S+$", said[0], re.MULTILINE)
        for seen in said:
            assert missing(step.shown, seen) == [], f"{step.machine}$ {step.command}\n{seen}"
        return said[0]

    @abstractmethod
    def type(self, machine: str, command: str, shown: list[str]) -> str:
        """What the machine says, both streams as on a terminal; an AssertionError when the command fails.

        Args:
            shown: what is to be seen, for whoever ends a command that does not end by itself.
        """


def missing(shown: list[str], seen: str) -> list[str]:
    """The lines of the page that were not seen, in their order; `…` stands for anything, a measured figure for any
    other. Where lines break is the terminal's affair."""
    rest, lacking = " ".join(seen.split()), []
    for line in shown:
        if found := re.search(_pattern(" ".join(line.split())), rest):
            rest = rest[found.end() :]
        else:
            lacking.append(line)
    return lacking


def _pattern(line: str) -> str:
    parts = re.split(r" ?… ?", line)
    return f".{{0,{ANYTHING}}}?".join(r"[\d.,/]+".join(map(re.escape, _MEASURED.split(part))) for part in parts)
