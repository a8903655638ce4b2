"""One rlinf on all nodes, or what differs, by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from telling import Words

from edgelink.ray_cluster.node_look import look
from edgelink.training.code_trees import Tree, tree_differences

HEAD = Tree("/head/rlinf", {"a.py": "1", "b.py": "2", "c.py": "3", "d.py": "4", "e.py": "5"})


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (Tree("/there/rlinf", HEAD.files), False),
        (Tree("/there/rlinf", {**HEAD.files, "b.py": "x"}), True),
        (Tree("/there/rlinf", {"x.py": "1", "e.py": "6"}), True),
        (Tree(), True),
        (Tree(error="no answer"), True),
    ],
)
def test_a_difference_is_named(other: Tree, differs: bool, words: Words) -> None:
    """How many files, and the first of them."""
    said = tree_differences(HEAD, [("cloud", HEAD), ("edge-1", other)])
    assert len(said) == differs
    for line in said:
        words(line)


def test_nodes_with_the_same_difference_are_told_together() -> None:
    """A fleet that was not updated is one sentence."""
    old = Tree("/there/rlinf", {**HEAD.files, "b.py": "old"})
    (said,) = tree_differences(HEAD, [("edge-1", old), ("edge-2", HEAD), ("edge-3", old)])
    assert said.startswith("edge-1, edge-3: ")
    assert tree_differences(Tree(), [("edge-1", Tree())]) == [], "nobody has it"


def test_a_node_tells_its_tree_by_path_and_content(tmp_path: Path) -> None:
    """As the interpreter imports it, searched for where Ray looks first; nothing that Python or git put there."""
    package = tmp_path / "src/rlinf"
    for name, text in (("__init__.py", ""), ("a/b.py", "x = 1"), ("a/data.bin", "y"), ("__pycache__/a.pyc", "z")):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (package / "dangling").symlink_to("nowhere")
    first = look({}, "rlinf", [str(tmp_path / "src")])["trees"][""]
    assert first["where"] == str(package.resolve())
    assert set(first["files"]) == {"__init__.py", "a/b.py", "a/data.bin"}
    (package / "a/b.py").write_text("x = 2")
    second = look({}, "rlinf", [str(tmp_path / "src")])["trees"][""]
    assert {name for name in first["files"] if first["files"][name] != second["files"][name]} == {"a/b.py"}
    assert look({}, "no_such_package", [])["trees"] == {"": {"where": None, "files": {}}}


def test_interpreters_are_looked_at_each_with_its_own_tree(tmp_path: Path) -> None:
    """One that is not there is told with the reason; without a package no tree is asked for."""
    gone, broken, works = str(tmp_path / "gone"), tmp_path / "broken", tmp_path / "python"
    broken.write_text("#!/bin/sh\necho of no use >&2\nexit 1\n")
    broken.chmod(0o755)
    works.symlink_to(sys.executable)
    asked = {gone: True, str(broken): True, str(works): True, sys.executable: False}
    found = look(asked, "json", [])
    assert found["missing"] == {gone: os.strerror(2)}
    assert set(found["trees"]) == {"", str(broken), str(works)}
    assert found["trees"][str(broken)] == {"error": "of no use"}
    assert found["trees"][str(works)] == found["trees"][""]
    assert look({gone: False}, None, []) == {"missing": {gone: os.strerror(2)}, "trees": {}}
