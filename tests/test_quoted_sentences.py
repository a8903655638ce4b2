"""Tests assert reasons, exit statuses and values. Sentences stand in docs/reference and in tests/words, once each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from quoted_sentences import quoted, runs, strings
from telling import FOLDER, entries

_ROOT = Path(__file__).parent.parent
# Strings that quote a sentence of the product. These numbers may only shrink.
_ALLOWED = {"tests": 26, "netns-tests": 36, "netns-tests/benchmarks": 2}


@pytest.mark.parametrize(("folder", "allowed"), _ALLOWED.items())
def test_quoted_sentences_become_fewer(folder: str, allowed: int) -> None:
    found = quoted(_ROOT / folder)
    counted = {path.name: len(texts) for path, texts in found.items()}
    assert sum(counted.values()) <= allowed, f"assert reason and values instead (telling.py): {counted}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a lease has no end", {("a", "lease", "has", "no"), ("lease", "has", "no", "end")}),
        (r"No lease\.? It ended", {("no", "lease", "it", "ended")}),
        ("no lease 7 is here", set()),
        ("ip rule del priority 50", {("ip", "rule", "del", "priority")}),
        ("DELETE FROM leases WHERE hostname is", set()),
        ("RAY_health_check_period_ms of a node", set()),
        ("--in a 10.10.0.1 /etc/a is", set()),
    ],
)
def test_four_words_of_prose_in_a_row_are_a_quotation(text: str, found: set[tuple[str, ...]]) -> None:
    assert runs(text) == found


def test_docstrings_and_what_a_failed_test_says_are_the_tests_own() -> None:
    source = '"""a"""\ndef f():\n  """b"""\n  assert x == "c", f"d{x}"\n  wait_until("w", x)\n  match = f"e{x}"\n'
    assert [text for _, text in strings(ast.parse(source))] == ["c", "e"]


def test_every_sentence_is_heard_by_a_test() -> None:
    """A test that was removed or renamed leaves none in ``tests/words``."""
    keys = {key for path in FOLDER.glob("*.txt") for key in entries(path)}
    assert keys
    for key in keys:
        module, _, test = key.partition(": ")
        assert f"def {test.partition('[')[0]}(" in (FOLDER.parent / f"{module}.py").read_text(), key
