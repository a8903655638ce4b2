"""Reading cluster files: the whole configuration or the section, and errors with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgelink.errors import PlacementError
from edgelink.placement import load_cluster_file

SECTION = "num_nodes: 1\ncomponent_placement: {actor: '0'}\n"


@pytest.mark.parametrize(
    "text", [SECTION, "runner: {}\ncluster:\n  num_nodes: 1\n  component_placement: {actor: '0'}\n"]
)
def test_whole_configuration_and_bare_section_read_the_same(tmp_path: Path, text: str) -> None:
    """The same file serves RLinf and ``edgelink plan``."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)

    assert load_cluster_file(path) == {"num_nodes": 1, "component_placement": {"actor": "0"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1 opens a bracket"),
        ("- 1\n", "no cluster section"),
        ("runner: {}\n", "no cluster section"),
        ("cluster: 3\n", "no cluster section"),
        ("cluster:\n  num_node: 2\n", "line 2 has num_node"),
        ("num_nodes: ${n}\ncomponent_placement: {}\n", "cluster.num_nodes: '\\${n}': "),
    ],
)
def test_unusable_files_are_named_with_a_hint(tmp_path: Path, text: str, message: str) -> None:
    """The path, the reason and what to do."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)

    with pytest.raises(PlacementError, match=message) as caught:
        load_cluster_file(path)
    assert caught.value.hint


def doubled(levels: int) -> str:
    """Each level is an alias of the one before, ten times."""
    lines = ["x0: &x0 [1]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (doubled(9), 9),
        ("x: &x [*x]\n", 3),
        ("component_placement: &c {actor: *c}\n", 2),
        ("x: " + "[" * 600 + "]" * 600 + "\n", 1),
        ("x: !!int abc\n", 3),
        ("x: !!int ''\n", 3),
        ("x: !!bool maybe\n", 3),
        ("x: 0x_\n", 3),
        ("x: 0b_\n", 3),
        (f"x: {'9' * 5000}\n", 3),
        (f"x: 0x{'f' * 5000}\n", 3),
        ("x: !!timestamp 2024-99-99\n", 3),
        ("x: !!timestamp soon\n", 3),
    ],
)
def test_a_file_that_no_reader_can_hold_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    """Neither endless nor a traceback."""
    path = tmp_path / "cluster.yaml"
    path.write_text(SECTION + text if text.startswith("x") else f"num_nodes: 1\n{text}")

    with pytest.raises(PlacementError, match=rf"cluster\.yaml: line {line} ") as caught:
        load_cluster_file(path)
    assert caught.value.hint


def test_aliases_may_be_used(tmp_path: Path) -> None:
    """Only what they grow to is counted."""
    path = tmp_path / "cluster.yaml"
    path.write_text(f"num_nodes: 1\ncomponent_placement: {{actor: &a '0', env: *a}}\n{doubled(4)}")

    assert load_cluster_file(path)["component_placement"] == {"actor": "0", "env": "0"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(PlacementError, match=r"none\.yaml: cannot be read: No such file"):
        load_cluster_file(tmp_path / "none.yaml")
