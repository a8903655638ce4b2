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
        ("a: [", "is not valid YAML"),
        ("- 1\n", "no cluster section"),
        ("runner: {}\n", "no cluster section"),
        ("cluster: 3\n", "no cluster section"),
        ("num_nodes: ${n}\ncomponent_placement: {}\n", "cluster.num_nodes: '\\${n}': interpolation not supported yet"),
    ],
)
def test_unusable_files_are_named_with_a_hint(tmp_path: Path, text: str, message: str) -> None:
    """The path, the reason and what to do."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)

    with pytest.raises(PlacementError, match=message) as caught:
        load_cluster_file(path)
    assert caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(PlacementError, match=r"none\.yaml: cannot be read: No such file"):
        load_cluster_file(tmp_path / "none.yaml")
