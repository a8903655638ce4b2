"""How tests ask what people are told: by reason and values. A sentence stands in ``tests/words``, or in docs/reference.

Where only the words tell two mistakes apart, a test takes the fixture ``words`` and hands it the sentence.
``make words`` writes the sentences of all such tests anew, and what changed is reviewed as a diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from edgelink.errors import EdgelinkError

FOLDER = Path(__file__).parent / "words"
IS_WRITING = os.environ.get("EDGELINK_WORDS") == "write"
_INDENT = "    "
_NOTICE = re.compile(r"edgelink: .* …")  # that something takes long: on a busy machine only
_NODE_ID = re.compile(r"\b[a-z2-7]{26}\b")
_Error = TypeVar("_Error", bound=EdgelinkError)
_written: dict[str, dict[str, list[str]]] = {}


@contextmanager
def refuses(error: type[_Error], *values: object, reason: str = "") -> Iterator[pytest.ExceptionInfo[_Error]]:
    """The body raises ``error`` with exactly this reason, by default the class's, and tells these values."""
    with pytest.raises(error) as caught:
        yield caught
    said = f"{caught.value.condition_reason}: {caught.value}"
    assert caught.value.condition_reason == (reason or error.reason), said
    for value in values:
        assert str(value) in str(caught.value), f"{value} is not in {said}"


class Words:
    """The sentences that one test hears, in their order, on each surface: a file of ``tests/words``."""

    def __init__(self, module: str, test: str) -> None:
        self._own = module.split("_")[1]
        self._key = f"{module}: {test}"
        self._heard: dict[str, list[str]] = {}

    def __call__(self, said: object, **replaced: object) -> None:
        """Hear a sentence. Ids of nodes stand in the file as NODE, and what else differs (``NAME=value``) as NAME."""
        self.on(self._own, said, **replaced)

    def on(self, surface: str, said: object, **replaced: object) -> None:
        """Hear what is said on this surface; by default that is the first word of the test file's name."""
        text = _NODE_ID.sub("NODE", str(said))
        for name, value in replaced.items():
            text = text.replace(str(value), name)
        lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _NOTICE.fullmatch(line)]
        self._heard.setdefault(surface, []).extend(lines)

    def compare(self) -> None:
        """Hold all that was heard against the files, or keep it for new ones."""
        if IS_WRITING:
            _written[self._key] = self._heard
            return
        for path in {*FOLDER.glob("*.txt"), *(FOLDER / f"{surface}.txt" for surface in self._heard)}:
            known, heard = entries(path).get(self._key, []), self._heard.get(path.stem, [])
            changes = "\n".join(unified_diff(known, heard, lineterm="", n=9))
            assert not changes, f"{path.name} says otherwise; once it is as it should be: `make words`\n{changes}"


@cache
def entries(path: Path) -> dict[str, list[str]]:
    """Return the sentences of each test in a file of ``tests/words``."""
    found: dict[str, list[str]] = {}
    sentences: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(_INDENT):
            sentences.append(line.removeprefix(_INDENT))
        else:
            sentences = found.setdefault(line, [])
    return found


def write_words() -> None:
    """Write what this run has heard; the sentences of modules that were not run stay."""
    run = {key.partition(":")[0] for key in _written}
    surfaces = {surface for heard in _written.values() for surface in heard}
    for path in {*FOLDER.glob("*.txt"), *(FOLDER / f"{surface}.txt" for surface in surfaces)}:
        both = {key: said for key, said in entries(path).items() if key.partition(":")[0] not in run}
        both |= {key: heard[path.stem] for key, heard in _written.items() if heard.get(path.stem)}
        blocks = ("\n".join([key, *(_INDENT + text for text in said)]) for key, said in sorted(both.items()))
        path.write_text("".join(f"{block}\n" for block in blocks))
